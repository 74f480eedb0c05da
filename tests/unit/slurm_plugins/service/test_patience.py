"""Reading a long queue: the limit of time grows with what answers take."""

from __future__ import annotations

import time

import pytest

from site_configs.site import Site
from slurm_plugins.client.errors import SlurmTimeout
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper.ask import ask
from slurm_plugins.service.look import Slurm, look
from slurm_plugins.service.patience import COMMAND_SECONDS, MOST, QueuePatience
from slurm_plugins.service.wire import Question, Report, decode_report, encode_report
from tests.unit.slurm_plugins.client.fake import FakeClient
from tests.unit.slurm_plugins.service.serving import no_limits
from tests.unit.slurm_plugins.service.test_look import Scripted, config, good, polled

pytestmark = pytest.mark.case("S8")


def test_the_limit_grows_with_answers_and_with_their_absence() -> None:
    patience = QueuePatience()
    assert (patience.limit, patience.took) == (COMMAND_SECONDS, None)
    patience.note_answer(0.5)
    assert (patience.limit, patience.took) == (COMMAND_SECONDS, 0.5)
    patience.note_answer(15.0)
    assert patience.limit > 4 * 15.0
    patience.note_answer(1.0, whole=False)
    assert patience.limit > 4 * 15.0, "less was asked for"
    patience.note_answer(1.0)
    assert patience.limit == COMMAND_SECONDS
    for _ in range(10):
        before = patience.limit
        patience.note_late()
        assert patience.limit == min(MOST, 2 * before)


class Slow(FakeClient):
    """A Slurm whose queue does not come in time."""

    def jobs(self, **_: object) -> tuple[Job, ...]:
        raise SlurmTimeout("squeue", 20)


QUESTION = Question(site="", site_path="", jobs_since=0)


def test_a_look_tells_what_the_queue_took() -> None:
    quick, slow = FakeClient(), Slow()
    seen = look(Slurm(slow, config, no_limits, queue=quick), Site(cluster="c"), QUESTION)
    assert seen.queue_took is not None and not seen.queue_late
    seen = look(Slurm(quick, config, no_limits, queue=slow), Site(cluster="c"), QUESTION)
    assert seen.queue_took is None and seen.queue_late and seen.inventory is not None
    assert decode_report(encode_report(seen)) == seen
    quick.down.add("slurmctld")
    assert not look(Slurm(quick, config, no_limits), Site(cluster="c"), QUESTION).queue_late, "it is silent"


def test_the_keepers_look_tells_it_too() -> None:
    assert ask(FakeClient(), "c", (), time.time()).queue_took is not None
    seen = ask(Slow(), "c", (), time.time())
    assert (seen.queue_took, seen.queue_late, seen.running) == (None, True, None)


def test_gsubd_waits_longer_after_a_queue_that_was_late() -> None:
    late = Report(jobs_error="late", queue_late=True)
    lookout = Scripted(late, late, good(), Report(queue_took=30.0), good())
    polled(lookout, 5)
    assert [question.queue_seconds for question in lookout.questions[:5]] == [20, 40, 80, 80, 150]
