"""A rehearsal tells what slurmctld would do with a job_submit.lua, and leaves no trace on the site or the machine."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import Cluster
from slurm_plugins.install.host import Ran
from slurm_plugins.install.job_submit import chained
from slurm_plugins.install.layout import SHIM, Layout, part
from slurm_plugins.install.rehearse import CHILD, Candidate, rehearse
from tests.decisions.conftest import wait
from tests.install.fakes import FakeHost

ENDS = b"function slurm_job_modify() return 0 end\nreturn slurm.SUCCESS\n"
SITE = b"function slurm_job_submit(job) job.comment = 'site' return 0 end\n" + ENDS
FILES = {name: part("slurm_plugins", f"lua/{name}") for name in SHIM}
NOTHING: dict[str, bytes] = {}
HANGS = b"while true do end\n"

# Runs where the cluster's Slurm is: rehearses each candidate that comes on stdin, and prints what came of them.
DRIVER = """\
import base64, dataclasses, json, sys
from pathlib import Path
from slurm_plugins.install.host import LocalHost
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.rehearse import Candidate, rehearse
asked = json.load(sys.stdin)
layout = Layout.under(Path(asked["prefix"]), Path(asked["conf"]))
told = []
for job_submit, shim, plugins in asked["candidates"]:
    files = {name: base64.b64decode(body) for name, body in shim.items()}
    candidate = Candidate(base64.b64decode(job_submit), files, plugins)
    told.append(dataclasses.asdict(rehearse(LocalHost(), layout, candidate, seconds=asked["seconds"])))
json.dump(told, sys.stdout)
"""


def asked(
    cluster: Cluster, *cases: tuple[bytes, dict[str, bytes], str], seconds: float = 20
) -> tuple[list[str], str]:
    """The driver's command and its input."""
    packed = [
        (base64.b64encode(text).decode(), {n: base64.b64encode(b).decode() for n, b in shim.items()}, plugins)
        for text, shim, plugins in cases
    ]
    prefix, conf = str(layout(cluster).libexec.parent), str(cluster.paths.slurm_conf)
    body = json.dumps({"prefix": prefix, "conf": conf, "candidates": packed, "seconds": seconds})
    return [f"{cluster.paths.venv}/bin/python3", "-I", "-c", DRIVER], body


def layout(cluster: Cluster) -> Layout:
    return Layout.under(cluster.paths.root / "rehearsed", cluster.paths.slurm_conf)


MARK = re.compile(rb"/tmp/gsub-rehearsal-[^/\0]+")


def left(cluster: Cluster) -> set[Path]:
    """The folders of rehearsals for this cluster that are there, and those that are gone and yet used by a process."""
    conf = str(cluster.paths.root).encode()
    there = {path: path / "slurm.conf" for path in Path("/tmp").glob("gsub-rehearsal-*")}
    found = {path for path, file in there.items() if file.exists() and conf in file.read_bytes()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                for name in MARK.findall((entry / "environ").read_bytes()):
                    path = Path(name.decode())
                    if not path.exists() and entry.exists():
                        found.add(path)
    return found


CASES: dict[str, tuple[bytes | None, dict[str, bytes], str, str, str]] = {
    # the site's script; the shim; JobSubmitPlugins; what comes of it
    "a site without one": (None, FILES, "lua", "fine", "a job passes"),
    "a site's own": (SITE, FILES, "lua", "fine", "a job passes"),
    "rules that refuse a bare job": (
        SITE.replace(b"return 0 end", b"slurm.log_user('site: no account') return slurm.ERROR end", 1),
        FILES,
        "lua",
        "fine",
        "refused by the site",
    ),
    "a partition that rules look at": (
        SITE.replace(b"(job)", b"(job, parts) local _ = parts.urgent.name", 1),
        FILES,
        "lua",
        "fine",
        "a job passes",
    ),
    "a syntax error": (b"function (\n", FILES, "lua", "site", "job_submit.lua:1:"),
    "an error while it loads": (b"\nerror('no')\n", FILES, "lua", "site", "job_submit.lua:2: no"),
    "a function is missing": (SITE.split(b"\n")[0], FILES, "lua", "site", "lacks a function"),
    "a failure when loaded": (
        SITE.replace(b"slurm.SUCCESS", b"-1"),
        FILES,
        "lua",
        "site",
        "returned -1 on load",
    ),
    "a plugin is missing": (SITE, FILES, "lua,nosuch", "broken", "job_submit/nosuch"),
    "the shim is not there": (SITE, NOTHING, "lua", "left out", "rehearsed/libexec/chain.lua is not there"),
    "a file of it is cut": (
        SITE,
        {**FILES, "wire.lua": FILES["wire.lua"][:900]},
        "lua",
        "left out",
        "wire.lua",
    ),
    "lua-posix is missing": (
        SITE,
        {**FILES, "gsub.lua": b"package.path, package.cpath = '', ''\n" + FILES["gsub.lua"]},
        "lua",
        "left out",
        "Lua's module posix",
    ),
    "lua-posix of another Lua": (
        SITE,
        {**FILES, "gsub.lua": b"package.cpath = '@OTHER@/?.so'\n" + FILES["gsub.lua"]},
        "lua",
        "left out",
        "built for another Lua than Slurm's (undefined symbol",
    ),
    "the site takes the hook": (
        b"debug.sethook()\n" + SITE,
        FILES,
        "lua",
        "left out",
        "takes gsub out again",
    ),
}


@pytest.fixture(scope="module")
def told(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What a rehearsal says of each case; and nobody noticed."""
    modules = cluster.rootfs.root / "usr/lib/x86_64-linux-gnu/lua/5.3"
    other = cluster.paths.root / "rehearsed/other"
    shutil.copytree(modules, other, dirs_exist_ok=True)
    other.parent.chmod(0o755)
    cases = []
    for text, shim, plugins, _, _ in CASES.values():
        files = {name: body.replace(b"@OTHER@", str(other).encode()) for name, body in shim.items()}
        cases.append((chained(text, layout(cluster)), files, plugins))
    cluster.clean()
    logs = {path: path.read_bytes() for path in cluster.paths.log.glob("slurm*.log")}
    jobs = cluster.run(["scontrol", "show", "jobs"]).stdout
    started = cluster.daemons()
    command, body = asked(cluster, *cases)
    done = cluster.run(command, input=body, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    for path, before in logs.items():
        since = path.read_bytes()[len(before) :].decode(errors="replace")
        strange = [
            line for line in since.splitlines() if "error" in line or "rehears" in line or "gsub" in line
        ]
        assert strange == [], path
        assert "submit" not in since
    # Jobs that ended long ago may be forgotten meanwhile; none may come, and none may change
    assert set(cluster.run(["scontrol", "show", "jobs"]).stdout.split("\n\n")) <= set(jobs.split("\n\n"))
    assert cluster.daemons() == started
    assert left(cluster) == set()
    shutil.rmtree(other)
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_it_tells_what_slurmctld_would_do(told: dict[str, dict[str, Any]], case: str) -> None:
    _, _, _, verdict, seen = CASES[case]
    found = told[case]
    assert (found["verdict"], seen in found["seen"]) == (verdict, True), (found["seen"], found["log"])
    assert bool(found["remedy"]) == (verdict != "fine")
    assert "\n" not in found["seen"]


def test_who_may_not_read_the_shim_is_told(cluster: Cluster, user: str | None) -> None:
    if user is None:
        pytest.skip("one user only: all files are theirs")
    libexec = layout(cluster).libexec
    libexec.mkdir(parents=True)
    libexec.parent.chmod(0o755)
    for name, text in FILES.items():
        (libexec / name).write_bytes(text)
    libexec.chmod(0o700)
    command, body = asked(cluster, (chained(SITE, layout(cluster)), {}, "lua"))
    [found] = json.loads(cluster.run(command, input=body).stdout)
    shutil.rmtree(libexec)
    assert (found["verdict"], found["seen"]) == (
        "left out",
        f"the user of slurmctld may not read {libexec}/chain.lua",
    )


def holding(text: bytes, folder: Path) -> bytes:
    """A script whose slurm_job_submit says that it is there, and waits for a file."""
    wait_for = f"while not io.open('{folder}/go') do end io.open('{folder}/there', 'w'):close()"
    return text.replace(b"(job)", f"(job) io.open('{folder}/here', 'w'):close() {wait_for}".encode(), 1)


@pytest.fixture
def meeting(cluster: Cluster) -> Iterator[Path]:
    """A folder where a script and a test can meet."""
    folder = cluster.paths.root / "meeting"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_it_listens_to_this_machine_alone(cluster: Cluster, meeting: Path) -> None:
    command, body = asked(cluster, (chained(holding(SITE, meeting), layout(cluster)), FILES, "lua"))
    process = cluster.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(body)
    process.stdin.close()
    wait((meeting / "here").exists)
    conf = next(path for path in left(cluster) if (path / "slurm.conf").exists()) / "slurm.conf"
    port = int(
        next(line for line in conf.read_text().splitlines() if "SlurmctldPort" in line).partition("=")[2]
    )
    listening = {
        row[1].split(":")[0]
        for table in ("tcp", "tcp6")
        for row in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if row[3] == "0A" and int(row[1].split(":")[1], 16) == port
    }
    text = conf.read_text()
    (meeting / "go").touch()
    assert process.stdout
    [found] = json.loads(process.stdout.read())
    assert process.wait(20) == 0
    process.stdout.close()
    assert found["verdict"] == "fine"
    assert listening == {"0100007F"}
    assert "AccountingStorageHost" not in text
    assert [line for line in text.splitlines() if "NodeAddr" in line] == [
        line for line in text.splitlines() if "NodeAddr=127.0.0.1 " in line
    ]
    assert left(cluster) == set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_who_started_it(cluster: Cluster, meeting: Path, number: signal.Signals) -> None:
    command, body = asked(cluster, (chained(holding(SITE, meeting), layout(cluster)), FILES, "lua"))
    process = cluster.popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin
    process.stdin.write(body)
    process.stdin.close()
    wait((meeting / "here").exists)
    assert left(cluster)
    process.send_signal(number)
    process.wait(20)
    wait(lambda: left(cluster) == set(), 20)


def test_one_that_hangs_ends_in_time(cluster: Cluster) -> None:
    command, body = asked(cluster, (chained(HANGS + SITE, layout(cluster)), FILES, "lua"), seconds=2)
    started = time.monotonic()
    [found] = json.loads(cluster.run(command, input=body).stdout)
    assert time.monotonic() - started < 15
    assert (found["verdict"], found["seen"]) == (
        "unknown",
        "no rehearsal: a slurmctld of its own did not answer in time",
    )
    assert left(cluster) == set()


# --- preparing, and judging -------------------------------------------------------------------------------------------

HOME = Layout(slurm_conf=Path("/etc/slurm/slurm.conf"))
TOLD: dict[str, Any] = {
    "answered": True,
    "passed": True,
    "log": "gsub: asked after the site's own slurm_job_submit",
}
CONF = """\
ClusterName=lab
SlurmUser=slurm
AuthInfo=socket=/run/munge/x
PluginDir=/opt/slurm/lib
AccountingStorageHost=db
NodeName=n1 NodeAddr=10.0.0.1
PartitionName=DEFAULT Nodes=n1
PartitionName=gpu Default=YES
PartitionName=debug
PartitionName=weird;name
SlurmctldPidFile=/run/slurmctld.pid
"""


def host(**told: Any) -> FakeHost:
    found = FakeHost()
    found.put("/etc/slurm/slurm.conf", CONF)
    found.account("slurm", 64030)
    found.programs["slurmctld"] = "/opt/slurm/sbin/slurmctld"
    found.answer(CHILD, Ran(0, json.dumps({**TOLD, **told})))
    return found


def test_the_task_holds_what_the_site_shares_and_no_more() -> None:
    there = host()
    there.put("/run/slurmctld.pid", "77\n")
    there.put("/proc/77/environ", "LUA_PATH=/opt/lua/?.lua\0HOME=/root\0LD_PRELOAD=/x.so\0")
    assert rehearse(there, HOME, Candidate(chained(SITE, HOME), FILES, "lua,limits")).ok
    [call] = there.calls
    assert call.argv == CHILD
    task = json.loads(call.stdin)
    assert (task["slurmctld"], task["user"]) == ("/opt/slurm/sbin/slurmctld", "slurm")
    assert task["environment"] == {"LUA_PATH": "/opt/lua/?.lua"}
    assert task["lines"] == [
        "AuthInfo=socket=/run/munge/x",
        "PluginDir=/opt/slurm/lib",
        "PartitionName=gpu Nodes=ALL State=UP Default=YES",
        "PartitionName=debug Nodes=ALL State=UP",
        "JobSubmitPlugins=lua,limits",
    ]
    assert there.changes == []


def test_a_port_that_was_taken_meanwhile_is_tried_again() -> None:
    there = host()
    answers = iter([{"answered": False, "ended": 1, "log": "fatal: bind: Address already in use"}, TOLD])
    there.answer(CHILD, lambda _, __: Ran(0, json.dumps(next(answers))))
    assert rehearse(there, HOME, Candidate(chained(SITE, HOME))).ok


def test_under_systemd_the_environment_is_found_too() -> None:
    there = host()
    there.folder("/run/systemd/system")
    there.says("systemctl show --property=MainPID", "88\n")
    there.put("/proc/88/environ", "LUA_CPATH_5_1=/opt/lua/?.so\0")
    assert rehearse(there, HOME, Candidate(chained(SITE, HOME))).ok
    assert json.loads(there.calls[-1].stdin)["environment"] == {"LUA_CPATH_5_1": "/opt/lua/?.so"}


def test_where_none_can_be_made_it_says_so() -> None:
    def seen(there: FakeHost) -> str:
        found = rehearse(there, HOME, Candidate(chained(SITE, HOME)))
        assert found.verdict == "unknown"
        assert not found.ok
        assert found.finding.level == "unknown"
        return found.seen

    there = host()
    there.lose("/etc/slurm/slurm.conf")
    assert seen(there) == "no rehearsal: /etc/slurm/slurm.conf: no such file"
    there = host()
    del there.programs["slurmctld"]
    assert "there is no slurmctld on this host" in seen(there)
    there = host()
    there.put("/etc/slurm/slurm.conf", "SlurmUser=nobody-here\n")
    assert seen(there) == "no rehearsal: SlurmUser nobody-here is no user of this host"
    for answer in (Ran(0, "{"), Ran(0, '{"x":1}'), Ran(0, "[]")):
        there = host()
        there.answer(CHILD, answer)
        assert seen(there) == "no rehearsal: its answer cannot be read"
    there = host()
    there.answer(CHILD, Ran(None, why="python did not answer in 30 s"))
    assert seen(there) == "no rehearsal: python did not answer in 30 s"
    assert (
        seen(host(trouble="sbatch is not on this machine")) == "no rehearsal: sbatch is not on this machine"
    )


def test_what_is_broken_with_gsub_only_is_gsubs() -> None:
    there = host()

    def answer(_: tuple[str, ...], stdin: str) -> Ran:
        with_us = b">>> gsub" in base64.b64decode(json.loads(stdin)["job_submit"])
        return Ran(
            0,
            json.dumps(
                {**TOLD, "passed": not with_us, "said": "sbatch: error: \x1b[2Jno" if with_us else ""}
            ),
        )

    there.answer(CHILD, answer)
    found = rehearse(there, HOME, Candidate(chained(SITE, HOME)))
    assert (found.verdict, found.seen) == ("broken", "a job is refused: ?[2Jno")
    assert len(there.calls) == 2


def test_without_root_it_runs_as_who_we_are() -> None:
    there = dataclasses.replace(host(), whoami=1000)
    assert rehearse(there, HOME, Candidate(chained(SITE, HOME))).ok
    assert json.loads(there.calls[0].stdin)["user"] == ""


def test_what_is_no_task_ends_it() -> None:
    done = subprocess.run(CHILD, input="{", capture_output=True, text=True, cwd="/", env=dict(os.environ))
    assert done.returncode != 0
