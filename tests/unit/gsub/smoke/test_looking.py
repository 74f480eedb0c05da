"""What a smoke run asks slurmctld, how often, and what it makes of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gsub.smoke.looking import FULL, MOST, Looks
from gsub.smoke.real_job import EVERY, Standing
from slurm_plugins.client.errors import SlurmTimeout
from slurm_plugins.client.values import Job, JobState, Node
from tests.unit.gsub.smoke.test_making_way import SMOKE, job, node

T = TypeVar("T")
REAL = 5
OURS = job(SMOKE, JobState.RUNNING, 1, on="n1", name="smoke-a")
NEXT = job(REAL, JobState.PENDING, 8)
FAR = job(REAL, JobState.PENDING, 8, reason="Priority")
RUNS = job(REAL, JobState.RUNNING, 8, on="n2")
LIMITED = job(REAL, JobState.PENDING, 8, reason="QOSMaxGRESPerUser")


@dataclass
class Answers:
    """Slurm with two nodes, of which n1 is ours; `used` GPUs are taken there, all on the other."""

    jobs: Sequence[Job] = (OURS, NEXT)
    used: int = 8
    alone: Standing = "unknown"
    silent: bool = False
    now: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)

    def look(self, job: int) -> Standing:
        self.asked["job"] += 1
        return self.alone

    def jobs_of(self, user: str) -> Sequence[Job]:
        assert user == "ada"
        return self._told("jobs", self.jobs)

    def taken(self, node: str) -> tuple[int, int]:
        assert node == "n1"
        return self._told("node", (8, self.used))

    def nodes(self) -> Sequence[Node]:
        return self._told("nodes", [node("n1", self.used), node("n2", 8)])

    def _told(self, what: str, answer: T) -> T:
        self.asked[what] += 1
        if self.silent:
            raise SlurmTimeout("squeue", 10.0, "slurmctld")
        return answer


def run(slurm: Answers, looks: Looks, seconds: float) -> Standing:
    """Turns for so many seconds, or until one says something."""
    until = slurm.now + seconds
    found = looks()
    while found in ("waits", "unknown") and slurm.now < until:
        slurm.now += EVERY
        found = looks()
    return found


def looks_of(slurm: Answers) -> Looks:
    return Looks(slurm, REAL, SMOKE, "ada", clock=lambda: slurm.now)


def test_it_gives_way_in_the_turn_after_its_node_made_room() -> None:
    looks = looks_of(slurm := Answers())
    assert run(slurm, looks, FULL / 2) == "waits"
    slurm.used = 1
    assert run(slurm, looks, EVERY) == "way" and slurm.now < FULL
    assert slurm.asked["jobs"] == 2 and slurm.asked["nodes"] == 1


def test_without_room_on_its_node_it_asks_for_one_record_a_turn_and_seldom_for_the_rest() -> None:
    looks = looks_of(slurm := Answers())
    assert run(slurm, looks, 600.0) == "waits"
    assert slurm.asked["node"] <= 600 / EVERY + 600 / FULL + 2
    assert 600 / FULL - 1 <= slurm.asked["jobs"] <= 600 / FULL + 1
    assert slurm.asked["nodes"] == slurm.asked["job"] == 0


def test_a_job_that_is_far_from_its_turn_does_not_have_it_ask_without_end() -> None:
    looks = looks_of(slurm := Answers(jobs=[OURS, FAR], used=1))
    assert run(slurm, looks, 600.0) == "waits"
    assert slurm.asked["jobs"] <= MOST + 600 / FULL + 1 and slurm.asked["nodes"] == 0
    slurm.jobs = [OURS, NEXT]
    assert run(slurm, looks, FULL) == "way"


def test_it_sees_the_start_a_limit_and_what_is_gone() -> None:
    for jobs, found in (([OURS, RUNS], "started"), ([OURS, LIMITED], "way")):
        looks = looks_of(slurm := Answers())
        assert looks() == "waits"
        slurm.jobs = jobs
        assert run(slurm, looks, FULL) == found
    gone = Answers(jobs=[OURS], alone="gone")
    assert looks_of(gone)() == "gone" and gone.asked["job"] == 1
    assert looks_of(Answers(jobs=[OURS]))() == "unknown"


def test_where_slurm_does_not_answer_it_knows_nothing_and_asks_again() -> None:
    looks = looks_of(slurm := Answers(silent=True))
    assert run(slurm, looks, 60.0) == "unknown"
    slurm.silent, slurm.used = False, 1
    assert run(slurm, looks, FULL) == "way"
