"""Limits of memory: read from what three releases of Slurm said of the same settings, and obeyed one by one.

The recordings in data/ are of a cluster on which account lab has GrpTRES 100000, sub (under lab) GrpTRES 40000 and
MaxTRESPerJob 30000, subsub is under sub; user1 has in lab MaxTRESPerJob 7000, MaxTRESPerNode 6500 and GrpTRES 9000. QOS
tight has 4000 a job, 5000 a node, 6000 a user, 9000 an account, 20000 in all; roomy 50000 a job; part 30000 a user. A
job of 1000 runs in lab and tight, one of 2000 in subsub, one of 500 of user2 in lab. All are MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.act.allowed import (
    AGAIN,
    LIMITS,
    Bound,
    Need,
    NotKnownError,
    Pool,
    Room,
    Verdict,
    bounds,
    need_of,
    verdict,
)
from slurm_plugins.act.assoc import Shared, parse_associations, with_static_limits
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.values import Job, Partition
from tests.paths import DATA
from tests.unit.slurm_plugins.act.fakes import pending

ACT_DATA = DATA / "act"
RECORDED = {
    file.stem.removeprefix("assoc_mgr-"): file.read_text() for file in sorted(ACT_DATA.glob("assoc_mgr-*"))
}
_TOLD = parse_associations(RECORDED["26.05.5"])
# user1 has no job in roomy yet: slurmdbd has been asked, and has no limit for him there
TOLD = replace(_TOLD, qos={**_TOLD.qos, "roomy": with_static_limits(_TOLD.qos["roomy"], {}, 1001, "lab")})
GPU, DEBUG = Partition(name="gpu", state="UP"), Partition(name="debug", state="UP")
ROOM = Room((GPU, DEBUG), 512000, enforced=True, associations=TOLD)


def user1(**fields: Any) -> Job:
    return pending(7, **({"uid": 1001} | fields))


def said(job: Job, each: int, room: Room = ROOM, raised: Sequence[tuple[Job, Need]] = ()) -> Verdict:
    """What a job is told that is to have so many MiB on each node."""
    need = need_of(job, {"MinMemoryNode": str(each)})
    assert need is not None
    return verdict(need, bounds(job, room), raised)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_three_releases_are_recorded():
    assert list(RECORDED) == ["22.05.8", "24.11.5", "26.05.5"]


@pytest.mark.parametrize("release", RECORDED)
def test_what_a_release_says_is_read(release):
    told = parse_associations(RECORDED[release])
    own = told.of_user(1001, "lab", "gpu")
    assert own is not None
    assert (own.per_job, own.per_node, own.together) == (7000, 6500, Shared(9000, 1000))
    chain = told.accounts_above("subsub")
    assert [a.account for a in chain] == ["subsub", "sub", "lab", "root"] and told.is_whole("subsub")
    assert [a.together for a in chain] == [
        Shared(None, 2000), Shared(40000, 2000), Shared(100000, 3500), Shared(None, 3500)
    ]  # fmt: skip
    assert chain[1].per_job == 30000
    assert told.of_user(1001, "subsub", "gpu") != told.of_user(1001, "subsub", "debug")
    assert told.of_user(1001, "other", "gpu") is None and told.of_user(4711, "lab", "gpu") is None
    assert set(told.qos) == {"tight", "roomy", "part", "normal"}
    tight = told.qos["tight"]
    assert (tight.per_job, tight.per_node, tight.together) == (4000, 5000, Shared(20000, 1000))
    assert (tight.users, tight.accounts) == ({1001: Shared(6000, 1000)}, {"lab": Shared(9000, 1000)})
    normal = told.qos["normal"]
    assert normal.users == {1001: Shared(None, 2000), 1002: Shared(None, 500)}
    assert normal.accounts == {"lab": Shared(None, 500), "subsub": Shared(None, 2000)}
    assert told.qos["part"].users == {}


def test_nothing_told_is_nothing_known():
    told = parse_associations("Current Association Manager state\nNo associations currently cached\n")
    assert told.found == () and told.qos == {} and not told.is_whole("lab")


def test_a_comment_is_no_limit():
    line = (
        "ClusterName=c Account=lab UserName= Partition= ParentAccount= GrpTRES=mem=5(1) MaxTRESPJ= MaxTRESPN="
    )
    told = parse_associations(f"{line} Comment=x GrpTRES=mem=N(0) MaxTRESPJ=mem=1\n\nQOS Records\n")
    assert told.accounts_above("lab")[0].together == Shared(5, 1)
    assert told.accounts_above("lab")[0].per_job is None


def test_accounts_that_are_above_each_other_end():
    line = (
        "ClusterName=c Account={} UserName= Partition= ParentAccount={}(1) GrpTRES= MaxTRESPJ= MaxTRESPN=\n"
    )
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
def test_what_is_not_understood_is_said(line):
    with pytest.raises(SlurmFormatError):
        parse_associations(line)


def test_memory_of_gpus_is_no_memory():
    limits = "GrpTRES=gres/gpumem=5(1) MaxTRESPJ=gres/gpumem=3"
    line = f"ClusterName=c Account=lab UserName= Partition= ParentAccount= {limits}"
    (found,) = parse_associations(line).found
    assert (found.together, found.per_job) == (Shared(None, 0), None)


@pytest.mark.parametrize(
    ("text", "most"),
    [("", None), ("cpu=3", None), ("mem=1500G", 1536000), ("cpu=3,mem=9M", 9), ("mem=2T", 2 << 20)],
)
def test_limits_that_slurmdbd_tells_of(text, most):
    row = {"MaxTRESPU": text, "MaxTRESPA": "mem=7M"}
    found = with_static_limits(TOLD.qos["part"], row, 1001, "lab")
    assert (found.users[1001], found.accounts["lab"]) == (Shared(most, 0), Shared(7, 0))
    # what slurmctld tells of stays
    assert with_static_limits(TOLD.qos["tight"], row, 1001, "lab") == TOLD.qos["tight"]


# --- obeying: each row is a job, what it is to have on a node, and the limit that is named ----------------------------

FREE = Shared(None, 0)


def qos(name: str, **changes: Any) -> Room:
    """With other limits of one QOS."""
    return replace(
        ROOM, associations=replace(TOLD, qos={**TOLD.qos, name: replace(TOLD.qos[name], **changes)})
    )


def accounts(room: Room = ROOM, /, **changes: Any) -> Room:
    """With other limits of all users and accounts."""
    told = room.associations
    assert told is not None
    return replace(room, associations=replace(told, found=tuple(replace(a, **changes) for a in told.found)))


def of_qos(name: str, room: Room = ROOM) -> Room:
    """Partition gpu has this QOS."""
    return replace(room, partitions=(replace(GPU, qos=name), DEBUG))


def partition(**limits: int) -> Room:
    """Partition gpu has these limits, MiB."""
    bytes_: dict[str, Any] = {name: most << 20 for name, most in limits.items()}
    return replace(ROOM, partitions=(replace(GPU, **bytes_),))


WIDE = user1(num_nodes=4, num_cpus=4)
SUB = user1(account="subsub", num_nodes=5, num_cpus=5)
TIGHT, ROOMY = user1(qos="tight"), user1(qos="roomy", num_nodes=5, num_cpus=5)
BOTH = user1(partition="gpu,debug")
LOOSE = qos("tight", per_job=None, per_node=9000, users={1001: FREE}, accounts={"lab": FREE})
NO_JOB: dict[str, Any] = {"per_job": None, "per_node": None}
ROWS = [
    ("within all limits", user1(), 6500, ROOM, ""),
    ("the user's for a job", WIDE, 1751, ROOM, "MaxTRESPerJob of user user1 in account lab is 7000"),
    ("just within it", WIDE, 1750, ROOM, ""),
    ("the user's for a node", user1(), 6501, ROOM, "MaxTRESPerNode of user user1 in account lab is 6500"),
    ("the QOS's for a job", TIGHT, 4001, ROOM, "MaxTRESPerJob of QOS tight is 4000"),
    ("just within that", TIGHT, 4000, ROOM, ""),
    ("the QOS's for a node", TIGHT, 5001, qos("tight", per_job=None), "MaxTRESPerNode of QOS tight is 5000"),
    ("a QOS's takes the place of the user's", ROOMY, 1500, ROOM, ""),
    ("but not of another of his", ROOMY, 6501, ROOM, "MaxTRESPerNode of user user1"),
    (
        "an account's above, for a job",
        SUB,
        6001,
        ROOM,
        "MaxTRESPerJob of user user1 in account subsub is 30000",
    ),
    ("an account's above, in all", SUB, 8001, accounts(**NO_JOB), "GrpTRES of account sub is 40000"),
    ("the partition's QOS", user1(), 4001, of_qos("tight"), "MaxTRESPerJob of QOS tight is 4000"),
    ("another partition's QOS", user1(partition="debug"), 4001, of_qos("tight"), ""),
    ("one of two partitions' QOS", BOTH, 4001, of_qos("tight"), "MaxTRESPerJob of QOS tight"),
    ("and the user's own, for the other", BOTH, 6501, of_qos("tight", LOOSE), "MaxTRESPerNode of user user1"),
    ("the lower of two QOS", ROOMY, 801, of_qos("tight"), "MaxTRESPerJob of QOS tight"),
    (
        "the partition's for a node",
        user1(),
        3001,
        partition(max_memory_per_node=3000),
        "MaxMemPerNode of partition gpu",
    ),
    (
        "the partition's for a CPU",
        WIDE,
        1001,
        partition(max_memory_per_cpu=1000),
        "MaxMemPerCPU of partition gpu",
    ),
    ("just within this", WIDE, 1000, partition(max_memory_per_cpu=1000), ""),
    (
        "slurm.conf's for a node",
        user1(),
        3001,
        replace(ROOM, per_node=3000),
        "MaxMemPerNode of slurm.conf is 3000",
    ),
    (
        "slurm.conf's for a CPU",
        user1(),
        3001,
        replace(ROOM, per_cpu=3000),
        "MaxMemPerCPU of slurm.conf is 3000",
    ),
    (
        "a partition's takes its place",
        user1(),
        3001,
        replace(partition(max_memory_per_node=4000), per_node=3000),
        "",
    ),
    ("nothing is enforced", TIGHT, 400000, replace(ROOM, enforced=False), ""),
    (
        "but by slurm.conf",
        TIGHT,
        3001,
        replace(ROOM, enforced=False, per_node=3000),
        "MaxMemPerNode of slurm.conf",
    ),
]


@pytest.mark.parametrize(
    ("job", "each", "room", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_each_limit_is_obeyed_and_named(job, each, room, words):
    assert not words or words.split()[0] in LIMITS
    found = said(job, each, room)
    assert words in found.why and bool(found.why) == bool(words), found
    assert found.again is None, "what can never be is not to be asked again"


USED: list[tuple[str, int, dict[str, Any], str]] = [
    ("of a user in a QOS", 5001, {}, "MaxTRESPerUser of QOS tight is 6000"),
    ("of an account in a QOS", 8001, {"users": {1001: FREE}}, "MaxTRESPerAccount of QOS tight is 9000"),
    ("of a QOS", 19001, {"users": {1001: FREE}, "accounts": {"lab": FREE}}, "GrpTRES of QOS tight is 20000"),
]


@pytest.mark.parametrize(("each", "change", "words"), [row[1:] for row in USED], ids=[row[0] for row in USED])
def test_what_others_use_is_counted(each, change, words):
    """There is room at another time: the asker is told when to come again."""
    job, room = TIGHT, accounts(qos("tight", **NO_JOB, **change), **NO_JOB)
    found = said(job, each, room)
    assert words in found.why and "1000 MiB are in use" in found.why and found.again == AGAIN
    assert not said(job, each - 1, room).why


def test_what_an_account_uses_is_counted_up_the_tree():
    job, room = user1(account="subsub", num_nodes=2, num_cpus=2), accounts(**NO_JOB)
    found = said(job, 19001, room)
    assert "GrpTRES of account sub is 40000" in found.why and "2000 MiB are in use" in found.why
    assert not said(job, 19000, room).why
    lab = replace(TOLD.accounts_above("lab")[0], together=Shared(100000, 99000))
    assert room.associations is not None
    rest = tuple(a for a in room.associations.found if a.uid is not None or a.account != "lab")
    found = said(job, 501, replace(room, associations=replace(TOLD, found=(*rest, lab))))
    assert "GrpTRES of account lab is 100000" in found.why and found.again == AGAIN


def test_jobs_that_wait_with_memory_that_we_set_count_as_if_they_ran():
    """Slurm will start them without a look at the limit."""
    job = user1(qos="tight")
    other = user1(qos="tight", num_nodes=2, num_cpus=2)
    assert not said(job, 3000).why
    found = said(job, 3000, raised=[(other, Need(1001, False, 2, 2))])
    assert "MaxTRESPerUser of QOS tight" in found.why and "3002 MiB are in use or given" in found.why
    for elsewhere in (replace(other, qos="normal"), replace(other, uid=1002, account="other")):
        assert "PerUser" not in said(job, 3000, raised=[(elsewhere, Need(1001, False, 2, 2))]).why
    # of another user in the same account and QOS
    colleague = replace(other, uid=1002)
    assert "MaxTRESPerAccount" in said(job, 3000, raised=[(colleague, Need(2501, False, 2, 2))]).why


@pytest.mark.parametrize(
    ("job", "pool", "counts"),
    [
        (user1(), Pool(), True),
        (user1(qos="tight"), Pool("tight"), True),
        (user1(qos="normal,tight"), Pool("tight"), True),
        (user1(qos="normal"), Pool("tight"), False),
        (user1(qos="normal", partition="gpu,debug"), Pool("tight", frozenset({"gpu"})), True),
        (user1(account="Lab"), Pool(accounts=frozenset({"lab"})), True),
        (user1(account=None), Pool(accounts=frozenset({"lab"})), False),
        (user1(), Pool(uid=1002), False),
    ],
)
def test_which_jobs_share_a_limit(job, pool, counts):
    assert pool.has(job) is counts


UNKNOWN = [
    (
        user1(),
        replace(ROOM, associations=None, missing="Slurm's answer was not understood"),
        "what accounting lets",
    ),
    (user1(qos=None), ROOM, "which QOS"),
    (user1(qos="gone"), ROOM, "QOS gone"),
    (user1(qos="part"), ROOM, "QOS part allows this user"),
    (user1(account=None), ROOM, "which user and account"),
    (user1(account="gone"), qos("normal", accounts={"gone": FREE}), "account gone"),
    (user1(uid=1002), ROOM, "account lab allows its user"),
    (user1(partition="gone"), ROOM, "partition gone"),
    (user1(num_nodes=None), ROOM, "how many nodes"),
    (user1(num_cpus=None, num_nodes=2), ROOM, "how many nodes and CPUs"),
]


@pytest.mark.parametrize(("job", "room", "words"), UNKNOWN, ids=[row[2] for row in UNKNOWN])
def test_what_is_not_known_is_named_where_limits_are_enforced(job, room, words):
    with pytest.raises(NotKnownError, match=words):
        said(job, 100, room)
    if "partition" not in words:
        assert not said(job, 100, replace(room, enforced=False)).why


# --- amounts ----------------------------------------------------------------------------------------------------------


@given(
    each=st.integers(1, 10**6), per_cpu=st.booleans(), nodes=st.integers(1, 100), more=st.integers(0, 1000)
)
def test_a_job_has_as_much_as_its_nodes_and_cpus_have(each, per_cpu, nodes, more):
    need = Need(each, per_cpu, nodes, nodes + more)
    assert need.of("job") == need.of("together")
    assert need.of("node") <= need.of("job") <= need.of("node") * nodes
    assert need.of("cpu") * (nodes + more) >= need.of("job") >= need.of("cpu")


@given(
    most=st.integers(0, 10**6),
    used=st.integers(0, 10**6),
    each=st.integers(1, 10**6),
    nodes=st.integers(1, 50),
)
def test_nothing_is_let_over_a_limit(most, used, each, nodes):
    job, need = user1(num_nodes=nodes), Need(each, False, nodes, nodes)
    plain = verdict(need, [Bound("MaxTRESPerJob", "x", most, "job")])
    shared = verdict(need, [Bound("GrpTRES", "x", most, "together", used, Pool())])
    waiting = verdict(
        need, [Bound("GrpTRES", "x", most, "together", 0, Pool())], [(job, Need(used, False, 1, 1))]
    )
    assert (not plain.why) == (each * nodes <= most)
    assert (not shared.why) == (not waiting.why) == (each * nodes + used <= most)
    assert shared.again is None or each * nodes <= most
