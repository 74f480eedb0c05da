"""Where a question becomes an answer: all that happens while slurmctld waits. One line in, one line out, no I/O.

A question that cannot be read, or a fault of our own, is answered with an error: the shim then lets the job pass as it
is. What is left to do about a decision (write it down, find its job) is handed on, never waited for.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision, Note
from slurm_plugins.decide.pipeline import Walk, decide
from slurm_plugins.decide.recent import Recent
from slurm_plugins.decide.request import Request, RequestError, parse_request
from slurm_plugins.decide.stage import Stage
from slurm_plugins.service.counts import Counts

__all__ = ["Desk"]

_log = logging.getLogger("gsubd")
_ID: Final = re.compile(rb'"id"\s*:\s*([1-9][0-9]{0,15})(?![0-9.eE])')
_MAX_ID: Final = (1 << 53) - 1

Done = Callable[[Request, Decision, float], None]
"""Told of each decision: the request, what was decided, and when (seconds since the epoch)."""


class Desk:
    """Answers lines. `context` is replaced whole by whoever learns more; `stages` None means gsub's own.

    `fresh` says whether the snapshot is new enough to refuse a job by: nodes may have come since.
    """

    def __init__(
        self,
        context: Context,
        counts: Counts,
        *,
        stages: Sequence[Stage] | None = None,
        done: Done | None = None,
        fresh: Callable[[], bool] = lambda: True,
    ) -> None:
        self.context = context
        self.stages = stages
        self._counts = counts
        self._done = done
        self._fresh = fresh
        self._faults: set[str] = set()
        self._recent: Recent[Walk] = Recent()

    def answer(self, line: bytes) -> bytes:
        """The answer to one line, newline included. Never raises."""
        began = time.perf_counter()
        try:
            request = parse_request(line)
        except RequestError as error:
            self._counts.malformed.add()
            return _error(_id_in(line), str(error))
        try:
            decision = decide(
                request,
                self.context,
                decision_id=f"d-{secrets.token_hex(8)}",
                stages=self.stages,
                recent=self._recent,
            )
            if decision.reject is not None and not self._fresh():
                decision = _let_pass(decision)
            answer = decision.answer(request.id)
            self._counts.decided(request, decision, time.perf_counter() - began)
            if self._done is not None:
                self._done(request, decision, time.time())
        except Exception as error:
            # The shim waits with Slurm's locks held: whatever our bug is, it gets an answer at once.
            self._counts.faults.add()
            self._say_once(error)
            return _error(request.id, "a fault in gsubd: see its log")
        return answer

    def _say_once(self, error: Exception) -> None:
        """Each kind of fault once: a log that fills with one line a submission helps nobody."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        key = f"{type(error).__name__} {place}"
        if key not in self._faults and len(self._faults) < 100:
            self._faults.add(key)
            _log.error("a fault while deciding (said once for each place)", exc_info=error)


def _let_pass(decision: Decision) -> Decision:
    """The decision without its refusal; what stages changed of a job that they thought could never run goes with it."""
    why = Note(f"not refused, since what is known of the cluster is old: {decision.reject}", "service")
    return replace(decision, changes=(), env={}, say=(), reject=None, error=0, notes=(*decision.notes, why))


def _id_in(line: bytes) -> int:
    """The id of a question that cannot be read otherwise; 0 when it has none."""
    found = _ID.search(line, 0, 4096)
    number = int(found[1]) if found else 0
    return number if number <= _MAX_ID else 0


def _error(number: int, text: str) -> bytes:
    return msgspec.json.encode({"v": 1, "id": number, "error": text}) + b"\n"
