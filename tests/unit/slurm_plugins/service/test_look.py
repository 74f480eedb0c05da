"""What gsubd learns of Slurm: read in a process of its own, whole or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from site_configs.site import Site, parse_site
from slurm_plugins.client.commands import CommandClient
from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.tables import Unread
from slurm_plugins.client.values import Hosts, Job, JobState, Node, NodeState, Partition, Tres
from slurm_plugins.decide.context import Context, SlurmFacts
from slurm_plugins.decide.inventory import EMPTY, Inventory, Pool
from slurm_plugins.limits.records import Association, Associations, Limits, Qos
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from slurm_plugins.service.look import Slurm, look, slurm_environment
from slurm_plugins.service.lookout import ChildLookout
from slurm_plugins.service.pending import PendingJoins
from slurm_plugins.service.polling import Polling
from slurm_plugins.service.site_watch import Taken
from slurm_plugins.service.slurm_config import SlurmConfig, parse_config, slurm_user_of_file
from slurm_plugins.service.wire import Question, Report, decode_report, encode_report
from tests.unit.slurm_plugins.client.fake import FakeClient
from tests.unit.slurm_plugins.client.slurm_rows import Answers, job, node
from tests.unit.slurm_plugins.service.serving import PATIENCE, FakeLookout, no_limits
from tests.waiting import wait_until

QUESTION = Question(site="", site_path="")

# Lines of `scontrol show config`, as the three releases print them.
CONFIG = """\
Configuration data as of 2026-11-22T04:22:14
AccountingStorageEnforce = {enforce}
ClusterName             = Lab
DefMemPer{memory}
SchedulerParameters     = {parameters}
SchedulerType           = sched/backfill
{epilog}
SelectTypeParameters    = {select}
SlurmUser               = slurm(64030)
SlurmdUser              = root(0)
SLURM_VERSION           = {version}
TopologyParam           = (null)
TopologyPlugin          = {topology}

Slurmctld(primary) at ctl is UP
"""
USUAL = {
    "enforce": "associations",
    "version": "22.05.8",
    "parameters": "(null)",
    "topology": "topology/none",
    "memory": "Node           = UNLIMITED",
    "select": "CR_CORE_MEMORY",
    "epilog": "EpilogSlurmctld         = (null)",
}
FACTS = SlurmFacts((22, 5), 300, "flat", memory_tracked=True)


@pytest.mark.parametrize(
    ("said", "differs"),
    [
        ({}, {}),
        ({"version": "26.05.0-0rc1"}, {"release": (26, 5)}),
        ({"parameters": "bf_interval=2,max_switch_wait=900"}, {"max_switch_wait": 900}),
        ({"parameters": "MAX_SWITCH_WAIT=5"}, {"max_switch_wait": 5}),
        ({"topology": "topology/default"}, {}),
        ({"topology": "topology/flat"}, {}),
        ({"topology": "topology/tree"}, {"topology_plugin": "tree"}),
        ({"topology": "topology/block"}, {"topology_plugin": "block"}),
        ({"enforce": "associations,limits,qos"}, {"limits_enforced": True}),
        ({"select": "CR_CORE"}, {"memory_tracked": False}),
        ({"memory": "CPU            = 2000"}, {"default_memory_per_cpu": 2000}),
        ({"memory": "Node           = 64000"}, {"default_memory_per_node": 64000}),
        ({"epilog": "EpilogSlurmctld         = /opt/jobstats"}, {"admin_comment_free": False}),
        ({"epilog": "EpilogSlurmctld[0]      = /opt/jobstats"}, {"admin_comment_free": False}),
    ],
)
def test_slurms_configuration(said: dict[str, str], differs: dict[str, Any]) -> None:
    found = parse_config(CONFIG.format(**USUAL | said))
    assert found == SlurmConfig(dataclasses.replace(FACTS, **differs), "lab", 64030)


@pytest.mark.parametrize("text", ["", "slurm_load_ctl_conf error", "SLURM_VERSION = next\n"])
def test_what_is_no_configuration_is_an_error(text: str) -> None:
    with pytest.raises(SlurmFormatError):
        parse_config(text)


def test_slurm_user_before_slurmctld_answers(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("#SlurmUser=nobody\nClusterName=c\n slurmuser = hpc # the service account\n")
    assert slurm_user_of_file({}, str(conf)) == "hpc"
    assert slurm_user_of_file({"SLURM_CONF": str(conf)}) == "hpc"
    assert slurm_user_of_file({"SLURM_CONF": str(tmp_path / "none")}) is None
    (tmp_path / "other").write_text("Include hpc.conf\n")
    assert slurm_user_of_file({}, str(tmp_path / "other")) is None


def test_slurm_is_where_the_site_file_says(tmp_path: Path) -> None:
    site = parse_site('cluster = "c"\n[slurm]\nconf = "/s/slurm.conf"\nbin = "/s/bin"\n')
    assert slurm_environment({"PATH": "/bin"}, site) == {"PATH": "/s/bin:/bin", "SLURM_CONF": "/s/slurm.conf"}
    assert slurm_environment({"SLURM_CONF": "/mine"}, Site(cluster="c")) == {"SLURM_CONF": "/mine"}


# --- a look ---------------------------------------------------------------------------------------------------------


class Campus(FakeClient):
    """Several partitions, kinds of nodes and limits."""

    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(
                name=f"n{number}",
                state=NodeState.DOWN if number == 3 else NodeState.IDLE,
                cpus=64,
                memory=512 << 30,
                gres=Tres((("gres/gpu:a100" if number < 5 else "gres/gpu", 8 if number < 7 else 4),)),
                features=("leaf1" if number < 5 else "leaf2", "ib"),
            )
            for number in range(1, 9)
        )

    def partitions(self) -> tuple[Partition, ...]:
        return (
            Partition(name="gpu", state="UP", is_default=True, nodes=Hosts("n[1-8]"), max_time=86400),
            Partition(
                name="old",
                state="UP",
                nodes=Hosts("n[5-8]"),
                max_nodes=2,
                default_cpus_per_gpu=4,
                default_memory_per_node=1 << 34,
            ),
            Partition(name="empty", state="UP"),
        )


def config() -> SlurmConfig:
    return SlurmConfig(SlurmFacts((24, 11), 60, "tree"), slurm_uid=7)


def test_what_crosses_the_wire_is_what_was_seen() -> None:
    """Also when the inventory gets new fields: those that do not cross would be missing here."""
    site = parse_site('cluster = "c"\n[topology]\nfeature_prefix = "leaf"\n')
    seen = look(Slurm(Campus(), config, no_limits), site, QUESTION)
    assert seen.inventory and seen.inventory.pools["gpu"].topology.kind == "features"
    crossed = decode_report(encode_report(seen))
    assert crossed == seen
    assert crossed.inventory is not None
    for name, pool in crossed.inventory.pools.items():
        for field in dataclasses.fields(Pool):
            was, is_ = getattr(seen.inventory.pools[name], field.name), getattr(pool, field.name)
            assert (was, type(was)) == (is_, type(is_)), field.name
        assert all(hash(kind) for kind in pool.kinds)
    assert crossed.inventory.pools["gpu"].topology is crossed.inventory.pools["old"].topology


def test_the_inventory_has_no_field_that_does_not_cross() -> None:
    assert {field.name for field in dataclasses.fields(Inventory)} == {"pools", "default"}


@pytest.mark.parametrize("nothing", ["nodes", "partitions"])
def test_nothing_is_not_a_fact(nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    monkeypatch.setattr(client, nothing, lambda: ())
    seen = look(Slurm(client, config, no_limits), Site(cluster="c"), QUESTION)
    assert seen.inventory is None and seen.error


def test_a_topology_that_cannot_be_used_leaves_a_flat_network_and_a_word(tmp_path: Path) -> None:
    for text in (
        'cluster = "c"\n[topology]\nfile = "none.conf"\n',
        'cluster = "c"\n[topology]\nfeature_prefix = "rack"\n',
        'cluster = "c"\n[topology]\nfile = "t.yaml"\n[partitions.gpu]\ntopology = "other"\n',
    ):
        (tmp_path / "t.yaml").write_text("- topology: default\n  cluster_default: true\n  flat: true\n")
        seen = look(
            Slurm(Campus(), config, no_limits), parse_site(text, str(tmp_path / "site.toml")), QUESTION
        )
        assert seen.trouble and seen.inventory and seen.inventory.pools["gpu"].topology.kind == "flat", text


def test_jobs_are_told_since_a_time_and_their_silence_is_no_answer() -> None:
    client = FakeClient()
    now = time.time()
    client.submit(["--gpus-per-node=1", "--wrap=true"])
    slurm = Slurm(client, config, no_limits)
    for since, count in ((now - 5, 1), (now + 5, 0)):
        seen = look(slurm, Site(cluster="c"), Question(site="", site_path="", jobs_since=since))
        assert seen.jobs is not None and len(seen.jobs) == count
    assert look(slurm, Site(cluster="c"), QUESTION).jobs is None
    client.down.add("slurmctld")
    seen = look(slurm, Site(cluster="c"), Question(site="", site_path="", jobs_since=0))
    assert seen.jobs is None and seen.jobs_error and seen.error


# --- the process that looks -----------------------------------------------------------------------------------------

SCONTROL = """#!/bin/sh
case "$*" in
*config*) cat "{folder}/config" ;;
*node*) echo "NodeName=n1 CPUTot=64 RealMemory=512000 Gres=gpu:8 State=IDLE Partitions=gpu" ;;
*partition*) echo "PartitionName=gpu Default=YES Nodes=n1 State=UP" ;;
esac
"""


def slurm_in(folder: Path, scontrol: str = SCONTROL) -> dict[str, str]:
    """An environment with commands that answer as Slurm's do."""
    folder.mkdir(exist_ok=True)
    (folder / "config").write_text(CONFIG.format(**USUAL))
    for name, text in (
        ("scontrol", scontrol.format(folder=folder)),
        ("squeue", "#!/bin/sh\necho slurm 22.05.8\n"),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def look_once(lookout: ChildLookout, question: Question = QUESTION) -> Report:
    async def once() -> Report:
        try:
            return await lookout.look(question)
        finally:
            await lookout.close()

    return asyncio.run(once())


def test_a_child_looks_and_tells(tmp_path: Path) -> None:
    seen = look_once(ChildLookout(slurm_in(tmp_path / "bin")))
    assert seen.error == "" and seen.facts.release == (22, 5) and seen.slurm_uid == 64030
    assert seen.inventory and seen.inventory.pools["gpu"].gpus_per_node == 8


@pytest.mark.parametrize(
    "scontrol",
    [
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\necho Unable to contact slurm controller >&2\nexit 1\n",
        "#!/bin/sh\n",
    ],
    ids=["fails", "silent", "says nothing"],
)
def test_a_child_that_sees_nothing_says_so(tmp_path: Path, scontrol: str) -> None:
    seen = look_once(ChildLookout(slurm_in(tmp_path / "bin", scontrol)))
    assert seen.inventory is None and seen.error


def test_a_child_that_cannot_read_its_question_says_so(tmp_path: Path) -> None:
    question = Question(site="cluster = ", site_path="/x/site.toml")
    seen = look_once(ChildLookout(slurm_in(tmp_path / "bin")), question)
    assert seen.inventory is None and "ended with 1" in seen.error


def test_a_slurm_that_hangs_is_given_up_with_its_commands(tmp_path: Path) -> None:
    hangs = f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n"
    lookout = ChildLookout(slurm_in(tmp_path / "bin", hangs), seconds=1.0)
    seen = look_once(lookout)
    assert "more than 1 s" in seen.error
    if (tmp_path / "pid").exists():  # the child may have been too slow to start it
        _await_end(int((tmp_path / "pid").read_text()))


def _await_end(pid: int) -> None:
    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    try:
        wait_until(has_ended, PATIENCE, "the end of Slurm's command")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise


# --- keeping up -----------------------------------------------------------------------------------------------------


class Scripted:
    """A lookout that gives reports in turn, the last one again and again."""

    def __init__(self, *reports: Report) -> None:
        self.reports = list(reports)
        self.questions: list[Question] = []

    async def close(self) -> None:
        pass

    async def look(self, question: Question) -> Report:
        self.questions.append(question)
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


def good() -> Report:
    return look(Slurm(FakeClient(), config, no_limits), Site(cluster="c"), QUESTION)


def polled(
    lookout: Scripted | FakeLookout, looks: int, every: float = 0.01, desks: list[Desk] | None = None
) -> tuple[Polling, Desk, Counts]:
    """Poll until there were so many looks."""
    counts = Counts()
    desk = Desk(Context(Site(cluster="c")), counts)
    taken = Taken(Site(cluster="c"))
    if desks is not None:
        desks.append(desk)

    async def run() -> Polling:
        polling = Polling(
            lookout,
            desk,
            PendingJoins(lambda line: None, counts),
            counts,
            site=lambda: taken,
            site_path="",
            slurm_uid=lambda uid: None,
            every=every,
        )
        task = asyncio.ensure_future(polling.run())

        def has_looked() -> bool:
            assert not task.done()
            return counts.polls.value("ok") + counts.polls.value("failed") >= looks

        await asyncio.to_thread(wait_until, has_looked, PATIENCE, f"{looks} looks", 0.005)
        task.cancel()
        return polling

    return asyncio.run(run()), desk, counts


def test_a_failed_look_leaves_what_was_known() -> None:
    polling, desk, counts = polled(Scripted(good(), Report(error="silent")), 3)
    assert desk.context.inventory.pools["gpu"].nodes == 8 and desk.context.slurm.release == (24, 11)
    assert counts.polls.value("failed") >= 2 and polling.age is not None


@pytest.mark.case("A2")
def test_rows_that_were_left_out_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    seen = msgspec.structs.replace(good(), unread={"job": 2}, unread_example="job 7: password=hunter2")
    polling, _, counts = polled(Scripted(seen), 3)
    assert counts.unread.value("job") >= 6
    assert caplog.text.count("job 7: password=**** (and 1 more)") == 1
    assert polling.fresh


@pytest.mark.case("A2")
@pytest.mark.parametrize("kind", ["node", "partition"])
def test_no_job_is_refused_by_an_inventory_that_lacks_a_row(kind: str) -> None:
    seen = msgspec.structs.replace(good(), unread={kind: 1}, unread_example="x")
    polling, _, _ = polled(Scripted(seen), 1, every=60.0)
    assert not polling.fresh and polling.gpus is not None


@pytest.mark.case("A2", "S1")
def test_one_bad_row_leaves_the_others_their_jobs_and_nodes() -> None:
    rows = (job(65534), job(8, eligible="604801795311497"), job(9, tres="mem=lots"), job(10))
    asks = [{**row, "tres_per_node": "gres/gpu:1"} for row in rows]
    answers, unread = Answers(jobs=asks, nodes=[node("n1"), node("n2", CfgTRES="?")]), Unread()

    class Client(CommandClient):
        def partitions(self) -> tuple[Partition, ...]:
            return FakeClient().partitions()

    question = Question(site="", site_path="", jobs_since=0)
    slurm = Slurm(Client({}, run=answers, unread=unread), config, no_limits, unread)
    seen = decode_report(encode_report(look(slurm, Site(cluster="c"), question)))
    assert seen.jobs is not None and [one.id for one in seen.jobs] == [8, 10, 65534]
    assert seen.inventory is not None and not seen.error and not seen.jobs_error
    assert seen.unread == {"job": 1, "node": 1} and seen.unread_example


def test_a_fault_of_our_own_does_not_end_the_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = iter([ZeroDivisionError, KeyError])

    async def fault_at_first(self: PendingJoins, report: Report, default: str) -> None:
        if (error := next(faults, None)) is not None:
            raise error

    monkeypatch.setattr(PendingJoins, "take", fault_at_first)
    _, desk, counts = polled(Scripted(good()), 6)
    assert desk.context.inventory and counts.polls.value("failed") == 2


def test_before_the_first_answer_nothing_is_known(caplog: pytest.LogCaptureFixture) -> None:
    polling, desk, _ = polled(Scripted(Report(error="silent")), 3)
    assert (desk.context.inventory, polling.age) == (EMPTY, None)
    assert caplog.text.count("silent") == 1  # said once, not at each look


def test_a_later_look_replaces_the_whole() -> None:
    lookout = FakeLookout(Campus())
    _, desk, _ = polled(lookout, 1)
    assert set(desk.context.inventory.pools) == {"gpu", "old", "empty"}


def test_a_partition_that_has_not_changed_keeps_what_was_worked_out_for_it_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changing = Campus()
    lookout = FakeLookout(changing)
    pools: list[Pool] = []

    async def look_and_note(question: Question) -> Report:
        if lookout.looks == 2:
            monkeypatch.setattr(changing, "partitions", lambda: Campus.partitions(changing)[:2])
        if (pool := desks[0].context.inventory.pools.get("gpu")) is not None:
            pools.append(pool)
        return await FakeLookout.look(lookout, question)

    desks: list[Desk] = []
    monkeypatch.setattr(lookout, "look", look_and_note)
    monkeypatch.setattr("slurm_plugins.service.polling._RENEW", 8)
    polled(lookout, 12, desks=desks)
    objects = list(dict.fromkeys(map(id, pools)))
    assert len(pools) >= 11 and len(objects) == 2  # renewed once
    assert set(desks[0].context.inventory.pools) == {"gpu", "old"}  # what went is gone


def test_of_jobs_only_what_can_belong_to_a_decision_is_kept() -> None:
    client = FakeClient()
    client._jobs[1] = Job(id=1, name="x", user="u", state=JobState.RUNNING)  # no submit time
    seen = look(
        Slurm(client, config, no_limits), Site(cluster="c"), Question(site="", site_path="", jobs_since=0)
    )
    assert seen.jobs == ()


TOLD = Associations.of(
    [
        Association("root", None, "", ""),
        Association("lab", None, "", "root", limits=Limits(per_job={"mem": 40960})),
        *(
            Association("lab", uid, "", "", f"user{uid}", limits=Limits({"mem": 9}), is_default=True)
            for uid in range(500)
        ),
    ],
    [Qos("normal", Limits(shared={"GrpTRES": {"cpu": 4}}), whole=True)],
)


def test_limits_of_accounting_are_looked_at_when_they_are_asked_for():
    limited = SlurmConfig(
        dataclasses.replace(FACTS, limits_enforced=True), cluster="lab", max_memory_per_node=1000
    )
    asked: list[str] = []

    def associations(cluster: str) -> Associations:
        asked.append(cluster)
        return TOLD

    slurm = Slurm(FakeClient(), lambda: limited, associations)
    seen = look(slurm, Site(cluster="c"), QUESTION)
    assert (seen.associations, asked) == (None, [])
    assert seen.inventory is not None
    pools = seen.inventory.pools.values()
    assert {pool.max_memory_per_node for pool in pools} == {1000}, "slurm.conf's, where a partition has none"
    wanted = msgspec.structs.replace(QUESTION, limits=True)
    seen = look(slurm, Site(cluster="c"), wanted)
    assert asked == ["lab"] and decode_report(encode_report(seen)).associations == TOLD

    def silent(cluster: str) -> Associations:
        raise SlurmFormatError("columns were expected", "")

    seen = look(
        Slurm(FakeClient(), lambda: limited, silent),
        Site(cluster="c"),
        msgspec.structs.replace(QUESTION, limits=True),
    )
    assert seen.inventory and seen.associations is None and "columns" in seen.limits_error
