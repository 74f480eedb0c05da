"""A rehearsal: a slurmctld of its own loads what slurmctld would load, before slurmctld does.

A job_submit.lua that cannot be loaded keeps slurmctld from starting, so nothing is put in its way that did not work in
the same release's slurmctld, under the same user, with the same Lua. What runs, and how it is kept apart from the site,
is in `rehearsing`; here it is prepared, and what it told is judged.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from slurm_plugins.install.finding import Finding, Level
from slurm_plugins.install.host import Host, HostError
from slurm_plugins.install.job_submit import is_chained, unchained
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.rehearsing import DEADLINE_S, Task, Told
from slurm_plugins.install.slurm_conf import SlurmConf

__all__ = ["CHILD", "Candidate", "Rehearsal", "Verdict", "judge", "rehearse"]

CHILD: Final = (sys.executable, "-I", "-m", "slurm_plugins.install.rehearsing")

Verdict = Literal["fine", "site", "left out", "broken", "unknown"]
"""fine: loaded, and a job passed through site and gsub.
site: the site's own job_submit.lua cannot be loaded; a slurmctld that runs may hide it, until it starts again.
left out: slurmctld starts and the site's rules apply, without gsub.
broken: slurmctld would not start, or would refuse jobs that it takes now.
unknown: no rehearsal could be made.
"""

_LEVELS: Final[Mapping[Verdict, Level]] = {
    "fine": "ok",
    "site": "error",
    "left out": "error",
    "broken": "error",
    "unknown": "unknown",
}

# Of the site's slurm.conf: how its commands and daemons know each other, and where its plugins lie.
_SHARED: Final = ("AuthType", "AuthInfo", "CredType", "PluginDir")
_LUA_VARIABLES: Final = re.compile(r"LUA_C?PATH(_5_\d)?|LD_LIBRARY_PATH")
_PLUGINS: Final = "JobSubmitPlugins"
_MOST_PARTITIONS: Final = 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """What slurmctld would find.

    Parameters
    ----------
    job_submit: job_submit.lua.
    shim: the shim's files by name; empty: those that lie in the layout's libexec.
    plugins: JobSubmitPlugins.
    """

    job_submit: bytes
    shim: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    plugins: str = "lua"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of one: the verdict, what was seen, what to do; the end of slurmctld's log for who looks closer."""

    verdict: Verdict
    seen: str
    remedy: str = ""
    log: str = ""

    @property
    def ok(self) -> bool:
        """Whether slurmctld may be given it."""
        return self.verdict == "fine"

    @property
    def finding(self) -> Finding:
        """As doctor would say it."""
        return Finding("rehearsal", _LEVELS[self.verdict], self.seen, self.remedy)


@dataclass(frozen=True, slots=True)
class _Sign:
    """A line of the log that says what is wrong; `{0}` in the texts is its first group."""

    pattern: str
    seen: str
    remedy: str


_POSIX: Final = (
    "install lua-posix for the Lua that Slurm is linked with (`ldd .../job_submit_lua.so`; Debian: apt-get install "
    "lua-posix, Red Hat: dnf install lua-posix)"
)
# Why gsub was left out: the line that our part of job_submit.lua logs. The first that fits counts.
_LEFT_OUT: Final = (
    _Sign(
        r"module '(posix[^']*)' not found",
        "Lua's module {0} is missing",
        _POSIX,
    ),
    _Sign(
        r"(undefined symbol: \w+|version mismatch|wrong ELF class|multiple Lua VMs|incompatible numeric types)",
        "lua-posix is built for another Lua than Slurm's ({0})",
        _POSIX,
    ),
    _Sign(
        r"(/\S+): Permission denied",
        "the user of slurmctld may not read {0}",
        "make it and the folders above it readable to everybody: chmod a+rX",
    ),
    _Sign(
        r"cannot open '?(/[^'\s:]+)",
        "{0} is not there, or the user of slurmctld may not read it",
        "run gsub admin install again",
    ),
    _Sign(r"(.+)", "{0}", "run gsub admin install again; if it stays so, please report it"),
)
# Why slurmctld does not start.
_FATAL: Final = (
    _Sign(
        r"[Cc](?:ould|an)(?: no|n')t find (?:the specified plugin name for )?(job_submit/\S+)",
        "Slurm has no plugin {0}",
        "install the package of Slurm with it, or take it out of JobSubmitPlugins",
    ),
    _Sign(
        r"(Failed to open liblua\.so.*)",
        "Slurm finds no Lua ({0})",
        "install the Lua library that Slurm was built with",
    ),
    _Sign(
        r"Unable to stat (\S*job_submit\.lua: .+)",
        "slurmctld cannot read job_submit.lua ({0})",
        "give job_submit.lua to the user of slurmctld to read",
    ),
    _Sign(
        r"cannot open (\S*job_submit\.lua)",
        "slurmctld cannot read job_submit.lua",
        "give job_submit.lua to the user of slurmctld to read",
    ),
    _Sign(
        r"(required function(?:\(s\)|) .*|missing required function.*)",
        "job_submit.lua lacks a function ({0})",
        "define slurm_job_submit and slurm_job_modify in it",
    ),
    _Sign(r"(returned -?\d+ on load)", "job_submit.lua {0}", "end it with: return slurm.SUCCESS"),
    _Sign(
        r"error: .*?job_submit\.lua: \S*?(job_submit\.lua\W.+)",
        "job_submit.lua cannot be loaded: {0}",
        "mend job_submit.lua",
    ),
    _Sign(r"fatal: (.+)", "slurmctld ends at once: {0}", "see slurmctld's own log"),
)
_READY: Final = "gsub: asked after the site's own slurm_job_submit"
_LEFT: Final = re.compile(r"gsub is left out: (.*)")


def rehearse(host: Host, layout: Layout, candidate: Candidate, *, seconds: float = DEADLINE_S) -> Rehearsal:
    """Rehearse; half a second, at most twice `seconds`. Changes nothing, and never raises."""
    try:
        conf = SlurmConf.read(host, layout.slurm_conf)
        task = replace(_task(host, conf, layout, candidate), seconds=seconds)
    except (HostError, _CannotTellError) as error:
        return Rehearsal("unknown", f"no rehearsal: {error}")
    told = _told(host, task)
    first = judge(told, chained=is_chained(candidate.job_submit))
    site = unchained(candidate.job_submit)
    if first.verdict != "broken" or site is None:
        return first
    # Whether it is gsub that breaks it: the same without us.
    alone = _told(host, _without(task, conf, site))
    if not told.answered and not alone.answered and not alone.trouble:
        return replace(judge(alone, chained=False), verdict="site")
    if told.answered and alone.answered and (told.passed, told.said) == (alone.passed, alone.said):
        # Rules that want an account, say, of every job: the shim is in its place, which is what was asked.
        return Rehearsal(
            "fine", f"slurmctld loads job_submit.lua; a bare job is refused by the site: {_tail(told.said)}"
        )
    return first


def judge(told: Told, *, chained: bool) -> Rehearsal:
    """What a rehearsal's child told, in words; `chained`: whether gsub should have been there."""
    log = told.log[-4000:]
    if told.trouble:
        return Rehearsal("unknown", f"no rehearsal: {_line(told.trouble)}")
    if not told.answered:
        if told.ended is None:
            return Rehearsal(
                "unknown", "no rehearsal: a slurmctld of its own did not answer in time", log=log
            )
        seen, remedy = _read(_FATAL, told.log) or (
            f"slurmctld ended with {told.ended}",
            "see slurmctld's own log",
        )
        return Rehearsal("broken", seen, remedy, log)
    if left := _LEFT.search(told.log):
        seen, remedy = _read(_LEFT_OUT, left[1]) or ("gsub is left out", "")
        return Rehearsal("left out", seen, remedy, log)
    if chained and _READY not in told.log:
        return Rehearsal(
            "left out",
            "the site's job_submit.lua takes gsub out again while it is loaded",
            "it sets Lua's debug.sethook: leave that out, or call gsub by hand (docs/shim.md)",
            log,
        )
    if not told.passed:
        return Rehearsal("broken", f"a job is refused: {_tail(told.said)}", "see job_submit.lua's rules", log)
    return Rehearsal("fine", "slurmctld loads job_submit.lua, and a job passes", log=log)


class _CannotTellError(Exception):
    """There is nothing here to rehearse with."""


def _task(host: Host, conf: SlurmConf, layout: Layout, candidate: Candidate) -> Task:
    environment, program = _running(host, conf)
    program = host.which("slurmctld") or program
    if program is None:
        raise _CannotTellError("there is no slurmctld on this host; it is made where slurmctld runs")
    user = ""
    if host.euid() == 0:
        user = conf.value("SlurmUser") or "root"
        if user.isdigit():
            user = host.user(int(user)) or user
        if host.uid(user) is None:
            raise _CannotTellError(f"SlurmUser {user} is no user of this host")
    lines = [f"{key}={value}" for key in _SHARED if (value := conf.value(key)) is not None]
    lines += [*_partitions(conf), f"{_PLUGINS}={candidate.plugins}"]
    return Task(
        slurmctld=program,
        user=user,
        lines=tuple(lines),
        job_submit=_packed(candidate.job_submit),
        libexec=str(layout.libexec),
        shim={name: _packed(body) for name, body in candidate.shim.items()},
        environment=environment,
        # Lines of ours are led to a socket that is not there; by others the service itself would be asked
        options=() if is_chained(candidate.job_submit) else ("--comment=gsub:off",),
    )


def _without(task: Task, conf: SlurmConf, site: bytes) -> Task:
    """The same of the site as it is."""
    plugins = conf.value(_PLUGINS)
    lines = [line for line in task.lines if not line.startswith(_PLUGINS)]
    lines += [f"{_PLUGINS}={plugins}"] if plugins else []
    return replace(task, lines=tuple(lines), job_submit=_packed(site))


def _partitions(conf: SlurmConf) -> list[str]:
    """The site's partitions by name, for rules that look at them; each holds the one node."""
    names = [name for name in conf.values("PartitionName") if re.fullmatch(r"[\w.-]+", name, re.ASCII)]
    names = [name for name in dict.fromkeys(names) if name.upper() != "DEFAULT"][:_MOST_PARTITIONS]
    return [
        f"PartitionName={name} Nodes=ALL State=UP" + (" Default=YES" if number == 0 else "")
        for number, name in enumerate(names)
    ]


def _running(host: Host, conf: SlurmConf) -> tuple[dict[str, str], str | None]:
    """Of the slurmctld that runs: where its Lua looks for modules, and its program."""
    pid = _pid(host, conf)
    try:
        words = (host.read(Path(f"/proc/{pid}/environ")) or b"").split(b"\0") if pid else []
    except HostError:  # not ours to look at
        return {}, None
    pairs = (word.decode(errors="surrogateescape").partition("=") for word in words)
    found = {name: value for name, _, value in pairs if _LUA_VARIABLES.fullmatch(name)}
    program = host.stat(Path(f"/proc/{pid}/exe")) if words else None
    target = program.target.removesuffix(" (deleted)") if program else ""
    return found, target if target.endswith("/slurmctld") else None


def _pid(host: Host, conf: SlurmConf) -> str:
    """slurmctld's, empty where it cannot be told: under systemd newer releases write no file."""
    with contextlib.suppress(HostError):
        text = host.read(Path(conf.value("SlurmctldPidFile") or "/var/run/slurmctld.pid")) or b""
        if (pid := text.strip().decode(errors="replace")).isdigit():
            return pid
    if host.stat(Path("/run/systemd/system")) is not None:
        said = host.run(["systemctl", "show", "--property=MainPID", "--value", "slurmctld.service"])
        if (pid := said.out.strip()).isdigit() and pid != "0":
            return pid
    return ""


def _told(host: Host, task: Task) -> Told:
    told = _told_once(host, task)
    # Its port was free, and somebody else took it meanwhile.
    return _told_once(host, task) if "Address already in use" in told.log else told


def _told_once(host: Host, task: Task) -> Told:
    ran = host.run(CHILD, timeout=task.seconds + 10, stdin=json.dumps(asdict(task)))
    if not ran.ok:
        return Told(trouble=ran.trouble)
    try:
        return Told(**json.loads(ran.out))
    except (ValueError, TypeError):
        return Told(trouble="its answer cannot be read")


def _read(signs: tuple[_Sign, ...], text: str) -> tuple[str, str] | None:
    for sign in signs:
        if found := re.search(sign.pattern, text):
            return sign.seen.format(_line(found[1])), sign.remedy
    return None


def _tail(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return _line(re.sub(r"^sbatch: (error: )?", "", lines[-1])) if lines else "nothing was said"


def _line(text: str) -> str:
    """One line of printable characters: it comes from the site's files, and goes to a terminal."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:300]


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode()
