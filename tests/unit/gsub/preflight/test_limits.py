"""Requests beyond a partition's limits, with stand-ins that print what scontrol and sacctmgr print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gsub.argv import split
from gsub.preflight.limits import limits
from gsub.preflight.look import submission
from gsub.preflight.values import Finding, LeftOutError
from gsub.sbatch_options import Table

PARTITIONS = """\
PartitionName=gpu Default=YES QoS=N/A MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 State=UP TotalNodes=4
PartitionName=debug AllowGroups=ALL Default=NO QoS=N/A MaxNodes=2 MaxTime=00:30:00 MinNodes=0 State=UP TotalNodes=4
PartitionName=old AllowGroups=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN TotalNodes=4
"""
SITE = """\
cluster = "x"
[partitions.gpu]
gpus_per_node = 8
cpus_per_node = 64
memory_per_node = "500G"
[partitions.debug]
gpus_per_node = 4
"""
Said = Callable[..., "list[Finding]"]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").write_text(PARTITIONS)
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "bin").mkdir()
    show = 'if [ -n "$4" ]; then grep "PartitionName=$4 " rows; else cat rows; fi'

    def look(options: str, flags: str = "", broken: str = "") -> list[Finding]:
        for name, text in (("scontrol", broken or show), ("sacctmgr", f"echo '{flags}'")):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        text = "#!/bin/bash\n#SBATCH -J x\n" + "".join(f"#SBATCH {one}\n" for one in options.split("; "))
        (tmp_path / "job.sh").write_text(text)
        environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "GSUB_SITE": str(tmp_path / "site.toml")}
        return list(limits(submission(split(["job.sh"], Table.of_all()), text, environ)))

    return look


@pytest.mark.parametrize(
    ("options", "line", "level", "says"),
    [
        ("-p debug; -t 1:00:00", 4, "error", "partition debug lets a job run for 00:30:00 at most, and 1:00:00"),
        ("-t 10-0", 3, "warning", "partition gpu lets a job run"),
        ("-p debug; -N 3", 4, "error", "partition debug lets a job have 2 nodes at most, and 3"),
        ("-p gpu; --nodes=9", 4, "error", "partition gpu has 4 nodes, and 9"),
        ("-p debug; -t 60; --reservation=x", 4, "warning", "partition debug"),
        ("-p old; -t 60", 3, "warning", "partition old is DOWN"),
        ("-p gpu; -N1; --gres=gpu:9", 5, "warning", "no node of partition gpu has 9 GPUs (a node has 8)"),
        ("--gres=gpu:9", 3, "warning", "no node of any partition has 9 GPUs (a node has 8)"),
        ("-p gpu; -c 16; --ntasks-per-node=8", 4, "warning", "has 128 CPUs (a node has 64)"),
        ("-p gpu; --mem-per-gpu=100G; --gpus-per-node=8", 4, "warning", "has 800 GiB of memory (a node has 500)"),
    ],
)  # fmt: skip
def test_beyond_a_limit(said: Said, options: str, line: int, level: str, says: str) -> None:
    found = said(options)
    assert [(one.line, one.level) for one in found] == [(line, level)], found
    assert says in found[0].what


@pytest.mark.parametrize(
    "options",
    [
        "-p debug; -t 30",
        "-p debug; -t 0:30:00; -N 1-2",
        "-p debug,gpu; -t 2:00:00",
        "-p gpu; -t 7-0; -N 4",
        "-p gpu; -t unlimited",
        "-p debug; -t 2:00:00; --time-min=10",
        "-p nosuch; -t 9-0; -N 99",
        "-p gpu; -t nonsense; -N 2,4",
        "-M other; -p debug; -t 9-0",
        "-p gpu; --gres=gpu:8; -c 64; --mem=500G",
        "--gres=gpu:8",
    ],
)
def test_within_them(said: Said, options: str) -> None:
    assert said(options) == []


def test_a_qos_may_lift_them(said: Said) -> None:
    assert [one.level for one in said("-p debug; -t 60", "DenyOnLimit,PartitionTimeLimit")] == ["warning"]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("echo 'slurm_load_partitions error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
         "the Slurm controller is out of reach"),
        ("sleep 60", "the Slurm controller did not answer scontrol in time"),
    ],
)  # fmt: skip
def test_that_the_cluster_did_not_answer_is_said(said: Said, broken: str, why: str) -> None:
    """It was as if all were within the limits."""
    with pytest.raises(LeftOutError, match=why):
        said("-p debug; -t 60", broken=broken)


def test_a_partition_that_is_not_there_is_sbatchs_to_tell(said: Said) -> None:
    assert said("-p nosuch; -t 60", broken="echo Partition nosuch not found; exit 1") == []
