"""Looks at the queue, put together: histories made by hand, and what comes of them reckoned by hand."""

from __future__ import annotations

import msgspec
import pytest

from profiler.waits import Seen, Wait, looked, shares

JOB, OTHER = (7, 0), (9, 0)


def history(*looks: tuple[float, str | None], gap: float = 60.0) -> Wait | None:
    """The wait of JOB after looks that saw it wait for something, or (None) not at all."""
    waits: dict[tuple[int, int], Wait] = {}
    for at, cause in looks:
        waits = looked(waits, {} if cause is None else {JOB: Seen(cause)}, at=at, gap=gap)
    return waits.get(JOB)


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        # It could start from 100 on and did at 200
        (((110, "priority"), (140, "priority"), (170, "priority")), {"priority": 60, "unknown": 40}),
        # What changed between two looks belongs to neither
        (
            ((110, "priority"), (140, "priority"), (170, "resources"), (200, "resources")),
            {"priority": 30, "resources": 30, "unknown": 40},
        ),
        # There and back
        (
            ((100, "priority"), (120, "priority"), (130, "limits"), (140, "priority"), (200, "priority")),
            {"priority": 80, "unknown": 20},
        ),
        # Nobody looked for 80 s, with a gap of 60 s
        (((110, "locality"), (190, "locality")), {"unknown": 100}),
        # One look tells nothing of what was before and after it
        (((150, "resources"),), {"unknown": 100}),
        ((), {"unknown": 100}),
        # What was seen before it could start, or after it did by Slurm's clock, is not waiting
        (((80, "user"), (120, "user"), (180, "user"), (220, "user")), {"user": 100}),
        # A clock that was set back
        (((150, "priority"), (120, "priority"), (140, "priority")), {"priority": 20, "unknown": 80}),
        # ... over what was seen: 110 to 130, and from there on anew
        (
            ((110, "priority"), (160, "priority"), (130, "limits"), (170, "limits")),
            {"priority": 20, "limits": 40, "unknown": 40},
        ),
        # It was gone from the queue in between: another attempt's wait, or none
        (
            ((110, "priority"), (140, None), (170, "priority"), (190, "priority")),
            {"priority": 20, "unknown": 80},
        ),
    ],
)
def test_time_goes_to_the_cause_that_two_looks_saw(
    looks: tuple[tuple[float, str | None], ...], wanted: dict[str, float]
) -> None:
    assert shares(history(*looks), since=100, until=200) == wanted


def test_no_wait_has_no_cause() -> None:
    assert shares(None, since=100, until=100) == {}
    assert shares(history((90, "user"), (120, "user")), since=110, until=105) == {}


def test_a_task_of_an_array_waited_as_part_of_it() -> None:
    waits = looked({}, {JOB: Seen("priority")}, at=100, gap=60)
    waits = looked(waits, {JOB: Seen("priority"), OTHER: Seen("priority", array=JOB)}, at=130, gap=60)
    waits = looked(waits, {OTHER: Seen("priority", array=JOB)}, at=160, gap=60)
    assert shares(waits[OTHER], since=100, until=160) == {"priority": 60}
    assert JOB not in waits


def test_what_was_seen_survives_a_restart() -> None:
    wait = history((100, "priority"), (130, "priority"))
    assert wait is not None
    read = msgspec.json.decode(msgspec.json.encode(wait), type=Wait)
    assert shares(
        looked({JOB: read}, {JOB: Seen("priority")}, at=160, gap=60)[JOB], since=100, until=160
    ) == {"priority": 60}


def test_a_wait_of_many_causes_is_bounded() -> None:
    """What is dropped of it becomes unknown, never another cause's."""
    looks: list[tuple[float, str | None]] = []
    for turn in range(300):
        cause = ("priority", "resources")[turn % 2]
        looks += [(20.0 * turn, cause), (20.0 * turn + 10, cause)]
    wait = history(*looks)
    assert wait is not None and len(wait.spans) == 100
    assert shares(wait, since=0, until=6000) == {"priority": 500, "resources": 500, "unknown": 5000}
