"""Mail about rules on use that a user's jobs meet: a receipt's ways, with other words.

mail = AlertMail(site, state / "alert-mail.json")
    mail.wanted({(7, 0): [(finding, since), ...]})  # what users are to be told of now
    mail.run_once(store, now)                       # then, in a thread
    mail.taken()                                    # of what the mail server has taken the mail
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from types import MappingProxyType
from typing import Final

from profiler.alerts import Finding, allowed, evidence_of
from profiler.answers import Usage
from profiler.wording import plain, shown_id, span
from slurm_plugins.service.keeper.mail import NAMED, Due, Judged, Kept, Mailer, Records, Waiting
from slurm_plugins.service.keeper.smtp import Post

__all__ = ["AlertMail", "Told"]

_WIDTH: Final = 600

Attempt = tuple[int, int]
"""Job id and restarts."""
Told = tuple[int, int, str, float]
"""Job id, restarts, rule, and when the watch of it began."""


@dataclass(frozen=True, slots=True)
class _Due(Due):
    """A mail that is due about some rules; one for each time that they came to hold."""

    spells: tuple[Told, ...] = ()

    @property
    def tells(self) -> tuple[str, ...]:
        """Each of them: which others hold at the time of a restart may be another matter."""
        return tuple(_spelt(one) for one in self.spells)

    @property
    def key(self) -> str:
        """As it is kept: "12/0 idle_after_activity@1700000000"."""
        job = self.usage.job
        rules = " ".join(f"{rule}@{since:.0f}" for _, _, rule, since in self.spells)
        return f"{job.job_id}/{job.restarts} {rules}"


class AlertMail(Mailer):
    """See the module. Nothing else is called while `run_once` runs."""

    _kind = "gsub-alert"

    _due: Mapping[Attempt, Sequence[tuple[Finding, float]]] = MappingProxyType({})
    _taken_mail: tuple[Told, ...] = ()

    @property
    def on(self) -> bool:
        """Whether the site wants this mail."""
        return self._site.alerts.mail

    def wanted(self, due: Mapping[Attempt, Sequence[tuple[Finding, float]]]) -> None:
        """What users are to be told of, each with when its watch began; what was wanted before is forgotten."""
        before = {key: _names(found) for key, found in self._due.items()}
        new = [Waiting(*key, None) for key, found in due.items() if before.get(key) != _names(found)]
        self._due = due
        if self.on:
            self._remember(new)

    def taken(self) -> Sequence[Told]:
        """Of what the mail server has taken the mail since the last call."""
        found, self._taken_mail = self._taken_mail, ()
        return found

    def _taken(self, now: float) -> Kept:
        """What is kept. Of what was about to be mailed when a keeper was killed nobody knows whether it went: again.

        A job is not ended before its user has been told, so a mail too many is better than one too few; it has the same
        id, by which mail servers know it.
        """
        first = self._kept is None
        kept = super()._taken(now)
        if first:
            kept.done.clear()
        return kept

    def _judged(self, store: Records, one: Waiting, now: float) -> Judged:
        if one.restarts is None:
            return None
        due = self._due.get((one.job_id, one.restarts))
        if not due or not self._addressed(due[0][0].facts.job):
            return None
        spells = tuple((one.job_id, one.restarts, found.rule.name, since) for found, since in due)
        before = set() if self._kept is None else set(self._kept.told)
        told = tuple(spell for spell in spells if _spelt(spell) in before)
        if told:
            # By a keeper that was killed before the watches said so; what else holds is wanted again at the next look
            self._taken_mail += told
            return None
        return _Due(one, Usage(due[0][0].facts.job, ()), spells)

    def _send(self, post: Post, kept: Kept, user: str, dues: Sequence[Due], now: float) -> int:
        sent = super()._send(post, kept, user, dues, now)
        if sent:
            self._taken_mail += tuple(spell for due in dues if isinstance(due, _Due) for spell in due.spells)
        return sent

    def _subject(self, dues: Sequence[Due]) -> str:
        if len(dues) > 1:
            return f"{len(dues)} jobs hold more than they use"
        job = dues[0].usage.job
        found, _ = self._due[job.job_id, job.restarts][0]
        return f"job {shown_id(job)}: {found.rule.name.replace('_', ' ')}"

    def _body(self, dues: Sequence[Due]) -> Iterator[str]:
        for due in dues[:NAMED]:
            for found, _ in self._due[due.usage.job.job_id, due.usage.job.restarts]:
                yield from self._said(found)
                yield ""
        if len(dues) > NAMED:
            yield f"... and {len(dues) - NAMED} more"
        yield f"'gsub usage {shown_id(dues[0].usage.job)}' shows what it does, over time and by GPU."

    def _said(self, found: Finding) -> Iterable[str]:
        job = found.facts.job
        follows = ""
        if allowed(found.rule, self._site, job) == "cancel" and job.het_job_id is None:
            follows = f"It is cancelled in {span(found.rule.grace)} unless this changes."
        words = {
            "job": shown_id(job), "name": job.name, "user": job.user, "account": job.account,
            "partition": job.partition, "gpus": "" if job.gpus is None else str(job.gpus), "rule": found.rule.name,
            "about": found.rule.about, "evidence": evidence_of(found), "follows": follows,
        }  # fmt: skip
        words = {name: plain(text, _WIDTH) for name, text in words.items()}
        if found.rule.text:
            # Checked when the site file was read; what users wrote is put in, and not read again
            text = Template(found.rule.text).safe_substitute(words)
            # Nobody's job is cancelled who was not told that it will be
            return [*text.splitlines(), *(() if words["follows"] in text else ("", words["follows"]))]
        named = f"{words['job']} ({words['name']})" if words["name"] else words["job"]
        return [line for line in (f"job {named} {words['about']}", f"  {words['evidence']}", follows) if line]


def _spelt(one: Told) -> str:
    """As it is kept: "12/0 idle_after_activity@1700000000.5"."""
    job_id, restarts, rule, since = one
    return f"{job_id}/{restarts} {rule}@{since!r}"


def _names(due: Sequence[tuple[Finding, float]]) -> list[tuple[str, float]]:
    return [(found.rule.name, since) for found, since in due]
