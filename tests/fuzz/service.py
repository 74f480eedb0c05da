"""What must hold of every answer of the service, whatever it was asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks import world
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import MAX_SAY, MAX_SAY_BYTES, Decision
from slurm_plugins.decide.edits import EditError, check, check_env
from slurm_plugins.decide.request import Request, RequestError, parse_request
from slurm_plugins.service.counts import Counts
from slurm_plugins.service.desk import Desk
from tests.fuzz import questions

ANSWER_LIMIT = 64 * 1024


class WrongError(AssertionError):
    """The service did what it must never do; the message says what, and which line made it."""

    def __init__(self, what: str, line: bytes) -> None:
        super().__init__(f"{what}\n  asked: {line!r}")


class Service:
    """The service's line handler over small clusters of several kinds, and the checks on each answer."""

    def __init__(self) -> None:
        self.contexts = tuple(_contexts())
        self.answered = self.refused = self.changed = self.rejected = 0
        self.slowest = 0.0
        self._decided: list[tuple[Request, Decision]] = []
        self._counts = Counts()
        self.desk = Desk(
            self.contexts[0],
            self._counts,
            done=lambda request, decision, _: self._decided.append((request, decision)),
        )

    def ask(self, line: bytes, context: Context) -> None:
        """Put one line to the service. Raises WrongError."""
        self.desk.context = context
        self._decided.clear()
        start = time.perf_counter()
        try:
            said = self.desk.answer(line)
        except Exception as error:
            raise WrongError(f"{type(error).__name__} escaped: {error}", line) from error
        self.slowest = max(self.slowest, time.perf_counter() - start)
        if not said.endswith(b"\n") or said.count(b"\n") != 1 or len(said) > ANSWER_LIMIT:
            raise WrongError(f"an answer of {len(said)} bytes that is not one line: {said[:200]!r}", line)
        answer = json.loads(said)
        try:
            request = parse_request(line)
        except RequestError:
            self.refused += 1
            if set(answer) != {"v", "id", "error"}:
                raise WrongError(f"a question that cannot be read was answered with {answer}", line) from None
            return
        if "error" in answer:
            raise WrongError(f"a fault: {answer['error']}", line)
        self.answered += 1
        self.changed += set(answer["edits"]) > {"admin_comment"}
        self.rejected += answer["reject"] is not None
        self._check(request, answer, line)

    def _check(self, request: Request, answer: dict[str, Any], line: bytes) -> None:
        if not self._decided:
            raise WrongError("a decision that nobody was told of", line)
        _, decision = self._decided[0]
        if decision.failures:
            raise WrongError(f"a stage failed: {decision.failures[0]}", line)
        if answer["id"] != request.id or answer["v"] != 1 or answer["decision"] != decision.id:
            raise WrongError(f"the answer to another question: {answer}", line)
        if answer["mode"] != "enforce" and (answer["edits"] or answer["env"] or answer["reject"] is not None):
            raise WrongError(f"a job is changed in {answer['mode']}: {answer}", line)
        silent = request.opted_out or (answer["mode"] == "observe" and not request.opted_in)
        if silent and (answer["say"] or answer["edits"]):
            raise WrongError(f"said where nothing should be: {answer}", line)
        for name, value in answer["edits"].items():
            check(name, value)
        for name, value in answer["env"].items():
            check_env(name, value)
        if answer["env"] and not request.batch:
            raise WrongError(f"variables for a job that brings none: {answer}", line)
        if answer["reject"] is not None and (answer["edits"] or len(answer["reject"].splitlines()) > 3):
            raise WrongError(f"a refusal that is none: {answer}", line)
        said = [*answer["say"], *(answer["reject"] or "").splitlines()]
        if len(answer["say"]) > MAX_SAY:
            raise WrongError("too many lines for a user", line)
        for words in said:
            if len(words.encode()) > MAX_SAY_BYTES or not words.isprintable():
                raise WrongError(f"a line that a terminal should not see: {words!r}", line)


def _contexts() -> Iterator[Context]:
    """Releases, networks, modes, and what is known, in turns; one knows nothing of its cluster."""
    yield Context(world.context(40).site)
    for number, release in enumerate(((22, 5), (24, 11), (26, 5), (0, 0))):
        for shape in ("tree", "block", "flat"):
            for mode in ("enforce", "enforce", "advise", "observe"):
                repack, retune = bool(number % 2), ("off", "lower", "both")[number % 3]
                text = world.site_text(mode, repack=repack, retune=retune)
                yield world.context(80, 100 * (number % 2), shape=shape, release=release, site=text)


def run(count: int, seed: int) -> Service:
    """So many questions. Raises WrongError, naming the number of the one at fault."""
    service = Service()
    for number in range(count):
        random = Random(f"{seed}:{number}")
        line, context = questions.line(random), random.choice(service.contexts)
        try:
            service.ask(line, context)
        except (AssertionError, EditError) as error:
            raise AssertionError(f"question {number} of seed {seed}: {error}") from error
    return service
