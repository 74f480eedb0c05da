"""Rules on use, kept to by the keeper: with a store, a gsub-act and a mail server of the test's; Slurm is in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler.answers import RuleTold
from profiler.records import GpuUse, JobUsage
from profiler.store import JobFacts, Store, StoreError
from site_configs.site import parse_site
from slurm_plugins.act.wire import Answer, Request
from slurm_plugins.client.errors import SlurmRefused
from slurm_plugins.client.states import JobFlag, JobState
from slurm_plugins.client.values import Job
from slurm_plugins.service.keeper import alerting
from slurm_plugins.service.keeper.alert_mail import AlertMail
from slurm_plugins.service.keeper.alerting import Alerting
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.storing import Storing
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.records import CLUSTER, gpu, started, usage
from tests.unit.slurm_plugins.act.fakes import Clock, World
from tests.unit.slurm_plugins.act.fakes import job as slurm_job
from tests.unit.slurm_plugins.keeper.again import Hand, Seen
from tests.unit.slurm_plugins.keeper.mailserver import MailServer, mail_server

T0 = Clock.START
IDLE, BUSY = 7, 8
SITE = """cluster = "lab"
policy.mode = "enforce"
[receipt]
mail_server = "%s"
mail_domain = "example.org"
mail_from = "gsub@example.org"
[alerts]
mail = true
cancel = true
[alerts.rules.idle_from_start]
do = "cancel"
grace = "10 min"
"""


class Lab:
    """Two jobs of a GPU each since three hours ago, one idle, one busy; `minutes` lets time pass, with all there is."""

    def __init__(self, folder: Path, server: MailServer, *, site: str = SITE) -> None:
        self.folder, self.server = folder, server
        self.text = site % server.address
        self.site = parse_site(self.text)
        running = [slurm_job(n, JobState.RUNNING, batch=True, uid=1000, user="ada") for n in (IDLE, BUSY)]
        self.world = World(folder, *running, site=self.text)
        self.seen, self.hand = Seen(self.world.slurm), Hand(self.world)
        self.store: Store = empty_store(f"sqlite:///{folder / 'store.db'}")
        self.serial = 0
        self.silent: set[int] = set()
        self.away = False
        self.use: dict[int, float] = {IDLE: 0.0, BUSY: 90.0}
        for number in (IDLE, BUSY):
            self.store.take([started(number, f"n{number}", at=T0 - 10800, gpus=(gpu(0),))], T0)
            self.facts(number)
        self.start()

    def facts(self, number: int, **more: Any) -> None:
        values: dict[str, Any] = {
            "cluster": CLUSTER, "job_id": number, "restarts": 0, "user": "ada", "account": "lab", "uid": 1000,
            "partition": "gpu", "qos": "normal", "state": "RUNNING", "started": T0 - 10800, "nodes": f"n{number}",
            "gpus": 1, "name": "train\x1b[31m\nBcc: x@y",
        }  # fmt: skip
        self.store.enrich([JobFacts(**(values | more))], self.now)

    @property
    def now(self) -> float:
        return self.world.clock.now

    def start(self) -> None:
        """As a keeper that was killed and started anew."""
        self.counts = Counts()
        self.storing = Storing(self.counts)
        self.storing._store = self.store
        self.alerting = Alerting(
            self.site, self.storing, self.counts, self.seen, self.hand,
            mail=AlertMail(self.site, self.folder / "alert-mail.json"),
            file=self.folder / "alerts.json", now=lambda: self.now,
        )  # fmt: skip

    def tell(self) -> None:
        """The nodes' agents report."""
        self.serial += 1
        told = [self.usage(number, mean) for number, mean in self.use.items() if number not in self.silent]
        self.store.take(told, self.now)

    def usage(self, number: int, mean: float) -> JobUsage:
        ran = self.now - 5 - (T0 - 10800)
        use = GpuUse(
            gpu(0), samples=1000 + 6 * self.serial, seconds=ran, utilisation_mean=mean,
            idle_at_start_seconds=0.0 if mean else ran, idle_at_end_seconds=0.0,
        )  # fmt: skip
        return usage(
            number, f"n{number}", self.serial, at=self.now, since=T0 - 10800, until=self.now - 5, gpus=(use,),
            unseen_seconds=0.0,
        )  # fmt: skip

    def minutes(self, count: int) -> Lab:
        for _ in range(count):
            self.world.clock.now += 60
            self.world.desk.tend()
            self.tell()
            if not self.away:
                asyncio.run(self.alerting.once())
        return self

    @property
    def ended(self) -> list[str]:
        return [argv[-1] for argv in self.world.slurm.acts if argv[0] == "scancel"]

    @property
    def told(self) -> int:
        return len(self.server.took)

    def close(self) -> None:
        self.storing.close()
        self.store.close()
        self.world.journal.close()


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as found:
        yield found


@pytest.fixture
def lab(tmp_path: Path, server: MailServer) -> Iterator[Lab]:
    one = Lab(tmp_path, server)
    yield one
    one.close()


def test_the_user_is_told_once_and_the_job_ends_after_its_grace(lab: Lab) -> None:
    lab.minutes(1)
    assert (lab.told, lab.ended) == (0, []), "one sample is none"
    lab.minutes(1)
    assert (lab.told, lab.ended) == (1, [])
    lab.minutes(9)
    assert (lab.told, lab.ended) == (1, [])
    lab.minutes(5)
    assert (lab.told, lab.ended) == (1, [str(IDLE)])
    asked = next(line for line in lab.world.lines() if line["event"] == "asked")
    assert (
        asked["verb"] == "cancel"
        and asked["expected"] == 0
        and asked["why"].startswith("idle_from_start: idle")
    )
    text = lab.counts.registry.text()
    for what in ("met", "told", "ended"):
        assert f'gsub_alerts_total{{rule="idle_from_start",what="{what}"}} 1' in text


def test_the_mail_says_what_and_what_follows_and_no_header_is_the_users(lab: Lab) -> None:
    lab.minutes(2)
    ((address, message),) = lab.server.took
    assert address == "ada@example.org" and message["Bcc"] is None
    assert message["Subject"] == "[lab] job 7: idle from start"
    text = message.get_content()
    assert "job 7 (train?[31m Bcc: x@y) has not used its GPUs" in text and "\x1b" not in text
    assert "idle_from_start_s 3 h" in text and "It is cancelled in 10 min unless this changes." in text


def test_the_store_knows_what_the_user_was_told_and_what_followed(lab: Lab) -> None:
    lab.minutes(1)
    assert _reminder(lab) == []
    lab.minutes(1)
    (told,) = _reminder(lab)
    assert (told.rule, told.at, told.cancelled) == ("idle_from_start", lab.now, None)
    assert told.about.startswith("has not used its GPUs") and told.evidence == "idle_from_start_s 3 h 1 min"
    lab.minutes(15)
    (ended,) = _reminder(lab)
    assert ended.cancelled is not None and ended.cancelled > told.at == ended.at
    assert lab.store.usage(CLUSTER, BUSY).told == ()  # type: ignore[union-attr]


def test_a_store_that_is_away_hears_of_it_later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(lab.store, "put_told", _fails)
        lab.minutes(1)
        with pytest.raises(StoreError):
            lab.minutes(1)
        assert (lab.told, _reminder(lab)) == (1, [])
    lab.minutes(1)
    assert [one.rule for one in _reminder(lab)] == ["idle_from_start"]


def _fails(*_: object) -> int:
    raise StoreError("unreachable", "it is away", "", "")


def _reminder(lab: Lab) -> list[RuleTold]:
    usage = lab.store.usage(CLUSTER, IDLE)
    assert usage is not None
    return list(usage.told)


def test_a_sites_own_words(tmp_path: Path, server: MailServer) -> None:
    words = "text = '''Hi $user: ${job} of $name, $$5.\n$evidence\nBcc: $nothing'''\n".replace(
        "$nothing", "none"
    )
    lab = Lab(tmp_path, server, site=SITE + words)
    lab.facts(IDLE, name="$follows ${rule}")
    lab.minutes(2)
    ((_, message),) = server.took
    assert "Hi ada: 7 of $follows ${rule}, $5." in message.get_content() and message["Bcc"] is None
    lab.close()


@pytest.mark.parametrize(
    ("text", "more", "follows"),
    [("$follows Soon.", "", 1), ("Soon.", "", 1), ("Soon.", "[partitions.gpu]\nmode = 'advise'\n", 0)],
)
def test_a_sites_own_words_tell_once_of_cancelling(
    tmp_path: Path, server: MailServer, text: str, more: str, follows: int
) -> None:
    lab = Lab(tmp_path, server, site=f"{SITE}text = '{text}'\n{more}")
    lab.minutes(2)
    ((_, message),) = server.took
    assert message.get_content().count("It is cancelled in 10 min") == follows
    lab.close()


def test_a_job_that_computes_again_lives(lab: Lab) -> None:
    lab.minutes(8)
    lab.use[IDLE] = 50.0
    lab.minutes(16)
    assert (lab.told, lab.ended) == (1, [])


# --- what keeps a job from being ended: each row is done after its user was told, and lasts -------------------------


def stop_the_agent(lab: Lab) -> None:
    lab.silent = {IDLE}


def kill_the_service(lab: Lab) -> None:
    lab.away = True


def forget_the_job(lab: Lab) -> None:
    del lab.world.slurm.known_jobs[str(IDLE)]


def silence_slurm(lab: Lab) -> None:
    lab.seen.silent = True


def silence_slurm_for_gsub_act(lab: Lab) -> None:
    lab.world.slurm.silent = True


def end_gsub_act(lab: Lab) -> None:
    lab.hand.away = True


def switch_off(lab: Lab) -> None:
    lab.world.off.touch()


def become(lab: Lab, **changes: Any) -> None:
    jobs = lab.world.slurm.known_jobs
    jobs[str(IDLE)] = replace(jobs[str(IDLE)], **changes)


KEEPS: dict[str, Callable[[Lab], None]] = {
    "its agent is stopped": stop_the_agent,
    "the service is killed": kill_the_service,
    "Slurm does not answer": silence_slurm,
    "Slurm does not answer gsub-act": silence_slurm_for_gsub_act,
    "gsub-act is not there": end_gsub_act,
    "gsub-act is switched off": switch_off,
    "Slurm has no such job": forget_the_job,
    "it was requeued, and waits": lambda lab: become(lab, state=JobState.PENDING, restarts=1),
    "it was requeued, and runs anew": lambda lab: become(lab, restarts=1),
    "its id is another's now": lambda lab: become(lab, uid=1001),
    "it is suspended": lambda lab: become(lab, state=JobState.SUSPENDED),
    "it is completing": lambda lab: become(lab, flags=frozenset({JobFlag.COMPLETING})),
    "it is interactive": lambda lab: become(lab, batch=False),
    "it is not known whether it is interactive": lambda lab: become(lab, batch=None),
    "the site has gsub-act not cancel": lambda lab: setattr(
        lab.world, "site", parse_site(lab.text.replace("cancel = true", ""))
    ),
    "its partition is not enforced": lambda lab: setattr(
        lab.world, "site", parse_site(lab.text + '[partitions.gpu]\nmode = "advise"\n')
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_keeps_a_job_from_being_ended(lab: Lab, name: str) -> None:
    lab.minutes(6)
    assert lab.told == 1
    KEEPS[name](lab)
    lab.minutes(12)
    assert lab.ended == []


UNTOLD: dict[str, str] = {
    "mode": SITE.replace("enforce", "observe"),
    "mail": SITE.replace("mail = true\ncancel = true\n", ""),
    "user": SITE.replace("[alerts.rules", 'exempt.users = ["ada"]\n[alerts.rules'),
    "qos": SITE.replace("[alerts.rules", 'exempt.qos = ["normal"]\n[alerts.rules'),
    "observe": SITE.replace('do = "cancel"', 'do = "observe"'),
}
TOLD_ALONE: dict[str, str] = {
    "mode": SITE.replace("enforce", "advise"),
    "cancel": SITE.replace("cancel = true\n", ""),
    "notify": SITE.replace('do = "cancel"', 'do = "notify"'),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_where_nobody_is_told(tmp_path: Path, server: MailServer, name: str) -> None:
    lab = Lab(tmp_path, server, site=UNTOLD[name]).minutes(16)
    assert (lab.told, lab.ended) == (0, [])
    assert 'rule="idle_from_start",what="met"} 1' in lab.counts.registry.text()
    lab.close()


@pytest.mark.parametrize("name", TOLD_ALONE)
def test_where_users_are_told_and_nothing_ends(tmp_path: Path, server: MailServer, name: str) -> None:
    lab = Lab(tmp_path, server, site=TOLD_ALONE[name]).minutes(16)
    assert (lab.told, lab.ended) == (1, [])
    assert "cancelled" not in server.took[0][1].get_content()
    lab.close()


def test_the_qos_that_slurm_has_now_exempts_too(tmp_path: Path, server: MailServer) -> None:
    lab = Lab(tmp_path, server, site=SITE.replace("[alerts.rules", 'exempt.qos = ["long"]\n[alerts.rules'))
    become(lab, qos="long")
    lab.minutes(16)
    assert (lab.told, lab.ended) == (0, [])
    lab.close()


def test_an_interactive_job_is_told_of_and_ended_where_the_rule_says_so(
    tmp_path: Path, server: MailServer
) -> None:
    lab = Lab(tmp_path, server, site=SITE.replace('"cancel"\n', '"cancel"\ninteractive = true\n'))
    become(lab, batch=False)
    lab.minutes(16)
    assert (lab.told, lab.ended) == (1, [str(IDLE)])
    lab.close()


def test_no_mail_no_end(lab: Lab) -> None:
    lab.server.answers["RCPT"] = "550 no such user"
    lab.minutes(16)
    assert (lab.told, lab.ended) == (0, [])


def test_a_keeper_that_was_away_begins_to_count_anew_and_tells_nobody_twice(lab: Lab) -> None:
    lab.minutes(6)
    lab.away = True
    lab.minutes(20)
    lab.away = False
    lab.start()
    lab.minutes(1)
    assert lab.ended == [], "one sample is none, and time that nobody looked is no grace"
    lab.minutes(9)
    assert lab.ended == [], "its user has all of the grace again"
    lab.minutes(2)
    assert (lab.told, lab.ended) == (1, [str(IDLE)])


def test_a_keeper_killed_right_after_a_mail_knows_that_the_user_was_told(lab: Lab) -> None:
    _until_told(lab)
    # The watches on disk are those from before the mail
    assert not any(one.get("told") for one in json.loads((lab.folder / "alerts.json").read_text())["watches"])
    lab.start()
    lab.minutes(5)
    assert not lab.ended, "its grace is 10 minutes"
    assert [one.rule for one in _reminder(lab)] == ["idle_from_start"]
    lab.minutes(12)
    assert lab.ended == [str(IDLE)]
    assert lab.told == 1


def test_a_keeper_killed_while_a_mail_went_tells_again_before_it_ends_a_job(lab: Lab) -> None:
    _until_told(lab)
    file = lab.folder / "alert-mail.json"
    kept = json.loads(file.read_text())
    assert kept["done"], "it is written down before the mail goes"
    assert kept["told"]
    file.write_text(json.dumps(kept | {"told": []}))
    lab.start()
    while lab.told < 2:
        assert lab.now < T0 + 3 * 3600, "the user is not told again"
        assert not lab.ended, "nobody knows whether its user was told"
        lab.minutes(1)
    lab.minutes(12)
    assert lab.ended == [str(IDLE)]
    assert lab.told == 2


def _until_told(lab: Lab) -> None:
    while not lab.told:
        assert lab.now < T0 + 3600, "the user is not told"
        lab.minutes(1)


def test_a_keeper_that_was_away_for_20_s_needs_two_samples_of_its_own(lab: Lab) -> None:
    lab.minutes(4)
    lab.hand.away = True
    lab.minutes(12)
    lab.hand.away = False
    lab.start()
    lab.world.clock.now += 20
    asyncio.run(lab.alerting.once())
    assert lab.ended == [], "nothing is known that the one before did not know"
    lab.minutes(1)
    assert lab.ended == []
    lab.minutes(1)
    assert (lab.told, lab.ended) == (1, [str(IDLE)])


@pytest.mark.parametrize("stored", ["RUNNING", "SUSPENDED"])
def test_time_in_which_it_was_suspended_is_no_grace(lab: Lab, stored: str) -> None:
    lab.minutes(4)
    become(lab, state=JobState.SUSPENDED)
    lab.facts(IDLE, state=stored)
    lab.minutes(20)
    become(lab, state=JobState.RUNNING)
    lab.facts(IDLE)
    lab.world.clock.now += 10
    asyncio.run(lab.alerting.once())
    assert (lab.told, lab.ended) == (1, [])
    lab.minutes(10)
    assert (lab.told, lab.ended) == (2, []), "its user is told anew, and has all of the grace"
    lab.minutes(4)
    assert (lab.told, lab.ended) == (2, [str(IDLE)])


def test_who_was_told_of_other_terms_is_told_of_these(lab: Lab) -> None:
    lab.site = parse_site(lab.text.replace("cancel = true\n", ""))
    lab.start()
    lab.minutes(16)
    assert (lab.told, lab.ended) == (1, [])
    lab.site = parse_site(lab.text)
    lab.start()
    lab.minutes(3)
    assert (lab.told, lab.ended) == (2, [])
    assert "It is cancelled in 10 min" in lab.server.took[1][1].get_content()
    first, second = (message["Message-ID"] for _, message in lab.server.took)
    assert first != second, "else servers drop the second as one that they have"
    lab.minutes(12)
    assert lab.ended == [str(IDLE)]


def test_another_rule_is_told_of_right_after_the_first(tmp_path: Path, server: MailServer) -> None:
    more = '[alerts.rules.later]\nwhen = "idle_s >= 10983s"\ndo = "notify"\n'
    lab = Lab(tmp_path, server, site=SITE + more).minutes(3)
    assert lab.told == 1  # its samples are of 10,855 s, 10,915 s, 10,975 s...
    lab.minutes(14)
    assert [message["Subject"] for _, message in server.took] == [
        "[lab] job 7: idle from start", "[lab] job 7: later",
    ]  # fmt: skip
    lab.close()


def test_a_component_of_a_heterogeneous_job_is_told_of_and_not_ended(lab: Lab) -> None:
    lab.facts(IDLE, het_job_id=IDLE, het_offset=0)
    lab.minutes(16)
    assert (lab.told, lab.ended) == (1, [])


def test_a_job_that_slurm_does_not_tell_of_keeps_no_other_from_its_end(lab: Lab) -> None:
    lab.use[BUSY] = 0.0
    look = lab.seen.job

    def job(shown: str) -> Job | None:
        if shown == str(IDLE):
            raise SlurmRefused("scontrol", "Access/permission denied")
        return look(shown)

    lab.seen.job = job  # type: ignore[method-assign]
    lab.minutes(16)
    assert (lab.told, lab.ended) == (1, [str(BUSY)])


def test_evidence_that_grew_old_while_slurm_took_its_time_ends_nothing(lab: Lab) -> None:
    lab.minutes(4)
    look = lab.seen.job

    def slow(shown: str) -> Job | None:
        lab.world.clock.now += 168  # and the sample was 5 s old: together more than 170 s
        return look(shown)

    lab.seen.job = slow  # type: ignore[method-assign]
    lab.minutes(12)
    assert (lab.told, lab.ended) == (1, [])
    lab.seen.job = look  # type: ignore[method-assign]
    lab.minutes(1)
    assert lab.ended == [str(IDLE)]


def test_where_agents_report_seldom_nothing_follows(tmp_path: Path, server: MailServer) -> None:
    lab = Lab(tmp_path, server, site=SITE + '[agent]\nreport = "12h"\n')
    lab.minutes(1)
    lab.silent = {IDLE}
    lab.minutes(11)
    lab.silent = set()
    lab.minutes(1)
    assert lab.told == 0, "two samples, and more than 10 min between them"
    lab.close()


def test_each_job_has_its_turn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting, "_MOST", 1)
    become(lab, batch=False)  # it is never told, and asked about again and again
    lab.use[BUSY] = 0.0
    lab.minutes(20)
    assert (lab.told, lab.ended) == (1, [str(BUSY)])


def test_slurm_is_not_asked_about_a_job_that_gsub_act_wants_later(lab: Lab) -> None:
    lab.minutes(4)
    asked: list[str] = []
    look = lab.seen.job
    lab.seen.job = lambda shown: asked.append(shown) or look(shown)  # type: ignore

    def later(request: Request) -> Answer:
        return Answer(id=request.id, result="refused", again=3600.0)

    lab.hand.ask = later  # type: ignore[method-assign]
    lab.minutes(20)
    assert asked == [str(IDLE)] and lab.ended == []


def test_what_is_kept_may_be_spoilt(lab: Lab) -> None:
    lab.minutes(6)
    (lab.folder / "alerts.json").write_text(json.dumps({"watches": [{"job_id": "x"}]}))
    lab.start()
    lab.minutes(9)
    assert lab.ended == [], "nobody knows that its user was told"


def test_a_clock_that_is_set_is_no_grace(lab: Lab) -> None:
    lab.minutes(4)
    lab.world.clock.now += 7200
    lab.minutes(3)
    assert lab.ended == []
    lab.world.clock.now -= 7200
    lab.minutes(3)
    assert lab.ended == []
