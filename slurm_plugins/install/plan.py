"""The plan of an installation or an upgrade: from what is asked for and how the host is, the steps. Pure.

Their order is what makes each of them harmless when it is the last that is done: what Slurm does not know of comes
first, then the service, then what slurmctld loads, which was rehearsed before, and last the proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slurm_plugins.install import desired as want
from slurm_plugins.install.desired import desired, is_strange
from slurm_plugins.install.facts import Facts, Wish, units_of
from slurm_plugins.install.job_submit import NotChainableError, chained, is_chained
from slurm_plugins.install.slurm_conf import edit_files
from slurm_plugins.install.steps import (
    Answer,
    Command,
    Folder,
    Owner,
    Programs,
    Prove,
    Put,
    Reconfigure,
    Rehearse,
    Step,
    Touch,
)

__all__ = ["Plan", "plan", "targets"]

_PROGRAMS: Final = {"controller": "gsubd", "node": "gsub-noded"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done, in order.

    Parameters
    ----------
    kind: install, upgrade or rollback.
    notes: what is not done, and who must; what to know.
    waits: notes on what this run leaves for a later one.
    """

    kind: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def targets(wish: Wish, facts: Facts) -> frozenset[Path]:
    """The paths that a plan may be about."""
    paths = {thing.path for thing in desired(wish, facts)}
    paths |= {parent for path in paths for parent in path.parents}
    paths |= {wish.layout.site, *want.topology_files(wish)}
    if "controller" in wish.roles:
        paths.add(wish.layout.job_submit)
    return frozenset(paths)


def plan(facts: Facts, wish: Wish) -> Plan:
    """The steps to what is wished for; none where all is so already."""
    files = list(_missing(desired(wish, facts), wish, facts))
    later = [one.path for one in files if isinstance(one, Put) and _is_upgrade(one, wish, facts)]
    files = [one for one in files if one.path not in later]
    notes = list(_notes(wish, facts))
    waits = []
    if wish.upgrade and "controller" in wish.roles and not facts.running:
        why = "slurmctld does not answer, by which an upgrade is proven: nothing is replaced; run this when it runs"
        return Plan("upgrade", (), tuple(notes), (why,))
    if later:
        waits.append(
            f"{len(later)} files here are of another version of gsub than this one: `gsub admin upgrade` replaces them"
        )
    units = [one for one in files if isinstance(one, Put) and one.path.parent == wish.layout.units]
    services = list(_services(wish, facts, units))
    slurm, told, left = _slurm(wish, facts, files)
    notes += told
    waits += left
    rehearsal = [one for one in slurm if isinstance(one, Rehearse)]
    rest = [one for one in slurm if not isinstance(one, Rehearse)]
    if wish.upgrade and rest:
        # What ends with a proof is taken back without it; a node's hooks alone are nothing that Slurm could prove.
        files = [replace(one, together=True) if isinstance(one, Put) else one for one in files]
    folders = [one for one in files if isinstance(one, Folder)]
    others = [one for one in files if not isinstance(one, Folder)]
    tried: list[Step] = []
    if wish.upgrade and (others or services):
        programs = tuple(wish.bin / _PROGRAMS[role] for role in sorted(wish.roles))
        tried = [Programs(programs, why="before they are relied on")]
    steps: list[Step] = [*_users(wish, facts), *folders]
    if wish.upgrade:
        # What fails is to fail before anything is replaced.
        steps += [*tried, *rehearsal, *others, *services, *rest]
    else:
        steps += [*others, *services, *rehearsal, *rest]
    return Plan("upgrade" if wish.upgrade else "install", tuple(steps), tuple(notes), tuple(waits))


def _is_upgrade(put: Put, wish: Wish, facts: Facts) -> bool:
    """Whether a file is whole and ours, of another version: `upgrade` replaces it, `install` does not."""
    return put.shipped and not wish.upgrade and put.before is not None and put.path in facts.ours


def _missing(things: Iterable[Folder | Put], wish: Wish, facts: Facts) -> Iterator[Folder | Put]:
    """What is not so already, and the folders above it."""
    above: set[Path] = set()
    for thing in things:
        for parent in reversed(thing.path.parents):
            over = facts.seen.get(parent)
            if over is not None and over.state.kind == "none" and parent not in above:
                above.add(parent)
                yield Folder(parent, 0o755)
        above.add(thing.path)
        seen = facts.seen.get(thing.path)
        if isinstance(thing, Put) and is_strange(thing, wish, seen):
            continue
        state = seen.state if seen else None
        uid = facts.uids.get(thing.owner.user)
        right = state is not None and state.mode == thing.mode and state.uid == uid
        if isinstance(thing, Folder):
            if not state or state.kind != "folder" or (thing.exact and not right):
                yield thing
        elif seen is None or seen.content is None:
            yield thing
        elif thing.path == wish.layout.site:
            continue  # the site's own by now
        elif seen.content != thing.content or not right:
            yield replace(thing, before=seen.content)


# --- users, services --------------------------------------------------------------------------------------------------


def _users(wish: Wish, facts: Facts) -> Iterator[Command]:
    gsub = facts.users.get("gsub")
    if gsub is None:
        number = [] if wish.uid is None else [str(wish.uid)]
        yield Command(
            ("groupadd", "--system", *(["--gid", *number] if number else []), "gsub"),
            why="the group of the user gsub",
            undo=("groupdel", "gsub"),
            fine=(0, 9),  # it is there
        )
        yield _useradd("gsub", wish.layout.state, number)
    slurm = facts.users.get("slurm", ())
    if "controller" in wish.roles and "slurm" in slurm and "slurm" not in (gsub or ()):
        yield Command(
            ("usermod", "--append", "--groups", "slurm", "gsub"),
            why="the decision socket is given to slurmctld's group",
            undo=("gpasswd", "--delete", "gsub", "slurm"),
            must=False,  # where users come from a directory, it is that which has to know
        )


def _useradd(user: str, home: Path, number: list[str]) -> Command:
    argv = (
        *("useradd", "--system", *(["--uid", *number] if number else []), "--gid", user),
        *("--home-dir", str(home), "--no-create-home", "--shell", "/usr/sbin/nologin", user),
    )
    return Command(
        argv, why="who the service runs as: no right in Slurm", undo=("userdel", user), fine=(0, 9)
    )


def _services(wish: Wish, facts: Facts, units: Collection[Put]) -> Iterator[Command | Answer]:
    """The daemons are started, or, with another version, started again. gsub-act is `gsub admin mode`'s."""
    if not facts.systemd:
        return
    if units:
        yield Command(("systemctl", "daemon-reload"), why="units have changed")
    other = wish.upgrade and facts.version != wish.version
    for unit in units_of(wish.roles):
        if unit == "gsub-act.service":
            if unit in facts.active and other:
                yield Command(("systemctl", "restart", unit), why="the new version")
            continue
        if want.site_of(wish, facts) is None:
            continue
        changed = other or any(put.path.name == unit for put in units)
        if unit not in facts.active:
            yield Command(("systemctl", "enable", "--now", unit), why="now and at each boot")
        elif changed:
            yield Command(("systemctl", "restart", unit), why="the new version; jobs go on meanwhile")
        else:
            continue
        if unit == "gsubd.service":
            yield Answer("127.0.0.1", 6830, why="before Slurm is told of it")


# --- Slurm's own files ------------------------------------------------------------------------------------------------


def _slurm(
    wish: Wish, facts: Facts, files: Collection[Folder | Put]
) -> tuple[list[Step], list[str], list[str]]:
    """The steps that Slurm takes notice of, rehearsal and proof with them; notes; and what has to wait."""
    if "controller" not in wish.roles:
        return [], [], []
    if facts.conf is None or facts.original is None:
        return [], [], [f"nothing of Slurm's was looked at: {facts.conf_problem}"]
    if not facts.running:
        return [], [], ["slurmctld does not answer: only files are placed now; run this again when it runs"]
    layout = wish.layout
    seen = facts.seen.get(layout.job_submit)
    script = seen.content if seen else None
    plugins = list(facts.submit_plugins())
    if script is not None and not facts.loads_lua() and not is_chained(script):
        why = (
            f"{layout.job_submit} is there, but JobSubmitPlugins does not load it: its rules would come into force "
            "with gsub; move it away, or add lua to JobSubmitPlugins yourself, then run this again"
        )
        return [], [], [why]
    try:
        lua = chained(script, layout)
    except NotChainableError as error:
        return [], [], [str(error)]
    if script is not None and is_chained(script) and not wish.upgrade:
        lua = script
    changes: dict[str, str | tuple[str, ...] | None] = {}
    if not facts.loads_lua():
        plugins.append("lua")
        changes["JobSubmitPlugins"] = ",".join(plugins)
    hooking, notes, waits = _hook_lines(wish, facts)
    changes |= hooking
    now = facts.conf.files
    wished = edit_files(facts.original, changes)
    fresh = {path: wished.get(path, facts.original.files[path]) for path in now}
    puts: list[Put] = []
    if lua != script:
        puts.append(
            _put(
                layout.job_submit,
                script,
                lua,
                facts,
                "gsub is asked after the site's own rules" if script else "the site had none",
            )
        )
    for path, text in fresh.items():
        if text != now[path]:
            puts.append(_put(path, now[path], text, facts, ", ".join(changes) or "taken back"))
    shim = any(isinstance(one, Put) and one.path.suffix == ".lua" for one in files)
    if not puts and not shim and not facts.unproven and not (wish.upgrade and files):
        return [], notes, waits
    steps: list[Step] = []
    if lua != script or shim or ("JobSubmitPlugins" in changes and puts):
        shipped = want.shim()
        steps.append(
            Rehearse(",".join(plugins), lua, shipped, why="what slurmctld cannot load never reaches it")
        )
    steps += puts
    if lua == script and (shim or layout.job_submit in facts.unproven):
        steps.append(Touch(layout.job_submit, why="slurmctld loads the shim again"))
    if any(path in now for path in {*facts.unproven, *(put.path for put in puts)}):
        steps.append(Reconfigure(why="Slurm takes its new configuration"))
    shows = tuple((key, value) for key, value in _shows(changes) if key)
    steps.append(Prove(shows, why="else all of it is taken back at once"))
    return steps, notes, waits


def _put(path: Path, before: bytes | None, text: bytes, facts: Facts, why: str) -> Put:
    """One of Slurm's files, with the mode and the owner that it has; as slurm.conf's where it is new."""
    seen = facts.seen.get(path)
    stat = seen.stat if seen and before is not None else None
    if stat is None:
        return Put(path, text, 0o644, why=why, before=before, together=True)
    return Put(path, text, stat.mode, Owner.of(stat), why, before, together=True)


def _shows(changes: Mapping[str, str | tuple[str, ...] | None]) -> Iterator[tuple[str, str]]:
    """What slurmctld is to say of a key that was changed."""
    for key, value in changes.items():
        if key in ("Prolog", "Epilog", "TaskProlog"):
            for line in (value,) if isinstance(value, str) else value or ():
                yield key, line
        elif key == "PrologFlags":
            yield key, "Alloc"
        elif key == "JobSubmitPlugins":
            yield key, "lua"


def _hook_lines(
    wish: Wish, facts: Facts
) -> tuple[dict[str, str | tuple[str, ...] | None], list[str], list[str]]:
    """The changes that have Slurm run the hooks; notes; what has to wait."""
    libexec = wish.layout.libexec
    changes: dict[str, str | tuple[str, ...] | None] = {}
    notes: list[str] = []
    ways = want.ways(wish, facts)
    notes += [way.why for way in ways if way.how == "not"]
    # Else Slurm would run what lies there.
    strange = _strange(wish, facts)
    lines = {way.key: way.lines for way in ways if way.lines and way.file not in strange}
    there = all(line in facts.now(key) for key, values in lines.items() for line in values)
    missing = sorted(set(facts.nodes) - facts.heard) if facts.heard is not None else list(facts.nodes)
    if not there and not wish.nodes_ready and missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        why = f"Prolog and Epilog stay as they are: the service has not heard of {shown}"
        return {}, notes, [f"{why}; install there, then run this again, or say --nodes-ready"]
    changes |= lines
    if any(way.how != "not" for way in ways):
        flags = facts.value("PrologFlags")
        words = [word for word in flags.replace(",", " ").split() if word]
        # Contain implies Alloc (slurm.conf(5)).
        if not {"alloc", "contain"} & {word.lower() for word in words}:
            changes["PrologFlags"] = ",".join([*words, "Alloc"])
    if wish.task_prolog and not facts.values("TaskProlog"):
        changes["TaskProlog"] = str(libexec / "task_prolog")
    return changes, notes, []


def _strange(wish: Wish, facts: Facts) -> tuple[Path, ...]:
    """Where a hook has no place, because something of the site's lies there."""
    things = [thing for thing in desired(wish, facts) if isinstance(thing, Put)]
    return tuple(thing.path for thing in things if is_strange(thing, wish, facts.seen.get(thing.path)))


# --- what is told -----------------------------------------------------------------------------------------------------


def _notes(wish: Wish, facts: Facts) -> Iterator[str]:
    layout = wish.layout
    if facts.euid != 0:
        yield "you are not root: what you may not read is shown as if it were not there"
    site = want.site_of(wish, facts)
    if site is None:
        seen = facts.seen.get(layout.site)
        if seen is not None and seen.content is not None:
            yield f"{layout.site} cannot be used: `gsubd` says why; no daemon is started"
        else:
            why = "no site file: slurm.conf does not tell the cluster's name and host here"
            yield f"{why}; copy the controller's to {layout.site}"
    elif site.policy.mode != "observe" and not facts.ours:
        yield f"{layout.site} says {site.policy.mode}: it is left as it is"
    for path in _strange(wish, facts):
        yield f"{path} is not gsub's and stays: the hook has no place there; move it away and run this again"
    if facts.conf_problem:
        yield f"slurm.conf: {facts.conf_problem}"
    if "controller" in wish.roles:
        yield from _controller_notes(wish, facts)
    if not facts.systemd:
        yield from _start_notes(wish, facts)
    if "gsub" in facts.uids and len(facts.nodes) > 1 and not wish.prefixed:
        yield f"the user gsub has uid {facts.uids['gsub']} here: it must be the same on every host"


def _controller_notes(wish: Wish, facts: Facts) -> Iterator[str]:
    layout = wish.layout
    configless = "enable_configless" in facts.value("SlurmctldParameters").lower()
    if configless:
        yield "configless: the nodes fetch slurm.conf from slurmctld; those with a copy of their own need it copied"
    elif len(facts.nodes) > 1:
        yield (
            f"where {layout.slurm_conf} is a copy on each host: copy it to all of them after a change, "
            "then `scontrol reconfigure` once more"
        )
    for name, _ in facts.controllers()[1:]:
        yield (
            f"backup controller {name}: install there too (--role controller), and copy {layout.slurm_conf} and "
            f"{layout.job_submit.name} to it"
        )
    if value := facts.value("TaskProlog"):
        yield (
            f"TaskProlog={value} stays: to let jobs see how often they were requeued, have it print what "
            f"{layout.libexec / 'task_prolog'} prints"
        )
    port = want.ports(want.site_of(wish, facts))[1]
    if not wish.prefixed:
        yield f"port {port} of this host must be open to nodes and login hosts; nothing connects to a node"


def _start_notes(wish: Wish, facts: Facts) -> Iterator[str]:
    """How the daemons are started where it is not systemd that does."""
    layout, site = wish.layout, want.site_of(wish, facts)
    metrics, api = want.ports(site)
    if "controller" in wish.roles:
        words = [
            f"{wish.bin}/gsubd --site={layout.site} --socket={layout.run}/decision.sock --state={layout.state}",
            f"--listen=127.0.0.1:{metrics} --api=0.0.0.0:{api} --act={layout.act_socket}",
        ]
        yield f"no systemd here: start as the user gsub, now and at each boot: {' '.join(words)}"
    if "node" in wish.roles:
        argv = f"{wish.bin}/gsub-noded --site={layout.site} --run={layout.run_noded} --spool={layout.spool}"
        yield f"no systemd here: start as root, now and at each boot: {argv}"
