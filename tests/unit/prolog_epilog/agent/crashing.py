"""Puts and delivers records in children that kill themselves (SIGKILL) at their n-th system call, for every n.

    python -m tests.unit.prolog_epilog.agent.crashing FOLDER URL MUNGE_SOCKET

Each n is a node ``n<n>`` with a spool of its own. After a kill a second child starts on what is left, as a restarted
agent would: it puts again only what was not acknowledged, and delivers. Prints a line ``<n> <how the first ended>``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiler.munge import Munge
from profiler.records import JobEnded, JobRef, JobSeries, JobStarted, JobUsage, NodeEvent, Record
from profiler.sealed import Answer, Service
from prolog_epilog.agent.deliver import Delivery, Pace
from prolog_epilog.agent.disk import Calls
from prolog_epilog.agent.spool import Spool
from tests.waiting import wait_until

PACE = Pace(jitter=0.0, least=0.001, most=0.01, slow=0.01, held=0.01)
LIMIT = 1 << 20


def records(node: str) -> tuple[Record, ...]:
    """What a node tells of one job. The last usage and series are the ones that count."""
    ids = iter(f"{node[1:]:0>24}{number:08x}" for number in range(100))
    about: dict[str, Any] = {"cluster": "c", "node": node, "at": 1.0}
    job = JobRef(7)

    def usage(serial: int) -> JobUsage:
        return JobUsage(
            id=next(ids), job=job, serial=serial, final=serial == 2, since=0.0, until=1.0, **about
        )

    def series(serial: int) -> JobSeries:
        return JobSeries(
            id=next(ids),
            job=job,
            serial=serial,
            final=serial == 2,
            since=0.0,
            step=1.0,
            cpus=(1.5,) * 400,
            **about,
        )

    return (
        JobStarted(id=next(ids), job=job, **about),
        usage(1),
        series(1),
        NodeEvent(id=next(ids), name="xid", state="error", **about),
        JobEnded(id=next(ids), job=job, **about),
        usage(2),
        series(2),
    )


class _Fuse:
    """Ends the process at the n-th call that passes it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._lock = threading.Lock()

    def burn(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0

    def calls(self) -> Calls:
        plain = Calls()
        table = {name: self._wrap(getattr(plain, name)) for name in Calls.__dataclass_fields__}
        return Calls(**{**table, "write": self._write})

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.burn():
                _end()
            return call(*args, **kwargs)

        return wrapped

    def _write(self, handle: int, data: bytes) -> int:
        if self.burn():
            os.write(handle, data[: len(data) // 2])
            _end()
        return os.write(handle, data)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until the signal is delivered to this thread


class _Service:
    """The service, with the fuse ahead of each question and behind each answer."""

    def __init__(self, service: Service, fuse: _Fuse) -> None:
        self._service, self._fuse = service, fuse

    def ask(self, method: str, target: str, body: bytes = b"", *, timeout: float | None = None) -> Answer:
        if self._fuse.burn():
            _end()
        answer = self._service.ask(method, target, body, timeout=timeout)
        if self._fuse.burn():
            _end()
        return answer


def live(folder: Path, service: Service, node: str, fuse: _Fuse, acknowledged: Path) -> None:
    """Put what was not acknowledged yet, and deliver all."""
    known = acknowledged.read_bytes().split() if acknowledged.exists() else []
    todo = [record for record in records(node) if record.id.encode() not in known]
    spool = Spool(folder, LIMIT, fuse.calls())
    delivery = Delivery(spool, _Service(service, fuse), "c", node, pace=PACE)
    with acknowledged.open("ab", buffering=0) as notes:
        for number, record in enumerate(todo):
            if number == 4:  # the others come while it delivers
                delivery.start()
            if spool.put(record):
                notes.write(record.id.encode() + b"\n")
    if delivery.ident is None:
        delivery.start()
    wait_until(lambda: not spool.counts().records, 60, "the delivery of all records", pause=0.002)
    if not delivery.stop(30.0):
        raise TimeoutError(f"{spool.counts()} are left")


def in_child(work: Callable[[], None]) -> int:
    """Do it in a child process; how that ended, as os.waitstatus_to_exitcode has it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Every n until one is not reached."""
    base, url, socket = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    service = Service(url, Munge(socket), {os.geteuid()}, timeout=30.0)
    for number in range(1, 1000):
        node = f"n{number}"
        folder, notes = base / node, base / f"{node}.acknowledged"
        first = in_child(lambda: live(folder, service, node, _Fuse(number), notes))  # noqa: B023 - done by then
        print(number, first, flush=True)
        if first == 0:
            return 0
        if first != -signal.SIGKILL:
            return 1
        if in_child(lambda: live(folder, service, node, _Fuse(-1), notes)) != 0:  # noqa: B023
            return 1
        if left := [path.name for path in (folder / "out").iterdir()]:
            print("left:", left, file=sys.stderr)
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
