"""STANDING: who runs stays, and the promises of TUNE hold round after round."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.tuner.placing import Placed, Request
from slurm_plugins.tuner.standing import Standing
from slurm_plugins.tuner.values import PROFILES, V100
from tests.properties import examples
from tests.unit.slurm_plugins.tuner.test_placing import used

ALEXNET, RES18, GNMT = (PROFILES[name].curve for name in ("alexnet", "res18", "gnmt"))


def told(changed: Mapping[int, Placed | None]) -> dict[int, float]:
    """Who runs otherwise than before, and how fast."""
    return {job: placed.speed for job, placed in changed.items() if placed is not None}


def test_who_comes_takes_back_and_who_goes_lets_others_rise():
    turns = Standing(1, V100)
    first = turns.turn([], [], [Request(0, 1, RES18), Request(1, 1, RES18)])
    assert told(first) == {0: 2.4, 1: 2.4}
    crowd = [Request(n, 1, RES18) for n in range(2, 8)]
    changed = turns.turn([], [], crowd)
    assert set(changed) == set(range(8))
    assert set(told(changed).values()) == {1.0}
    # nine CPUs: six make one of them as fast as can be, three are not enough for another
    after = turns.turn([], [2, 3, 4], [])
    assert told(after) == {0: 2.4}
    assert turns.turn([], [], []) == {}


def test_by_whole_curves_who_cannot_have_the_best_has_the_next():
    two, whole = Standing(1, V100), Standing(1, V100, whole=True)
    jobs = [Request(n, 1, RES18) for n in range(3)] + [Request(n, 1, GNMT) for n in range(3, 8)]
    speeds = [sorted(told(one.turn([], [], jobs)).values()) for one in (two, whole)]
    # of 19 CPUs 9 and 3 and 3, or 9 and 6 and 4
    assert speeds[0] == [1.0] * 7 + [2.4]
    assert speeds[1] == [1.0] * 5 + [1.3, 1.75, 2.4]


def test_a_small_gain_is_not_worth_a_restart():
    turns = Standing(1, V100, worth=1.2)
    crowd = [Request(n, 1, PROFILES["res50"].curve) for n in range(8)]
    turns.turn([], [], crowd)
    assert turns.turn([], [0, 1, 2, 3], []) == {}


@given(st.data(), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_promises_hold_through_any_coming_and_going(data, whole):
    turns = Standing(3, V100, whole=whole)
    running: dict[int, Request] = {}
    speeds: dict[int, float] = {}
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        gone = data.draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else []
        for job in gone:
            del running[job], speeds[job]
        free = 3 * V100.gpus - sum(request.gpus for request in running.values())
        come = []
        for gpus, name in data.draw(
            st.lists(
                st.tuples(st.sampled_from([1, 1, 2, 4, 8, 10]), st.sampled_from(sorted(PROFILES))),
                max_size=20,
            )
        ):
            if gpus <= free:
                free -= gpus
                come.append(Request(number, gpus, PROFILES[name].curve))
                running[number] = come[-1]
                number += 1
        changed = turns.turn(running, gone, come)
        speeds |= told(changed)
        placed = turns.cluster.placed
        # what it told is what is so
        assert speeds == {job: one.speed for job, one in placed.items()}
        assert placed.keys() == running.keys()
        for one in placed.values():
            assert sum(one.parts.values()) == one.request.gpus
            assert one.speed >= one.request.curve.speed(V100.proportional) - 1e-9
        for server in range(3):
            gpus, cpus, memory = used(placed, server)
            assert gpus <= V100.gpus
            assert cpus <= V100.cpus + 1e-3
            assert memory <= V100.memory + 1e-3
