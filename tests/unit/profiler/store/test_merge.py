"""The pure parts of the store."""

from __future__ import annotations

import pytest

from profiler.store.facts import JobFacts, Seen, fitted, fitting
from profiler.store.merge import clean, count_hosts
from profiler.store.sums import job_sums, node_sums
from tests.unit.profiler.store.records import use


@pytest.mark.parametrize(
    ("hostlist", "count"),
    [
        ("n1", 1),
        ("n[1-3]", 3),
        ("n[1-3,7],m2", 5),
        ("gpu-a[01-02]x[0-3]", 8),
        ("a,b,c", 3),
        ("n[0-999999999]", 10**9),
        ("", None),
        ("n[", None),
        ("n[a-b]", None),
        ("n[3-1]", None),
        ("n[]", None),
        ("n[1-999999999]x[1-999999999]", None),
    ],
)
def test_count_hosts(hostlist: str, count: int | None) -> None:
    assert count_hosts(hostlist) == count


def test_clean() -> None:
    assert clean("a\0\udcffb\u2603") == "a\ufffd?b\u2603"


def test_means_are_weighted_by_the_time_looked_at() -> None:
    node = node_sums((use(0, 100.0, seconds=300.0), use(1, 0.0, seconds=100.0), use(2, None)))
    rows = [node | {"cpu_seconds": None, "memory_peak_bytes": None}] * 2
    assert job_sums(rows)["utilisation_mean"] == 75.0
    assert (job_sums(rows)["gpus_known"], job_sums(rows)["gpus_idle"]) == (6, 4)


def test_a_glance_counts_too() -> None:
    node = node_sums((use(0, 40.0, seconds=0.0),)) | {"cpu_seconds": 0.0, "memory_peak_bytes": 0}
    assert (job_sums([node])["utilisation_mean"], job_sums([node])["cpu_seconds"]) == (40.0, 0.0)


def test_nothing_known_stays_unknown() -> None:
    node = node_sums(()) | {"cpu_seconds": None, "memory_peak_bytes": None}
    known = {name: value for name, value in job_sums([node]).items() if value is not None}
    assert known == {"gpus_known": 0}
    assert job_sums([]) == job_sums([node])


@pytest.mark.parametrize(
    ("restarts", "started", "ended", "fits"),
    [
        (1, None, None, 1),
        (7, None, None, None),
        (None, None, None, None),
        (None, 100.0, 200.0, 0),
        (None, 130.0, None, 0),  # the node's clock is behind
        (None, 4990.0, None, 1),
        (None, 500.0, 600.0, None),
        (None, 20.0, 9000.0, 0),  # the first after the start
    ],
)
def test_fitting(restarts: int | None, started: float | None, ended: float | None, fits: int | None) -> None:
    attempts = [Seen(10, 0, 105.0), Seen(11, 1, 5000.0)]
    facts = JobFacts(cluster="c", job_id=1, restarts=restarts, started=started, ended=ended)
    found = fitting(facts, attempts)
    assert (found.restarts if found else None) == fits


@pytest.mark.parametrize(
    ("told", "attempts", "pairs"),
    [
        # the node of the first attempt died before it could tell
        ([(100, 105), (106, None)], {1: 106.2}, {106: 1}),
        ([(106, None), (100, 105)], {1: 106.2}, {106: 1}),
        ([(100, 105), (106, None)], {0: 100.4, 1: 106.2}, {100: 0, 106: 1}),
        # ... or that of the second
        ([(100, 105), (106, 110)], {0: 100.4}, {100: 0}),
        # a node that needs a minute to boot
        ([(100, 105), (200, 400)], {0: 104.0, 1: 260.0}, {100: 0, 200: 1}),
        ([(100, 105)], {}, {}),
    ],
)
def test_each_attempt_is_told_of_once(
    told: list[tuple[float, float | None]], attempts: dict[int, float], pairs: dict[float, int]
) -> None:
    facts = [JobFacts(cluster="c", job_id=1, started=start, ended=end) for start, end in told]
    seen = [Seen(10 + restarts, restarts, at) for restarts, at in attempts.items()]
    assert {one.started: fit.restarts for one, fit in fitted(facts, seen)} == pairs


@pytest.mark.parametrize(
    ("ended", "nodes", "fits"),
    [(107.0, "n1", 0), (5003.0, "n1", 1), (None, "n1", None), (107.0, "", None), (900.0, "n1", None)],
)
def test_an_attempt_of_which_the_start_is_never_told_is_known_by_its_end(
    ended: float | None, nodes: str, fits: int | None
) -> None:
    """slurmdbd 22.05 has `None` for the start of what ends in its first seconds; and for what was never started."""
    facts = JobFacts(cluster="c", job_id=1, state="NODE_FAIL", ended=ended, nodes=nodes, final=True)
    found = fitting(facts, [Seen(10, 0, 105.0), Seen(11, 1, 5000.0)])
    assert (found.restarts if found else None) == fits


def test_two_attempts_one_of_which_has_no_start() -> None:
    short = JobFacts(cluster="c", job_id=1, ended=102.0, nodes="n1", state="NODE_FAIL")
    next_one = JobFacts(cluster="c", job_id=1, started=110.0, ended=160.0, nodes="n2", state="FAILED")
    for told in ([short, next_one], [next_one, short]):
        found = fitted(told, [Seen(1, 0, 101.0), Seen(2, 1, 110.5)])
        assert {one.state: fit.restarts for one, fit in found} == {"NODE_FAIL": 0, "FAILED": 1}


def test_two_attempts_of_the_same_second() -> None:
    facts = [
        JobFacts(cluster="c", job_id=1, started=100, ended=100, state=word) for word in ("REQUEUED", "FAILED")
    ]
    found = fitted(facts, [Seen(1, 0, 100.3), Seen(2, 1, 100.9)])
    assert [(one.state, fit.restarts) for one, fit in found] == [("REQUEUED", 0), ("FAILED", 1)]
