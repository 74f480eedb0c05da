"""What jobs do, for the rules of a site: how long its GPUs have been stuck, as the store hands it over."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.alerts import facts_of
from profiler.records import Record
from profiler.store import JobFacts, Store
from profiler.store.use import in_use
from tests.unit.profiler.store.records import CLUSTER, T0, gpu, started, usage, use

NOW = T0 + 3600


@pytest.mark.parametrize(
    ("at_end", "more", "stuck"),
    [
        (2400.0, {}, 2400.0),
        (0.0, {}, 0.0),  # it computes again
        (290.0, {}, 0.0),  # a pause, and no hang
        (300.0, {}, 300.0),
        (None, {}, None),  # by an agent that does not tell it
        (2400.0, {"power_limit_w": None}, None),
        (2400.0, {"faults": ("HUNG",)}, None),
        (2400.0, {"gpus": 1}, 0.0),  # it has nobody to wait for
    ],
)
def test_for_how_long_a_job_has_been_stuck(
    store: Store, at_end: float | None, more: dict[str, Any], stuck: float | None
) -> None:
    values: dict[str, Any] = {"power_limit_w": 400.0, "gpus": 2} | more
    count = values.pop("gpus")
    uses = tuple(
        use(
            minor,
            100.0,
            stuck_seconds=2400.0,
            stuck_at_end_seconds=at_end if minor == count - 1 else 2400.0,
            idle_at_start_seconds=0.0,
            idle_at_end_seconds=0.0,
            **values,
        )
        for minor in range(count)
    )
    refs = tuple(gpu(minor) for minor in range(count))
    store.take([started(gpus=refs), usage(1, "n1", 9, at=NOW, since=T0, until=NOW, gpus=uses)], NOW)
    facts = JobFacts(cluster=CLUSTER, job_id=1, state="RUNNING", started=T0, nodes="n1", gpus=count)
    store.enrich([facts], NOW)
    (one,) = in_use(store, CLUSTER)
    assert one.nodes[0].gpus == uses
    assert facts_of(one, now=NOW, fresh=170.0).values["stuck_s"] == stuck


@pytest.mark.parametrize("second", [(), None])
@pytest.mark.parametrize("counts", [(None,), (None, None), (2,), (2, None)])
def test_the_nodes_own_count_of_gpus_is_not_taken_for_slurms(
    store: Store, second: tuple[Any, ...] | None, counts: tuple[int | None, ...]
) -> None:
    """Of a job on two nodes the GPUs of the second may be seen by nobody, and compute."""
    idle = use(0, 0.0, 3600.0, idle_at_start_seconds=3600.0, idle_at_end_seconds=0.0)
    told: list[Record] = [
        started(1, "n1", gpus=(gpu(0),), nodes="n[1-2]"),
        started(1, "n2", gpus=second, nodes="n[1-2]"),
        usage(1, "n1", 9, at=NOW, since=T0, until=NOW, gpus=(idle,)),
        usage(1, "n2", 9, at=NOW, since=T0, until=NOW, gpus=()),
    ]
    store.take(told, NOW)
    for count in counts:
        facts = JobFacts(cluster=CLUSTER, job_id=1, state="RUNNING", started=T0, nodes="n[1-2]", gpus=count)
        store.enrich([facts], NOW)
    (one,) = in_use(store, CLUSTER)
    assert one.job.gpus == counts[0]
    values = facts_of(one, now=NOW, fresh=170.0).values
    assert values["idle_s"] is None and values["gpus"] == counts[0]
