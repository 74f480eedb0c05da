"""`gsub watch JOB`: follow a job's states and output to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gsub.client import connect, job_id, telling
from gsub.errors import FAILED
from gsub.job_parts import accounted_parts, live_parts, unknown
from gsub.render import duration, elapsed, ending, say, state_name, state_text, style
from gsub.tail import Begin, Tail
from gsub.term import Spinner, harmless, is_terminal, one_line

if TYPE_CHECKING:
    from gsub.smoke.following import Following
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import Job

POLL: Final = 2.0
"""Seconds between questions to Slurm."""
_OUTPUT_POLL: Final = 0.2
_SILENCE: Final = 10.0  # seconds between questions while the controller does not answer
INTERRUPTED: Final = 130


@click.command()
@click.argument("job")
def watch(job: str) -> int:
    """Follow JOB (12, 12_3 or 12+1): its states with reason and nodes, and its output as it comes.

    Ends with 0 when the job is COMPLETED, else with 1. Ctrl-C stops the watching, not the job.
    """
    return follow(job)


def follow(job: str, *, fresh: bool = False, smoke: tuple[int, str] | None = None) -> int:
    """Follow a job to its end; returns the exit code. Raises UserError when there is no such job.

    Parameters
    ----------
    fresh: it was submitted a moment ago, so that all of its output is news.
    smoke: the job of its smoke run, and the folder where the result of that comes.
    """
    watched = job_id(job)
    watcher = _Watcher(watched, connect(), fresh)
    if smoke is not None:
        from gsub.smoke.following import Following

        watcher.smoke = Following(*smoke, watcher.client)
    try:
        with telling():
            return watcher.to_the_end()
    except KeyboardInterrupt:
        watcher.spinner.hide()
        print(f"\nStopped watching; job {watched} goes on.", file=sys.stderr)
        print(f"  watch again: gsub watch {watched}   end it: gsub cancel {watched}", file=sys.stderr)
        return INTERRUPTED
    finally:
        watcher.spinner.hide()


@dataclass
class _Part:
    """One job of those that are watched: an array has tasks, a heterogeneous job components."""

    job: Job
    said: tuple[object, ...] = ()
    tails: list[Tail] = field(default_factory=list)


class _Watcher:
    """What is known of the job, and what has been said of it."""

    def __init__(self, watched: str, client: SlurmClient, fresh: bool) -> None:
        self.watched = watched
        self.client = client
        self.fresh = fresh
        self.parts: dict[str, _Part] = {}
        self.colour = is_terminal(sys.stdout)
        self.spinner = Spinner()
        self.smoke: Following | None = None

    def to_the_end(self) -> int:
        self._look(live_parts(self.watched, self.client))
        if not self.parts:
            return self._from_accounting()
        while not self._over():
            if self._is_held():
                return FAILED
            self._print_output_until(time.monotonic() + POLL)
            self._look(self._ask())
        self._print_output(last=True)
        self._is_held()  # what came of the smoke run in the meantime
        return 0 if all(part.job.state.value == "COMPLETED" for part in self.parts.values()) else FAILED

    def _is_held(self) -> bool:
        """Tell what is new of the smoke run; whether that has held the job, so that there is nothing to wait for."""
        if self.smoke is None:
            return False
        for text in self.smoke.news():
            self._say(text, "")
        return self.smoke.held and all(state_name(part.job) == "PENDING" for part in self.parts.values())

    def _ask(self) -> tuple[Job, ...] | None:
        """The job as slurmctld has it; None when slurmctld has dropped it. Waits out a silent controller."""
        from slurm_plugins.client.errors import SlurmUnreachable

        told = False
        while True:
            try:
                return live_parts(self.watched, self.client) or None
            except SlurmUnreachable:
                # The job most likely runs on: a restart of slurmctld is no reason to stop.
                if not told:
                    self._say("the controller does not answer; still trying", "yellow")
                told = True
                self._print_output_until(time.monotonic() + _SILENCE)

    def _look(self, jobs: Sequence[Job] | None) -> None:
        """Take in a new picture and say what has changed."""
        seen = {job.shown_id: job for job in jobs or ()}
        for shown, part in list(self.parts.items()):
            if seen and shown not in seen and part.job.array_tasks is not None:
                del self.parts[shown]  # the waiting rest of an array: its last task has started
        # All parts first: whether output needs a part's name is known when all of them are.
        for shown, job in seen.items():
            self.parts.setdefault(shown, _Part(job))
        for shown, job in seen.items():
            part = self.parts[shown]
            restarted = job.restarts > part.job.restarts
            part.job = job
            if not part.tails:
                part.tails = _tails(job, attaching=not self.fresh)
            self._say_change(part, restarted)
        self.fresh = True  # what appears from now on is news
        if any(shown not in seen and not part.job.state.ended for shown, part in self.parts.items()):
            self._take_from_accounting()

    def _say_change(self, part: _Part, restarted: bool) -> None:
        job, name = part.job, state_name(part.job)
        now = (name, job.restarts, job.reason if name == "PENDING" else job.nodes)
        if now == part.said or name in ("UNKNOWN", "COMPLETING"):
            return
        part.said = now
        if job.state.ended:
            self._print_output(last=True)
        again = f" (restart {job.restarts})" if restarted else ""
        self._say_state(job.shown_id, name, f"{again} {state_text(job)}")

    def _over(self) -> bool:
        return all(part.job.state.ended for part in self.parts.values())

    def _take_from_accounting(self) -> None:
        """slurmctld has dropped the job between two looks: slurmdbd tells how it ended."""
        import dataclasses

        for record in accounted_parts(self.watched, self.client):
            part = self.parts.get(record.shown_id)
            if part is not None and record.state.ended and not part.job.state.ended:
                part.job = dataclasses.replace(part.job, state=record.state, flags=frozenset())
                text = ending(record.elapsed, record.exit.code, record.exit.signal, record.reason)
                self._say_state(part.job.shown_id, record.state.value, f" {text}")

    def _from_accounting(self) -> int:
        """The job ended so long ago that slurmctld has forgotten it."""
        records = accounted_parts(self.watched, self.client)
        if not records:
            raise unknown(self.watched, self.client)
        for record in records:
            text = ending(record.elapsed, record.exit.code, record.exit.signal, record.reason)
            self._say_state(record.shown_id, record.state.value, f" {text}")
            if record.stdout:
                print(f"  output {one_line(record.stdout)}", flush=True)
        return 0 if all(record.state.value == "COMPLETED" for record in records) else FAILED

    # ---- output -----------------------------------------------------------------------------------------------

    def _print_output_until(self, deadline: float) -> None:
        while (left := deadline - time.monotonic()) > 0:
            if not self._print_output():
                self._sign_of_life()
                time.sleep(min(_OUTPUT_POLL, left))

    def _print_output(self, *, last: bool = False) -> bool:
        """Print what the output files have gained; whether there was anything."""
        printed = False
        prefixed = len(self.parts) > 1
        for shown, part in self.parts.items():
            for tail in part.tails:
                for line in tail.rest() if last else tail.lines():
                    printed = True
                    self.spinner.hide()
                    text = harmless(line) if self.colour else line
                    print(f"{shown}: {text}" if prefixed else text, flush=True)
        return printed

    def _sign_of_life(self) -> None:
        running = [part.job for part in self.parts.values() if not part.job.state.ended]
        if running:
            job = running[0]
            ran = elapsed(job)
            text = f"job {job.shown_id} {state_name(job)}" + (f" {duration(ran)}" if ran is not None else "")
            self.spinner.show(text)

    def _say_state(self, shown: str, state: str, text: str) -> None:
        self.spinner.hide()
        say([(f"job {shown} ", "bold"), (state, style(state)), (text.rstrip(), "")], colour=self.colour)

    def _say(self, text: str, colour: str) -> None:
        self.spinner.hide()
        say([(text, colour)], colour=self.colour)


def _tails(job: Job, *, attaching: bool) -> list[Tail]:
    """The output files of a job. Of a heterogeneous job only the first component has any."""
    if job.array_tasks is not None or (job.het_offset or 0) > 0:
        return []
    paths = [Path(path) for path in dict.fromkeys((job.stdout, job.stderr)) if path and path != "/dev/null"]
    return [Tail(path, _begin(job, path, attaching)) for path in paths]


def _begin(job: Job, path: Path, attaching: bool) -> Begin:
    if job.state.value == "PENDING":
        return "end"
    try:
        # Of an earlier job, and not yet written anew: slurmctld says RUNNING before slurmd opens the file.
        stale = job.start is not None and path.stat().st_mtime < job.start.timestamp()
    except OSError:
        stale = False
    return "end" if stale else "recent" if attaching else "start"
