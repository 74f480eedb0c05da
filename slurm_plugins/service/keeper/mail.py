"""Receipts by mail, where the site wants them: each job's once, to the user that it ran as, and no user flooded.

    mailer = Mailer(site, state / "mail.json")
    mailer.ended(facts)                # whenever Slurm has told of ends; only remembers them
    mailer.run_once(store, now)        # every so often, in a thread: it may wait for the mail server

What ends at about the same time goes into one mail. A mail is written down as sent before it is handed over: after a
crash it may be missing, and is not sent twice. No header holds what a user wrote but in one clean line.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from profiler.answers import JobSummary, Usage
from profiler.logs import one_line
from profiler.receipt import ENDED, headline, ran, receipt
from profiler.store.facts import JobFacts
from profiler.whole_file import put
from profiler.wording import plain, shown_id
from site_configs.site_model import Site
from slurm_plugins.service.keeper.smtp import Post, PostError, Smtp

__all__ = ["GATHER", "IN_FULL", "NAMED", "WAITING", "Due", "Judged", "Kept", "Mailer", "Records", "Waiting"]

_log = logging.getLogger("gsubd.keeper")

WAITING: Final = 10_000
"""Jobs that may wait for their mail; the oldest are given up for new ones."""
GATHER: Final = 600.0
"""Seconds between two mails to a user."""
IN_FULL: Final = 20
"""Receipts of one mail; of the other jobs it has one line each."""
NAMED: Final = 200

_NODES: Final = 600.0  # seconds after which a node that has not told its end is not waited for
_LATER: Final = 30.0
_DEFERRED: Final = 1800.0  # until an address that was not taken just now is tried again
_TOO_OLD: Final = 2 * 86400.0
_DONE: Final = 20_000
_AT_ONCE: Final = 500  # jobs of one run
_MAILS: Final = 50
_FIRST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 3600.0
_SUBJECT: Final = 68
"""Signs of a subject: one line, with its name (RFC 5322, 2.1.1)."""
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Records(Protocol):
    """What is asked of the store: `profiler.store.Store`."""

    def job(self, cluster: str, job_id: int, restarts: int | None = None) -> JobSummary | None:
        """An attempt; the last one without `restarts`."""
        ...

    def usage(self, cluster: str, job_id: int, restarts: int | None = None) -> Usage | None:
        """What it did."""
        ...


class Waiting(msgspec.Struct):
    """A job whose mail is due. `restarts` is None where Slurm did not tell: `started` does."""

    job_id: int
    restarts: int | None
    started: float | None
    after: float = 0.0


class Kept(msgspec.Struct):
    """What outlives a restart: who waits, whose mail went ("12/0"), and when each user was last written to.

    `done` is written down before a mail goes, `told` (`Due.tells`) once the mail server has taken it.
    """

    waiting: list[Waiting] = []
    done: list[str] = []
    told: list[str] = []
    written: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Due:
    """A job whose mail can be written now."""

    waiting: Waiting
    usage: Usage

    @property
    def key(self) -> str:
        """The attempt, as it is kept: "12/0"."""
        return _key(self.usage.job)

    @property
    def tells(self) -> tuple[str, ...]:
        """What is to be remembered as told once the mail server has taken the mail."""
        return ()


Judged: TypeAlias = "Due | float | None"
"""A mail that is due; when to look again; or None: there is none to write."""


class Mailer:
    """Receipts by mail. `ended` and `run_once` may be called from different threads.

    Parameters
    ----------
    file: what was sent and what waits is kept there.
    count: told how each mail, or a job that gets none, ended: "sent", "refused", "failed", "dropped", "no_address".
    """

    _kind = "gsub"
    """Begins the ids of its mails."""

    def __init__(
        self,
        site: Site,
        file: Path,
        *,
        post: Callable[[], Post] | None = None,
        count: Callable[[str], object] = lambda how: None,
        sender: str = "",
    ) -> None:
        self._site = site
        self._settings = site.receipt
        self._cluster = site.cluster
        self._file = file
        self._post = post or (lambda: Smtp(site.receipt.mail_server))
        self._count = count
        self._sender = sender or site.receipt.mail_from
        self._news: list[Waiting] = []
        self._lock = threading.Lock()
        self._kept: Kept | None = None
        self._pause = 0.0
        self._silent_until = 0.0

    @property
    def on(self) -> bool:
        """Whether the site wants mail."""
        return self._settings.mail

    @property
    def waiting(self) -> int:
        """Jobs whose mail is due, or soon will be."""
        return len(self._news) + (len(self._kept.waiting) if self._kept is not None else 0)

    def ended(self, facts: Iterable[JobFacts]) -> None:
        """Slurm has told of these; those that are final get a receipt. Quick, and never waits for anything."""
        if not self.on:
            return
        news = [
            Waiting(one.job_id, one.restarts, one.started)
            for one in facts
            if one.final and one.state in ENDED
        ]
        self._remember(news)

    def _remember(self, news: Sequence[Waiting]) -> None:
        with self._lock:
            self._news = (self._news + list(news))[-WAITING:]

    def run_once(self, store: Records, now: float) -> int:
        """Send what is due; how many mails went. Raises StoreError, and OSError where it cannot be written down."""
        if not self.on:
            return 0
        kept = self._taken(now)
        if now < self._silent_until:
            self._save(kept)
            return 0
        letters = self._letters(store, kept, now)
        sent = 0
        self._save(kept)
        if letters:
            post = self._post()
            try:
                for user, dues in letters:
                    sent += self._send(post, kept, user, dues, now)
            except PostError as error:
                self._give_up_for_now(error, now)
            else:
                self._well_again()
            finally:
                post.close()
        return sent

    # --- who gets mail -----------------------------------------------------------------------------------------

    def _taken(self, now: float) -> Kept:
        """What is kept, with the news."""
        kept = self._kept
        if kept is None:
            kept = self._kept = _read(self._file)
        with self._lock:
            news, self._news = self._news, []
        kept.waiting += news
        for _ in kept.waiting[:-WAITING]:
            self._count("dropped")
        del kept.waiting[:-WAITING]
        kept.written = {user: at for user, at in kept.written.items() if now - GATHER < at <= now}
        return kept

    def _letters(self, store: Records, kept: Kept, now: float) -> list[tuple[str, list[Due]]]:
        """The jobs to write of now, by user; those that get no mail are forgotten."""
        by_user: dict[str, list[Due]] = {}
        stay: list[Waiting] = []
        done, seen = set(kept.done), 0
        for one in kept.waiting:
            if one.after > now or seen >= _AT_ONCE:
                stay.append(one)
                continue
            seen += 1
            judged = self._judged(store, one, now)
            if isinstance(judged, float):
                one.after = judged
                stay.append(one)
            elif judged is not None and judged.key not in done:
                done.add(judged.key)
                user = judged.usage.job.user
                if user in kept.written or (user not in by_user and len(by_user) >= _MAILS):
                    one.after = kept.written.get(user, now) + GATHER if user in kept.written else now + _LATER
                    stay.append(one)
                else:
                    by_user.setdefault(user, []).append(judged)
        kept.waiting = [*stay, *(due.waiting for dues in by_user.values() for due in dues)]
        return list(by_user.items())

    def _judged(self, store: Records, one: Waiting, now: float) -> Judged:
        job = self._attempt(store, one)
        if job is None or job.ended is None or now - job.ended > _TOO_OLD or not self._big_enough(job):
            return None
        if not job.complete and now - job.ended < _NODES:
            return now + _LATER
        if not self._addressed(job):
            return None
        usage = store.usage(self._cluster, job.job_id, job.restarts)
        return None if usage is None else Due(one, usage)

    def _addressed(self, job: JobSummary) -> bool:
        """Whether its user's name can be an address."""
        if not _USER.fullmatch(job.user):
            self._count("no_address")
            return False
        return True

    def _attempt(self, store: Records, one: Waiting) -> JobSummary | None:
        """The attempt that ended, if no other followed it: who has a job requeued hears of its end."""
        last = store.job(self._cluster, one.job_id)
        if last is None or last.restarts == one.restarts:
            return last
        return last if one.restarts is None and one.started in (None, last.started) else None

    def _big_enough(self, job: JobSummary) -> bool:
        gpus = job.gpus if job.gpus is not None else job.gpus_known
        return gpus * (ran(job) or 0.0) / 3600 > self._settings.mail_above_gpu_hours

    # --- writing and sending -----------------------------------------------------------------------------------

    def _send(self, post: Post, kept: Kept, user: str, dues: Sequence[Due], now: float) -> int:
        """Send one mail; 1 when it went. Raises PostError when the server is in trouble."""
        going = {id(due.waiting) for due in dues}
        waiting, done = kept.waiting, kept.done
        kept.waiting = [one for one in waiting if id(one) not in going]
        kept.done = [*done, *(due.key for due in dues)][-_DONE:]
        kept.written[user] = now
        self._save(kept)
        domain = self._settings.mail_domain
        address = f"{user}@{domain}" if domain else user
        try:
            post.send(self._message(address, dues, now), address)
        except PostError as error:
            self._count("failed" if error.kind != "refused" else "refused")
            if error.kind == "refused":
                _log.warning("the mail server does not take mail for %s: %s", user, one_line(str(error)))
                return 0
            kept.waiting, kept.done = waiting, done
            kept.written.pop(user, None)
            for due in dues:
                due.waiting.after = now + _DEFERRED if error.kind == "later" else 0.0
            self._save(kept)
            if error.kind == "down":
                raise
            return 0
        tells = [one for due in dues for one in due.tells]
        if tells:
            kept.told = [*kept.told, *tells][-_DONE:]
            self._save(kept)
        self._count("sent")
        return 1

    def _message(self, address: str, dues: Sequence[Due], now: float) -> EmailMessage:
        if not self._sender:
            self._sender = f"gsub@{socket.getfqdn()}"
        message = EmailMessage()
        message["From"] = self._sender
        message["To"] = address
        message["Subject"] = plain(f"[{self._cluster}] {self._subject(dues)}", _SUBJECT)
        message["Date"] = formatdate(now)
        host = self._sender.rpartition("@")[2]
        # The same of a mail that is tried again, and of no other: mail servers drop what they know already
        about = hashlib.sha256("\n".join(due.key for due in dues).encode()).hexdigest()[:16]
        first = dues[0].usage.job
        number = f"{first.job_id}.{first.restarts}.{about}"
        message["Message-ID"] = f"<{self._kind}.{self._cluster}.{number}@{host}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n".join(self._body(dues)) + "\n")
        return message

    def _subject(self, dues: Sequence[Due]) -> str:
        return _subject(dues[0].usage.job) if len(dues) == 1 else f"{len(dues)} jobs have ended"

    def _body(self, dues: Sequence[Due]) -> Iterable[str]:
        return _body([due.usage for due in dues])

    def _give_up_for_now(self, error: PostError, now: float) -> None:
        if not self._pause:
            _log.error("receipts cannot be mailed, they wait: %s", one_line(str(error)))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._silent_until = now + self._pause

    def _well_again(self) -> None:
        if self._pause:
            _log.warning("receipts are mailed again")
        self._pause = 0.0

    def _save(self, kept: Kept) -> None:
        """Write down what is kept. Raises OSError."""
        put(self._file, msgspec.json.encode(kept), sync=True)


def _read(file: Path) -> Kept:
    """What was kept; nothing where it cannot be read. Raises OSError but for a file that is not there."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except msgspec.MsgspecError as error:
        _log.warning("%s is spoilt, and begun anew: %s", file, error)
        return Kept()


def _key(job: JobSummary) -> str:
    return f"{job.job_id}/{job.restarts}"


def _subject(job: JobSummary) -> str:
    """What counts comes first: the rest may be cut off."""
    return f"job {shown_id(job)} {job.state or 'has ended'}{f': {job.name}' if job.name else ''}"


def _body(usages: Sequence[Usage]) -> Iterator[str]:
    for usage in usages[:IN_FULL]:
        yield from receipt(usage)
        yield ""
    for usage in usages[IN_FULL:NAMED]:
        yield f"job {headline(usage.job)}"
    if len(usages) > NAMED:
        yield f"... and {len(usages) - NAMED} more"
    if len(usages) > IN_FULL:
        yield ""
    yield f"'gsub usage {shown_id(usages[0].job)}' shows more, over time and by GPU."
