"""The script of a smoke run as a child: started as Slurm would, its output bounded, its descendants known and ended.

The runner makes itself the reaper of orphans (PR_SET_CHILD_SUBREAPER): whatever the script leaves behind, in whatever
session, stays below the runner in the tree of processes, and so can be found and ended.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Final

from profiler.process_tree import ProcessTree, about

__all__ = ["Output", "Watched", "bytes_in_use", "tree"]

_PR_SET_CHILD_SUBREAPER: Final = 36
HEAD: Final = 1 << 20
TAIL: Final = 4 << 20
"""Bytes of the output that are kept of each end."""
_MOST_HEARD: Final = 4 << 20  # bytes of output that wait to be looked through for steps
_MOST_PROCESSES: Final = 4096
_MOST_LOOKED_AT: Final = 512  # processes whose open files are looked at in a turn
_MOST_OPEN: Final = 4096  # files that are remembered as open for writing
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_FLAGS: Final = re.compile(r"^flags:\s*0?([0-7]+)", re.MULTILINE)


class Output:
    """What comes through a pipe, whatever its length: both ends are kept in memory, no disk can fill.

    `text` is (head, tail); `left_out` the bytes between that are gone.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._held = 0
        self._news: deque[tuple[float, bytes]] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self.left_out = 0
        self._thread = threading.Thread(target=self._drain, name="output", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:
                break
            if not data:
                break
            with self._lock:
                self._keep(data)
                if self._waiting < _MOST_HEARD:
                    self._news.append((time.monotonic(), data))
                    self._waiting += len(data)

    def _keep(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._held += len(data)
            while self._held - len(self._tail[0]) >= TAIL:
                gone = self._tail.popleft()
                self._held -= len(gone)
                self.left_out += len(gone)

    def close(self, seconds: float = 2.0) -> None:
        """Wait for the end of the output, but not for one who keeps the pipe open."""
        self._thread.join(seconds)
        if not self._thread.is_alive():
            os.close(self._descriptor)

    def heard(self) -> list[tuple[float, bytes]]:
        """What came since the last call, with the monotonic clock's time; of very much only the first."""
        with self._lock:
            found = list(self._news)
            self._news.clear()
            self._waiting = 0
        return found

    @property
    def text(self) -> tuple[bytes, bytes]:
        """Head and tail."""
        with self._lock:
            return bytes(self._head), b"".join(self._tail)


class Watched:
    """The script's process and all that come from it.

    Parameters
    ----------
    argv, cwd, environ: what is run, where, with what.
    mark: the value of GSUB_STEPS in its environment: tasks of srun have it, and are nobody's descendants of ours.
    before: called in the child before the program is run (mounts).
    Raises OSError where it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        environ: Mapping[str, str],
        mark: str = "",
        before: Callable[[], None] | None = None,
    ) -> None:
        _become_reaper()
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                start_new_session=True,
                preexec_fn=before,  # noqa: PLW1509 - no other thread runs yet
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self.output = Output(read)
        self.started = time.monotonic()
        self.peak = 0
        self.opened: dict[str, None] = {}
        """Files that were seen open for writing, in the order in which they were seen."""
        self.words: dict[str, None] = {}
        """Programs that were seen running below the script."""
        self._cgroup = _job_cgroup()
        self._marked = ProcessTree(self._process.pid, mark)

    @property
    def pid(self) -> int:
        """Of the script."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative: the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started

    def look(self) -> None:
        """Take a sample: memory, files open for writing, names of programs."""
        processes = self._all()
        self.peak = max(self.peak, _memory(processes, self._cgroup))
        until = time.monotonic() + 0.2
        for pid in processes[:_MOST_LOOKED_AT]:
            if time.monotonic() > until:
                break
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
                if name == "srun" and _is_shell(pid):
                    continue  # ours, about to become the real one under another name
                if len(self.words) < 256:
                    self.words[name] = None
            for path in _open_for_writing(pid):
                if len(self.opened) < _MOST_OPEN:
                    self.opened[path] = None

    def end(self, patience: float) -> None:
        """End all of them: TERM, and after `patience` seconds KILL. Returns when none is left (or none can be)."""
        deadline = time.monotonic() + patience
        asked: set[int] = set()
        while time.monotonic() < deadline:
            left = self._left()
            if not left:
                break
            for pid in left:
                if pid not in asked:
                    asked.add(pid)
                    _send(pid, signal.SIGTERM)
                    _send(pid, signal.SIGCONT)
            time.sleep(0.05)
        # Frozen first, so that none can start another while the list is gone through; in D state one may stay
        for _ in range(50):
            left = self._left()
            if not left:
                break
            for pid in left:
                _send(pid, signal.SIGSTOP)
            for pid in self._left():
                _send(pid, signal.SIGKILL)
            time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self.output.close()

    def _left(self) -> list[int]:
        self._process.poll()
        return self._all()

    def _all(self) -> list[int]:
        """Descendants of ours, with the orphans that came to us, and what is marked as the run's."""
        marked = (one.pid for one in self._marked.processes())
        return list(dict.fromkeys((*tree(os.getpid()), *marked)))


def _become_reaper() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


# -- the tree of processes --------------------------------------------------------------------------------------------


def tree(root: int, but: frozenset[int] = frozenset()) -> list[int]:
    """The living descendants of a process, those that are nearest to it first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are numbers
        if not name.isdigit():
            continue
        found = about(int(name))
        if found is not None:
            children.setdefault(found.parent, []).append(found.pid)
    order: list[int] = []
    ahead = deque(children.get(root, ()))
    while ahead and len(order) < _MOST_PROCESSES:
        pid = ahead.popleft()
        if pid not in but:
            order.append(pid)
            ahead.extend(children.get(pid, ()))
    return order


def _is_shell(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name in (
            "sh",
            "dash",
            "bash",
            "busybox",
            "ksh",
            "zsh",
            "mksh",
        )
    return False


def _open_for_writing(pid: int) -> list[str]:
    found: list[str] = []
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd")[:1024]:  # noqa: PTH208 - names are numbers
            with suppress(OSError, ValueError):
                link = f"/proc/{pid}/fd/{number}"
                path = os.readlink(link)  # noqa: PTH115
                if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:")):
                    continue
                flags = _FLAGS.search(Path(f"/proc/{pid}/fdinfo/{number}").read_text(errors="replace"))
                if (
                    flags and int(flags[1], 8) & _WRITES and S_ISREG(os.stat(link).st_mode)  # noqa: PTH116
                ):
                    found.append(path)
    return found


# -- memory -----------------------------------------------------------------------------------------------------------


def _job_cgroup() -> Path | None:
    """The memory cgroup of the job that we are in, of either version; None without one of its own."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            job = re.match(r"(.*/job_\d+)(?:/|$)", path)
            if job is None or (controllers and "memory" not in controllers.split(",")):
                continue
            base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            folder = Path(base + job[1])
            if (folder / "memory.stat").is_file():
                return folder
    return None


def bytes_in_use(stat: str) -> int:
    """Bytes that cannot be given back, of a cgroup's memory.stat of either version.

    >>> bytes_in_use("anon 100\\nfile 70\\nshmem 20\\n"), bytes_in_use("cache 9\\nrss 5\\ntotal_rss 50\\n")
    (120, 50)
    """
    values = {
        name: int(value) for name, _, value in (line.partition(" ") for line in stat.splitlines()) if value
    }
    if "anon" in values:
        return values["anon"] + values.get("shmem", 0)
    return values.get("total_rss", 0) + values.get("total_shmem", 0)


def _memory(processes: Sequence[int], cgroup: Path | None) -> int:
    if cgroup is not None:
        with suppress(OSError, ValueError):
            return bytes_in_use((cgroup / "memory.stat").read_text())
    private = shared = 0
    for pid in processes:
        with suppress(OSError, ValueError):
            fields = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
            )
            private += int(fields.get("RssAnon", "0 kB").split()[0])
            # Segments in /dev/shm are those of several processes: the largest stands for all
            shared = max(shared, int(fields.get("RssShmem", "0 kB").split()[0]))
    return (private + shared) << 10
