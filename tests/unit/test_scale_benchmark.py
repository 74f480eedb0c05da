"""The controller of `benchmarks.scale`: its configuration, and what is read of sdiag."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale import Figure, job_info_seconds
from benchmarks.scale_cluster import Users, slurm_conf, topology_conf
from site_configs.devcluster.config import Identity, Ports
from site_configs.devcluster.config import slurm_conf as one_node
from site_configs.devcluster.spec import ClusterSpec, Paths

TEXT = one_node(
    ClusterSpec(nodes=1, agents=False), Paths(Path("/c")), Ports(20000), Identity("host", "slurm", "root")
)


def _values(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines()]
    return {key: value for key, _, value in pairs if key not in ("NodeName", "PartitionName")}


def test_all_nodes_answer_on_the_port_of_the_only_slurmd() -> None:
    lines = [line for line in slurm_conf(TEXT, 250).splitlines() if line.startswith("NodeName=")]
    assert [line.split()[0] for line in lines] == [
        "NodeName=n[1-100]",
        "NodeName=n[101-200]",
        "NodeName=n[201-250]",
    ]
    assert all(" Port=20005 " in line and "Gres=gpu:8" in line for line in lines)
    assert lines[2].endswith("Feature=a100,leaf3 State=UNKNOWN")


def test_each_key_stands_once_and_partitions_hold_all_nodes() -> None:
    text = slurm_conf(TEXT, 250)
    keys = [
        line.partition("=")[0] for line in text.splitlines() if not line.startswith(("NodeName", "Partition"))
    ]
    assert len(keys) == len(set(keys))
    partitions = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    assert all(" Nodes=n[1-250] " in line for line in partitions)
    assert {line.split()[0]: "State=DOWN" in line for line in partitions} == {
        "PartitionName=gpu": True,
        "PartitionName=debug": False,
        "PartitionName=urgent": False,
    }


def test_an_allocation_needs_no_slurmd_and_a_silent_node_stays() -> None:
    pinging, silent = _values(slurm_conf(TEXT, 250)), _values(slurm_conf(TEXT, 250, pings=False))
    assert "PrologFlags" not in pinging
    assert (pinging["SlurmdTimeout"], silent["SlurmdTimeout"]) == ("60", "0")
    assert "bf_interval=-1" in _values(slurm_conf(TEXT, 100, loading=True))["SchedulerParameters"]


def test_the_topology_has_a_leaf_for_each_hundred_nodes() -> None:
    assert topology_conf(250).splitlines() == [
        "SwitchName=leaf1 Nodes=n[1-100]",
        "SwitchName=leaf2 Nodes=n[101-200]",
        "SwitchName=leaf3 Nodes=n[201-250]",
        "SwitchName=spine Switches=leaf1,leaf2,leaf3",
    ]


def test_users_are_added_to_the_tables_and_none_is_lost() -> None:
    users = Users("user1", 1000)
    table = users.passwd("root:x:0:0:root:/root:/bin/sh\nuser1:x:1000:1000::/home/user1:/bin/sh\n")
    found = {line.split(":")[0]: int(line.split(":")[2]) for line in table.splitlines()}
    assert found == {"root": 0, "user1": 1000, **users.others}
    assert set(users.uids) == {1000, *users.others.values()}


def test_all_messages_about_jobs_count_and_no_others() -> None:
    report = """Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO                        ( 2003) count:6      ave_time:600000 total_time:3600000
\tREQUEST_JOB_USER_INFO                   ( 2039) count:2      ave_time:5000   total_time:10000
\tREQUEST_NODE_INFO                       ( 2007) count:9      ave_time:20000  total_time:180000
\tREQUEST_JOB_INFO_SINGLE                 ( 2021) count:1      ave_time:500    total_time:500
"""
    assert job_info_seconds(report) == (9, 3.6105)


def test_a_figure_without_a_bound_is_met() -> None:
    assert Figure(1000, "inside, p50 ms", 1e9).is_met
    assert not Figure(1000, "memory, MB", 400.5).is_met
    assert Figure(1000, "memory, MB", 400.0).is_met
