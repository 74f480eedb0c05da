"""The cluster's figures on /metrics: what they count, how Prometheus reads them, and that the examples name them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event as calls_of

from profiler.answers import Sign
from profiler.store.ended import ended as what_ended
from profiler.store.facts import JobFacts
from prolog_epilog.failures.taxonomy import REASONS
from site_configs.site import parse_site
from slurm_plugins.client.causes import CAUSES
from slurm_plugins.client.resources import Tres
from slurm_plugins.client.states import JobState, NodeState
from slurm_plugins.client.values import Node
from slurm_plugins.service.keeper.keeper import Keeper, Options
from slurm_plugins.service.keeper.queue import Queue, queue_of
from slurm_plugins.service.keeper.tallying import FRESH, SETTLED, Tallying
from slurm_plugins.service.look import gpus_by_state
from slurm_plugins.service.metrics import Counter, Gauges, Histogram, Registry
from slurm_plugins.service.site_watch import Taken
from tests.paths import REPOSITORY
from tests.unit.profiler.store.records import CLUSTER, T0, ended, found, judge_by_logs, started, usage, use
from tests.unit.slurm_plugins.keeper.door import Door
from tests.unit.slurm_plugins.keeper.fakes import FakeKey, FakeSlurm
from tests.unit.slurm_plugins.keeper.test_enrich import a_job
from tests.unit.slurm_plugins.service.serving import serving

EXAMPLES = REPOSITORY / "site_configs/examples/monitoring"
DASHBOARD = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((EXAMPLES / "gsub.rules.yml").read_text())
Samples = dict[tuple[str, ...], float]
DAY = 86400.0


def samples(text: str) -> Samples:
    """Name and labels' values of each sample, as Prometheus' own parser reads them."""
    families = text_string_to_metric_families(text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


class Figures:
    """The figures over a store, at a time that a test sets."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.now = T0
        self.queue: Queue | None = None
        self.heard: dict[str, Sign] = {}
        self.tallying = Tallying(
            CLUSTER,
            door.storing,
            door.counts,
            queue=lambda: self.queue,
            heard=self.heard,
            now=lambda: self.now,
        )

    def read(self) -> Samples:
        """What a scrape reads."""
        return samples(self.door.counts.registry.text())


@pytest.mark.slow
def test_what_ended_is_counted_once_and_when_it_is_settled(both: Door) -> None:
    figures, store = Figures(both), both.storing.store
    hour = T0 + 3600
    # Two GPUs each for an hour: one in use; one failed; one that used none; one whose GPUs nobody saw
    for job, gpus in (
        (1, (use(0, 80.0), use(1, 0.0))),
        (2, (use(0, 50.0), use(1, 50.0))),
        (3, (use(0, 0.0), use(1, 0.0))),
        (4, ()),
    ):
        more: dict[str, Any] = {"serial": 2, "final": True, "at": hour, "gpus": gpus}
        store.take([started(job), ended(job), usage(job, **more)], hour)
    facts = {1: "COMPLETED", 2: "FAILED", 3: "CANCELLED", 4: "COMPLETED"}
    store.enrich(
        [
            JobFacts(
                cluster=CLUSTER,
                job_id=job,
                restarts=0,
                state=state,
                started=T0,
                ended=hour,
                gpus=2,
                final=True,
            )
            for job, state in facts.items()
        ],
        hour,
    )
    store.take([found(2)], hour)
    judge_by_logs(store)
    figures.now = hour + SETTLED - 1
    asyncio.run(figures.tallying.once())
    assert figures.read()["gsub_attempts_total", "completed"] == 0, "not settled yet"
    for _ in range(2):
        figures.now += 60
        asyncio.run(figures.tallying.once())
    told = figures.read()
    counts = {key[1]: value for key, value in told.items() if key[0] == "gsub_attempts_total" and value}
    assert counts == {"completed": 2, "failed": 1, "cancelled": 1}
    assert told["gsub_gpu_hours_total", "completed"] == pytest.approx(4)
    assert told["gsub_gpu_hours_total", "failed"] == pytest.approx(2)
    wasted = {
        key[1]: value for key, value in told.items() if key[0] == "gsub_wasted_gpu_hours_total" and value
    }
    assert wasted == {"gpu_oom": pytest.approx(2), "never_used": pytest.approx(1 + 2)}
    assert {key[1] for key, value in told.items() if key[0] == "gsub_failures_total" and value} == {"gpu_oom"}
    assert {key[1] for key in told if key[0] == "gsub_failures_total"} == {*REASONS}, "from 0 on"


def test_no_more_is_wasted_than_was_held(both: Door) -> None:
    """Jobs whose nodes name more GPUs than Slurm gave them, one or none."""
    store, hour = both.storing.store, T0 + 3600
    one: dict[str, Any] = {"cluster": CLUSTER, "restarts": 0, "state": "COMPLETED", "final": True}
    gpus = (use(0, 0.0), use(1, 0.0))
    for job, given in ((1, 0), (2, 1)):
        store.take([started(job), ended(job), usage(job, serial=2, final=True, at=hour, gpus=gpus)], hour)
        store.enrich([JobFacts(**one, job_id=job, started=T0, ended=hour, gpus=given)], hour)
    (row,) = what_ended(store, CLUSTER, T0, hour + 1)
    assert (row.attempts, row.gpu_hours, row.idle_hours) == (2, 1.0, 1.0)


def test_an_index_finds_what_ended(door: Door) -> None:
    store, asked = door.storing.store, list[tuple[str, Any]]()
    calls_of.listen(
        store.engines.reader, "before_cursor_execute", lambda *call: asked.append((call[2], call[3]))
    )
    what_ended(store, CLUSTER, T0, T0 + 60)
    with store.reading("test") as connection:
        (statement, values) = next(one for one in asked if one[0].startswith("SELECT"))
        plan = [row[3] for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values)]
    assert any("INDEX ix_job_ended (cluster=? AND ended>? AND ended<?)" in step for step in plan), plan
    assert not any(step.startswith("SCAN") for step in plan), plan


def test_a_clock_that_is_set_back_counts_nothing_twice(door: Door) -> None:
    figures, store = Figures(door), door.storing.store
    store.take([started(1), ended(1)], T0)
    one: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": 1,
        "restarts": 0,
        "state": "COMPLETED",
        "final": True,
    }
    facts = JobFacts(**one, gpus=1, started=T0, ended=T0 + 60)
    store.enrich([facts], T0)
    for now in (T0 + 1000, T0 - DAY, T0 + 1000, T0 + 2000):
        figures.now = now
        asyncio.run(figures.tallying.once())
    assert figures.read()["gsub_attempts_total", "completed"] == 1


def test_what_gpus_do_lately(door: Door) -> None:
    figures = Figures(door)
    assert ("gsub_gpu_utilisation_percent",) not in figures.read(), "not known is not 0"
    first: dict[str, Any] = {"gpus": (use(0, 100.0, 60.0), use(1, 50.0, 60.0), use(2, None, 60.0))}
    figures.tallying.took([started(1), usage(1, serial=1, at=T0, **first)])
    assert figures.read()["gsub_gpu_utilisation_percent",] == 75
    # In the second minute the one does nothing, and the other all
    second: dict[str, Any] = {"gpus": (use(0, 50.0, 120.0), use(1, 75.0, 120.0))}
    figures.tallying.took([usage(1, serial=2, at=T0 + 60, **second), usage(1, serial=1, at=T0, **first)])
    told = figures.read()
    assert (told["gsub_gpu_utilisation_percent",], told["gsub_gpus_seen",], told["gsub_gpus_held_idle",]) == (
        50,
        2,
        1,
    )
    figures.tallying.took([usage(2, node="n2", serial=1, at=T0 + 60, gpus=(use(0, 20.0, 30.0),))])
    assert figures.read()["gsub_gpus_seen",] == 3
    figures.tallying.took([usage(2, node="n2", serial=2, at=T0 + 90, final=True)])
    assert figures.read()["gsub_gpus_seen",] == 2
    figures.now += 61 + FRESH
    assert figures.read()["gsub_gpus_seen",] == 0 and ("gsub_gpu_utilisation_percent",) not in figures.read()


def test_agents_that_fell_silent(door: Door) -> None:
    figures = Figures(door)
    figures.heard |= {"n1": Sign(T0), "n2": Sign(T0 - FRESH - 1), "n3": Sign(T0 - 60)}
    told = figures.read()
    assert (told["gsub_agents", "fresh"], told["gsub_agents", "silent"]) == (2, 1)


def test_what_waits_is_told_by_cause(door: Door) -> None:
    wait = JobState.PENDING
    jobs = [
        a_job(1),
        a_job(2, wait, reason="Priority", gpus=8),
        a_job(3, wait, reason="Priority", gpus=1, array_tasks="0-9:3,12-18%2"),
        a_job(4, wait, reason="Priority", gpus=1, array_tasks="0-4000000,..."),
        a_job(5, wait, reason="Resources"),
        a_job(6, wait, reason="Resources", switches=1),
        a_job(7, wait, reason="QOSMaxGRESPerUser"),
        a_job(8, wait, reason="AssocGrpGRES"),
        a_job(9, wait, reason="Dependency"),
        a_job(10, wait, reason="Priority", priority=0),
        a_job(11, wait, reason="ReqNodeNotAvail, UnavailableNodes:n1"),
        a_job(12, wait, reason=None, gpus=None, tres=Tres(())),
        a_job(13, JobState.COMPLETED),
    ]
    queue = queue_of(jobs)
    assert queue.running == 1
    assert queue.pending == {
        "priority": 4_000_014,
        "resources": 1,
        "locality": 1,
        "limits": 2,
        "user": 2,
        "other": 2,
    }
    assert queue.pending_gpus == {
        "priority": 4_000_021,
        "resources": 4,
        "locality": 4,
        "limits": 8,
        "user": 8,
        "other": 4,
    }
    figures = Figures(door)
    assert not [key for key in figures.read() if key[0] in ("gsub_jobs_pending", "gsub_jobs_running")]
    figures.queue = queue
    told = figures.read()
    assert {key[1] for key in told if key[0] == "gsub_jobs_pending"} == {*CAUSES}
    assert (told["gsub_gpus_pending", "priority"], told["gsub_jobs_running",]) == (4_000_021, 1)


def test_gpus_by_state() -> None:
    eight, cfg = Tres((("gres/gpu", 8),)), Tres((("gres/gpu", 8), ("cpu", 64)))

    def node(name: str, state: NodeState, held: int | None, *flags: str, tres: Tres = cfg) -> Node:
        allocated = Tres(()) if held is None else Tres((("gres/gpu", held),))
        return Node(name=name, state=state, gres=eight, tres=tres, tres_allocated=allocated, flags=frozenset(flags),
                    cpus_allocated=8)  # fmt: skip

    nodes = [
        node("n1", NodeState.MIXED, 5),
        node("n2", NodeState.MIXED, 3, "DRAIN"),
        node("n3", NodeState.DOWN, 0),
        node("n4", NodeState.IDLE, 0, "NOT_RESPONDING"),
        node("n5", NodeState.MIXED, None, tres=Tres((("cpu", 64),))),
        Node(name="n6", state=NodeState.IDLE),
    ]
    assert gpus_by_state(nodes) == {"allocated": 8, "idle": 3, "drained": 5, "down": 16, "unknown": 8}


# --- the examples ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names of all samples that gsubd and its keeper can expose, with their labels."""
    folder = tmp_path_factory.mktemp("exposed")
    site = parse_site(f'cluster = "{CLUSTER}"\n', "site.toml")
    options = Options(("127.0.0.1", 0), folder, f"sqlite:///{folder}/store.db", pipes=False)
    keeper = Keeper(options, Taken(site, "", 0.0), "", munged=FakeKey().munge(990), slurm=FakeSlurm())
    with serving(folder) as gsubd:
        registries: list[Registry] = [keeper.counts.registry, gsubd.daemon.counts.registry]
    found: dict[str, set[str]] = {}
    for metric in (one for registry in registries for one in registry._all):
        if isinstance(metric, Histogram):
            found |= {
                f"{metric.name}_bucket": {"le"},
                f"{metric.name}_sum": set(),
                f"{metric.name}_count": set(),
            }
        else:
            labels = metric._labels if isinstance(metric, Counter) else ()
            found[metric.name] = {metric._label} if isinstance(metric, Gauges) else {*labels}
    return found


EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
_NAME = re.compile(r"\b(gsub_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\b(?:by|without|ignoring|on) \(([^)]*)\)")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_names_what_is_exposed(exposed: dict[str, set[str]], expression: str) -> None:
    named = _NAME.findall(expression)
    assert named and {name for name, _ in named} <= exposed.keys()
    for name, matchers in named:
        assert set(re.findall(r"(\w+)\s*[!=]~?=?", re.sub(r'"[^"]*"', "", matchers))) <= exposed[name]
    labels = {label.strip() for part in _BY.findall(expression) for label in part.split(",")}
    assert labels <= set().union(*(exposed[name] for name, _ in named))


def test_the_legends_name_labels_that_are_there(exposed: dict[str, set[str]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set().union(*(exposed[name] for name, _ in _NAME.findall(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]


def test_the_dashboard_is_one_that_grafana_can_take() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in {"timeseries", "stat", "bargauge"} and panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells and max(x for x, _ in mine) < 24, "panels lie side by side"
        cells |= mine


def test_alerts_say_what_is_wrong_and_name_reasons_that_there_are() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
    named = {
        name
        for rule in rules
        for part in re.findall(r'reason=~"([^"]+)"', rule["expr"])
        for name in part.split("|")
    }
    assert named and named <= REASONS.keys()
    scraped = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    assert scraped["rule_files"] == ["gsub.rules.yml"]


def test_both_pages_are_read_by_prometheus_own_parser(door: Door, tmp_path: Path) -> None:
    figures = Figures(door)
    figures.queue = queue_of([a_job(1)])
    assert len(figures.read()) > 100
    with serving(tmp_path) as gsubd:
        told = samples(gsubd.get("/metrics")[1])
    gpus = {key[1]: value for key, value in told.items() if key[0] == "gsub_gpus"}
    assert {*gpus} == {"allocated", "idle", "drained", "down", "unknown"} and sum(gpus.values()) > 0
