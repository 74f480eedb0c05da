"""One reason of many signs: each rule of the taxonomy by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.failures.choose import choose, in_order
from prolog_epilog.failures.signs import Case, Counter, Mark, Sign, counter, went_on
from prolog_epilog.failures.steps import STEPS
from prolog_epilog.failures.taxonomy import REASONS
from prolog_epilog.failures.text import Line


def line(index: int, text: str = "x", rank: int | None = None) -> Line:
    return Line(index, index + 1, None, text, text, rank, "", None)


def sign(index: int, reason: str, tier: str = "explicit", weight: int = 5, **more: object) -> Sign:
    rank = more.get("rank")
    shape = {"first": index, **more}
    return Sign(f"s-{reason}-{index}", reason, tier, weight, line(index, reason, rank), **shape)  # type: ignore[arg-type]


def mark(index: int, kind: str, weight: int = 5, **more: object) -> Mark:
    return Mark(kind, line(index), weight=weight, **more)  # type: ignore[arg-type]


def case(*signs: Sign, marks: Sequence[Mark] = (), progress: Sequence[Counter] = ()) -> Case:
    return Case(tuple(signs), tuple(marks), (tuple(progress),) * 8, (1000,) * 8)


def steps(start: int, numbers: Sequence[int], kind: str = "step") -> list[Counter]:
    return [Counter(start + n, kind, done, 0) for n, done in enumerate(numbers)]


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        # 1: explicit beats implicit, implicit beats cascade, in whatever order
        ([sign(9, "gpu_oom"), sign(1, "nccl_error", "implicit", 7)], "gpu_oom"),
        ([sign(1, "core_dump", "implicit"), sign(9, "missing_library")], "missing_library"),
        ([sign(1, "nccl_error", "cascade", 9), sign(9, "traceback", "implicit", 1)], "traceback"),
        # 2: of cascades the most precise
        ([sign(1, "no_signature", "cascade", 2), sign(5, "mpi_runtime_failure", "cascade", 6)], "mpi_runtime_failure"),
        # 3: the earlier of two that ended their process
        ([sign(5, "semantic_error", fatal=True), sign(50, "gpu_oom", weight=8, fatal=True)], "semantic_error"),
        # an exception that ended its process against a mere line far before it
        ([sign(5, "permission_error"), sign(300, "missing_input", fatal=True)], "missing_input"),
        ([sign(5, "permission_error", mild=True), sign(20, "missing_input", fatal=True)], "missing_input"),
        # ... but a line near before it is its cause
        ([sign(5, "rendezvous_failure"), sign(20, "semantic_error", weight=3, fatal=True)], "rendezvous_failure"),
        # an everyday exception whose message names more on its next lines
        ([sign(5, "semantic_error", weight=3, fatal=True), sign(8, "cuda_version_mismatch", weight=8)],
         "cuda_version_mismatch"),
        ([sign(5, "missing_input", weight=7, fatal=True), sign(8, "cpu_oom", weight=8)], "missing_input"),
        # the more precise of what one line says
        ([sign(5, "no_space", weight=5), sign(5, "shared_memory", weight=8)], "shared_memory"),
        # nothing but an end
        ([sign(5, "", "failed_end")], "no_signature"),
        ([sign(5, "", "failed_end"), sign(6, "gpu_oom")], "gpu_oom"),
        ([], "no_signature"),
    ],
)  # fmt: skip
def test_tiers_time_and_weight(signs, reason):
    assert choose(case(*signs)).reason == reason


class TestTheSchedulersWord:
    word = sign(100, "time_limit", "decisive", 9)

    def test_it_decides(self):
        assert choose(case(sign(5, "core_dump", "implicit"), self.word)).reason == "time_limit"

    def test_a_plain_cause_before_it_wins_if_nothing_progressed(self):
        assert (
            choose(case(sign(50, "syntax_error", weight=8, fatal=True), self.word)).reason == "syntax_error"
        )

    def test_a_cause_after_which_work_went_on_does_not(self):
        work = steps(10, [1, 2, 3]) + steps(60, [4, 5, 6, 7, 8])
        found = choose(case(sign(50, "network_error", weight=8, fatal=True), self.word, progress=work))
        assert found.reason == "time_limit"

    def test_a_cause_behind_it_is_a_consequence(self):
        assert choose(case(self.word, sign(120, "output_error", weight=8, fatal=True))).reason == "time_limit"

    def test_a_mere_mention_before_it_is_none(self):
        assert choose(case(sign(50, "network_error", weight=4), self.word)).reason == "time_limit"

    def test_of_two_words_the_more_precise_counts(self):
        bare = sign(90, "cancelled", "decisive", 7)
        assert choose(case(bare, sign(100, "preempted", "decisive", 9))).reason == "preempted"

    @pytest.mark.parametrize("death", ["cpu_oom", "node_failure"])
    def test_a_lost_peer_is_no_cause_of_a_death(self, death):
        lost = sign(50, "network_error", weight=8, fatal=True)
        assert choose(case(lost, sign(60, death, "decisive", 9))).reason == death

    def test_a_step_s_cancellation_behind_a_task_that_failed_is_no_cause(self):
        cancelled = sign(12, "cancelled", "cascade", 3)
        assert choose(case(sign(10, "", "failed_end"), cancelled)).reason == "no_signature"
        assert choose(case(cancelled)).reason == "cancelled"


class TestChains:
    def test_the_first_of_a_chain_is_the_cause(self):
        first, second = sign(5, "network_error", chain=0), sign(20, "missing_input", weight=8, chain=0)
        assert choose(case(first, second)).reason == "network_error"

    def test_it_is_the_first_of_the_log_whichever_was_found_first(self):
        first, second = (
            sign(5, "no_space", weight=8, chain=0),
            sign(20, "checkpoint_error", weight=6, chain=0),
        )
        assert choose(case(second, first)).reason == "no_space"

    def test_what_is_caught_every_day_gives_way_to_a_cause(self):
        first, second = (
            sign(5, "semantic_error", weight=4, chain=0),
            sign(20, "missing_input", weight=6, chain=0),
        )
        assert choose(case(first, second)).reason == "missing_input"

    def test_an_unknown_one_gives_way_to_a_known_one(self):
        first, second = sign(5, "traceback", "implicit", 1, chain=0), sign(20, "corrupt_input", chain=0)
        assert choose(case(first, second)).reason == "corrupt_input"


class TestWhatIsNoFailure:
    def test_dealt_with_by_the_next_line(self):
        retried = sign(10, "network_error", weight=7)
        assert choose(case(retried, marks=[mark(11, "handled")])).reason == "none"
        assert (
            choose(case(retried, sign(90, "gpu_oom", fatal=True), marks=[mark(11, "handled")])).reason
            == "gpu_oom"
        )

    def test_what_was_retried_in_vain_is_the_best_there_is(self):
        found = choose(
            case(sign(10, "network_error"), sign(20, "", "failed_end"), marks=[mark(11, "handled")])
        )
        assert (found.reason, found.weak) == ("network_error", True)

    def test_another_rank_s_retry_says_nothing(self):
        found = choose(case(sign(10, "gpu_oom", rank=1), marks=[Mark("handled", line(11, rank=2))]))
        assert found.reason == "gpu_oom"

    def test_a_mark_far_behind_says_nothing(self):
        assert choose(case(sign(10, "gpu_oom"), marks=[mark(60, "handled")])).reason == "gpu_oom"

    def test_a_count_of_what_was_skipped_says_nothing(self):
        counted = Mark("handled", line(11, "iteration 70/500 | skipped samples: 0"))
        assert choose(case(sign(10, "gpu_oom", fatal=True), marks=[counted])).reason == "gpu_oom"

    def test_a_retry_that_names_its_own_error_speaks_of_that(self):
        first, own = sign(10, "network_error"), sign(12, "filesystem_error")
        assert choose(case(first, own, marks=[mark(12, "handled")])).reason == "network_error"

    def test_an_exception_at_a_bad_end_is_not_dealt_with(self):
        fatal, end = sign(10, "filesystem_error", fatal=True), sign(14, "", "failed_end")
        assert choose(case(fatal, end, marks=[mark(12, "handled")])).reason == "filesystem_error"

    def test_a_traceback_that_was_logged_with_its_retry_is_dealt_with(self):
        logged = sign(20, "network_error", weight=7, fatal=True, chain=0, first=11)
        retry = Mark("handled", line(10, "ERROR: fetch failed, retrying in 8 s"))
        assert choose(case(logged, marks=[retry])).reason == "none"
        other = Mark("handled", line(10, "INFO: overflow, skipping step"))
        assert choose(case(logged, marks=[other])).reason == "network_error"

    def test_what_was_retried_and_is_the_end_of_the_log_is_the_cause(self):
        logged = sign(996, "network_error", weight=7, fatal=True, chain=0, first=990)
        retry = Mark("handled", line(989, "ERROR: fetch failed, retrying in 8 s"))
        assert choose(case(logged, marks=[retry])).reason == "network_error"

    def test_clean_up_never_wins(self):
        late = sign(60, "network_error", weight=9, fatal=True, first=52)
        marks = [mark(50, "cleanup")]
        assert choose(case(sign(10, "nccl_error", "cascade"), late, marks=marks)).reason == "nccl_error"
        assert choose(case(late, marks=marks)).reason == "none"

    def test_the_same_count_going_on_is_survival(self):
        work = steps(1, [10, 20]) + steps(40, [30, 40, 50, 60])
        assert choose(case(sign(10, "network_error", fatal=True), progress=work)).reason == "none"

    def test_counts_of_all_sorts_are_no_survival(self):
        work = steps(1, [8835]) + steps(40, [6923, 3575, 6642, 120])
        assert choose(case(sign(10, "network_error", fatal=True), progress=work)).reason == "network_error"

    def test_a_run_that_ended_well_has_no_reason(self):
        found = choose(case(sign(10, "network_error", fatal=True), marks=[mark(50, "ended_well")]))
        assert (found.reason, found.weak) == ("none", False)

    def test_a_wrapper_s_last_command_is_told(self):
        late = sign(60, "environment_error", tool="bash")
        found = choose(case(late, sign(61, "", "failed_end"), marks=[mark(50, "ended_well")]))
        assert found.reason == "none"
        assert found.remarks == ("After the end: environment_error",)

    def test_a_failure_behind_a_good_end_counts(self):
        late = sign(60, "no_space", fatal=True)
        assert choose(case(late, marks=[mark(50, "ended_well")])).reason == "no_space"

    def test_a_script_s_done_does_not_take_back_an_exception(self):
        found = choose(case(sign(10, "gpu_oom", fatal=True), marks=[mark(50, "ended_well", weight=3)]))
        assert found.reason == "gpu_oom"

    def test_a_time_limit_behind_a_good_end_counts(self):
        found = choose(case(sign(80, "time_limit", "decisive", 9), marks=[mark(50, "ended_well")]))
        assert found.reason == "time_limit"

    def test_warnings_alone_are_no_failure(self):
        assert choose(case(sign(10, "network_error", mild=True))).reason == "none"
        assert (
            choose(case(sign(10, "network_error", mild=True), sign(20, "", "failed_end"))).reason
            == "network_error"
        )

    def test_preemption_is_told_as_a_warning_and_counts(self):
        assert choose(case(sign(10, "preempted", mild=True))).reason == "preempted"


def test_what_a_program_sees_of_a_broken_gpu_is_no_cause_beside_the_driver_s_word():
    seen = sign(10, "cuda_failure", weight=7, fatal=True)
    assert choose(case(seen, sign(30, "gpu_hardware", weight=9))).reason == "gpu_hardware"
    assert choose(case(seen, sign(30, "gpu_hardware", weight=3))).reason == "cuda_failure"
    assert (
        choose(case(sign(5, "gpu_oom", fatal=True), sign(30, "gpu_hardware", weight=9))).reason == "gpu_oom"
    )


def test_an_exception_of_unknown_cause_is_what_its_line_names():
    shape = {"fatal": True, "chain": 0}
    unknown = sign(9, "traceback", "implicit", 1, **shape)
    assert choose(case(unknown, sign(9, "nccl_error", "cascade", 4))).reason == "nccl_error"
    assert choose(case(unknown, sign(9, "", "failed_end", 2))).reason == "traceback"
    assert choose(case(unknown, sign(9, "no_signature", "cascade", 4))).reason == "traceback"


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (sign(20, "gpu_oom", weight=8), "nccl_timeout"),
        (sign(90, "gpu_oom", weight=8, fatal=True), "nccl_timeout"),
        (
            sign(20, "gpu_oom", weight=8, fatal=True),
            "gpu_oom",
        ),  # near behind it: written through by another rank
        (sign(90, "cpu_oom", weight=8), "cpu_oom"),
        (sign(90, "gpu_hardware", weight=8), "gpu_hardware"),
        (sign(3, "gpu_oom", weight=8), "gpu_oom"),
    ],
)
def test_what_fails_behind_a_watchdog_s_timeout_does_not_explain_it(late, reason):  # nccl#1284
    assert choose(case(sign(10, "nccl_timeout", "implicit", 6), late)).reason == reason


def test_files_of_ranks_set_behind_one_another_are_judged_by_their_times():
    timeout, early = sign(10, "nccl_timeout", "implicit", 6, at=600.0), sign(90, "gpu_oom", at=100.0)
    assert choose(case(timeout, early)).reason == "gpu_oom"


class TestRanks:
    def test_the_earlier_time_is_the_cause_whatever_the_order_of_the_files(self):
        late = sign(3, "gpu_oom", fatal=True, log=0, at=200.0)
        early = sign(900, "missing_input", fatal=True, log=1, at=100.0)
        assert choose(case(late, early)).reason == "missing_input"
        assert choose(case(early, late)).reason == "missing_input"

    def test_ranks_that_share_a_log_are_set_in_time_order_too(self):
        def timed(index: int, reason: str, rank: int, at: float, weight: int) -> Sign:
            where = Line(index, index + 1, None, reason, reason, rank, "", at)
            return Sign("s", reason, "explicit", weight, where, first=index, at=at, rank=rank)

        late, early = timed(11, "gpu_oom", 0, 700.0, 7), timed(12, "semantic_error", 2, 100.0, 5)
        assert choose(case(late, early)).reason == "semantic_error"

    def test_without_times_the_first_log_counts(self):
        found = choose(
            case(sign(9, "gpu_oom", fatal=True, log=1), sign(3, "missing_input", fatal=True, log=0))
        )
        assert found.reason == "missing_input"

    def test_a_clock_that_steps_back_does_not_turn_a_log_round(self):
        first, second = sign(1, "gpu_oom", log=0, at=500.0), sign(9, "no_space", log=0, at=100.0)
        other = sign(1, "import_error", log=1, at=400.0)
        assert [found.reason for found in in_order([second, first, other])] == [
            "import_error",
            "gpu_oom",
            "no_space",
        ]


@pytest.mark.parametrize(
    ("text", "kind", "done", "total"),
    [
        ("Epoch 7: 33%|###   | 106/598 [40:10<50:24, 2.81it/s]", "bar Epoch 7", 106, 598),
        (" 12%|#2        | 12/100 [00:01<00:07]", "bar", 12, 100),
        ("step 8835 | loss 7.4850", "step", 8835, 0),
        ("iteration     1200/  500000 | consumed samples", "iteration", 1200, 500000),
        ("global_step=17 loss=3", "global_step", 17, 0),
        ("[epoch 3/90]", "epoch", 3, 90),
    ],
)
def test_counts_are_read(text, kind, done, total):
    found = counter(0, text)
    assert found is not None
    assert (found.kind, found.done, found.total) == (kind, done, total)


@pytest.mark.parametrize("text", ["loss 3", "step by step", "batch_size=32", "99.5% done", "a | b"])
def test_other_lines_show_no_count(text):
    assert counter(0, text) is None


def test_one_more_number_is_no_proof_of_work():
    assert not went_on(steps(0, [1]) + steps(9, [2]), 5, 5)
    assert went_on(steps(0, [1]) + steps(9, [2, 3, 4, 5]), 5, 5)
    assert not went_on(steps(9, [2, 3, 4, 5]), 5, 5)


_signs = st.builds(
    lambda index, reason, tier, weight, fatal, mild, chain, log: sign(
        index, reason, tier, weight, fatal=fatal, mild=mild, chain=chain, log=log
    ),
    st.integers(0, 200),
    st.sampled_from(sorted(REASONS)),
    st.sampled_from(["decisive", "explicit", "implicit", "cascade", "failed_end"]),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 2),
    st.integers(0, 2),
)
_some_marks = st.lists(
    st.builds(mark, st.integers(0, 200), st.sampled_from(["handled", "cleanup", "ended_well"])), max_size=4
)


@given(st.lists(_signs, max_size=12), _some_marks)
def test_whatever_the_signs_there_is_one_reason_of_them(signs, marks):
    found = choose(case(*signs, marks=marks))
    assert found.reason in {"none", "no_signature"} | {one.reason for one in signs}


@given(st.lists(_signs, max_size=12), _some_marks)
def test_a_step_only_takes_signs_out(signs, marks):
    before = case(*signs, marks=marks)
    for step in STEPS:
        after = step.apply(before)
        assert {one.name for one in after.signs} <= {one.name for one in before.signs}
        assert step.apply(after).signs == after.signs
        before = after
