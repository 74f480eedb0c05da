"""The walk through the stages: what is contained, what is dropped together, what each mode sends and says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from site_configs.site_model import Account, Mode, Partition, Policy, Site
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import MAX_SAY, MAX_SAY_BYTES, Decision
from slurm_plugins.decide.edits import EDITS, check, check_env
from slurm_plugins.decide.inventory import EMPTY
from slurm_plugins.decide.pipeline import decide, option, sentence
from slurm_plugins.decide.request import Job, Request
from slurm_plugins.decide.stage import Change, Note, Proposal, Stage
from slurm_plugins.decide.stages import STAGES
from slurm_plugins.decide.steps import ENV_NAMES
from tests.properties import examples
from tests.unit.slurm_plugins.decide.cluster import CLUSTERS, context, two_leaves
from tests.unit.slurm_plugins.decide.strategies import requests
from tests.unit.slurm_plugins.decide.table import ID, environment

Work = Callable[[Request, Context], Any]


def stage(name: str, work: Work | Proposal) -> Stage:
    """A stage that does `work`, or always proposes the same."""

    class Made(Stage):
        def decide(self, request: Request, context: Context) -> Proposal:
            return work if isinstance(work, Proposal) else work(request, context)

    Made.name = name
    return Made()


def change(field: str, after: int | str, reason: str = "because") -> Proposal:
    return Proposal((Change(field, None, after, reason),))


def ask(
    *, env: dict[str, str] | None = None, cut: tuple[str, ...] = (), batch: bool = True, **job: Any
) -> Request:
    return Request(id=7, uid=1000, job=Job(**job), env=env or {}, cut=cut, batch=batch)


def run(
    request: Request, *stages: Stage, mode: Mode | None = "enforce", where: Context | None = None
) -> Decision:
    return decide(request, where or two_leaves(), decision_id=ID, stages=stages, mode=mode)


def answer(decision: Decision) -> dict[str, Any]:
    line = decision.answer(7)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    return json.loads(line)  # type: ignore[no-any-return]


# --- failures --------------------------------------------------------------------------------------------------------


def _raise(error: BaseException) -> Work:
    def work(request: Request, context: Context) -> Proposal:
        raise error

    return work


@pytest.mark.parametrize(
    "work",
    [
        _raise(ValueError("bad")),
        _raise(RecursionError()),
        _raise(AssertionError()),
        _raise(SystemExit(0)),
        lambda request, context: None,
        lambda request, context: "min_nodes=2",
        lambda request, context: Proposal((Change("priority", None, 7, "me first"),)),
        lambda request, context: Proposal((Change("min_nodes", None, 0, "none"),)),
        lambda request, context: Proposal((Change("min_nodes", None, True, "one"),)),
        lambda request, context: Proposal((Change("min_nodes", None, 2.5, "half"),)),  # type: ignore[arg-type]
        lambda request, context: Proposal((Change("exc_nodes", None, "n1;reboot", "x"),)),
        lambda request, context: Proposal((Change("features", None, "a\nb", "x"),)),
        lambda request, context: Proposal(("min_nodes",)),  # type: ignore[arg-type]
        lambda request, context: Proposal(reject=5),  # type: ignore[arg-type]
    ],
)
def test_a_bad_stage_costs_its_own_proposal_only(work: Work) -> None:
    before, after = stage("before", change("min_nodes", 2)), stage("after", change("max_nodes", 2))
    decision = run(ask(), before, stage("bad", work), after)
    assert {name: value for name, value in decision.edits.items() if name != "admin_comment"} == {
        "min_nodes": 2,
        "max_nodes": 2,
    }
    assert [failure.stage for failure in decision.failures] == ["bad"]
    assert decision.failures[0].error
    assert decision.reject is None
    answer(decision)


def test_an_edit_that_is_forbidden_drops_what_was_proposed_with_it() -> None:
    both = Proposal((Change("min_nodes", None, 2, "two"), Change("max_nodes", None, 70_000, "many")))
    decision = run(ask(), stage("bad", both), mode="observe")
    assert decision.changes == ()
    assert [failure.stage for failure in decision.failures] == ["bad"]


def test_an_edit_that_the_steps_would_not_see_drops_what_was_proposed_with_it() -> None:
    both = Proposal(
        (Change("min_nodes", None, 2, "two"), Change("min_mem_per_node", None, 4096, "more")),
        notes=(Note("kept"),),
    )
    decision = run(ask(mem_per_tres="gres:gpu:1024"), stage("memory", both), mode="observe")
    assert decision.changes == () and decision.failures == ()
    texts = [note.text for note in decision.notes]
    assert any(text.startswith("--mem=4G is left as it is: ") for text in texts) and "kept" in texts
    assert {note.stage for note in decision.notes} == {"memory"}


def test_each_stage_sees_what_the_ones_before_it_changed() -> None:
    seen: list[Job] = []

    def look(request: Request, context: Context) -> Proposal:
        seen.append(request.job)
        return Proposal()

    asked = ask(num_tasks=4, env=environment("-n 4"))
    double = change("num_tasks", 8)
    decision = run(asked, stage("tasks", double), stage("look", look))
    assert seen[0].num_tasks == 8
    assert asked.job.num_tasks == 4
    assert decision.env["SLURM_NTASKS"] == "8"


def test_the_word_of_a_later_stage_counts() -> None:
    decision = run(ask(), stage("a", change("req_switch", 1)), stage("b", change("req_switch", 2)))
    assert decision.edits["req_switch"] == 2


def test_gsubs_own_stages_and_their_order() -> None:
    assert [one.name for one in STAGES] == ["gang", "topology", "sensitivity", "avoid_nodes", "limits"]
    assert all(type(one).__doc__ for one in STAGES)


def test_a_record_knows_the_shape_as_decided() -> None:
    facts = decide(ask(tres_per_job="gres:gpu:a100:16", num_tasks=16), two_leaves(), decision_id=ID).facts
    assert facts == {"gpus": 16, "gpu_type": "a100", "nodes": 2, "gpus_per_node": 8, "tasks": 16}
    assert decide(ask(num_tasks=16), two_leaves(), decision_id=ID).facts == {}


@pytest.mark.case("F2")
def test_a_record_knows_the_program_that_manages_the_job() -> None:
    worker = "#!/bin/sh\nexec /env/bin/python -m distributed.cli.dask_worker tcp://10.0.0.1:8786\n"
    asked = ask(tres_per_job="gres:gpu:a100:16", num_tasks=16)
    facts = decide(msgspec.structs.replace(asked, script_head=worker), two_leaves(), decision_id=ID).facts
    assert facts["client"] == "dask-jobqueue"
    named = msgspec.structs.replace(asked, job=msgspec.structs.replace(asked.job, name="nf-ALIGN"))
    assert decide(named, two_leaves(), decision_id=ID).facts["client"] == "nextflow"


# --- when nothing is decided -----------------------------------------------------------------------------------------

_TWO_NODES = stage("two", change("min_nodes", 2, "two are better"))


@pytest.mark.parametrize(
    "request_",
    [
        ask(comment="gsub:off"),
        ask(comment="project=x,gsub:off;more"),
        ask(env={"GSUB": "off"}),
        ask(env={"GSUB": " OFF "}),
    ],
)
def test_a_job_that_opts_out_passes_untouched(request_: Request) -> None:
    decision = run(request_, _TWO_NODES)
    assert decision.opted_out and decision.changes == () and decision.env == {}
    assert answer(decision) == {
        "v": 1, "id": 7, "decision": ID, "mode": "enforce", "edits": {}, "env": {}, "say": [], "reject": None,
    }  # fmt: skip


@pytest.mark.parametrize("comment", ["gsub:offline", "not gsub", "xgsub:off", "gsub: off"])
def test_other_comments_opt_nobody_out(comment: str) -> None:
    assert run(ask(comment=comment), _TWO_NODES).edits["min_nodes"] == 2


def test_nothing_is_decided_before_the_cluster_is_known() -> None:
    decision = run(ask(), _TWO_NODES, where=context(EMPTY))
    assert decision.changes == () and answer(decision)["edits"] == {}
    assert "not known yet" in decision.notes[0].text


@pytest.mark.parametrize(
    ("field", "decided"), [("features", False), ("exc_nodes", False), ("dependency", True)]
)
def test_a_field_that_was_cut_short_is_not_decided_on(field: str, decided: bool) -> None:
    decision = run(ask(cut=(field,)), _TWO_NODES)
    assert ("min_nodes" in decision.edits) is decided
    assert decided or field in decision.notes[0].text


# --- modes -----------------------------------------------------------------------------------------------------------

_ALL = Proposal(
    (Change("min_nodes", None, 2, "two are better"), Change("max_nodes", None, 2)),
    (Note("worth a line", advice=True), Note("for explain")),
)


def test_observe_sends_nothing() -> None:
    decision = run(ask(), stage("all", _ALL), mode="observe")
    assert decision.edits == {"min_nodes": 2, "max_nodes": 2}  # decided and recorded
    sent = answer(decision)
    assert (sent["edits"], sent["env"], sent["say"], sent["reject"]) == ({}, {}, [], None)


@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
def test_who_asks_hears_all(mode: Mode) -> None:
    verb = "set" if mode == "enforce" else "would set"
    words = [
        f"gsub {verb} --nodes=2 (not stated before): two are better",
        "gsub: worth a line",
        "gsub: for explain",
    ]
    for asking in (ask(comment="x,gsub:explain"), ask(env={"GSUB": "Explain"})):
        sent = answer(run(asking, stage("all", _ALL), mode=mode))
        assert sent["say"] == words
        assert bool(sent["edits"]) == (mode == "enforce")
        assert answer(run(asking, mode=mode))["say"] == [
            f"gsub: nothing to change about this job (mode {mode})"
        ]


def test_advise_says_what_it_would_do() -> None:
    sent = answer(run(ask(), stage("all", _ALL), mode="advise"))
    assert (sent["edits"], sent["env"], sent["reject"]) == ({}, {}, None)
    assert sent["say"] == [
        "gsub would set --nodes=2 (not stated before): two are better",
        "gsub: worth a line",
    ]


def test_enforce_sends_edits_with_the_decisions_name() -> None:
    sent = answer(run(ask(), stage("all", _ALL)))
    assert sent["edits"] == {"min_nodes": 2, "max_nodes": 2, "admin_comment": f"gsub:{ID}"}
    assert sent["env"] == {"GSUB_DECISION": ID}
    assert sent["say"] == ["gsub set --nodes=2 (not stated before): two are better", "gsub: worth a line"]


def test_a_sites_admin_comment_is_kept_and_salloc_has_no_environment() -> None:
    sent = answer(run(ask(admin_comment="jobstats"), _TWO_NODES))
    assert "admin_comment" not in sent["edits"] and sent["env"] == {"GSUB_DECISION": ID}
    assert answer(run(ask(batch=False), _TWO_NODES))["env"] == {}


def test_admin_comment_is_left_to_what_slurmctld_runs_at_a_jobs_end() -> None:
    context = two_leaves()
    where = replace(context, slurm=replace(context.slurm, admin_comment_free=False))
    sent = answer(run(ask(), _TWO_NODES, where=where))
    assert sent["edits"] == {"min_nodes": 2} and sent["env"] == {"GSUB_DECISION": ID}


@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
def test_a_job_is_refused_only_in_enforce(mode: Mode) -> None:
    refusing = stage("limits", Proposal(reject="no node has 9 GPUs\nthere are 8\nask for 8"))
    never = stage("never", _raise(AssertionError("a refused job goes no further")))
    decision = run(ask(), _TWO_NODES, refusing, never, mode=mode)
    sent = answer(decision)
    assert decision.reject is not None and decision.failures == ()
    assert sent["edits"] == {} and sent["env"] == {}
    lines = ["no node has 9 GPUs", "there are 8", "ask for 8"]
    assert sent["reject"] == ("\n".join(lines) if mode == "enforce" else None)
    assert sent["say"] == ([] if mode == "observe" else lines)


def test_a_refusal_is_sent_as_the_shim_takes_it() -> None:
    wild = "first \x1b[31m\r\n\n" + "x" * 1000 + "\nthird\nfourth"
    sent = answer(run(ask(), stage("limits", Proposal(reject=wild))))
    lines = sent["reject"].split("\n")
    assert len(lines) == 3 and lines[0] == "first ?[31m" and lines[2] == "third"
    assert all(len(line.encode()) <= MAX_SAY_BYTES for line in lines)
    assert answer(run(ask(), stage("limits", Proposal(reject=" \n "))))["reject"] is None


def test_what_is_said_fits_a_terminal() -> None:
    many = Proposal(
        tuple(Change(name, None, 1, f"é\x1b]0;x\x07 {name} " + "ü" * 500) for name in list(EDITS)[:3]),
        tuple(Note(f"note {i}", advice=True) for i in range(20)),
    )
    say = run(ask(), stage("talks", many)).say
    assert len(say) == MAX_SAY
    assert all(line.isprintable() and len(line.encode()) <= MAX_SAY_BYTES for line in say)


def test_the_most_cautious_of_partition_account_and_site_counts() -> None:
    site = Site(
        cluster="test",
        policy=Policy(mode="enforce"),
        partitions={"gpu": Partition("gpu"), "debug": Partition("debug", mode="advise")},
        accounts={"old": Account("old", mode="observe")},
    )
    where = two_leaves(site=site)

    def mode(**job: Any) -> Mode:
        return decide(ask(**job), where, decision_id=ID, stages=()).mode

    assert mode() == mode(partition="gpu") == "enforce"
    assert mode(partition="debug") == mode(partition="gpu,debug") == "advise"
    assert mode(account="old") == mode(default_account="old") == "observe"
    assert mode(account="new", default_account="old") == "enforce"


@pytest.mark.case("A10")
@pytest.mark.parametrize(
    "names", ["," * 4090, ",".join(f"p{number}" for number in range(800)), "gpu," * 1000]
)
def test_thousands_of_partitions_cost_little(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(cluster="test", policy=Policy(mode="enforce"), partitions={"gpu": Partition("gpu")})
    asked: list[str] = []
    mode_for = Site.mode_for

    def counted(site: Site, *, partition: str, account: str, uid: int) -> Mode:
        asked.append(partition)
        return mode_for(site, partition=partition, account=account, uid=uid)

    monkeypatch.setattr(Site, "mode_for", counted)
    decide(ask(partition=names), two_leaves(site=site), decision_id=ID, stages=())
    assert len(asked) <= 2


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("min_nodes", 2, "--nodes=2"),
        ("gres", "gres:gpu:a100:4", "--gres=gpu:a100:4"),
        ("gres", "gpu:4", "--gres=gpu:4"),
        ("shared", 0, "--exclusive"),
        ("cpus_per_tres", "gres/gpu:8", "--cpus-per-gpu=8"),
        ("mem_per_tres", "gres:gpu:65536", "--mem-per-gpu=64G"),
        ("min_mem_per_node", 1500, "--mem=1500M"),
    ],
)
def test_a_field_is_shown_as_the_option_that_a_user_would_type(
    field: str, value: int | str, text: str
) -> None:
    assert option(field, value) == text


def test_every_field_that_can_be_edited_has_words() -> None:
    for name, edit in EDITS.items():
        shown = option(name, edit.low if edit.kind == "int" else "gpu:1")
        assert not shown.startswith(name + "="), name


def test_a_change_names_what_was_there_before() -> None:
    assert sentence(Change("min_nodes", 4, 2, "fewer do")) == "--nodes=2 (was --nodes=4): fewer do"


# --- everything, on every cluster ------------------------------------------------------------------------------------

_CONTEXTS = [make(release) for make in CLUSTERS.values() for release in ((22, 5), (24, 11), (26, 5))]


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests())
def test_whatever_is_asked_the_answer_keeps_to_the_tables(request_: Request) -> None:
    for where in _CONTEXTS:
        decision = decide(request_, where, decision_id=ID)
        assert not decision.failures, decision.failures
        sent = answer(decision)
        for name, value in sent["edits"].items():
            check(name, value)
        for name, value in sent["env"].items():
            check_env(name, value)
            assert name in ENV_NAMES | {"GSUB_DECISION"}
        assert len(decision.answer(7)) <= 64 * 1024
        assert decide(request_, where, decision_id=ID) == decision


def test_a_partition_that_slurm_does_not_have_is_told_of() -> None:
    for partition in ("nowhere", "gpu,nowhere"):
        decision = run(ask(partition=partition), _TWO_NODES)
        assert decision.changes == () and [note.text for note in decision.notes] == [
            f"partition {partition} is not known here"
        ]
