"""slurm.conf is read as Slurm reads it, and every change can be taken out to the byte."""

from __future__ import annotations

import pytest

from site_configs.devcluster import Cluster
from slurm_plugins.install.slurm_conf import (
    SlurmConf,
    edit_files,
    unedit_files,
)
from tests.unit.slurm_plugins.install.fakes import FakeHost
from tests.waiting import wait_until

pytestmark = pytest.mark.all_releases

ODD = """\
 prologEPILOGtimeout = 1\\
7   # a number in two parts
KILLWAIT=3\r
KillWait=4\r
#KillWait=6 \\
MailDomain="a\\#b"
Include odd.conf
UnkillableStepTimeout\t=\t77 \\ # and more
"""


INCLUDED = "MailProg=/bin/false\n"


KEYS_SHOWN = ("PrologEpilogTimeout", "KillWait", "MailDomain", "UnkillableStepTimeout", "MailProg")


def shown(cluster: Cluster) -> dict[str, str]:
    lines = cluster.run(["scontrol", "show", "config"], check=True).stdout.splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line]
    return {name.strip(): value.strip() for name, _, value in pairs}


def reconfigure(cluster: Cluster) -> None:
    """And wait until every slurmd has it: on 24.11 one that is told again meanwhile may miss it, and stays unknown."""
    cluster.run(["scontrol", "reconfigure"], check=True)
    wait_until(lambda: set(cluster.run(["sinfo", "-h", "-N", "-o", "%t"]).stdout.split()) == {"idle"})


@pytest.mark.parametrize("include_first", [False, True])
def test_slurm_reads_what_was_asked(clean: Cluster, include_first: bool) -> None:
    path, more = clean.paths.slurm_conf, clean.paths.etc / "odd.conf"
    before = path.read_bytes()
    odd = ODD.encode() + before if include_first else before + ODD.encode().rstrip(b"\n")
    host = FakeHost()

    def given_to_slurm() -> dict[str, str]:
        for name, text in {path: host.read(path), more: host.read(more)}.items():
            name.write_bytes(text or b"")
        reconfigure(clean)
        seen = shown(clean)
        return {key: seen[key].removesuffix(" sec") for key in KEYS_SHOWN}

    host.put(path, odd)
    host.put(more, INCLUDED)
    try:
        conf = SlurmConf.read(host, path)
        assert given_to_slurm() == {key: conf.value(key) for key in KEYS_SHOWN}
        wanted = {
            "killwait": "9",
            "MailProg": "/bin/true",
            "MailDomain": "two words#",
            "PrologEpilogTimeout": "33",
        }
        for name, text in edit_files(conf, wanted).items():
            host.put(name, text)
        after = SlurmConf.read(host, path)
        assert after.where("MailProg")[-1].path == more
        assert given_to_slurm() == {
            "PrologEpilogTimeout": "33",
            "KillWait": "9",
            "MailDomain": "two words#",
            "UnkillableStepTimeout": "77",
            "MailProg": "/bin/true",
        }
        for name, text in unedit_files(after).items():
            host.put(name, text)
        assert (host.read(path), host.read(more)) == (odd, INCLUDED.encode())
    finally:
        path.write_bytes(before)
        more.unlink(missing_ok=True)
        reconfigure(clean)
