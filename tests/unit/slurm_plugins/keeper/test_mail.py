"""Receipts by mail: once a job, to its user alone, gathered, and no user's words in a header but on one clean line."""

from __future__ import annotations

import logging
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.answers import JobSummary, NodeUse, Usage
from profiler.records import GpuRef, GpuUse
from profiler.store.facts import JobFacts
from site_configs import site_model as model
from site_configs.site_model import Receipt
from slurm_plugins.service.keeper.mail import GATHER, IN_FULL, NAMED, WAITING, Due, Mailer, Waiting
from tests.properties import examples
from tests.unit.profiler.store import records as told
from tests.unit.profiler.store.empty import empty_store
from tests.unit.slurm_plugins.keeper.mailserver import MailServer, mail_server

T0 = told.T0
NOW = T0 + 3700.0
CLUSTER = told.CLUSTER


def facts(job: int = 1, restarts: int | None = 0, **more: object) -> JobFacts:
    known: dict[str, object] = {"state": "COMPLETED", "final": True, "started": T0, "ended": T0 + 3600}
    return JobFacts(cluster=CLUSTER, job_id=job, restarts=restarts, **(known | more))  # type: ignore[arg-type]


@dataclass
class FakeStore:
    """Attempts by job, the last one last."""

    jobs: dict[int, list[JobSummary]] = field(default_factory=dict)

    def add(self, job: int = 1, restarts: int = 0, **more: object) -> JobFacts:
        known: dict[str, object] = {
            "name": "train", "user": "ada", "state": "COMPLETED", "exit_code": 0, "started": T0, "ended": T0 + 3600,
            "gpus": 8, "complete": True,
        }  # fmt: skip
        known |= more
        summary = JobSummary(CLUSTER, job, restarts, **known)  # type: ignore[arg-type]
        self.jobs.setdefault(job, []).append(summary)
        return facts(job, restarts, started=summary.started, ended=summary.ended, state=summary.state)

    def job(self, cluster: str, job_id: int, restarts: int | None = None) -> JobSummary | None:
        attempts = self.jobs.get(job_id, [])
        wanted = [one for one in attempts if restarts in (None, one.restarts)]
        return wanted[-1] if wanted else None

    def usage(self, cluster: str, job_id: int, restarts: int | None = None) -> Usage | None:
        found = self.job(cluster, job_id, restarts)
        gpu = GpuUse(GpuRef(0), utilisation_mean=50.0)
        node = NodeUse("n1", final=True, gpus=(gpu,), unseen_seconds=0.0)
        return None if found is None else Usage(found, (node,))


def a_site(receipt: Receipt) -> model.Site:
    return model.Site(cluster=CLUSTER, receipt=receipt)


@dataclass
class Site:
    """A site that wants mail, from one start of the keeper to the next."""

    file: Path
    server: MailServer
    store: FakeStore = field(default_factory=FakeStore)
    counts: Counter[str] = field(default_factory=Counter)

    def mailer(self, **more: object) -> Mailer:
        given: dict[str, object] = {
            "mail": True, "mail_server": self.server.address, "mail_domain": "example.org",
            "mail_from": "gsub@example.org",
        }  # fmt: skip
        receipt = Receipt(**(given | more))  # type: ignore[arg-type]
        return Mailer(a_site(receipt), self.file, count=lambda how: self.counts.update([how]))

    @property
    def addresses(self) -> list[str]:
        return [address for address, _ in self.server.took]

    def text(self, place: int = -1) -> str:
        return str(self.server.took[place][1].get_content())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with mail_server() as server:
        yield Site(tmp_path / "mail.json", server)


def test_a_receipt(site: Site) -> None:
    mailer = site.mailer()
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 1
    (address, message), = site.server.took  # fmt: skip
    assert address == "ada@example.org" == message["To"] and message["From"] == "gsub@example.org"
    assert message["Subject"] == "[lab] job 1 COMPLETED: train"
    assert message["Auto-Submitted"] == "auto-generated" and message.get_content_type() == "text/plain"
    lines = site.text().splitlines()
    assert (
        lines[0].startswith("job 1 ") and lines[5].startswith("  next time") and "gsub usage 1" in lines[-1]
    )
    assert site.counts == {"sent": 1} and mailer.waiting == 0


def test_once_a_job_over_restarts_of_the_keeper(site: Site) -> None:
    one = site.store.add()
    mailer = site.mailer()
    mailer.ended([one, one])
    mailer.run_once(site.store, NOW)
    mailer.ended([one])
    mailer.run_once(site.store, NOW + 2 * GATHER)
    again = site.mailer()
    again.ended([one])
    again.run_once(site.store, NOW + 4 * GATHER)
    assert len(site.server.took) == 1
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o600 and list(site.file.parent.iterdir()) == [site.file]


def test_what_waits_outlives_the_keeper(site: Site) -> None:
    site.server.answers["greeting"] = "421 later"
    mailer = site.mailer()
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 0
    site.server.answers.clear()
    assert site.mailer().run_once(site.store, NOW + 60) == 1


def test_only_where_the_site_wants_it(site: Site) -> None:
    mailer = site.mailer(mail=False)
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 0 and not site.file.exists() and mailer.waiting == 0


NO_MAIL = [
    ({"gpus": 0}, {}),
    ({"gpus": 2}, {"mail_above_gpu_hours": 2.0}),
    ({"ended": T0 - 3 * 86400, "started": T0 - 4 * 86400}, {}),
    ({"state": "REQUEUED"}, {}),
    ({"user": ""}, {}),
    ({"user": "ada,eve"}, {}),
    ({"user": "a@b"}, {}),
    ({"user": "-oX"}, {}),
    ({"user": "ada\nBcc: eve"}, {}),
    ({"user": "x" * 65}, {}),
]


@pytest.mark.parametrize(("job", "settings"), NO_MAIL, ids=range(len(NO_MAIL)))
def test_no_mail(site: Site, job: dict[str, object], settings: dict[str, object]) -> None:
    mailer = site.mailer(**settings)
    mailer.ended([site.store.add(**job)])  # type: ignore[arg-type]
    mailer.run_once(site.store, NOW)
    assert not site.server.took and mailer.waiting == 0


def test_more_gpu_hours_than_the_site_says(site: Site) -> None:
    mailer = site.mailer(mail_above_gpu_hours=7.9)
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 1


def test_not_before_slurm_is_sure(site: Site) -> None:
    mailer = site.mailer()
    site.store.add()
    mailer.ended([facts(final=False), facts(state="RUNNING")])
    assert mailer.run_once(site.store, NOW) == 0


def test_the_last_word_of_its_nodes_is_waited_for_but_not_for_ever(site: Site) -> None:
    mailer = site.mailer()
    mailer.ended([site.store.add(complete=False)])
    assert mailer.run_once(site.store, T0 + 3700) == 0
    assert mailer.run_once(site.store, T0 + 3600 + 700) == 1


def test_who_has_a_job_requeued_hears_of_its_end(site: Site) -> None:
    mailer = site.mailer()
    first = site.store.add(restarts=0, state="NODE_FAIL")
    last = site.store.add(restarts=1)
    mailer.ended([first, last])
    mailer.run_once(site.store, NOW)
    assert len(site.server.took) == 1 and "restart 1" in site.text()


def test_accounting_does_not_tell_the_attempt(site: Site) -> None:
    mailer = site.mailer()
    site.store.add(restarts=0, started=T0 - 9000, ended=T0 - 5000)
    site.store.add(restarts=1)
    mailer.ended([facts(restarts=None, started=T0 - 9000), facts(restarts=None)])
    mailer.run_once(site.store, NOW)
    assert len(site.server.took) == 1 and "restart 1" in site.text()


def test_nobody_is_flooded(site: Site) -> None:
    """An array of thousands is one mail, and what ends soon after it another one, later."""
    mailer = site.mailer()
    mailer.ended([site.store.add(number) for number in range(1, 301)])
    assert mailer.run_once(site.store, NOW) == 1
    text = site.text()
    assert text.count("next time") == IN_FULL and text.count("\njob ") + 1 == NAMED
    assert f"and {300 - NAMED} more" in text
    assert site.server.took[0][1]["Subject"] == "[lab] 300 jobs have ended"
    mailer.ended([site.store.add(900), site.store.add(901, user="bob")])
    assert mailer.run_once(site.store, NOW + 60) == 1 and site.addresses[-1] == "bob@example.org"
    assert mailer.run_once(site.store, NOW + GATHER + 1) == 1 and "job 900 " in site.text()


def test_what_waits_is_bounded(site: Site) -> None:
    mailer = site.mailer()
    mailer.ended([facts(number) for number in range(1, WAITING + 500)])
    assert mailer.waiting == WAITING
    site.server.answers["greeting"] = "421 no"
    mailer.run_once(site.store, NOW)
    mailer.ended([facts(number) for number in range(20_000, 20_000 + WAITING)])
    mailer.run_once(site.store, NOW + 1)
    assert mailer.waiting <= WAITING and site.counts["dropped"] > 0


def test_a_server_that_is_down_is_left_alone_longer_each_time(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    mailer = site.mailer()
    mailer.ended([site.store.add(1), site.store.add(2, user="bob")])
    site.server.answers["greeting"] = "421 too busy"
    tried = []
    for second in range(0, 3600, 10):
        before = site.server.connections
        mailer.run_once(site.store, NOW + second)
        tried += [second] * (site.server.connections - before)
    assert tried == [0, 60, 180, 420, 900, 1860]
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "too busy" in caplog.text
    site.server.answers.clear()
    assert mailer.run_once(site.store, NOW + 7200) == 2 and site.counts["failed"] == 6


def test_no_server_at_all(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        mailer = site.mailer(mail_server=f"127.0.0.1:{taken.getsockname()[1]}")
        mailer.ended([site.store.add()])
        assert mailer.run_once(site.store, NOW) == 0 and mailer.waiting == 1
    assert "refused" in caplog.text


@pytest.mark.parametrize("where", ["RCPT ada@example.org", "."])
def test_a_mail_that_is_refused_for_good(site: Site, where: str, caplog: pytest.LogCaptureFixture) -> None:
    site.server.answers[where] = "550 no such\x1b user"
    mailer = site.mailer()
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 0
    site.server.answers.clear()
    assert mailer.run_once(site.store, NOW + 9999) == 0 and site.counts == {"refused": 1}
    assert (
        "ada" in caplog.text
        and "\x1b" not in caplog.text
        and logging.ERROR not in {r.levelno for r in caplog.records}
    )


def test_a_full_mailbox_does_not_hold_up_others(site: Site) -> None:
    site.server.answers["RCPT ada@example.org"] = "452 mailbox full"
    mailer = site.mailer()
    mailer.ended([site.store.add(1), site.store.add(2, user="bob")])
    assert mailer.run_once(site.store, NOW) == 1 and site.addresses == ["bob@example.org"]
    site.server.answers.clear()
    assert mailer.run_once(site.store, NOW + 60) == 0
    assert mailer.run_once(site.store, NOW + 1801) == 1 and site.addresses[-1] == "ada@example.org"


def test_without_a_domain_the_server_adds_its_own(site: Site) -> None:
    mailer = site.mailer(mail_domain="", mail_from="")
    mailer.ended([site.store.add()])
    mailer.run_once(site.store, NOW)
    assert site.addresses == ["ada"] and site.server.took[0][1]["From"].startswith("gsub@")


def test_written_down_before_it_is_sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between loses a mail; it never doubles one."""
    mailer = site.mailer()
    mailer.ended([site.store.add()])
    monkeypatch.setattr("slurm_plugins.service.keeper.smtp.Smtp.close", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mailer.run_once(site.store, NOW)
    assert len(site.server.took) == 1
    monkeypatch.undo()
    assert site.mailer().run_once(site.store, NOW + 60) == 0 and len(site.server.took) == 1


@pytest.mark.parametrize("spoilt", [b"", b"{", b"[]", b'{"waiting": 3}', b"\xff"])
def test_a_file_that_is_spoilt_is_begun_anew(site: Site, spoilt: bytes) -> None:
    site.file.write_bytes(spoilt)
    mailer = site.mailer()
    mailer.ended([site.store.add()])
    assert mailer.run_once(site.store, NOW) == 1


@settings(max_examples=examples(50), deadline=None)
@given(name=st.text(max_size=200), reason=st.text(max_size=200), nodes=st.text(max_size=200))
def test_nothing_of_a_users_becomes_a_header(name: str, reason: str, nodes: str) -> None:
    store = FakeStore()
    mailer = Mailer(a_site(Receipt(mail=True, mail_from="gsub@example.org")), Path("/nowhere"))
    store.add(name=f"{name}\r\nBcc: eve@example.com\r\n\r\n.\r\n{name}", reason=reason, nodes=nodes)
    usage = store.usage(CLUSTER, 1)
    assert usage is not None
    message = mailer._message("ada", [Due(Waiting(1, 0, None), usage)], NOW)
    head, _, body = message.as_bytes().partition(b"\n\n")
    assert {line.split(b":")[0].lower() for line in head.splitlines() if line[:1].strip()} == {
        b"from", b"to", b"subject", b"date", b"message-id", b"auto-submitted", b"content-type",
        b"content-transfer-encoding", b"mime-version",
    }  # fmt: skip
    assert message["To"] == "ada" and b"\n.\n" not in body


def test_a_real_store(site: Site, tmp_path: Path) -> None:
    store = empty_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.take([told.started(1), told.usage(1, serial=60, final=True), told.ended(1)], NOW)
    of_slurm = facts(1, user="ada", uid=1000, gpus=2, name="train")
    store.enrich([of_slurm], NOW)
    mailer = site.mailer()
    mailer.ended([of_slurm])
    assert mailer.run_once(store, NOW) == 1 and "1 never used" in site.text()
    store.close()
