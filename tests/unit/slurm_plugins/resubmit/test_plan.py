"""What a user relies on: what can succeed is tried again, in the right way and no more; what cannot is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gsub.fixes import FIXERS
from profiler.resubmissions import ACTIONS, Resubmission
from prolog_epilog.failures.taxonomy import REASONS
from site_configs import resubmit_table
from site_configs.site import parse_site
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.plan import MENDABLE
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Memory, Switches
from tests.unit.slurm_plugins.resubmit.made import attempt, earlier, failure, planned, row


@dataclass
class Case:
    """One question and what its answer has: fields of the row, and words of `why`."""

    name: str
    has: dict[str, Any]
    of: Attempt = field(default_factory=attempt)
    why: Failure = field(default_factory=failure)
    before: tuple[Earlier, ...] = ()
    says: tuple[str, ...] = ()
    policy: Resubmit = field(default_factory=Resubmit)
    switches: Switches = field(default_factory=lambda: Switches("enforce"))


def again(**has: Any) -> dict[str, Any]:
    return {"state": "planned", "step": "requeue", "stop": "", "command": "", **has}


def no(stop: str, command: str | None = None, **has: Any) -> dict[str, Any]:
    typed = {} if command is None else {"command": command}
    return {
        "state": "stopped",
        "stop": stop,
        "step": "",
        "avoid": (),
        "memory_mib": None,
        "nth": 0,
        **typed,
        **has,
    }


ON_THREE = (
    earlier(nodes=["n1"], fingerprint="same"),
    earlier(nodes=["n2"], fingerprint="same"),
)
FREE = failure("preempted", 0.95, source="root", tier="decisive")
LOST = failure("node_failure", 0.95, source="root", tier="decisive")
OOM = failure("cpu_oom", 0.95, source="root", tier="decisive")
LIMIT = failure("time_limit", 0.95, source="root", tier="decisive")

ONCE = Resubmit(actions=(("no_signature", "once"),))
"""A site that tries once more what nothing explains."""

CASES = [
    # never, with what its user can do
    Case("a syntax error", no("never", "gsub why 12"), why=failure("syntax_error"), says=("would end the same way",)),
    Case("a missing module", no("never", "gsub fix 12"), why=failure("import_error"), says=("Install the package",)),
    Case("a GPU's memory", no("never", "gsub why 12"), why=failure("gpu_oom"), says=("smaller batch",)),
    Case("/dev/shm", no("never", "gsub why 12"), why=failure("shared_memory"), says=("larger /dev/shm",)),
    Case("a bug", no("never"), why=failure("semantic_error")),
    Case("a full disk", no("never"), why=failure("no_space")),
    Case("an exception without a name", no("never"), why=failure("traceback", tier="implicit")),
    Case("cancelled", no("never", ""), attempt(state="CANCELLED"), failure("cancelled"), says=("cancelled",)),
    Case("cancelled by 1000, as sacct says", no("never"), attempt(state="CANCELLED by 1000"), failure("cancelled")),
    Case("cancelled, although the log names a node's fault", no("never", ""), attempt(state="CANCELLED")),
    Case("nothing failed", no("never"), why=failure("none"), says=("Nothing of it failed.",)),
    Case("what the site calls never", no("never"), policy=Resubmit(actions=(("nccl_error", "never"),))),
    # other node
    Case("a broken GPU", again(action="other_node", avoid=("n1",), exclude="n1", delay_s=0.0, nth=1, budget=3),
         why=failure("gpu_hardware", source="root"), says=("away from n1", "(1 of 3)")),
    Case("the node that failed first of four", again(avoid=("n3",)), attempt(nodes=("n1", "n2", "n3", "n4")),
         failure(node="n3")),
    Case("with those that it excludes already", again(avoid=("n1",), exclude="n[1,7-8]"),
         attempt(excluded=("n8", "n7"))),
    Case("of four nobody knows which", again(avoid=(), exclude=""), attempt(nodes=("n1", "n2", "n3", "n4")),
         says=("which of its nodes failed is not known",)),
    Case("a node that it did not run on", again(avoid=()), attempt(nodes=("n1", "n2")), failure(node="n9")),
    Case("a node named by a liar, of one", again(avoid=("n1",)), why=failure(node="n9")),
    Case("excluded already", again(avoid=()), attempt(excluded=("n1",))),
    Case("without the node too few are left", again(avoid=()),
         attempt(nodes=("n1", "n2", "n3", "n4"), partition_nodes=("n1", "n2", "n3", "n4")), failure(node="n2"),
         says=("too few would be left",)),
    Case("the partition has one node", again(avoid=(), delay_s=60.0), attempt(partition_nodes=("n1",)),
         says=("in 1 min", "as many nodes as gsub may")),
    Case("two nodes: half of them", again(avoid=("n1",)), attempt(partition_nodes=("n1", "n2"))),
    Case("two nodes, one of them kept off", again(avoid=()), attempt(partition_nodes=("n1", "n2"), excluded=("n2",)),
         says=("too few would be left",)),
    Case("its partition is not known", again(avoid=()), attempt(partition_nodes=()), says=("is not known",)),
    Case("where it ran is not known", again(avoid=()), attempt(nodes=())),
    Case("no more than a tenth by itself", again(avoid=()), attempt(nodes=("n3",), excluded=("n1", "n2")),
         before=(earlier(of=row(avoid=("n1",))), earlier(of=row(avoid=("n2",)), nodes=["n2"])),
         says=("as many nodes as gsub may",)),
    Case("its user's own do not count for that", again(avoid=("n3",)),
         attempt(nodes=("n3",), excluded=("n1", "n2", "n4", "n5"))),
    Case("its user asks for that very node", again(avoid=(), delay_s=60.0), attempt(required=("n1",)),
         says=("--nodelist",)),
    Case("its user asks for another", again(avoid=("n1",)), attempt(nodes=("n1", "n2"), required=("n2",)),
         failure(node="n1")),
    Case("the site avoids none", again(avoid=()), policy=Resubmit(avoid_most=0)),
    # backoff
    Case("a file system", again(action="backoff", delay_s=60.0, avoid=()), why=failure("filesystem_error"),
         says=("in 1 min", "may pass by itself")),
    Case("the second wait is longer", again(delay_s=120.0, nth=2), why=failure("network_error"),
         before=(earlier("network_error", of=row("backoff", delay_s=31.0)),)),
    Case("the third still", again(delay_s=240.0, nth=3), why=failure("network_error"),
         before=(earlier("network_error", of=row("backoff", delay_s=31.0)),) * 2),
    Case("never longer than the site's longest", again(delay_s=90.0), why=failure("network_error"),
         before=(earlier("network_error", of=row("backoff", delay_s=31.0)),), policy=Resubmit(backoff_most=90)),
    # more memory
    Case("half as much again", again(memory_mib=49152, memory_was_mib=32768, memory_per="node"), why=OOM,
         says=("48G instead of 32G for each node",)),
    Case("the peak and a fifth, where that is more", again(memory_mib=61440),
         attempt(memory=Memory(32768, "node", peak_mib=51200, most_mib=512_000)), OOM),
    Case("no more than a node has", again(memory_mib=40_000),
         attempt(memory=Memory(32768, "node", most_mib=40_000)), OOM),
    Case("for each CPU", again(memory_mib=3072, memory_per="cpu", memory_was_mib=2048),
         attempt(memory=Memory(2048, "cpu", peak_mib=8192, most_mib=512_000, cpus_per_node=4)), OOM,
         says=("3G instead of 2G for each CPU",)),
    Case("for each GPU, which Slurm does not let be changed", no("unknown", "gsub fix 12"),
         attempt(memory=Memory(2048, "gpu", most_mib=512_000)), OOM, says=("--mem-per-gpu",)),
    Case("a node has no more", no("limit", "gsub fix 12"),
         attempt(memory=Memory(500_000, "node", most_mib=512_000)), OOM, says=("at most",)),
    Case("all of the node already", no("limit"), attempt(memory=Memory(0, "node", most_mib=512_000)), OOM),
    Case("nobody knows what it asked for", no("unknown", "gsub fix 12"), attempt(memory=Memory()), OOM),
    Case("nobody knows what a node has", no("unknown"), attempt(memory=Memory(32768, "node")), OOM),
    Case("nobody knows its CPUs", no("unknown"), attempt(memory=Memory(2048, "cpu", most_mib=512_000)), OOM),
    Case("the third lack of memory on three nodes is no proof", again(memory_mib=49152, nth=3),
         attempt(nodes=("n3",)), failure("cpu_oom", source="root", fingerprint="same"),
         (earlier("cpu_oom", "more_memory", ["n1"], fingerprint="same"),
          earlier("cpu_oom", "more_memory", ["n2"], fingerprint="same"))),
    # from checkpoint
    Case("a checkpoint that the script told of", again(action="from_checkpoint", memory_mib=None),
         why=failure("time_limit", checkpoint="/c/1.pt", resumes=True), says=("with the same time",)),
    Case("a wish, and work done", again(), attempt(wishes=frozenset({"checkpoint"})), failure("time_limit",
         progressed=True)),
    Case("a wish, and a framework that saved", again(), attempt(wishes=frozenset({"checkpoint"})),
         failure("time_limit", checkpoint="out/checkpoint-500")),
    Case("a wish and nothing saved", no("no_checkpoint"), attempt(wishes=frozenset({"checkpoint"})), LIMIT,
         says=("begin anew",)),
    Case("a framework that saved, and no word that it resumes", no("no_checkpoint", "gsub fix 12"),
         why=failure("time_limit", checkpoint="out/checkpoint-500"), says=("--comment=gsub:checkpoint",)),
    Case("a signal is no promise", no("no_checkpoint"), attempt(signal_before_end=True),
         failure("time_limit", progressed=True)),
    Case("nothing at all", no("no_checkpoint"), why=LIMIT),
    # once
    Case("a crash, once, and elsewhere", again(action="once", nth=1, budget=1, avoid=("n1",), delay_s=0.0),
         why=failure("core_dump"), says=("once, away from n1, as this may have been by chance (1 of 1)",)),
    Case("nobody knows on which of its nodes", again(action="once", avoid=(), delay_s=0.0),
         attempt(nodes=("n1", "n2")), failure("core_dump"), says=("once, as this may",)),
    Case("on the one that crashed first", again(action="once", avoid=("n2",)), attempt(nodes=("n1", "n2")),
         failure("core_dump", node="n2")),
    Case("its user asks for the node on which it crashed", again(action="once", avoid=(), delay_s=0.0),
         attempt(required=("n1",)), failure("core_dump"), says=("once, as this may",)),
    Case("a second crash", no("budget", "gsub why 12"), why=failure("core_dump"), before=(earlier("core_dump",
         "once"),),
         says=("tried once more already",)),
    Case("nothing says why", no("never", "gsub resubmit 12"), why=failure("no_signature", 0.5, tier="none")),
    Case("nothing says why, where the site tries that", again(action="once"), why=failure("no_signature", 0.5),
         policy=ONCE),
    Case("and twice", no("budget"), why=failure("no_signature", 0.3, tier="none"), policy=ONCE,
         before=(earlier("no_signature", "once"),)),
    Case("another kind of crash after one", no("budget"), why=failure("mpi_error"),
         before=(earlier("core_dump", "once"),)),
    Case("a crash after another node", again(action="once", nth=2, budget=2), why=failure("core_dump"),
         before=(earlier(),)),
    # confidence
    Case("not sure", no("confidence"), why=failure("gpu_oom", 0.4), says=("not surely",)),
    Case("not sure, and the site tries that once", again(action="once", reason="gpu_oom"), why=failure("gpu_oom", 0.4),
         policy=ONCE, says=("not surely",)),
    Case("not sure, twice", no("confidence"), why=failure("gpu_oom", 0.4), policy=ONCE,
         before=(earlier("gpu_oom", "once", confidence=0.4),)),
    Case("not sure, and the site tries that never", no("confidence"), why=failure("nccl_error", 0.4),
         policy=Resubmit(actions=(("no_signature", "never"),))),
    Case("a reason of another release", no("confidence"), why=failure("gpu_melted")),
    Case("as sure as the site asks for", again(action="other_node"), why=failure(confidence=0.5)),
    Case("the site asks for more", no("confidence"), policy=Resubmit(confidence=0.95)),
    # budget
    Case("the third", again(nth=3, budget=3), before=(earlier(), earlier())),
    Case("no fourth", no("budget", "gsub why 12"), before=(earlier(),) * 3, says=("3 times without progress",)),
    Case("what somebody else requeued is not ours", again(nth=1), before=(earlier(action=None),) * 5),
    Case("nor what was stopped", again(nth=1), before=(earlier(of=row(state="stopped", stop="moved_on",
         step="requeue")),) * 5),
    Case("but what was requeued and then not changed is", no("budget"),
         before=(earlier(of=row(state="stopped", stop="slurm", step="update")),) * 3),
    Case("a plan that nobody wrote the end of counts", no("budget"), before=(earlier(of=row(state="planned")),) * 3),
    Case("a preemption is free", again(nth=5, budget=20, charged=False, action="requeue"),
         attempt(state="PREEMPTED"), FREE,
         (earlier(),) * 4),
    Case("and leaves the budget as it was", again(nth=1, budget=3),
         before=(earlier("preempted", of=row("requeue", charged=False)),) * 5),
    Case("by Slurm's state, whoever wrote the line", again(charged=False), attempt(state="PREEMPTED"),
         failure("preempted", tier="decisive")),
    Case("a forged preemption is charged", again(charged=True, nth=1, budget=3), why=failure("preempted",
         tier="decisive")),
    Case("and ends with the budget", no("budget"), why=failure("preempted", tier="decisive"),
         before=(earlier("preempted", "requeue"),) * 3),
    Case("a lost node is free", again(charged=False, avoid=("n1",)), attempt(state="NODE_FAIL"), LOST,
         (earlier(),) * 3),
    Case("not for ever", no("budget", "gsub resubmit 12"), attempt(state="PREEMPTED"), FREE,
         (earlier("preempted", of=row("requeue", charged=False)),) * 20, ("20 times in its life",)),
    Case("a budget of nothing", no("budget"), policy=Resubmit(budget=0), says=("resubmit.budget is 0",)),
    # progress
    Case("a new checkpoint starts the budget anew", again(nth=1), why=failure(checkpoint="step2"),
         before=(earlier(checkpoint="step1"),) * 3),
    Case("the same checkpoint does not", no("budget"), why=failure(checkpoint="step1"),
         before=(earlier(checkpoint="step1"), earlier(checkpoint="step1"), earlier(checkpoint="step1"), earlier())),
    Case("two hours with work done", again(nth=1), attempt(runtime_s=7200.0), failure(progressed=True),
         before=(earlier(runtime_s=7000.0),) * 3),
    Case("twice as long as ever", again(nth=1), attempt(runtime_s=7200.0), before=(earlier(runtime_s=3600.0),) * 3),
    Case("not quite twice", no("budget"), attempt(runtime_s=7100.0), before=(earlier(runtime_s=3600.0),) * 3),
    Case("twice as long of little", no("budget"), attempt(runtime_s=3500.0), before=(earlier(runtime_s=60.0),) * 3),
    Case("long, and the log shows that nothing was done", no("budget"), attempt(runtime_s=9000.0),
         failure(progressed=False), (earlier(),) * 3),
    Case("long, and ended by the same line", no("budget"), attempt(runtime_s=9000.0),
         failure(progressed=True, fingerprint="x"), (earlier(fingerprint="x"),) * 3),
    Case("how long the others ran is not known", no("budget"), attempt(runtime_s=9000.0),
         before=(earlier(runtime_s=None),) * 3),
    Case("how long it ran is not known", no("budget"), attempt(runtime_s=None), failure(progressed=True),
         (earlier(),) * 3),
    Case("progress before gives one more crash", again(action="once"), why=failure("core_dump"),
         before=(earlier("core_dump", "once"), earlier("nccl_error", checkpoint="c2"))),
    Case("progress does not lengthen a life", no("budget"), why=failure(checkpoint="new"), before=(earlier(),) * 20),
    # the same evidence
    Case("on three nodes", no("same_evidence", "gsub why 12"), attempt(nodes=("n3",)), failure(fingerprint="same"),
         ON_THREE,
         ("3 places (n[1-3])", "not the nodes")),
    Case("on two of them twice", again(), attempt(nodes=("n2",)), failure(fingerprint="same"), ON_THREE),
    Case("another line on the third", again(), attempt(nodes=("n3",)), failure(fingerprint="other"), ON_THREE),
    Case("no evidence at all", again(), attempt(nodes=("n3",)), failure(),
         (earlier(nodes=["n1"]), earlier(nodes=["n2"]))),
    Case("whatever somebody else requeued", no("same_evidence"), attempt(nodes=("n3",)), failure(fingerprint="same"),
         (earlier(action=None, nodes=["n1"], fingerprint="same"), earlier(action=None, nodes=["n2"],
         fingerprint="same"))),
    Case("whatever the class says", no("same_evidence"), attempt(nodes=("n3",)),
         failure("filesystem_error", fingerprint="same"), ON_THREE),
    Case("with a checkpoint too", no("same_evidence"), attempt(nodes=("n3",)), failure(fingerprint="same",
         checkpoint="new"),
         ON_THREE),
    Case("three sets that share a node", again(), attempt(nodes=("n1", "n4")), failure(fingerprint="same"),
         (earlier(nodes=["n1", "n2"], fingerprint="same"), earlier(nodes=["n1", "n3"], fingerprint="same"))),
    Case("three sets that share none", no("same_evidence"), attempt(nodes=("n1", "n2")), failure(fingerprint="same"),
         (earlier(nodes=["n3", "n4"], fingerprint="same"), earlier(nodes=["n5", "n6"], fingerprint="same"))),
    Case("three nodes lost with it", no("same_evidence"), attempt(state="NODE_FAIL", nodes=("n3",)), LOST,
         (earlier("node_failure", nodes=["n1"], of=row(charged=False)), earlier("node_failure", nodes=["n2"],
         of=row(charged=False)))),
    Case("three nodes lost in weeks, with work done between", again(charged=False),
         attempt(state="NODE_FAIL", nodes=("n3",), runtime_s=86400.0),
         failure("node_failure", source="root", checkpoint="c3", fingerprint=""),
         (earlier("node_failure", nodes=["n1"], checkpoint="c1"), earlier("node_failure", nodes=["n2"],
         checkpoint="c2"))),
    Case("preempted on three nodes", again(charged=False), attempt(state="PREEMPTED", nodes=("n3",)), FREE,
         (earlier("preempted", nodes=["n1"]), earlier("preempted", nodes=["n2"]))),
    # whether it may be
    Case("switched off by the site", no("off", "gsub resubmit 12"), switches=Switches("enforce", False)),
    Case("by its user", no("off", "gsub resubmit 12"), attempt(wishes=frozenset({"off"}))),
    Case("for this alone", no("off"), attempt(wishes=frozenset({"resubmit=off", "repack"}))),
    Case("in other words", no("off"), attempt(wishes=frozenset({"resubmit=no"}))),
    Case("a wish for it is none against it", again(), attempt(wishes=frozenset({"resubmit=yes"}))),
    Case("observe", no("mode", "gsub resubmit 12"), switches=Switches("observe"),
         says=("would be tried again away from n1", "mode here is observe")),
    Case("advise", no("mode", "gsub resubmit 12"), why=OOM, switches=Switches("advise"),
         says=("48G instead of 32G",)),
    Case("observe, and it cannot help", no("never"), why=failure("syntax_error"), switches=Switches("observe")),
    Case("others depend on it", no("dependants", "gsub resubmit 12"), attempt(dependants=("14", "15")),
         says=("14, 15",)),
    Case("of many, three are named", no("dependants"), attempt(dependants=tuple("123456")), says=("1, 2, 3, ...",)),
    Case("nobody knows whether they do", no("dependants"), attempt(dependants=None), says=("not known",)),
    Case("--no-requeue", no("no_requeue", "gsub resubmit 12"), attempt(requeue=False)),
    Case("no batch job", no("no_requeue", ""), attempt(batch=False)),
    Case("Slurm does not say whether it is a batch job", again(), attempt(batch=None)),
    Case("nor whether it may be requeued", no("no_requeue"), attempt(requeue=None)),
    Case("a whole array", no("array"), attempt(whole_array=True)),
    Case("a task of one", again(), attempt(id="12_7")),
    Case("a task that cannot be helped", no("never", "gsub why 12_7"), attempt(id="12_7"), failure("semantic_error")),
    Case("a heterogeneous job", no("array"), attempt(het=True)),
    Case("Slurm was faster", no("moved_on", ""), attempt(state="REQUEUED"), FREE),
    Case("it runs again", no("moved_on"), attempt(state="RUNNING")),
    Case("an id that is none", no("never", "gsub why 12"), attempt(id="12; reboot"), failure("semantic_error")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case):
    made = planned(case.of, case.why, case.before, switches=case.switches, policy=case.policy)
    assert {name: getattr(made, name) for name in case.has} == case.has, made.why
    for words in case.says:
        assert words in made.why
    # a sentence for its user, whatever happens, and a row that any reader takes
    assert made.why.endswith((".", ").")), made.why
    assert not made.why[0].islower()
    assert len(made.why) <= 600
    assert msgspec.json.decode(msgspec.json.encode(made), type=Resubmission) == made


def test_the_cases_are_many_and_each_has_a_name_of_its_own():
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.has.get("stop") for case in CASES} >= {
        "never", "budget", "same_evidence", "confidence", "mode", "off", "dependants", "no_requeue", "array", "limit",
        "no_checkpoint", "unknown", "moved_on", "",
    }  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_the_taxonomy_s_action(reason):
    made = planned(why=failure(reason))
    assert made.action == REASONS[reason].retry
    assert (made.stop == "never") == (REASONS[reason].retry == "never"), made


@pytest.mark.parametrize("action", ACTIONS)
def test_the_site_may_say_otherwise(action):
    site = parse_site(f'cluster = "x"\n[resubmit.actions]\ngpu_oom = "{action}"\n')
    made = planned(why=failure("gpu_oom"), policy=site.resubmit)
    assert made.action == action
    assert planned(why=failure("syntax_error"), policy=site.resubmit).action == "never"


def test_fix_is_named_where_it_may_know_a_change():
    assert frozenset().union(*(fixer.reasons for fixer in FIXERS)) == MENDABLE


def test_the_site_file_knows_the_same_words():
    assert tuple(REASONS) == resubmit_table.REASONS
    assert ACTIONS == resubmit_table.ACTIONS


def test_a_wait_is_between_half_of_it_and_all_of_it():
    waits = [planned(why=failure("network_error"), chance=chance).delay_s for chance in (0.0, 0.5, 1.0)]
    assert waits == [30.0, 45.0, 60.0]


def test_an_attempt_after_another_ends_where_the_budget_does():
    """As the service does it: each attempt's row is the next one's past."""
    before: list[Earlier] = []
    for nth in range(1, 5):
        node = f"n{nth % 2 + 1}"
        off = tuple(name for one in before if one.resubmission for name in one.resubmission.avoid)
        made = planned(attempt(restarts=nth - 1, nodes=(node,), excluded=off), before=before)
        before.append(Earlier(failure(), (node,), msgspec.structs.replace(made, state="done"), 60.0))
    rows = [one.resubmission for one in before]
    assert [one.stop for one in rows if one] == ["", "", "", "budget"]
    assert [one.nth for one in rows if one] == [1, 2, 3, 0]
    assert re.search(r"tried again 3 times", rows[3].why if rows[3] else "")


# --- what is left alone unless the site says so


@pytest.mark.case("T3")
@pytest.mark.parametrize("reason", ["core_dump", "nccl_error", "filesystem_error", "cpu_oom"])
def test_a_job_without_gpus_is_left_alone_unless_the_site_says_so(reason: str) -> None:
    alone = attempt(gpus=0)
    row = planned(alone, failure(reason))
    assert (row.state, row.stop) == ("stopped", "off")
    assert "asked for no GPU" in row.why and row.command == "gsub resubmit 12"
    assert planned(alone, failure(reason), policy=Resubmit(without_gpus=True)).state == "planned"
    for gpus in (1, 8, None):
        assert planned(attempt(gpus=gpus), failure(reason)).state == "planned"


@pytest.mark.case("T3")
@pytest.mark.parametrize(
    ("reason", "confidence"), [("no_signature", 0.5), ("nccl_error", 0.4), ("core_dump", 0.1)]
)
def test_a_failure_without_evidence_is_not_tried_again_unless_the_site_says_so(
    reason: str, confidence: float
) -> None:
    one = attempt(gpus=1)
    row = planned(one, failure(reason, confidence))
    assert (row.state, row.action) == ("stopped", "never")
    assert row.stop == ("never" if reason == "no_signature" else "confidence")
    assert "would end the same way" not in row.why
    willing = Resubmit(actions=(("no_signature", "once"),))
    assert planned(one, failure(reason, confidence), policy=willing).state == "planned"


@pytest.mark.case("T3")
@pytest.mark.parametrize("reason", sorted(REASONS))
@pytest.mark.parametrize("requeue", [False, None])
def test_no_requeue_holds_whatever_the_site_says(reason: str, requeue: bool | None) -> None:
    policy = Resubmit(without_gpus=True, actions=tuple((name, "requeue") for name in sorted(REASONS)))
    row = planned(attempt(gpus=0, requeue=requeue), failure(reason), policy=policy)
    assert row.state == "stopped" and row.stop in ("no_requeue", "never", "moved_on")
    if reason not in ("cancelled", "requeued"):
        assert row.stop == "no_requeue"


@pytest.mark.case("F2")
@pytest.mark.parametrize("reason", ["core_dump", "nccl_error", "node_failure", "preempted", "cpu_oom"])
def test_a_job_that_a_program_manages_is_left_alone(reason: str) -> None:
    row = planned(attempt(gpus=1, client="snakemake"), failure(reason), policy=Resubmit(without_gpus=True))
    assert (row.state, row.stop, row.command) == ("stopped", "off", "")
    assert row.why == "snakemake manages it and may run it again itself, so it is left alone."


@pytest.mark.case("F3")
@pytest.mark.parametrize(
    ("state", "stop"), [("REQUEUED", "moved_on"), ("RUNNING", "moved_on"), ("FAILED", "never")]
)
def test_what_was_requeued_by_hand_did_not_fail(state: str, stop: str) -> None:
    row = planned(attempt(gpus=1, state=state), failure("requeued", 0.95))
    assert (row.state, row.stop, row.command) == ("stopped", stop, "")
