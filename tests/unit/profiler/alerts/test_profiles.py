"""Kinds of jobs against gsub's rules: which each meets, who is told, and which alone are ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import msgspec
import pytest

from profiler.alerts import Facts, allowed, facts_of, findings, fresh_seconds
from profiler.answers import NodeUse
from profiler.watches import ENOUGH, Watch, against_cancelling, looked, pause_seconds, remembered
from site_configs.alerts_table import BUILT_IN, QUANTITIES
from site_configs.site import SiteError, parse_site
from site_configs.site_model import Site
from tests.unit.profiler.alerts.courses import BUSY, IDLE, SPIN, T0, Job, at, cycle

CANCELS = ("idle_from_start", "idle_after_activity", "stuck_collective")
EACH = "".join(
    f'[alerts.rules.{name}]\ndo = "{"cancel" if name in CANCELS else "notify"}"\ngrace = "30 min"\n'
    for name in BUILT_IN
)
BOLD = parse_site(f'cluster = "lab"\npolicy.mode = "enforce"\n[alerts]\nmail = true\ncancel = true\n{EACH}')
"""A site that has switched on all there is: what is not ended here is ended nowhere."""

UNKNOWN = (None, None)
HOURS = 60.0


@dataclass
class Told:
    """What came of a job: the rules that it met, those by which its user was told, and (rule, minute) of its end."""

    met: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    ended: tuple[str, float] | None = None


FRESH = fresh_seconds(BOLD.agent)


def lived(looks: Iterable[tuple[float, Facts]], site: Site = BOLD) -> Told:
    """The job, looked at each minute as the service does; it lives on where nobody ends it."""
    came, watches = Told(), dict[str, Watch]()
    rules = site.alerts.every()
    begin = None
    for now, facts in looks:
        begin = now if begin is None else begin
        leads = partial(allowed, site=site, job=facts.job)
        found = looked(rules, facts, watches, now=now, pause=pause_seconds(FRESH), does=leads)
        kept = {watch.rule: watch for watch in remembered(rules, facts, watches)}
        watches = kept | {watch.rule: watch for _, watch in found}
        for finding, watch in found:
            name = finding.rule.name
            came.met.add(name)
            does = allowed(finding.rule, site, facts.job)
            if finding.exempt or does == "observe" or watch.held < ENOUGH:
                continue
            if watch.told is None:
                came.told.add(name)
                watches[name] = msgspec.structs.replace(watch, told=now)
            elif does == "cancel" and not against_cancelling(finding.rule, watch):
                came.ended = name, (now - begin) / 60
                return came
    return came


def looks_at(of: Job, minutes: float, *, skew: float = 0.0) -> list[tuple[float, Facts]]:
    """A look each minute; `skew`: how far our clock is ahead of the nodes'."""
    return [(now + skew, facts_of(usage, now=now + skew, fresh=FRESH)) for now, usage in of.reports(minutes)]


@cache
def course(name: str) -> list[tuple[float, Facts]]:
    of, hours, _, _ = PROFILES[name]
    return looks_at(of, hours * HOURS)


def job(*stretches: Any, gpus: int = 4, **more: Any) -> Job:
    """All GPUs do the same."""
    return Job([list(stretches)] * gpus, **more)


def part(busy: int, gpus: int = 8, **more: Any) -> Job:
    """Some GPUs compute, the others never do."""
    return Job([[at(1, BUSY)]] * busy + [[at(1, IDLE)]] * (gpus - busy), **more)


RAMP = [at(20, IDLE), at(20, (5.0, 0.2)), at(20, (30.0, 0.4)), at(1, BUSY)]
DAYS = 4 * 24 * HOURS
AWAY: dict[str, Any] = {"blind": [(10.0, DAYS)]}
OWN: dict[str, Any] = {"cpus": 64.0, "cpus_busy": 4.0}

# name: (job, hours, rules that it meets, rule by which it is ended)
PROFILES: dict[str, tuple[Job, float, set[str], str | None]] = {
    "busy": (job(at(1, BUSY)), 8, set(), None),
    "ramping: loads its data first, then computes": (job(*RAMP), 8, set(), None),
    "long staging, 50 min": (job(at(50, IDLE), at(1, BUSY)), 8, set(), None),
    "bursty: one minute in four": (job(*cycle(480, at(1, BUSY), at(3, IDLE))), 8, set(), None),
    "evaluation pauses of 40 min": (job(*cycle(600, at(90, BUSY), at(40, IDLE))), 10, set(), None),
    "checkpoint pauses": (job(*cycle(480, at(25, BUSY), at(5, IDLE))), 8, set(), None),
    "low utilisation, inference at 10 %": (job(at(1, (10.0, 0.3))), 6, {"low_utilisation"}, None),
    "low, but short of 4 hours": (job(at(1, (10.0, 0.3))), 3.9, set(), None),
    "low on one GPU for less than 8 GPU-hours": (job(at(1, (10.0, 0.3)), gpus=1), 7.9, set(), None),
    "idle from the start": (job(at(1, IDLE)), 5, {"idle_from_start", "low_utilisation"}, "idle_from_start"),
    "idle from the start, then alive within the grace": (
        job(at(80, IDLE), at(1, BUSY)), 8, {"idle_from_start"}, None,
    ),
    "finished, and hangs": (job(at(60, BUSY), at(1, IDLE)), 8, {"idle_after_activity"}, "idle_after_activity"),
    "idle after activity, alive again within the grace": (
        job(at(60, BUSY), at(140, IDLE), at(1, BUSY)), 8, {"idle_after_activity"}, None,
    ),
    "idle for 119 min, twice": (
        job(at(60, BUSY), at(119, IDLE), at(10, BUSY), at(119, IDLE), at(1, BUSY)), 8, set(), None,
    ),
    "stuck in a collective": (job(at(60, BUSY), at(1, SPIN)), 3, {"stuck_collective"}, "stuck_collective"),
    "stuck, one rank died": (
        Job([[at(60, BUSY), at(1, SPIN)]] * 3 + [[at(60, BUSY), at(1, IDLE)]]), 3,
        {"stuck_collective"}, "stuck_collective",
    ),
    "stuck for 40 min, alive within the grace": (
        job(at(60, BUSY), at(40, SPIN), at(1, BUSY)), 6, {"stuck_collective"}, None,
    ),
    "spins now and then, for 10 min each": (job(*cycle(600, at(10, SPIN), at(20, BUSY))), 10, set(), None),
    # the steps of a course are long by then
    "stuck for 58 min after four days, then computes again": (
        job(at(DAYS, BUSY), at(58, SPIN), at(1, BUSY), **AWAY), DAYS / 60 + 5, {"stuck_collective"}, None,
    ),
    "low power for 25 min of each 30, after four days": (
        job(at(DAYS, BUSY), *cycle(600, at(25, SPIN), at(5, BUSY)), **AWAY), DAYS / 60 + 10, set(), None,
    ),
    "one GPU, full utilisation and hardly any power": (job(at(1, SPIN), gpus=1), 5, set(), None),
    "memory-bound: full utilisation, half the power": (job(at(1, (100.0, 0.5))), 8, set(), None),
    "one GPU of eight used": (part(1), 3, {"one_gpu_of_many"}, None),
    "seven of eight used": (part(7), 8, set(), None),
    "eight on two nodes, all busy": (Job([[at(1, BUSY)]] * 8, per_node=4), 5, set(), None),
    "two nodes, one of them idle": (
        Job([[at(1, BUSY)]] * 4 + [[at(1, IDLE)]] * 4, per_node=4), 8, set(), None,
    ),
    "no utilisation is told (MIG, vGPU)": (job(at(1, UNKNOWN)), 8, set(), None),
    "one GPU of four tells nothing": (Job([[at(1, IDLE)]] * 3 + [[at(1, UNKNOWN)]]), 8, set(), None),
    "its GPU stops telling after an hour of idling": (job(at(59, IDLE), at(1, UNKNOWN)), 8, set(), None),
    "its GPU stops telling after 61 min of idling": (
        job(at(61, IDLE), at(1, UNKNOWN)), 8, {"idle_from_start"}, None,
    ),
    "no GPUs at all": (Job([], summary={"gpus": 0}), 8, set(), None),
    "over-asked CPUs": (job(at(1, BUSY), **OWN), 4, {"over_asked_cpus"}, None),
    "over-asked memory": (
        job(at(1, BUSY), memory_gib=500.0, memory_used_gib=20.0), 4, {"over_asked_memory"}, None,
    ),
    "nobody looks from the second hour on": (
        job(at(60, BUSY), at(1, IDLE), blind=[(100.0, 900.0)]), 8, set(), None,
    ),
    "the agent was away for 30 min of an idle start": (job(at(1, IDLE), blind=[(20.0, 50.0)]), 4, set(), None),
    "the agent found it 6 min after it began": (job(at(1, IDLE), summary={"started": T0 - 360}), 3, set(), None),
    "the agent found it 3 days after it began": (
        job(at(1, IDLE), summary={"started": T0 - 3 * 86400}), 5, set(), None,
    ),
    "its agent heard of it 2 min late": (
        job(at(1, IDLE), summary={"started": T0 - 120}), 3, {"idle_from_start"}, "idle_from_start",
    ),
    "nobody knows when it began": (job(at(1, IDLE), summary={"started": None}), 5, set(), None),
    # few of all its hours, and enough to compute in; a mean of them is known
    "computed while the agent was away for 9 min": (
        job(at(30.5, IDLE), at(8, BUSY), at(1, IDLE), blind=[(30.0, 39.5)]), 5, {"low_utilisation"}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_what_a_job_meets_and_what_follows(name: str) -> None:
    _, _, met, ended = PROFILES[name]
    came = lived(course(name))
    if ended is None:
        assert (came.met, came.ended) == (met, None)
    else:
        assert came.ended is not None and came.ended[0] == ended, came
        assert ended in came.told and came.met <= met


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('cluster = "lab"\npolicy.mode = "enforce"\n', False),  # gsub's rules as they come
        (f'cluster = "lab"\npolicy.mode = "enforce"\n{EACH}', False),  # nobody can be told
        (f'cluster = "lab"\npolicy.mode = "observe"\n[alerts]\nmail = true\ncancel = true\n{EACH}', False),
        (f'cluster = "lab"\npolicy.mode = "advise"\n[alerts]\nmail = true\ncancel = true\n{EACH}', True),
        (f'cluster = "lab"\npolicy.mode = "enforce"\n[alerts]\nmail = true\n{EACH}', True),  # cancel is off
    ],
)
def test_short_of_all_switches_no_job_ends(name: str, text: str, told: bool) -> None:
    _, _, met, _ = PROFILES[name]
    came = lived(course(name), parse_site(text))
    assert came.ended is None
    assert bool(came.told) == (told and bool(met))
    assert came.met >= met


IDLE_JOB = job(at(1, IDLE))


def idle_looks() -> list[tuple[float, Facts]]:
    return course("idle from the start")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('exempt.users = ["bob", "ada"]\n', "user ada is exempt"),
        ('exempt.accounts = ["vision"]\n', "account vision is exempt"),
        ('exempt.partitions = ["gpu"]\n', "partition gpu is exempt"),
        ('exempt.qos = ["normal"]\n', "QOS normal is exempt"),
        # Slurm has these in small letters, whatever an admin wrote; partitions as written
        ('exempt.users = ["Ada"]\n', "user ada is exempt"),
        ('exempt.accounts = ["Vision"]\n', "account vision is exempt"),
        ('exempt.qos = ["NORMAL"]\n', "QOS normal is exempt"),
        ('exempt.partitions = ["GPU"]\n', ""),
        ('exempt.users = ["bob"]\n', ""),
    ],
)
def test_who_is_exempt_is_left_alone(more: str, why: str) -> None:
    text = 'cluster = "lab"\npolicy.mode = "enforce"\n[alerts]\nmail = true\ncancel = true\n'
    site = parse_site(f"{text}{more}{EACH}")
    came = lived(idle_looks(), site)
    assert "idle_from_start" in came.met
    assert bool(came.told) == bool(came.ended) == (not why)
    facts = idle_looks()[90][1]
    assert {found.exempt for found in findings(site.alerts.every(), facts)} == {why}


def test_a_condition_cannot_speak_of_what_no_look_ever_knows() -> None:
    """Each quantity is known of some job: else rules that name it never fire, without a word."""
    looks = [course(name)[-1][1] for name in ("busy", "over-asked CPUs")]
    (now, usage) = list(job(at(1, BUSY)).reports(120))[-1]
    ended = msgspec.structs.replace(
        usage, job=msgspec.structs.replace(usage.job, state="COMPLETED", ended=now)
    )
    looks.append(facts_of(ended, now=now, fresh=FRESH))
    known = {name for facts in looks for name, value in facts.values.items() if value is not None}
    assert known == set(QUANTITIES)


@pytest.mark.parametrize("skew", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_off_the_nodes_ends_nothing(skew: float) -> None:
    came = lived(looks_at(IDLE_JOB, 300, skew=skew))
    assert came.met and not came.told and came.ended is None


def test_a_job_of_which_a_gpu_or_a_node_is_missing_is_not_known() -> None:
    missing = job(at(1, IDLE), summary={"gpus": 5})
    assert lived(looks_at(missing, 300)).met == set()
    elsewhere = job(at(1, IDLE), summary={"nodes": "n[1-2]"})
    assert lived(looks_at(elsewhere, 300)).met == set()


@pytest.mark.parametrize("seen", [(1, 0), (2, 2)])
def test_where_slurm_tells_no_number_of_gpus_nothing_is_known_of_them(seen: tuple[int, int]) -> None:
    """A node whose GPUs nobody told of looks as one that has none."""
    (now, usage) = list(Job([[at(1, IDLE)]] * 4, per_node=2).reports(120))[-1]
    usage = msgspec.structs.replace(
        usage,
        job=msgspec.structs.replace(usage.job, gpus=None),
        nodes=tuple(
            msgspec.structs.replace(node, gpus=node.gpus[:count])
            for node, count in zip(usage.nodes, seen, strict=True)
        ),
    )
    known = facts_of(usage, now=now, fresh=FRESH)
    told = {name for name, value in known.values.items() if value is not None}
    assert not [name for name in told if "gpu" in name or "idle" in name] and not known.stale
    assert list(findings(BOLD.alerts.every(), known)) == []


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in CANCELS])
def test_rules_that_jobs_at_work_may_meet_cancel_nothing(name: str) -> None:
    refused(f'[alerts.rules.{name}]\ndo = "cancel"\n', name)


@pytest.mark.parametrize(
    ("when", "may"),
    [
        ("idle_s >= 1h", True),
        ("gpus > 1 and (idle_after_s >= 2h or stuck_s > 30m)", True),
        ("not idle_s < 1h and util_mean < 15%", True),
        ("util_mean < 15% and runtime_s > 4h", False),
        ("idle_s >= 1h or util_mean < 15%", False),  # it names idle_s, and a job at work may meet it
        ("idle_s >= 0s", False),
        ("idle_s < 1h", False),
        ("gpus_unused > 0", False),
        ('user == "ada"', False),
    ],
)
def test_a_rule_cancels_only_where_the_gpus_do_nothing_now(when: str, may: bool) -> None:
    text = f"[alerts.rules.own]\nwhen = '{when}'\ndo = \"cancel\"\n"
    if may:
        assert parse_site(f'cluster = "lab"\n{text}').alerts.every()[-1].do == "cancel"
    else:
        refused(text, "own")
    assert parse_site(f'cluster = "lab"\n{text}'.replace("cancel", "notify"))


def refused(text: str, name: str) -> None:
    with pytest.raises(SiteError) as caught:
        parse_site(f'cluster = "lab"\n{text}')
    said = str(caught.value)
    assert f"alerts.rules.{name}.do" in said and "idle_s" in said


@pytest.mark.parametrize("tells", [True, False])
def test_a_node_without_gpus_keeps_a_job_only_while_it_is_silent(tells: bool) -> None:
    looks = []
    for now, usage in job(at(1, IDLE), gpus=1, summary={"nodes": "n[1-2]"}).reports(120):
        first = usage.nodes[0]
        other = NodeUse("n2", since=first.since, until=first.until if tells else T0 + 3000)
        usage = msgspec.structs.replace(usage, nodes=(first, other))
        # not stale: the count of its samples alone is asked for
        looks.append((now, facts_of(usage, now=now, fresh=1e6)))
    came = lived(looks)
    assert came.met == {"idle_from_start"}
    assert bool(came.told) == bool(came.ended) == tells
