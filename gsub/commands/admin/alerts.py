"""`gsub admin alerts`: which jobs meet which of the site's rules on use, on what evidence, and what would follow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from gsub.commands.admin.reasons import moment
from gsub.commands.admin.store import of_store, opened, telling
from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from profiler.alerts import Finding
    from profiler.answers import Usage
    from site_configs.site_model import Site

__all__ = ["alerts"]

HEADS: Final = ("JOB", "USER", "PARTITION", "STATE", "RULE", "WOULD", "EVIDENCE")
_WIDTH: Final = 160


@dataclass(frozen=True, slots=True)
class _Row:
    """A job that meets a rule; `would`: what would follow, as a sentence without an end."""

    finding: Finding
    does: str
    would: str


@click.command()
@click.option(
    "--dry-run", is_flag=True, help="Look now, and do nothing. Needed: rules are carried out by gsubd."
)
@click.option(
    "--since", default="1d", metavar="WHEN", help="Also jobs that ended then or later: 12h, 7d. [1d]"
)
@click.option(
    "--rule", "wanted", multiple=True, metavar="NAME", help="Only this rule; may be said several times."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@of_store
def alerts(dry_run: bool, since: str, wanted: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Which jobs meet which rule of [alerts] in the site file, with the evidence, and what would be done.

    Of jobs that run, and of those that ended lately; nobody is told and nothing ends. Slurm is not asked, so
    interactive jobs are shown like any other. Run this where the store can be reached; GSUB_SITE=FILE tries the rules
    of another site file. See docs/alerts.md.
    """
    if not dry_run:
        raise UserError(
            "gsub admin alerts only looks; gsubd carries rules out by itself",
            fix="gsub admin alerts --dry-run",
            exit_code=USAGE,
        )
    from gsub.site import read_site

    site = read_site(os.environ)
    if site is None:
        raise UserError(
            "there is no site file here, so no rules are known",
            fix="name one: GSUB_SITE=FILE gsub admin alerts --dry-run",
            exit_code=USAGE,
        )
    _check_names(site, wanted)
    now = time.time()
    ended_since = moment(since, now, "--since")
    with opened(url, read_only=True) as store, telling():
        from profiler.store.use import in_use

        running = in_use(store, site.cluster)
        ended = in_use(store, site.cluster, ended_since=ended_since)
    rows = [
        row for row in _rows(site, (*running, *ended), now) if not wanted or row.finding.rule.name in wanted
    ]
    counts = {"running": len(running), "ended": len(ended)}
    if as_json:
        from gsub.commands.submit import print_json

        print_json(
            {"cluster": site.cluster, "at": now, "since": ended_since, "jobs": counts, "alerts": _facts(rows)}
        )
    else:
        print("\n".join(_table(rows, counts)))


def _check_names(site: Site, wanted: Sequence[str]) -> None:
    names = [rule.name for rule in site.alerts.every()]
    for name in wanted:
        if name not in names:
            raise UserError(
                f"there is no rule {name}", fix=f"name one of {', '.join(names)}", exit_code=USAGE
            )


def _rows(site: Site, used: Iterable[Usage], now: float) -> Iterator[_Row]:
    from profiler.alerts import allowed, facts_of, findings, fresh_seconds

    rules, fresh = site.alerts.every(), fresh_seconds(site.agent)
    for usage in used:
        facts = facts_of(usage, now=now, fresh=fresh)
        for found in findings(rules, facts):
            does = allowed(found.rule, site, facts.job)
            yield _Row(found, does, _would(found, does))


def _would(found: Finding, does: str) -> str:
    from profiler.wording import span

    if found.exempt:
        return f"nothing: {found.exempt}"
    if found.facts.ended:
        return "nothing: it has ended"
    if found.facts.stale:
        return f"nothing: {found.facts.stale}"
    if does == "cancel":
        return f"notify, and cancel {span(found.rule.grace)} later"
    less = f" ({found.rule.do} is not allowed here)" if does != found.rule.do else ""
    return f"{does}{less}"


def _table(rows: Sequence[_Row], counts: dict[str, int]) -> Iterator[str]:
    """The table as text, a line a job and rule; harmless on a terminal."""
    from profiler.alerts import evidence_of
    from profiler.wording import plain, shown_id

    yield f"{counts['running']:,} jobs run, {counts['ended']:,} ended lately; nothing is done"
    if not rows:
        yield "none meets a rule"
        return
    cells = [HEADS]
    for row in rows:
        job = row.finding.facts.job
        cells.append((
            shown_id(job), plain(job.user, 20), plain(job.partition, 20), plain(job.state or "n/a", 20),
            row.finding.rule.name, plain(row.would, _WIDTH), plain(evidence_of(row.finding), _WIDTH),
        ))  # fmt: skip
    widths = [max(len(line[place]) for line in cells) for place in range(len(HEADS))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _facts(rows: Iterable[_Row]) -> list[dict[str, object]]:
    found = []
    for row in rows:
        facts, job = row.finding.facts, row.finding.facts.job
        found.append({
            "job_id": job.job_id, "restarts": job.restarts, "user": job.user, "account": job.account,
            "partition": job.partition, "state": job.state, "rule": row.finding.rule.name, "do": row.finding.rule.do,
            "allowed": row.does, "would": row.would, "exempt": row.finding.exempt, "stale": facts.stale,
            "evidence": dict(row.finding.evidence),
            "samples": {node: at for node, (at, _) in facts.samples.items()},
        })  # fmt: skip
    return found
