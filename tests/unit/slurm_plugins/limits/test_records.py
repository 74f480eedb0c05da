"""Limits read from what three releases of Slurm said of the same settings.

The recordings in data/act are of a cluster on which account lab has GrpTRES mem=100000, sub (under lab) has GrpTRES
mem=40000 and MaxTRESPerJob cpu=4,mem=30000, subsub is under sub.
user1 has in lab MaxTRESPerJob 7000, MaxTRESPerNode 6500
and GrpTRES 9000. QOS tight has 4000 a job, 5000 a node, 20000 in all; roomy 50000 a job. All are MiB of memory.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.limits.billing import parse_weights
from slurm_plugins.limits.bounds import Bound, Holder, NotKnownError, find_bounds
from slurm_plugins.limits.records import (
    Associations,
    Qos,
    parse_associations,
    with_default_qos,
    with_static_limits,
)
from tests.paths import DATA

RECORDED = {
    file.stem.removeprefix("assoc_mgr-"): file.read_text()
    for file in sorted((DATA / "act").glob("assoc_mgr-*"))
}


def test_three_releases_are_recorded() -> None:
    assert list(RECORDED) == ["22.05.8", "24.11.5", "26.05.5"]


@pytest.mark.parametrize("release", RECORDED)
def test_what_a_release_says_is_read(release: str) -> None:
    told = parse_associations(RECORDED[release])
    own = told.of_user(1001, "lab", "gpu")
    assert own is not None and own.is_default
    assert (own.limits.per_job, own.limits.per_node) == ({"mem": 7000}, {"mem": 6500})
    assert own.limits.shared == {"GrpTRES": {"mem": 9000}}
    chain = told.accounts_above("subsub")
    assert [a.account for a in chain] == ["subsub", "sub", "lab", "root"] and told.is_whole("subsub")
    assert [a.limits.shared.get("GrpTRES") for a in chain] == [None, {"mem": 40000}, {"mem": 100000}, None]
    assert chain[1].limits.per_job == {"cpu": 4, "mem": 30000}
    assert told.of_user(1001, "subsub", "gpu") != told.of_user(1001, "subsub", "debug")
    assert told.of_user(1001, "other", "gpu") is None and told.of_user(4711, "lab", "gpu") is None
    assert told.default_accounts[1001] == "lab"
    assert set(told.qos) == {"tight", "roomy", "part", "normal"}
    tight = told.qos["tight"]
    assert (tight.limits.per_job, tight.limits.per_node) == ({"mem": 4000}, {"mem": 5000})
    assert tight.limits.shared == {"GrpTRES": {"mem": 20000}} and not tight.whole


def test_users_with_the_same_limits_share_a_value() -> None:
    told = parse_associations(RECORDED["26.05.5"])
    two = [one.limits for one in told.users.values() if one.account == "subsub"]
    assert len(two) == 2 and two[0] is two[1]


def test_nothing_told_is_nothing_known() -> None:
    told = parse_associations("Current Association Manager state\nNo associations currently cached\n")
    assert not told.users and not told.accounts and not told.qos and not told.is_whole("lab")


def test_a_comment_is_no_limit() -> None:
    line = "ClusterName=c Account=lab UserName= Partition= ParentAccount= GrpTRES=mem=5(1) MaxTRESPJ="
    told = parse_associations(f"{line} Comment=x GrpTRES=mem=N(0) MaxTRESPJ=mem=1\n\nQOS Records\n")
    assert told.accounts["lab"].limits.shared == {"GrpTRES": {"mem": 5}}
    assert told.accounts["lab"].limits.per_job == {}


def test_memory_of_gpus_is_no_memory() -> None:
    limits = "GrpTRES=gres/gpumem=5(1) MaxTRESPJ=gres/gpumem=3"
    found = parse_associations(
        f"ClusterName=c Account=lab UserName= Partition= ParentAccount= {limits}"
    ).accounts["lab"]
    assert found.limits.per_job == {"gres/gpumem": 3} and found.limits.shared == {
        "GrpTRES": {"gres/gpumem": 5}
    }


def test_accounts_that_are_above_each_other_end() -> None:
    line = "ClusterName=c Account={} UserName= Partition= ParentAccount={}(1) GrpTRES=\n"
    told = parse_associations(line.format("a", "b") + line.format("b", "a"))
    assert [a.account for a in told.accounts_above("a")] == ["a", "b"] and not told.is_whole("a")


@pytest.mark.parametrize(
    "line",
    [
        "ClusterName=c Account=lab UserName=user1 Partition= GrpTRES=mem=5(1)",
        "ClusterName=c Account=lab UserName= Partition= GrpTRES=cpu=N(0),mem=lots(1)",
        "ClusterName=c Account=lab UserName= Partition= GrpTRES= MaxTRESPJ=mem=5x",
        "\nQOS Records\nQOS=normal GrpTRES=cpu=N(0),mem=N(0)",
        "\nQOS Records\nQOS=normal(1) GrpTRES=mem=N",
    ],
)
def test_what_is_not_understood_is_said(line: str) -> None:
    with pytest.raises(SlurmFormatError):
        parse_associations(line)


@pytest.mark.parametrize(
    ("text", "most"),
    [("", None), ("cpu=3", {"cpu": 3}), ("mem=1500G", {"mem": 1536000}), ("cpu=3,mem=9M", {"cpu": 3, "mem": 9}),
     ("mem=2T", {"mem": 2 << 20}), ("gres/gpu:a100=4", {"gres/gpu:a100": 4}), ("mem=2048K", {"mem": 2})],
)  # fmt: skip
def test_limits_that_slurmdbd_tells_of(text: str, most: dict[str, int] | None) -> None:
    found = with_static_limits(
        Qos("q"), {"MaxTRESPU": text, "MaxTRESRunMinsPA": "cpu=7", "LimitFactor": "0.5"}
    )
    shared = {"MaxTRESRunMinsPerAccount": {"cpu": 7}} | ({"MaxTRESPerUser": most} if most else {})
    assert (found.limits.shared, found.whole, found.factor) == (shared, True, 0.5)


def test_a_factor_and_weights_that_are_none_are_said() -> None:
    with pytest.raises(SlurmFormatError):
        with_static_limits(Qos("q"), {"LimitFactor": "much"})
    for text in ("CPU", "CPU=1.2.3", "CPU=-1", "=1"):
        with pytest.raises(SlurmFormatError):
            parse_weights(text)


def whole(**more: Qos) -> Associations:
    """With what slurmdbd tells of QOS: nothing more."""
    told = parse_associations(RECORDED["26.05.5"])
    return replace(
        told, qos={**{name: with_static_limits(qos, {}) for name, qos in told.qos.items()}, **more}
    )


def test_a_jobs_limits_are_those_of_qos_user_and_accounts() -> None:
    found = find_bounds(whole(), Holder(1001, "Lab", ("normal",), (("gpu", ""),)))
    assert found == (
        Bound("mem", "MaxTRESPerJob", "the user in account lab", 7000, "job"),
        Bound("mem", "MaxTRESPerNode", "the user in account lab", 6500, "node"),
        Bound("mem", "GrpTRES", "the user in account lab", 9000, "shared"),
        Bound("mem", "GrpTRES", "account lab", 100000, "shared"),
    )


def test_a_qos_takes_the_place_of_the_same_limit() -> None:
    found = {
        (b.name, b.whose): b.most for b in find_bounds(whole(), Holder(1001, "lab", ("tight",), (("gpu", ""),)))
    }
    assert found == {
        ("MaxTRESPerJob", "QOS tight"): 4000,
        ("MaxTRESPerNode", "QOS tight"): 5000,
        ("GrpTRES", "QOS tight"): 20000,
    }
    of_partition = find_bounds(whole(), Holder(1001, "lab", ("normal",), (("gpu", "tight"), ("debug", ""))))
    whose = {b.whose for b in of_partition if b.name == "MaxTRESPerJob"}
    assert whose == {"QOS tight", "the user in account lab"}, "it may start in the other partition"
    both = find_bounds(whole(), Holder(1001, "lab", ("tight", "normal"), (("gpu", ""),)))
    assert {b.whose for b in both if b.name == "MaxTRESPerJob"} == {"QOS tight", "the user in account lab"}


def test_a_limit_of_an_account_above_holds_and_a_factor_counts() -> None:
    job = Holder(1001, "subsub", ("half",), (("debug", ""),))
    half = Qos("half", whole=True, factor=0.5)
    most = {(b.name, b.tres): b.most for b in find_bounds(whole(half=half), job) if b.of == "job"}
    assert most == {("MaxTRESPerJob", "cpu"): 2, ("MaxTRESPerJob", "mem"): 15000}


def test_the_default_qos_is_that_of_the_association() -> None:
    rows = [
        ("Lab", "user1", "", "tight", "normal,tight"),
        ("subsub", "user1", "gpu", "", "roomy"),
        ("x", "y", "", "", ""),
    ]
    told = with_default_qos(whole(), rows)
    assert find_bounds(told, Holder(1001, "lab", ("",), (("gpu", ""),)))[0].whose == "QOS tight"
    assert find_bounds(told, Holder(1001, "subsub", ("",), (("gpu", ""),)))[0].whose == "QOS roomy"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Holder(1001, "gone", ("normal",), (("gpu", ""),)), "account gone"),
        (Holder(4711, "lab", ("normal",), (("gpu", ""),)), "its user"),
        (Holder(1001, "lab", ("gone",), (("gpu", ""),)), "QOS gone"),
        (Holder(1001, "lab", ("normal",), (("gpu", "gone"),)), "QOS gone"),
    ],
)
def test_what_is_not_known_is_named(job: Holder, words: str) -> None:
    with pytest.raises(NotKnownError, match=words):
        find_bounds(whole(), job)
    with pytest.raises(NotKnownError, match="each user and account"):
        find_bounds(parse_associations(RECORDED["26.05.5"]), Holder(1001, "lab", ("tight",), (("gpu", ""),)))
