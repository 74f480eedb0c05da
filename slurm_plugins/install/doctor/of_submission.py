"""Checks of gsub in slurmctld: the Lua that it runs in, job_submit.lua, the shim, and who else is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_plugins.install.doctor.check import (
    ANYWHERE,
    CONTROLLER,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.elf import ElfError, needed
from slurm_plugins.install.doctor.rights import real, shown
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.layout import SHIM, part
from slurm_plugins.install.rehearse import Candidate, Rehearsal, rehearse

__all__ = ["CHECKS"]

_PLUGIN: Final = "job_submit_lua.so"
_LIBLUA: Final = re.compile(r"liblua-?(5\.\d)")
_LUA_FOLDERS: Final = (
    "/usr/local/lib/lua/{abi}",
    "/usr/local/share/lua/{abi}",
    "/usr/lib/*/lua/{abi}",
    "/usr/lib64/lua/{abi}",
    "/usr/lib/lua/{abi}",
    "/usr/share/lua/{abi}",
)
"""Lua's own search path, of the distributions that carry Slurm; `*` is any folder."""
_CALLS: Final = re.compile(
    r"(?m)^[^\n]*?\b(?:dofile|loadfile)\b[^\n]*?[\"']([^\"'\n]*/(?:gsub|chain)\.lua)[\"']"
)
_REHEARSAL_SECONDS: Final = 8.0
"""It takes one; a whole run of doctor has 25."""
_SOCKET: Final = re.compile(r"\(\s*\{[^}]*?\bsocket\s*=\s*[\"']([^\"'\n]+)[\"']", re.DOTALL)


def _asked_for(sight: Sight) -> bool:
    return any(
        word.lower().removeprefix("job_submit/") == "lua" for word in sight.config.words("JobSubmitPlugins")
    )


def _plugin(sight: Sight) -> Iterator[Said]:
    asked = _asked_for(sight)
    if not _libraries(sight):
        told = f"{_PLUGIN} is not in {sight.config.value('PluginDir')}"
        yield error(told) if asked or sight.has_shim else warning(told)
    elif asked:
        yield ok("slurmctld loads job_submit/lua")
    elif sight.has_shim:
        yield error("JobSubmitPlugins has no lua: gsub's files are there, but slurmctld does not call them")
    else:
        yield warning(
            "JobSubmitPlugins has no lua: gsub is not installed in slurmctld", "gsub admin install --plan"
        )


def _libraries(sight: Sight) -> tuple[Path, ...]:
    """The plugin, where it lies."""
    folders = (folder for folder in sight.config.value("PluginDir").split(":") if folder.startswith("/"))
    found = (Path(folder, _PLUGIN) for folder in folders)
    return tuple(path for path in found if sight.host.stat(path) is not None)


def _abi(sight: Sight) -> str:
    """The Lua that slurmctld runs: "5.1" to "5.4"."""
    libraries = _libraries(sight)
    if not libraries:
        raise UnseenError(f"{_PLUGIN} is not there")
    try:
        names = needed(sight.host.read(libraries[0]) or b"")
    except ElfError as problem:
        raise UnseenError(f"{libraries[0]} cannot be read: {problem}") from problem
    found = next((match[1] for name in names if (match := _LIBLUA.search(name))), "")
    if not found:
        raise UnseenError(f"{libraries[0]} does not tell which Lua it wants")
    return found


def _lua_posix(sight: Sight) -> Iterator[Said]:
    abi = _abi(sight)
    folders = list(_lua_folders(sight, abi))
    there = [
        folder / name
        for folder in folders
        for name in ("posix.so", "posix_c.so", "posix/init.lua", "posix.lua")
        if sight.host.stat(folder / name) is not None
    ]
    if there:
        yield ok(f"slurmctld runs Lua {abi}, which has lua-posix ({there[0]})")
        return
    others = [
        other
        for other in ("5.1", "5.2", "5.3", "5.4")
        if any(sight.host.stat(folder / "posix.so") for folder in _lua_folders(sight, other))
    ]
    also = f" (there is one for Lua {', '.join(others)})" if others else ""
    told = f"slurmctld runs Lua {abi}, for which lua-posix is not installed{also}"
    if sight.has_shim:
        yield error(f"{told}: gsub is left out")
    else:
        yield warning(told)


def _lua_folders(sight: Sight, abi: str) -> Iterator[Path]:
    for pattern in _LUA_FOLDERS:
        before, star, after = pattern.format(abi=abi).partition("*")
        if not star:
            yield Path(before)
            continue
        for name in sight.host.names(Path(before)):
            yield Path(before, name + after)


def _shim(sight: Sight) -> Iterator[Said]:
    if not sight.has_shim:
        return
    folder = sight.layout.libexec
    missing, other = [], []
    for name in SHIM:
        found = sight.host.read(folder / name)
        if found is None:
            missing.append(name)
        elif found != part("slurm_plugins", f"lua/{name}"):
            other.append(name)
    if missing:
        yield error(f"not in {folder}: {', '.join(missing)}; gsub is left out at slurmctld's next start")
    if other:
        yield warning(f"in {folder}, not as this gsub has them: {', '.join(other)}")
    if missing or other:
        return
    stale = _stale(sight)
    if stale:
        yield warning(
            f"{stale} is newer than {sight.layout.job_submit}: slurmctld goes on with what it has loaded",
            f"touch {sight.layout.job_submit}",
        )
    else:
        yield ok(f"{len(SHIM)} files in {folder}, whole, of this gsub")


def _stale(sight: Sight) -> str:
    script = sight.host.stat(real(sight.host, sight.layout.job_submit))
    if script is None:
        return ""
    for name in SHIM:
        found = sight.host.stat(sight.layout.libexec / name)
        # Slurm compares whole seconds
        if found is not None and int(found.mtime) > int(script.mtime):
            return str(sight.layout.libexec / name)
    return ""


def _job_submit(sight: Sight) -> Iterator[Said]:
    path = sight.layout.job_submit
    text = sight.job_submit
    if text is None:
        if _asked_for(sight):
            yield error(f"JobSubmitPlugins=lua, but there is no {path}: slurmctld will not start again")
        return
    code = _without_comments(text)
    calls = _CALLS.findall(code)
    if not calls:
        if sight.has_shim:
            yield error(f"{path} does not call gsub, whose files are there")
        else:
            yield ok(f"{path} is the site's own; gsub is chained to it when it is installed")
        return
    if len(calls) > 1:
        yield error(f"{path} calls gsub {len(calls)} times: each job is asked about as often")
    for call in calls:
        if Path(call).parent != sight.layout.libexec:
            yield error(f"{path} calls {call}, which is not of this installation ({sight.layout.libexec})")
            return
        if sight.host.stat(Path(call)) is None:
            yield error(f"{path} calls {call}, which is not there: gsub is left out")
            return
    if not re.search(r"\bfunction\s+slurm_job_submit\b|\bslurm_job_submit\s*=", code) or not re.search(
        r"\bfunction\s+slurm_job_modify\b|\bslurm_job_modify\s*=", code
    ):
        yield error(
            f"{path} lacks slurm_job_submit or slurm_job_modify: slurmctld does not start with it",
            "function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end",
        )
        return
    if len(calls) == 1:
        yield ok(f"{path} calls gsub once")


def _without_comments(text: str) -> str:
    """Lua without its comments; what stands in texts may go with them, which is no loss here."""
    return re.sub(r"--(?!\[=*\[)[^\n]*", "", re.sub(r"(?s)--\[(=*)\[.*?\]\1\]", "", text))


def _syntax(sight: Sight) -> Iterator[Said]:
    path = sight.layout.job_submit
    if sight.job_submit is None:
        return
    why = "a rehearsal is root's" if not sight.is_root else "slurmctld does not load it"
    if sight.is_root and _asked_for(sight):
        tried = _rehearsed(sight)
        if tried.verdict != "unknown":
            yield _of_rehearsal(path, tried)
            return
        why = tried.seen
    abi = _abi(sight)
    compiler = next((name for name in (f"luac{abi}", f"luac-{abi}") if sight.host.which(name)), None)
    if compiler is None:
        yield unknown(f"there is no luac{abi} on this host to read {path} with, and {why}")
        return
    ran = sight.host.run([compiler, "-p", str(path)], timeout=10.0)
    if ran.ok:
        yield ok(f"{path} is Lua {abi}")
    elif ran.code is None:
        yield unknown(ran.trouble)
    else:
        yield error(
            f"{path} is not Lua {abi}: {ran.trouble}",
            f"mend it: slurmctld would not start; {compiler} -p {path}",
        )


def _rehearsed(sight: Sight) -> Rehearsal:
    """What a slurmctld of its own makes of it, as before an installation."""
    text = (sight.job_submit or "").encode(errors="surrogateescape")
    candidate = Candidate(text, plugins=sight.config.value("JobSubmitPlugins"))
    return rehearse(sight.host, sight.layout, candidate, seconds=_REHEARSAL_SECONDS)


def _of_rehearsal(path: Path, tried: Rehearsal) -> Said:
    if tried.ok:
        return ok(f"{path}: {tried.seen}")
    if tried.verdict == "left out":
        return error(f"{path}: gsub is left out, jobs pass undecided: {tried.seen}", tried.remedy)
    return error(
        f"{path}: {tried.seen}: slurmctld will not start again, or refuses jobs, with it", tried.remedy
    )


def _socket(sight: Sight) -> Iterator[Said]:
    site = sight.site
    path = Path(site.service.socket)
    asked = _SOCKET.search(_without_comments(sight.job_submit or ""))
    wanted = asked[1] if asked else ""
    if not wanted and _CALLS.search(sight.job_submit or ""):
        wanted = "/run/gsub/decision.sock"  # gsub.lua's own
    if wanted and wanted != str(path):
        yield error(
            f"job_submit.lua asks at {wanted}, the service answers at {path}",
            f'[service] socket = "{wanted}" in {sight.layout.site}, then restart gsubd',
        )
        return
    found = sight.host.stat(path)
    if found is None:
        if sight.host.stat(path.parent) is None:
            yield error(f"there is no {path.parent}: gsubd does not run", "systemctl start gsubd")
        elif not sight.is_root and not sight.host.names(path.parent):
            yield unknown(f"{path} is not to be seen by this user")
        else:
            yield error(f"there is no {path}: gsubd does not run", "systemctl start gsubd")
        return
    if found.kind != "socket":
        yield error(f"{path} is no socket", "move it away, then systemctl restart gsubd")
        return
    if found.mode & 0o002:
        yield error(f"everybody may write to {path} (mode {found.mode:04o}): the shim does not trust it")
        return
    yield from _may_connect(sight, path)


def _may_connect(sight: Sight, path: Path) -> Iterator[Said]:
    found = sight.host.stat(path)
    assert found is not None  # noqa: S101  (looked at just now)
    host = sight.host
    name, uid = sight.slurm_user
    owner = host.uid(sight.site.service.user)
    if found.uid not in {0, uid, owner}:
        yield error(f"{path} belongs to {shown(host, found.uid)}: the shim does not trust it")
        return
    if uid not in (0, found.uid):
        numbers, known = _groups(sight, name)
        if found.gid not in known:
            yield unknown(f"{path} belongs to the group {found.gid}, which is not in /etc/group")
            return
        if not (found.gid in numbers and found.mode & 0o060 == 0o060):
            yield error(
                f"slurmctld ({name}) may not connect to {path} (mode {found.mode:04o}, group {found.gid}): "
                "jobs pass undecided"
            )
            return
        for folder in path.parents:
            above = host.stat(folder)
            if above is None or above.kind != "folder":
                continue
            enters = (
                above.mode & 0o001
                or (above.uid == uid and above.mode & 0o100)
                or (above.gid in numbers and above.mode & 0o010)
            )
            if not enters:
                yield error(
                    f"slurmctld ({name}) may not enter {folder} (mode {above.mode:04o})",
                    f"chmod a+x {folder}",
                )
                return
    yield ok(f"slurmctld ({name}) may connect to {path}")


def _groups(sight: Sight, user: str) -> tuple[set[int], set[int]]:
    """The numbers of a user's groups, and all that can be told by name here: those of the files, not of a directory."""
    names = set(sight.host.groups(user))
    numbers, known = {int(name) for name in names if name.isdecimal()}, set()
    for line in (sight.text(Path("/etc/group")) or "").splitlines():
        name, _, number, *_ = [*line.split(":"), "", "", ""]
        if number.isdecimal() and len(number) < 11:
            known.add(int(number))
            if name in names:
                numbers.add(int(number))
    return numbers, known | numbers


def _cli_filter(sight: Sight) -> Iterator[Said]:
    filters = sight.config.words("CliFilterPlugins")
    names = {word.lower().removeprefix("cli_filter/") for word in filters}
    script = sight.layout.slurm_conf.with_name("cli_filter.lua")
    if "lua" not in names:
        yield ok(
            f"CliFilterPlugins is {', '.join(filters) or 'not set'}: gsub's advice at the client is not used"
        )
    elif sight.conf is not None and sight.text(script) is None:
        yield error(f"CliFilterPlugins has lua, but there is no {script} here: sbatch fails on this host")
    else:
        gsub = "gsub" in (sight.text(script) or "")
        yield ok(f"CliFilterPlugins has lua{', with gsub' if gsub else ', of the site'}")


def _ctld_scripts(sight: Sight) -> Iterator[Said]:
    config = sight.config
    found = False
    for key in ("PrologSlurmctld", "EpilogSlurmctld"):
        for value in config.values(key):
            found = True
            path = Path(value)
            if "*" in value or not value.startswith("/"):
                yield ok(f"{key}={value}, the site's; gsub leaves it alone")
                continue
            stat = sight.host.stat(real(sight.host, path))
            if stat is None:
                yield error(f"{key}={value} is not there", f"put it back, or take {key} out of slurm.conf")
            elif not stat.mode & 0o111:
                yield error(f"{key}={value} is not executable", f"chmod 0755 {value}")
            else:
                writes = "AdminComment" in _peek(sight, path)
                told = "writes AdminComment, as jobstats does" if writes else "the site's"
                left = "; gsub leaves AdminComment to it" if key == "EpilogSlurmctld" else ""
                yield ok(f"{key}={value}, {told}{left}")
    completion = config.value("JobCompType").removeprefix("jobcomp/")
    if completion not in ("", "none"):
        found = True
        yield ok(f"JobCompType={completion}, the site's; gsub leaves it alone")
    if not found:
        yield ok("no scripts of the site's run in slurmctld")


def _peek(sight: Sight, path: Path) -> str:
    try:
        return sight.text(path) or ""
    except UnseenError:
        return ""


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "job-submit-plugin",
        "submission",
        "slurmctld has job_submit/lua (`job_submit_lua.so` in PluginDir), and `JobSubmitPlugins` names it.",
        "JobSubmitPlugins=lua in slurm.conf (beside what is there), then scontrol reconfigure; the plugin comes with "
        "Slurm's packages",
        _plugin,
        CONTROLLER,
    ),
    Check(
        "lua-posix",
        "submission",
        "lua-posix is installed for the very Lua that `job_submit_lua.so` is linked with; without it gsub is left out, "
        "and jobs pass undecided.",
        "apt-get install lua-posix, dnf install lua-posix, or luarocks --lua-version=5.x install luaposix; then "
        "touch job_submit.lua",
        _lua_posix,
        CONTROLLER,
    ),
    Check(
        "shim-files",
        "submission",
        "The shim's files are all there, whole, those of this gsub, and loaded: slurmctld loads them again only when "
        "job_submit.lua is newer.",
        "gsub admin upgrade --plan, then gsub admin upgrade",
        _shim,
        CONTROLLER,
    ),
    Check(
        "job-submit-lua",
        "submission",
        "job_submit.lua is there, has both functions that Slurm wants, and calls this installation's gsub once.",
        "gsub admin install --plan, then gsub admin install",
        _job_submit,
        CONTROLLER,
    ),
    Check(
        "job-submit-syntax",
        "submission",
        "slurmctld can be started again with job_submit.lua as it is: root has a slurmctld of its own load it and "
        "take a job, as before an installation; where that cannot be, `luac` reads it.",
        "mend job_submit.lua before slurmctld is restarted",
        _syntax,
        CONTROLLER,
    ),
    Check(
        "decision-socket",
        "submission",
        "The decision socket is where job_submit.lua looks for it, closed to the world, and open to slurmctld's user.",
        "systemctl restart gsubd, with SupplementaryGroups= of SlurmUser's group in its unit",
        _socket,
        CONTROLLER,
    ),
    Check(
        "cli-filter",
        "submission",
        "`CliFilterPlugins`: with lua, cli_filter.lua must be beside slurm.conf on every host where jobs are "
        "submitted.",
        "put cli_filter.lua beside slurm.conf on this host, or take lua out of CliFilterPlugins",
        _cli_filter,
        ANYWHERE,
    ),
    Check(
        "slurmctld-scripts",
        "submission",
        "Scripts of the site's that slurmctld runs (`PrologSlurmctld`, `EpilogSlurmctld`) are there and can be run; "
        "those that write AdminComment, as jobstats does, are told of.",
        "see Prolog and Epilog Guide of Slurm",
        _ctld_scripts,
        CONTROLLER,
    ),
)
