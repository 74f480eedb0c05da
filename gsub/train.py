"""For training scripts: stop in time, tell of checkpoints, go on from the newest one, count steps.

One file for Python 3.8 and newer that needs nothing but Python: copy it beside the script. Outside a Slurm job it
changes nothing and prints nothing, so the same script runs on a laptop.

    import gsub_train                                  # the copy of this file

    found = gsub_train.latest("checkpoints", "*.pt")   # after a requeue, and after a submission by hand
    state = torch.load(found) if found else new_state()
    for step in range(state["step"], steps):
        train_one_step(state)
        gsub_train.step()
        if step % 500 == 0 or gsub_train.stopping():
            with gsub_train.saving(f"checkpoints/{step}.pt", step) as part:
                torch.save(state, part)
        if gsub_train.stopping():
            gsub_train.stop()                          # exit code 75: not finished, run it again

docs/checkpoints.md has the contract, and the same for PyTorch Lightning and Hugging Face's Trainer.
"""

from __future__ import annotations

import atexit
import contextlib
import fnmatch
import itertools
import json
import mmap
import os
import re
import shutil
import signal
import struct
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn, Union
from urllib.parse import quote

__all__ = [
    "STOPPED",
    "checkpointed",
    "latest",
    "restarts",
    "resuming",
    "saving",
    "step",
    "stop",
    "stopping",
    "time_left",
    "watch",
]

STOPPED = 75
"""Exit code of a run that stopped before its time was up and can go on: EX_TEMPFAIL of sysexits.h."""
_EVERY = 10.0  # seconds between two lines on checkpoints
_NEAR = 900.0  # seconds before the time limit within which a SIGTERM is taken for its warning
_MOST_LINE = 4000  # bytes: a write of up to 4096 to a pipe is never mixed with another's (PIPE_BUF)
_ABANDONED = (
    7200.0  # seconds since a file in the making was last written to, from which on nobody makes it any more
)
_MOST_HEADER = 64 << 20  # bytes of a safetensors file's header
_MOST_ENTRIES = 4096  # of a folder that is one checkpoint, that are looked at
_PART = ".part-"
"""How the names of files begin that `saving` is writing."""
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", "~")
"""Ends of names of what is still being written."""
_BESIDE = (".lock", ".json", ".yaml", ".yml", ".txt", ".log")
"""Ends of names of what lies beside checkpoints."""
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".distcp", ".keras")
_PACE = 0.05  # seconds between two entries of the step counter, at least
_HEAD = struct.Struct(
    "=8sIIQQ"
)  # of its file: magic, version, entries in the ring, process, entries made so far
_ENTRY = struct.Struct("=QdQ")  # steps, samples, monotonic nanoseconds
_MAGIC = b"GSUBSTEP"
_RING = 1024
_PACE_OF_RUN = 1.0  # seconds between two entries of a run that nobody watches
_FIRST_TOLD = 10.0  # seconds after its first step when it is told of first, and then ...
_SELDOM = 60.0  # ... in twice as many each time, up to these
_MOST_TOLD = 5000  # names in that folder beyond which no further process tells anything: an array has many
_LAST_WORD = 0.5  # seconds that a process may last longer for it
_TOLD_OF_RUN = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_RESTART_COUNT",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "CUDA_VISIBLE_DEVICES",
)
_Path = Union[str, "os.PathLike[str]"]


class _State:
    """What this process has heard and said."""

    received = 0  # the first signal that said to stop; 0: none
    terminated = False  # by a SIGTERM
    watching = False
    before: ClassVar[dict[int, Any]] = {}  # signal -> handler that we replaced, and call
    calling = False
    last = ""  # the newest checkpoint, as it is told
    next_line = 0.0  # on a monotonic clock


_state = _State()


# -- stopping ---------------------------------------------------------------------------------------------------------


def stopping() -> bool:
    """Whether this run is to save and stop: a warning signal came (`watch`). Ask it once a step; it costs nothing.

    The ranks of a job hear of it one by one: let them agree before one stops, as docs/checkpoints.md shows.
    """
    if not _state.watching:
        watch()
    return _state.received != 0


def watch(*signals: int) -> bool:
    """Listen for signals that say that the run must stop soon: by default SIGUSR1 and SIGTERM, the one that
    `--signal=USR1@120` asks Slurm for, and the one with which Slurm preempts and cancels.

    `stopping` does it when it is first asked; call this to listen earlier, for other signals, or again where a
    framework has put its own handler there since. The handler that was there is called, too; one that was not set by
    Python stays alone. A second SIGTERM ends the process as the first would have without us. Returns whether it
    listens: not outside a Slurm job, and not where it was never called from the main thread.
    """
    if not _in_job() or threading.current_thread() is not threading.main_thread():
        return _state.watching
    first = not _state.watching
    for number in signals or (signal.SIGUSR1, signal.SIGTERM):
        if number == signal.SIGTERM and _is_worker():
            continue  # whose parent ends it so
        with contextlib.suppress(OSError, ValueError):
            there = signal.getsignal(number)
            if there is not None and there is not _on_signal:
                _state.before[int(number)] = there
                signal.signal(number, _on_signal)
    _state.watching = bool(_state.before)
    if first and _state.watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    return _state.watching


def _on_signal(number: int, frame: FrameType | None) -> None:
    before = _state.before.get(number)
    again = number == signal.SIGTERM and _state.terminated
    _state.terminated = _state.terminated or number == signal.SIGTERM
    _state.received = _state.received or number
    if callable(before):
        # Who came after us may call us in turn: once is enough
        if not _state.calling:
            _state.calling = True
            try:
                before(number, frame)
            finally:
                _state.calling = False
    elif again and before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _in_child() -> None:
    """A process that we forked, as a DataLoader's worker: its parent's SIGTERM must end it, a warning must not."""
    _state.received, _state.terminated = 0, False
    before = _state.before.pop(int(signal.SIGTERM), None)
    if before is not None:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signal.SIGTERM, before)


def _is_worker() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def time_left() -> float | None:
    """Seconds until the job's time limit, as Slurm told when the job began (24.11 and newer); None: it did not."""
    try:
        end = float(os.environ.get("SLURM_JOB_END_TIME", ""))
    except ValueError:
        return None
    return end - time.time() if end > 0 else None


def stop(code: int = STOPPED) -> NoReturn:
    """End this process, after the last checkpoint was saved: the run is not finished and can go on.

    The exit code makes Slurm call the job FAILED, and the line that rank 0 writes to standard error tells gsub why. The
    batch script must end with the same code (`srun` as its last command, or `exit $?`). Raises SystemExit: call it in
    the main thread.
    """
    if _in_job() and _speaks():
        _say(f"gsub: stopped {_why_stopped()}, checkpoint={_state.last or '-'}")
    raise SystemExit(code)


def _why_stopped() -> str:
    left = time_left()
    if _state.received == signal.SIGTERM and not (left is not None and left < _NEAR):
        return "by SIGTERM"  # preemption, scancel, a launcher: Slurm's own word says which
    name = signal.Signals(_state.received).name if _state.received else "by itself"
    return f"before its time limit ({name})"


# -- checkpoints ------------------------------------------------------------------------------------------------------


def checkpointed(path: _Path, step: int | None = None) -> bool:
    """Tell gsub that a checkpoint is complete, and that this script goes on from it when it is started again.

    Rank 0 writes a line to standard error, at most one in ten seconds: `gsub: checkpoint PATH step=N`. `path` is a
    file or a folder, or an address with `://` in it. Returns False, and tells nothing, where a path leads to nothing
    or to a file that is empty or cut off.
    """
    text = os.fspath(path)
    if "://" not in text:
        if not _whole(Path(text)):
            return False
        text = os.fspath(Path(text).absolute())
    told = quote(os.fsencode(text), safe="/:._-+=,@~")
    with contextlib.suppress(TypeError, ValueError):
        if step is not None:
            told += f" step={int(step)}"
    _state.last = told if len(told) < _MOST_LINE else ""
    now = time.monotonic()
    if _state.last and now >= _state.next_line and _in_job() and _speaks():
        _state.next_line = now + _EVERY
        _say("gsub: checkpoint " + _state.last)
    return True


@contextlib.contextmanager
def saving(path: _Path, step: int | None = None) -> Iterator[str]:
    """Save a file so that it is there whole or not at all, and tell of it.

    Gives the name of a file to write, in the same folder and with the same ending; it takes `path`'s place when the
    block ends well, and goes when it does not. Makes the folder if it is missing. Raises OSError.
    """
    target = Path(os.fspath(path)).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    _tidy(target.parent)
    part = target.with_name(f"{_PART}{os.getpid()}-{target.name}")
    try:
        yield os.fspath(part)
        _to_disk(part)
        part.replace(target)
    except BaseException:
        _remove(part)
        raise
    with contextlib.suppress(OSError):
        _to_disk(target.parent)
    checkpointed(target, step)


def latest(folder: _Path, pattern: str = "*", having: str = "") -> str | None:
    """The newest complete checkpoint in a folder, a file or a folder in it, as an absolute path; None without any.

    `pattern` is of names, as the shell's: `*.pt`, `checkpoint-*`. The newest is the one last written to, and of those
    written at one time the one with the highest number in its name. Hidden names and those of files in the making are
    passed over, and so are empty files, archives of PyTorch and NumPy and safetensors that were cut off, and folders
    whose saving did not come to its end: that is known of some kinds; for others give in `having` the name of a file
    that is saved last.
    """
    try:
        paths = list(Path(os.fspath(folder)).absolute().iterdir())
    except OSError:
        return None
    found = []
    for path in paths:
        if fnmatch.fnmatchcase(path.name, pattern) and not _passed_over(path.name):
            with contextlib.suppress(OSError):
                found.append((_written(path), _numbers(path.name), path))
    return next((os.fspath(path) for _, _, path in sorted(found, reverse=True) if _whole(path, having)), None)


def restarts() -> int:
    """How often this job was requeued: 0 in its first run. From GSUB_RESTART, else Slurm's SLURM_RESTART_COUNT."""
    return _number("GSUB_RESTART", "SLURM_RESTART_COUNT")


def resuming() -> bool:
    """Whether this job ran before. It may have saved nothing, and a job submitted anew has not run: ask `latest`."""
    return restarts() > 0


# -- steps ------------------------------------------------------------------------------------------------------------


def step(samples: float = 1) -> None:
    """Count a step of training, which took `samples` samples. Call it once in each step, in every rank.

    It costs a fraction of a microsecond and does nothing where nobody measures (neither `GSUB_STEPS` nor `GSUB_RUNS`
    names a folder). Never raises.
    """
    counter = _counter
    if counter.off:
        return
    try:
        counter.steps += 1
        counter.samples += samples
        if time.monotonic() >= counter.due:
            counter.write()
    except Exception:  # whatever it is: training goes on
        counter.off = True


class _Counter:
    """The steps of this process, in a file of its own that whoever measures reads: a ring of their latest times.

    A map and no writes: a script that closes all descriptors, and opens its own in their place, is not written into.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from 0, in a new file. Also what a process does that was forked: its steps are not its parent's."""
        self.folder = os.environ.get("GSUB_STEPS", "")
        self.run: _Run | None = None
        with contextlib.suppress(Exception):  # a script that imports us is not to end by it
            self.run = None if self.folder else _Run.here()
        self.off = not self.folder and self.run is None
        self.steps, self.entries = 0, 0
        self.samples = 0.0
        self.due = 0.0  # on the monotonic clock
        self.map: mmap.mmap | None = None

    def write(self) -> None:
        """Note the time. Raises OSError where the folder takes no file: that is tried once."""
        if self.run is not None:
            now = time.monotonic_ns()
            self.run.note((self.steps, float(self.samples), now))
            self.due = now / 1e9 + _PACE_OF_RUN
            return
        if self.map is None:
            self.map = self._open()
        now = time.monotonic_ns()
        place = _HEAD.size + self.entries % _RING * _ENTRY.size
        _ENTRY.pack_into(self.map, place, self.steps, float(self.samples), now)
        self.entries += 1  # told after the entry is there
        _HEAD.pack_into(self.map, 0, _MAGIC, 1, _RING, os.getpid(), self.entries)
        self.due = now / 1e9 + _PACE

    def _open(self) -> mmap.mmap:
        path = os.path.join(self.folder, f"{os.getpid()}-{os.urandom(6).hex()}.steps")  # noqa: PTH118
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            size = _HEAD.size + _RING * _ENTRY.size
            # Written, not only made long: a full disk is an error here, and a dead process later
            if os.write(descriptor, bytes(size)) != size:
                raise OSError(28, "no space", path)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)


class _Run:
    """The steps of a process of an ordinary run, kept in memory and told now and then in the user's folder of state.

    That folder may lie on a network: the training never waits for it, and no file there is mapped, since a page that
    a full disk does not take ends the process. A thread writes, once a minute.
    """

    @classmethod
    def here(cls) -> _Run | None:
        """None outside of a job that gsub submitted, and where it has more than one node: they step together."""
        environ = os.environ
        folder, job = environ.get("GSUB_RUNS", ""), environ.get("SLURM_JOB_ID", "")
        alone = environ.get("SLURM_JOB_NUM_NODES", "1") == "1" and "SLURM_HET_JOB_ID" not in environ
        return cls(folder, job) if folder and job.isdecimal() and alone else None

    def __init__(self, folder: str, job: str) -> None:
        self.folder = folder
        self.job = job
        self.process = os.getpid()
        self.path = ""
        self.entries: deque[tuple[int, float, int]] = deque(maxlen=_RING)
        self.ending = threading.Event()
        self.thread: threading.Thread | None = None
        self.begun = 0

    def note(self, entry: tuple[int, float, int]) -> None:
        """Keep it. Raises RuntimeError where no thread can be started."""
        self.entries.append(entry)
        self.begun = self.begun or entry[2]
        if self.thread is None and entry[2] - self.begun >= _FIRST_TOLD * 1e9:
            self.thread = threading.Thread(target=self._tell, name="gsub-steps", daemon=True)
            self.thread.start()
            atexit.register(self.end)

    def end(self) -> None:
        """Tell the last of it, within half a second."""
        if os.getpid() != self.process:
            return  # forked: it has no such thread, and may have its locks as they were
        self.ending.set()
        if self.thread is not None and self.thread.is_alive():
            self.thread.join(_LAST_WORD)

    def _tell(self) -> None:
        pause, over = _FIRST_TOLD, False
        while not over:
            with contextlib.suppress(Exception):
                self._write()
            over = self.ending.wait(pause)
            pause = min(2 * pause, _SELDOM)
        with contextlib.suppress(Exception):
            self._write()

    def _write(self) -> None:
        # Variables of a job are inherited by jobs that it submits: gsub writes down which it submitted itself
        array = os.environ.get("SLURM_ARRAY_JOB_ID", "")
        mark = f"{array if array.isdecimal() else self.job}.json"
        if not os.path.isfile(os.path.join(self.folder, mark)):  # noqa: PTH113, PTH118
            return
        if not self.path and len(os.listdir(self.folder)) >= _MOST_TOLD:  # noqa: PTH208
            return
        name = f"{self.job}-{_number('SLURM_RESTART_COUNT')}-{self.process}-{os.urandom(6).hex()}.run"
        self.path = self.path or os.path.join(self.folder, name)  # noqa: PTH118
        facts = {
            "v": 1,
            "mark": mark,
            "ended": self.ending.is_set(),
            "bound": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
            "machine": os.cpu_count() or 0,
            "environ": {name: os.environ[name] for name in _TOLD_OF_RUN if name in os.environ},
        }
        entries = b"".join(_ENTRY.pack(*each) for each in list(self.entries))
        data = json.dumps(facts).encode("ascii") + b"\n" + entries
        part = self.path + ".part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(part, flags, 0o600)
        try:
            try:
                whole = os.write(descriptor, data) == len(data)
            finally:
                os.close(descriptor)
            if not whole:
                raise OSError(28, "no space", part)
            os.replace(part, self.path)  # noqa: PTH105
        except OSError:
            os.unlink(part)  # noqa: PTH108
            raise


_counter = _Counter()


if not _counter.off and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_counter.begin)


# -- what is whole ----------------------------------------------------------------------------------------------------


def _passed_over(name: str) -> bool:
    return _unfinished(name) or name.startswith(".") or name.endswith(_BESIDE)


def _unfinished(name: str) -> bool:
    """Whether something of this name is still being written, by us, safetensors, Trainer, Orbax and others."""
    return (
        name.startswith((_PART, ".tmp", "tmp-")) or name.endswith(_UNFINISHED) or "-checkpoint-tmp-" in name
    )


def _numbers(name: str) -> list[int]:
    return [int(each) for each in re.findall(r"[0-9]{1,18}", name)]


def _inside(folder: Path) -> list[Path]:
    return list(itertools.islice(folder.iterdir(), _MOST_ENTRIES))


def _written(path: Path) -> int:
    """When it was last written to, in nanoseconds. Raises OSError.

    Of a folder, the newest of what is in it: its own time is also that of a removal, as of an old checkpoint's files.
    """
    inside = [each.stat().st_mtime_ns for each in _inside(path)] if path.is_dir() else []
    return max(inside, default=path.stat().st_mtime_ns)


def _whole(path: Path, having: str = "") -> bool:
    """Whether a checkpoint is complete, as far as that can be told without reading it."""
    try:
        if path.is_dir():
            return _whole_folder(path) and (not having or (path / having).exists())
        return _whole_file(path)
    except (OSError, ValueError):
        return False


def _whole_file(path: Path) -> bool:
    size = path.stat().st_size
    if not size:
        return False
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(
            b"PK\3\4"
        ):  # torch.save, np.savez, Keras: an archive ends with its table of contents
            return zipfile.is_zipfile(path)
        if path.suffix == ".safetensors":
            header = file.read(min(int.from_bytes(head, "little"), _MOST_HEADER))
            return size == _safetensors_size(head, header)
    return True


def _safetensors_size(head: bytes, header: bytes) -> int:
    """How long a safetensors file is by its own header; -1 if that was cut off."""
    try:
        tensors = json.loads(header)
        ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return -1
    return len(head) + len(header) + max(ends, default=0)


def _whole_folder(path: Path) -> bool:
    files = _inside(path)
    names = {each.name for each in files}
    if not names or any(map(_unfinished, names)):
        return False
    # What is written last: by torch.distributed.checkpoint, by Hugging Face's Trainer
    if any(name.endswith(".distcp") for name in names) and ".metadata" not in names:
        return False
    if "training_args.bin" in names and "trainer_state.json" not in names:
        return False
    return all(_whole_file(each) for each in files if each.suffix in _WEIGHTS and each.is_file())


def _to_disk(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on disk before they are counted on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(folder: Path) -> None:
    """Remove what was being saved here when its process was killed, long ago."""
    for path in folder.glob(_PART + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


# -- what is told -----------------------------------------------------------------------------------------------------


def _in_job() -> bool:
    return "SLURM_JOB_ID" in os.environ


def _speaks() -> bool:
    """Whether this process is rank 0, which speaks for all."""
    return _number("RANK", "SLURM_PROCID") == 0


def _number(*names: str) -> int:
    """What the first of these variables says that holds a number; 0 where none does."""
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), 0)


def _say(line: str) -> None:
    """One write, so that no other process' words stand within the line."""
    with contextlib.suppress(OSError):
        os.write(2, (line + "\n").encode("ascii", "replace"))


if __name__ == "__main__":  # python -m gsub.train > gsub_train.py
    sys.stdout.write(Path(__file__).read_text(encoding="utf-8"))
