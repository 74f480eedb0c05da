"""A rehearsal tells what slurmctld would do with a job_submit.lua, and leaves no trace on the site or the machine."""

from __future__ import annotations

import base64
import contextlib
import json
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
from slurm_plugins.install.job_submit import chained
from slurm_plugins.install.layout import Layout
from tests.unit.slurm_plugins.install.test_rehearse import FILES, SITE
from tests.waiting import wait_until

NOTHING: dict[str, bytes] = {}

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


# --- preparing, and judging -------------------------------------------------------------------------------------------

HANGS = b"while true do end\n"


@pytest.mark.all_releases
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
    wait_until((meeting / "here").exists)
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
    wait_until((meeting / "here").exists)
    assert left(cluster)
    process.send_signal(number)
    process.wait(20)
    wait_until(lambda: left(cluster) == set(), 20)


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
