"""What has to come together before anything follows: samples that are fresh and new, and a user who was told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from profiler.alerts import Facts, facts_of
from profiler.answers import JobSummary, NodeUse, Usage
from profiler.records import GpuRef, GpuUse
from profiler.watches import Watch, against_cancelling, looked, remembered
from site_configs.alerts_table import Rule
from site_configs.condition import parse

T0 = 1_800_000_000.0
FRESH, PAUSE, MINUTE = 170.0, 340.0, 60.0
RULE = Rule("idle", when=parse("idle_s >= 1h", {"idle_s": "duration"}), do="cancel", grace=180)


def facts(
    now: float,
    *samples: tuple[float, int],
    idle: float | None = None,
    faults: tuple[str, ...] = (),
    state: str = "RUNNING",
) -> Facts:
    """Two nodes with a GPU each; `samples`: seconds since T0 of the last one of each, and its number.

    `idle`: None: for two hours at T0, and ever since.
    """
    nodes = [
        NodeUse(
            f"n{place}", since=T0 - 9000, until=T0 + at, unseen_seconds=0.0,
            gpus=(
                GpuUse(
                    GpuRef(0, f"GPU-{place}"), samples=number, seconds=9000 + at, utilisation_mean=5.0,
                    idle_at_start_seconds=0.0, idle_at_end_seconds=7200 + at if idle is None else idle, faults=faults,
                ),
            ),
        )
        for place, (at, number) in enumerate(samples, 1)
    ]  # fmt: skip
    job = JobSummary("lab", 7, user="ada", uid=1000, partition="gpu", nodes="n[1-2]", gpus=2, state=state)
    return facts_of(Usage(job, tuple(nodes)), now=T0 + now, fresh=FRESH)


def after(
    *looks: tuple[float, Facts], told_at: float | None = None, watch: Watch | None = None
) -> Watch | None:
    """The watch after these looks, (our clock, what is known), and after those of `watch` before them."""
    for now, known in looks:
        before = {} if watch is None else {watch.rule: watch}
        found = looked([RULE], known, before, now=T0 + now, pause=PAUSE, does=lambda rule: rule.do)
        kept = [one for _, one in found] or remembered([RULE], known, before)
        watch = kept[0] if kept else None
        if watch is not None and told_at is not None and now >= told_at and watch.told is None:
            watch = msgspec.structs.replace(watch, told=T0 + now)
    return watch


def both(now: float, number: int, **more: Any) -> tuple[float, Facts]:
    """A look just after both nodes have told of their sample of this number."""
    return now, facts(now, (now - 5, number), (now - 7, number), **more)


def held(*looks: tuple[float, Facts]) -> int:
    watch = after(*looks)
    return 0 if watch is None else watch.held


def test_two_fresh_samples_running_are_counted() -> None:
    assert [held(*[both(MINUTE * place, place) for place in range(count)]) for count in (1, 2, 3)] == [
        1,
        2,
        3,
    ]


def test_the_same_sample_looked_at_again_counts_once() -> None:
    first = facts(0, (-5, 1), (-7, 1))
    assert held(*[(now, first) for now in (0.0, 10.0, 20.0, 30.0)]) == 1


ONE_NODE_SILENT = [
    (MINUTE * place, facts(MINUTE * place, (MINUTE * place, 9 + place), (0, 9))) for place in range(3)
]
HANGING_DRIVER = [  # its agent tells on, and no new reading came
    (MINUTE * place, facts(MINUTE * place, (MINUTE * place, 9 + place), (MINUTE * place, 9)))
    for place in range(5)
]


@pytest.mark.parametrize("looks", [ONE_NODE_SILENT, HANGING_DRIVER])
def test_every_node_and_gpu_has_to_have_told_anew(looks: list[tuple[float, Facts]]) -> None:
    assert held(*looks) == 1


# what comes between the first fresh sample and the next, and what is counted then
BREAKS: dict[str, tuple[list[tuple[float, Facts]], int]] = {
    "the samples grew old": ([(200.0, facts(200.0, (-5, 1), (-7, 1))), both(240.0, 2)], 1),
    "one node's sample grew old": ([(200.0, facts(200.0, (195, 2), (-7, 1))), both(240.0, 2)], 1),
    "the service was away for an hour": ([both(3600.0, 60)], 1),
    "our clock was set back": ([(-600.0, facts(-600.0, (-605, 2), (-607, 2))), both(60.0, 3)], 2),
    "our clock was set an hour ahead": ([(3660.0, facts(3660.0, (55, 2), (53, 2)))], 0),
    "a node's clock was set an hour ahead": ([(60.0, facts(60.0, (3655, 2), (53, 2)))], 0),
    "all clocks were set an hour ahead": ([both(3660.0, 2)], 1),
    "a GPU had a fault": ([both(60.0, 2, faults=("GPU_IS_LOST",))], 0),
    "it computed": ([both(60.0, 2, idle=0.0)], 0),
    "it computed, and idles again": ([both(60.0, 2, idle=0.0), both(120.0, 3)], 1),
    "nothing": ([both(60.0, 2)], 2),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_begins_the_count_anew(name: str) -> None:
    between, count = BREAKS[name]
    assert held(both(0.0, 1), *between) == count


def reasons(count: int, *, told_at: float | None, more: list[tuple[float, Facts]] | None = None) -> str:
    looks = [both(MINUTE * place, place + 1) for place in range(count)]
    watch = after(*looks, *(more or []), told_at=told_at)
    assert watch is not None
    return against_cancelling(RULE, watch)


def test_a_job_ends_only_when_its_user_was_told_and_had_the_grace() -> None:
    assert "two fresh samples" in reasons(1, told_at=0.0)
    assert "has not been told" in reasons(9, told_at=None)
    assert reasons(3, told_at=60.0) == "its user has 2 min left"
    assert reasons(4, told_at=60.0) == "its user has 1 min left"
    assert reasons(5, told_at=60.0) == ""


def test_grace_is_counted_from_sample_to_sample_not_by_the_clock() -> None:
    away = [both(7200.0, 100)]
    assert "two fresh samples" in reasons(3, told_at=60.0, more=away)
    back = [*away, both(7260.0, 101)]
    assert reasons(3, told_at=60.0, more=back) == "its user has 2 min left", (
        "what was before the break is none"
    )


AGAIN: dict[str, list[tuple[float, Facts]]] = {
    "nobody looked": [both(7200.0 + MINUTE * place, 100 + place, idle=3700 + MINUTE * place) for place in range(4)],
    "nothing was known": [
        both(240.0, 5, faults=("GPU_IS_LOST",)),
        *(both(3900.0 + MINUTE * place, 66 + place, idle=3600 + MINUTE * place) for place in range(4)),
    ],
    "it was suspended": [
        *(both(240.0 + MINUTE * place, 5 + place, state="SUSPENDED") for place in range(9)),
        *(both(780.0 + MINUTE * place, 14 + place) for place in range(4)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_who_was_told_of_an_earlier_time_is_told_anew(name: str) -> None:
    watch = after(*[both(MINUTE * place, place + 1) for place in range(3)], told_at=60.0)
    assert watch is not None and watch.told == T0 + 60
    again = after(*AGAIN[name], watch=watch)
    assert again is not None and again.told is None and again.since > watch.since and again.held >= 2


def test_what_is_old_or_not_known_is_no_grace_and_begins_it_anew() -> None:
    for between in (
        both(180.0, 4, faults=("GPU_IS_LOST",)),
        (180.0, facts(180.0, (-5, 4), (-7, 4))),
        both(180.0, 4, state="COMPLETING"),
    ):
        watch = after(*[both(MINUTE * place, place + 1) for place in range(3)], between, told_at=60.0)
        assert watch is not None and (watch.told, watch.held, watch.grace) == (T0 + 60, 0, 0.0)


def test_who_computed_again_is_told_anew_and_has_all_of_the_grace() -> None:
    looks = [both(MINUTE * place, place + 1) for place in range(4)]
    pause = both(240.0, 5, idle=0.0)
    again = [both(300.0 + MINUTE * place, 6 + place) for place in range(2)]
    watch = after(*looks, pause, *again, told_at=60.0)
    assert watch is not None and watch.told == T0 + 300 and watch.grace == 60.0


def test_what_was_done_is_not_done_again() -> None:
    watch = after(*[both(MINUTE * place, place + 1) for place in range(6)], told_at=0.0)
    assert watch is not None and against_cancelling(RULE, watch) == ""
    done = msgspec.structs.replace(watch, done="it is completing")
    assert against_cancelling(RULE, done) == "it is completing"


def test_it_is_the_same_after_it_was_written_down() -> None:
    watch = after(both(0.0, 1), both(60.0, 2), told_at=0.0)
    assert watch is not None
    assert msgspec.json.decode(msgspec.json.encode(watch), type=Watch) == watch
