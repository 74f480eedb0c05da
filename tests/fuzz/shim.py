"""The real gsub.lua in a Lua of its own, a server that answers it badly, and the checks on what became of each job."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from slurm_plugins.decide.edits import EditError, check, check_env
from slurm_plugins.decide.request import MAX_BYTES, Request, RequestError, parse_request
from slurm_plugins.decide.steps import ENV_NAMES
from tests.fuzz import answers
from tests.unit.slurm_plugins.lua.lua import VERSIONS, LuaMissingError, environment

HERE = Path(__file__).resolve().parent
SHIM = HERE.parents[1] / "slurm_plugins/lua/gsub.lua"


def interpreters() -> dict[str, Mapping[str, str]]:
    """The Luas of this machine that have lua-posix, each with the variables that it needs; installed where root may."""
    found: dict[str, Mapping[str, str]] = {}
    for version in VERSIONS:
        try:
            found[f"lua{version}"] = environment(version)
        except LuaMissingError:
            continue
    return found


class Server:
    """Answers each question as its number and the seed say; keeps what was asked and answered for the checks."""

    def __init__(self, path: Path, seed: int) -> None:
        self.seed = seed
        self.given: dict[int, answers.Answer] = {}
        self.faults: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o660)
        self._listening.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            with peer:
                try:
                    self._talk(peer)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                except Exception as error:
                    self.faults.append(f"{type(error).__name__}: {error}")

    def _talk(self, peer: socket.socket) -> None:
        buffer = b""
        while True:
            while b"\n" not in buffer:
                more = peer.recv(1 << 16)
                if not more:
                    return
                buffer += more
            line, _, buffer = buffer.partition(b"\n")
            if len(line) >= MAX_BYTES:
                self.faults.append(f"a question of {len(line)} bytes")
            try:
                request = parse_request(line)
            except RequestError as error:
                self.faults.append(f"the service cannot read a question: {error}: {line[:3000]!r}")
                return
            number = int((request.job.account or "").removeprefix("case-"))
            answer = answers.make(Random(f"{self.seed}:{number}"), request.id, batch=request.batch)
            self.given[number] = answer
            self._look(request, number)
            peer.sendall(answer.line)
            if answer.close:
                return

    def _look(self, request: Request, number: int) -> None:
        if not line_is_bounded(request):
            self.faults.append(f"question {number} holds a text that is too long")


def line_is_bounded(request: Request) -> bool:
    """Whether the texts of a question keep the contract's limits, in bytes."""
    job: dict[str, Any] = {name: getattr(request.job, name) for name in request.job.__struct_fields__}
    texts = [value for value in job.values() if isinstance(value, str)]
    return all(len(text.encode()) <= 3 * 4096 for text in texts)


def run(lua: str, count: int, seed: int, first: int = 0) -> dict[str, int]:
    """So many submissions in one Lua. Returns how many were changed, refused and left as they were.

    Raises AssertionError that names the submission at fault.
    """
    with tempfile.TemporaryDirectory(prefix="gsub-fuzz-") as folder:
        path = Path(folder) / "decision.sock"
        server = Server(path, seed)
        try:
            argv = [lua, str(HERE / "drive.lua"), str(SHIM), str(path), str(seed), str(first), str(count)]
            env = {**os.environ, **environment(lua.removeprefix("lua"))}
            # SIGPIPE stays ignored, as slurmctld has it
            done = subprocess.run(argv, capture_output=True, env=env, timeout=3600, restore_signals=False)
        finally:
            server.close()
    assert done.returncode == 0, (
        f"{lua} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
    )
    assert not server.faults, f"{lua}, seed {seed}: {server.faults[:3]}"
    found = {"changed": 0, "refused": 0, "as it was": 0}
    numbers = set()
    for outcome in map(Outcome.read, done.stdout.decode().splitlines()):
        numbers.add(outcome.number)
        where = f"{lua}, submission {outcome.number} of seed {seed}"
        answer = server.given.get(outcome.number)
        assert answer is not None, f"{where}: never asked ({outcome.result})"
        try:
            _check(answer, outcome)
        except (AssertionError, EditError) as error:
            became = f"{outcome.changes} {outcome.env}"
            raise AssertionError(
                f"{where}: {error}\n  answered: {answer.line[:2000]!r}\n  became: {became}"
            ) from error
        what = "refused" if outcome.result == "ERROR" else "changed" if outcome.changed else "as it was"
        found[what] += 1
    assert numbers == set(range(first, first + count)), f"{lua}: {count} submissions, told of {len(numbers)}"
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of one submission: changed fields and variables, those that the job had before, and what was said.

    `refuses` is a field that this job_desc does not let itself be written.
    """

    number: int
    result: str
    changes: dict[str, Any]
    env: dict[str, Any]
    had: dict[str, Any]
    had_env: dict[str, Any]
    said: list[str]
    refuses: str
    batch: bool

    @classmethod
    def read(cls, line: str) -> Outcome:
        """From a line of drive.lua."""
        number, result, changed, said = line.split("\t")
        items = dict(item.split("=", 1) for item in changed.split())
        refuses, batch = items.pop("refuses", ""), items.pop("batch", "") == "1"
        sorted_: dict[str, dict[str, Any]] = {"": {}, "env": {}, "had": {}, "had.env": {}}
        for name, shown in items.items():
            where, _, short = name.rpartition(".")
            sorted_[where]["gres" if short == "tres_per_node" else short] = _value(shown)
        lines = [bytes.fromhex(each.removeprefix("said:")).decode() for each in said.split()]
        return cls(
            number=int(number),
            result=result,
            changes=sorted_[""],
            env=sorted_["env"],
            had=sorted_["had"],
            had_env=sorted_["had.env"],
            said=lines,
            refuses="gres" if refuses == "tres_per_node" else refuses,
            batch=batch,
        )

    @property
    def changed(self) -> bool:
        """Whether the job is not as it was."""
        return bool(self.changes or self.env)


def _value(shown: str) -> int | str | float | None:
    kind, _, value = shown.partition(":")
    if kind == "i":
        return int(value)
    return (
        bytes.fromhex(value).decode("utf-8", "replace")
        if kind == "t"
        else float(value)
        if kind == "f"
        else None
    )


def _check(answer: answers.Answer, became: Outcome) -> None:
    """Raise AssertionError unless the contract allows, of that answer, what became of the job."""
    assert became.result in ("SUCCESS", "ERROR"), became.result
    for name, value in became.changes.items():
        check(name, value)
    for name, value in became.env.items():
        check_env(name, value)
        assert name in ENV_NAMES or name.startswith("GSUB"), f"{name} is not a variable that steps read"
    assert became.batch or not became.env, "variables for a job that brings none"
    assert len(became.said) <= 8, "too many lines for a user"
    for line in became.said:
        assert len(line.encode()) <= 400, "a line that is too long for a user"
        hidden = [char for char in line if ord(char) < 32 or 127 <= ord(char) < 160]
        assert not hidden, f"a terminal is not to see {line!r}"
    refused = became.result == "ERROR"
    assert not (refused and became.changed), "refused, and changed"
    assert became.said or not refused, "refused without a word"
    fields = answer.fields
    if fields is None:
        return
    if refused:
        assert fields["mode"] == "enforce" and isinstance(fields["reject"], str), "refused unasked"
    if answer.right:
        _check_right(fields, became)
    else:
        assert not became.changed or not answers.forbidden(fields, batch=became.batch), (
            "a part of it was applied"
        )


def _check_right(fields: dict[str, Any], became: Outcome) -> None:
    """An answer that keeps the contract is obeyed in all that it says."""
    assert (became.result == "ERROR") == (fields["reject"] is not None), "refused unasked, or not where asked"
    if became.refuses in fields["edits"]:
        assert not became.changed, "half of an answer stands where a field could not be written"
        return
    assert became.said == fields["say"], "the user was told something else"
    now, now_env = became.had | became.changes, became.had_env | became.env
    for name, value in fields["edits"].items():
        assert now.get(name) == value, f"{name} became {now.get(name)!r}, not {value!r}"
    for name, value in fields["env"].items():
        assert now_env.get(name, "") == value, f"{name} became {now_env.get(name)!r}, not {value!r}"
    more = {*became.changes, *became.env} - {*fields["edits"], *fields["env"]}
    assert not more, f"changed though nobody asked for it: {more}"
