"""Taking an installation back: Slurm's own files first, then, when Slurm has let go of it, everything else.

It goes by the journal, and by what gsub's parts are known to be where the journal is gone; so it works after an
installation that was killed, after an admin's own changes, and after itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_plugins.install.desired import desired, is_strange, ways
from slurm_plugins.install.facts import Facts, Wish, gather, look, slurm_env, units_of
from slurm_plugins.install.host import Host
from slurm_plugins.install.job_submit import OWN, is_chained
from slurm_plugins.install.journal import ABSENT, Journal, State
from slurm_plugins.install.layout import HOOKS
from slurm_plugins.install.plan import Plan
from slurm_plugins.install.restore import Back, restored
from slurm_plugins.install.slurm_conf import is_edited
from slurm_plugins.install.steps import Command, Folder, Owner, Prove, Put, Reconfigure, Remove, Step, Wait

__all__ = ["Remains", "forget", "look_back", "undo"]

KEPT_SITE: Final = "site.toml"
"""What a site file that was changed since is kept as, beside where the journal was."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of an installation.

    Parameters
    ----------
    slurm: Slurm's own files that have our part, and what they go back to.
    paths: other paths that are ours, as they are; originals: what was there before, where the journal knows.
    folders: which of them are folders. changed: files among them that are not as we left them.
    named: slurmctld, or slurm.conf where it does not answer, still names what is ours.
    units: those that are there. commands: what takes back commands that were run.
    """

    facts: Facts
    slurm: Mapping[Path, Back] = field(hash=False)
    paths: Mapping[Path, State] = field(hash=False)
    originals: Mapping[Path, State] = field(hash=False)
    copies: Mapping[Path, bytes] = field(hash=False)
    changed: frozenset[Path]
    named: bool
    units: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    links: tuple[Path, ...] = ()


def look_back(host: Host, wish: Wish, journal: Journal) -> Remains:
    """What is left on this host. Raises HostError: a file of it cannot be read."""
    layout = wish.layout
    facts = gather(host, wish, journal, [layout.job_submit, layout.site])
    originals = dict(journal.originals())
    conf = facts.conf.files if facts.conf else {}
    slurm: dict[Path, Back] = {}
    if "controller" in wish.roles:
        for path, text in conf.items():
            if is_edited(text):
                slurm[path] = restored(host, layout, journal, path, originals.get(path))
        script = facts.seen[layout.job_submit].content
        if script is not None and is_chained(script):
            slurm[layout.job_submit] = restored(
                host, layout, journal, layout.job_submit, originals.get(layout.job_submit)
            )
    # With a journal what it does not tell of was there before: the site's, or put there by hand.
    known = {} if journal.entries else {thing.path: thing for thing in desired(wish, facts)}
    theirs = {*conf, layout.job_submit}
    paths, links = {}, []
    for path in dict.fromkeys([*originals, *known, *_trees(wish, records=True)]):
        if path not in theirs and path != layout.keep:
            seen = look(host, path, follow=False)
            thing = known.get(path)
            if seen.state.kind == "link" and not journal.is_ours(path, seen.state):
                links.append(path)  # the site's way to another place, through which we wrote
                continue
            if seen.state.kind != "none" and not (isinstance(thing, Put) and is_strange(thing, wish, seen)):
                paths[path] = seen.state
    kept = {path: journal.copy(state) for path, state in originals.items() if path in paths and state.sha}
    return Remains(
        facts=facts,
        slurm=slurm,
        paths=paths,
        originals=originals,
        copies={path: content for path, content in kept.items() if content is not None},
        changed=frozenset(
            path
            for path, state in paths.items()
            if state.kind == "file"
            and not journal.is_ours(path, state)
            and not (isinstance(one := known.get(path), Put) and host.read(path) == one.content)
        ),
        named=_named(host, wish, facts),
        units=tuple(
            unit
            for unit in units_of(wish.roles)
            if facts.systemd and (host.stat(layout.units / unit) is not None or unit in facts.packaged)
        ),
        commands=journal.undo(),
        links=tuple(links),
    )


def _signs(wish: Wish, facts: Facts) -> tuple[str, ...]:
    """What tells in Slurm's configuration that it runs something of ours."""
    patterns = [line for way in ways(wish, facts) for line in way.lines if line not in facts.values(way.key)]
    return tuple(dict.fromkeys([f"{wish.layout.libexec}/", *patterns]))


def _named(host: Host, wish: Wish, facts: Facts) -> bool:
    """Whether Slurm still runs what is ours here: as slurmctld says, and as this host's own slurm.conf does."""
    said = host.run(["scontrol", "show", "config"], env=slurm_env(host, wish.layout))
    own = [value for key in HOOKS for value in facts.now(key)]
    return any(sign in text for sign in _signs(wish, facts) for text in (said.out, *own))


def undo(remains: Remains, wish: Wish, *, settle: float, records: bool = False) -> Plan:
    """The plan of taking it back. `settle`: seconds for slurmds to follow; `records`: the store goes too."""
    facts, layout = remains.facts, wish.layout
    steps: list[Step] = []
    notes: list[str] = []
    late: list[Step] = []
    for path in remains.links:
        if path in _trees(wish, records=records):
            notes.append(
                f"{path} is a link of the site's: it stays, and what is behind it; remove that yourself"
            )
    for path, back in sorted(remains.slurm.items(), key=lambda item: item[0] == layout.job_submit):
        seen = facts.seen[path]
        if back.why:
            notes.append(f"{path}: {back.why}")
        content = back.content
        if content is None and path == layout.job_submit and facts.loads_lua():
            notes.append(f"{path} stays, without gsub: a line of the site's own asks for it by now")
            content = OWN
        if content is None:
            # Not before slurmctld has stopped asking for it: without it, it would not start.
            late.append(Remove(path, why="gsub's own; the site had none"))
            continue
        state = remains.originals.get(path, ABSENT)
        if state.kind != "file" or back.why:
            state = seen.state  # the site's own by now, its mode and owner too
        owner = Owner("", (state.uid, state.gid))
        steps.append(Put(path, content, state.mode, owner, "without gsub", seen.content))
    rest = [*late, *_others(remains, wish, records=records)]
    anything = bool(steps or rest)
    waits: list[str] = []
    if "controller" in wish.roles and facts.conf is not None:
        if not facts.running and anything:
            waits.append(
                "slurmctld does not answer: only Slurm's own files are put back; run this again when it runs"
            )
            return Plan("rollback", tuple(steps), tuple(notes), tuple(waits))
        if anything:
            # Also where slurm.conf is clean by now: slurmctld may have been started since, and no slurmd was told.
            steps.append(Reconfigure(why="before any file goes"))
            why = "nothing of gsub's is asked for any more"
            steps.append(Prove(hides=_signs(wish, facts), shim=False, why=why))
            steps.append(Wait(settle, why="a slurmd that still runs a hook must find it"))
    elif remains.named and rest:
        why = f"Slurm still runs what is in {layout.libexec}: run this on slurmctld's host first"
        return Plan("rollback", (), tuple(notes), (f"{why}, and where slurm.conf is a copy, copy it anew",))
    return Plan("rollback", (*steps, *rest), tuple(notes), ())


def _others(remains: Remains, wish: Wish, *, records: bool) -> Iterator[Step]:
    """Services, files, folders, users: what Slurm has let go of."""
    for unit in remains.units:
        yield Command(("systemctl", "disable", "--now", unit), why="stopped for good", must=False)
    clear = _trees(wish, records=records)
    own = [path for path in remains.paths if not any(top in path.parents for top in clear)]
    folders = [path for path in own if remains.paths[path].kind == "folder"]
    for path in own:
        if path in folders:
            continue
        yield from _back(path, remains, wish, records=records)
    for top in clear:
        if top in own:
            yield Command(("rm", "-rf", "--one-file-system", "--", str(top)), why="with all that is in it")
    for path in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        original = remains.originals.get(path, ABSENT)
        if path in clear:
            continue
        if original.kind == "folder":
            if (original.mode, original.uid) != (remains.paths[path].mode, remains.paths[path].uid):
                yield Folder(path, original.mode, Owner("", (original.uid, original.gid)), why="as it was")
            continue
        yield Remove(path, why="if nothing else is in it", folder=True)
    if remains.units:
        yield Command(("systemctl", "daemon-reload"), why="units are gone", must=False)
    for argv in remains.commands:
        # What the records belong to stays with them.
        if records or argv[0] not in ("userdel", "groupdel"):
            yield Command(argv, why="as it was", must=False)


def _back(path: Path, remains: Remains, wish: Wish, *, records: bool) -> Iterator[Step]:
    """A file or a link that is ours: what was there before comes back, or nothing."""
    original = remains.originals.get(path, ABSENT)
    if path == wish.layout.site and path in remains.changed and not records:
        place = wish.layout.keep / KEPT_SITE
        seen = remains.facts.seen.get(path)
        if seen is not None and seen.content is not None and original.kind == "none":
            yield Put(place, seen.content, 0o600, why="the site file was changed since: it is kept")
    if original.kind == "file" and path in remains.copies:
        owner = Owner("", (original.uid, original.gid))
        if not original.same(remains.paths[path]):
            yield Put(path, remains.copies[path], original.mode, owner, why="as it was")
        return
    yield Remove(path)


def _trees(wish: Wish, *, records: bool) -> tuple[Path, ...]:
    """Folders that go with all that the daemons have put into them."""
    layout = wish.layout
    node = (layout.spool, layout.run_noded) if "node" in wish.roles else ()
    controller = (layout.run, *((layout.state,) if records else ())) if "controller" in wish.roles else ()
    return (*node, *controller)


def forget(host: Host, journal: Journal, folder: Path) -> None:
    """Remove the journal with its copies, when all is taken back. Raises HostError."""
    originals = journal.originals()
    above = [path for path in folder.parents if originals.get(path) == ABSENT]
    for path in journal.paths():
        host.remove(path)
    for path in (folder, *above):
        if host.stat(path) is not None and not host.names(path):
            host.remove(path)
