"""A rehearsal tells what slurmctld would do with a job_submit.lua, and leaves no trace on the site or the machine."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from slurm_plugins.install.host import Ran
from slurm_plugins.install.job_submit import chained
from slurm_plugins.install.layout import SHIM, Layout, part
from slurm_plugins.install.rehearse import CHILD, Candidate, rehearse
from tests.unit.slurm_plugins.install.fakes import FakeHost

ENDS = b"function slurm_job_modify() return 0 end\nreturn slurm.SUCCESS\n"
SITE = b"function slurm_job_submit(job) job.comment = 'site' return 0 end\n" + ENDS
FILES = {name: part("slurm_plugins", f"lua/{name}") for name in SHIM}

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
