"""SWAF: equations 9 to 13 by hand, and what holds of every rule: capacity, no time lost, no task forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.swaf import (
    Finished,
    Free,
    Option,
    State,
    Task,
    choose,
    cost,
    expected,
    options,
    placements,
    simulate,
    swaf,
)
from slurm_plugins.tuner.swaf_rules import RULES
from tests.properties import examples

NODES, GPUS = 2, 4


def task(
    number: int, arrival: float, alone: float, urgency="normal", *, power: float = 0.7, asked=(1, 1)
) -> Task:
    """Takes `alone` seconds on one GPU, and GPUs ** power times less on more."""
    found = options(
        lambda at: alone / (at[0] * at[1]) ** power, lambda at: float((at[0] * at[1]) ** power), NODES, GPUS
    )
    return Task(number, arrival, expected(arrival, alone, urgency), found, urgency, asked)


tasks = st.lists(
    st.tuples(
        st.floats(0, 5_000),
        st.floats(1, 5_000),
        st.sampled_from(["urgent", "prior", "normal"]),
        st.floats(0.05, 1),
        st.sampled_from(placements(NODES, GPUS)),
    ),
    max_size=25,
).map(
    lambda rows: [
        task(number, arrival, alone, urgency, power=power, asked=asked)
        for number, (arrival, alone, urgency, power, asked) in enumerate(rows)
    ]
)


def test_cost_counts_gpus_and_nodes():
    assert cost((4, 4), 4, 4) == pytest.approx(1.4)
    assert cost((1, 4), 4, 4) == pytest.approx(0.35)
    assert cost((4, 1), 4, 4) == pytest.approx(0.65), "the same GPUs on more nodes cost more"


def test_who_is_expected_when():
    assert [expected(10, 100, urgency) for urgency in ("urgent", "prior", "normal")] == [10, 110, 210]


def test_the_most_worth_of_what_is_in_time_and_else_of_all():
    slow, fast = Option((1, 1), 100, 1.0, 6.0), Option((2, 4), 20, 5.0, 3.0)
    one = Task(0, 0.0, 110.0, (slow, fast))
    assert choose(one, 0.0) == (slow, 10.0)
    assert choose(one, 11.0) == (fast, 79.0)
    assert choose(one, 91.0) == (slow, -81.0)


def test_the_smallest_allowance_goes_first():
    long, soon = task(0, 0, 1000), task(1, 0, 100, "prior")
    state = State([long, soon], Free(NODES, GPUS), {})
    assert choose(soon, 0).allowance < choose(long, 0).allowance
    assert swaf(state) == (soon, choose(soon, 0).option.placement)


def test_a_head_that_does_not_fit_keeps_the_others_back():
    wide = Task(0, 0.0, 10.0, (Option((2, 4), 10.0, 9.0, 9.0),))
    narrow = Task(1, 0.0, 100.0, (Option((1, 1), 10.0, 1.0, 1.0),))
    free = Free(NODES, GPUS)
    free.take((1, 1))
    assert swaf(State([wide, narrow], free, {})) is None
    started = RULES["SWAF, passing"](State([wide, narrow], free, {}))
    assert started == (narrow, (1, 1))


def test_late_tasks_do_not_hold_up_who_can_be_in_time():
    late = Task(0, 0.0, -500.0, (Option((1, 1), 100.0, 1.0, 1.0),))
    can = Task(1, 0.0, 60.0, (Option((1, 1), 50.0, 1.0, 1.0),))
    state = State([late, can], Free(1, 1), {})
    assert swaf(state) == (late, (1, 1))
    assert RULES["SWAF, late last"](state) == (can, (1, 1))


def test_tetris_starts_what_is_best_aligned_with_what_is_free_and_passes_what_does_not_fit():
    small, wide = task(0, 0, 100, asked=(1, 2)), task(1, 0, 100, asked=(2, 4))
    free = Free(NODES, GPUS)
    assert RULES["Tetris"](State([small, wide], free, {})) == (wide, (2, 4))
    free.take((1, 1))
    assert RULES["Tetris"](State([wide, small], free, {})) == (small, (1, 2))
    assert RULES["Tetris"](State([wide], free, {})) is None


def test_alignment_counts_what_is_free_where_a_task_would_be_put():
    """Of four GPUs on each of two nodes two are taken of one."""
    free = Free(NODES, GPUS)
    free.take((1, 2))
    # on the roomy node 3 x 4; on both 2 x 4 and 2 x 2: alike, and the first goes first
    first, second = task(0, 0, 100, asked=(1, 3)), task(1, 0, 100, asked=(2, 2))
    assert RULES["Tetris"](State([first, second], free, {})) == (first, (1, 3))
    # on both 1 x 4 and 1 x 2; on the fuller node, which is taken for it, 2 x 2
    first, second = task(0, 0, 100, asked=(2, 1)), task(1, 0, 100, asked=(1, 2))
    assert RULES["Tetris"](State([second, first], free, {})) == (first, (2, 1))


def test_perf_goes_by_the_rate():
    one = Task(0, 0.0, 100.0, (Option((1, 1), 50.0, 1.0, 9.0), Option((2, 4), 10.0, 5.0, 1.0)))
    assert RULES["Tetris+Perf"](State([one], Free(NODES, GPUS), {})) == (one, (2, 4))
    idle = Task(0, 0.0, 100.0, (Option((1, 1), 50.0, 0.0, 0.0), Option((1, 2), 50.0, 0.0, 0.0)))
    assert RULES["Tetris+Perf"](State([idle], Free(NODES, GPUS), {})) == (idle, (1, 2)), "no rate, no sum"


@pytest.mark.parametrize(("worth", "chosen"), [(6.0, (2, 4)), (9.0, (1, 1))])
def test_the_sum_weighs_alignment_against_worth(worth, chosen):
    """Aligned are 1 x 4 of 16 and 2 x 16 of 16, 1.125 on average; so much counts an average worth."""
    one = Task(0, 0.0, 100.0, (Option((1, 1), 50.0, 1.0, worth), Option((2, 4), 10.0, 5.0, 1.0)))
    state = State([one], Free(NODES, GPUS), {})
    assert RULES["Tetris+CER"](state) == (one, chosen)


def test_packing_fills_what_is_free_with_what_is_worth_most_on_its_own_placement():
    narrow = Task(0, 0.0, 100.0, (Option((1, 1), 50.0, 1.0, 9.0), Option((2, 4), 10.0, 5.0, 1.0)))
    wide = Task(1, 0.0, 100.0, (Option((1, 4), 50.0, 1.0, 6.0), Option((1, 1), 90.0, 1.0, 5.0)))
    free = Free(NODES, GPUS)
    assert RULES["Tetris+CER, packing"](State([narrow, wide], free, {})) == (wide, (1, 4))
    assert RULES["CER alone"](State([narrow, wide], free, {})) == (narrow, (1, 1))
    free.take((2, 1))
    assert RULES["Tetris+CER, packing"](State([narrow, wide], free, {})) == (narrow, (1, 1))
    assert RULES["CER alone"](State([wide], free, {})) == (wide, (1, 1))


def test_an_idle_cluster_meets_what_can_be_met():
    for name in ("SWAF", "SWAF, both (ours)"):
        found = simulate(
            [task(0, 5, 100, "prior"), task(1, 500, 100), task(2, 900, 9, "urgent")], NODES, GPUS, RULES[name]
        )
        assert found.in_time == pytest.approx(2 / 3), "an urgent one is expected at once"


@settings(max_examples=examples(60), deadline=None)
@given(tasks, st.sampled_from(sorted(RULES)))
def test_every_rule_keeps_to_the_cluster_and_ends_every_task(work, name):
    found = simulate(work, NODES, GPUS, RULES[name])
    assert set(found.ended) == {one.task for one in work}
    for one in work:
        start, end = found.started[one.task], found.ended[one.task]
        assert start >= one.arrival
        took = end - start
        assert any(
            took == pytest.approx(o.latency, rel=1e-6, abs=1e-6)
            and o.placement[0] * o.placement[1] == found.gpus[one.task]
            for o in one.options
        ), "the work that was asked for, no less"
        if one.urgency == "urgent":
            assert end > one.due
    for moment in found.started.values():
        held = [found.gpus[n] for n in found.gpus if found.started[n] <= moment < found.ended[n]]
        assert sum(held) <= NODES * GPUS
    assert 0 <= found.in_time <= 1


@settings(max_examples=examples(40), deadline=None)
@given(tasks, st.sampled_from(["Tetris", "Tetris+CER", "CER alone", "Min-Min", "SWAF, both (ours)"]))
def test_rules_that_pass_leave_nobody_waiting_on_an_idle_cluster(work, name):
    found = simulate(work, NODES, GPUS, RULES[name])
    for one in work:
        # whenever it waited, something else ran
        busy = sorted((found.started[n], found.ended[n]) for n in found.ended if n != one.task)
        now = one.arrival
        for start, end in busy:
            if start <= now + 1e-9:
                now = max(now, end)
        assert found.started[one.task] <= now + 1e-6


@given(st.lists(st.sampled_from(placements(3, 4)), max_size=12))
def test_free_gives_out_nothing_twice(wanted):
    free = Free(3, 4)
    taken = []
    for at in wanted:
        assert free.fits(at) == (at in free.able())
        if free.fits(at):
            nodes = free.take(at)
            assert len(set(nodes)) == at[0]
            taken.append((nodes, at[1]))
        else:
            with pytest.raises(ValueError, match="are not free"):
                free.take(at)
        assert all(0 <= gpus <= 4 for gpus in free.gpus)
    for nodes, gpus in taken:
        free.give(nodes, gpus)
    assert free.gpus == [4, 4, 4]


def test_a_rule_that_starts_nobody_is_told():
    with pytest.raises(ValueError, match="empty cluster"):
        simulate([task(0, 0, 1)], NODES, GPUS, lambda _: None)


def test_nothing_to_do_takes_no_time():
    assert simulate([], NODES, GPUS, swaf) == Finished([])
    assert Finished([]).makespan == 0
