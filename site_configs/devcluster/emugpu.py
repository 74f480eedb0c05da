"""Lets a training script drive its emulated GPU on the development cluster.

    from site_configs.devcluster import emugpu

    with emugpu.load(util=85, memory_mib=4000):
        train()

For as long as the block runs, NVML shows that load on the GPUs that Slurm gave to this process. Anywhere else (no
``GSUB_EMU_GPUS``) nothing happens. One file, standard library only, Python 3.8 and newer: it may be copied.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Load", "gpus_of_this_process", "load"]

_lock = threading.RLock()
_active: list[Load] = []
_published: dict[int, Path] = {}  # GPU -> our file there


class Load:
    """A load on some GPUs between ``__enter__`` and ``__exit__``. Loads of one process add up."""

    def __init__(
        self,
        util: int,
        memory_mib: int,
        power_w: int | None,
        gpu_instance: int | None,
        gpus: Sequence[int],
    ) -> None:
        self.gpus = tuple(gpus)
        self._values = self._checked(util, memory_mib, power_w)
        self._gpu_instance = gpu_instance

    @staticmethod
    def _checked(util: int, memory_mib: int, power_w: int | None) -> tuple[int, int, int]:
        if not 0 <= util <= 100:
            raise ValueError(f"util is per cent of a GPU: 0 to 100, not {util}")
        if memory_mib < 0 or (power_w or 0) < 0:
            raise ValueError("memory_mib and power_w cannot be negative")
        return int(util), int(memory_mib), int((power_w or 0) * 1000)

    def set(self, util: int, memory_mib: int, power_w: int | None = None) -> None:
        """Change the load while it runs."""
        self._values = self._checked(util, memory_mib, power_w)
        _publish()

    def __enter__(self) -> Load:
        with _lock:
            _active.append(self)
            _publish()
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            if self in _active:  # not so in a child that was forked inside the block
                _active.remove(self)
            _publish()


def load(
    util: int,
    memory_mib: int = 0,
    power_w: int | None = None,
    *,
    gpus: Sequence[int] | None = None,
    gpu_instance: int | None = None,
) -> Load:
    """A context manager that puts a load on GPUs.

    `util` is per cent of each GPU, `memory_mib` and `power_w` (derived from `util` if not given) are for each GPU.
    `gpus` are device numbers (GPU i is ``nvidia<i>``); by default those of this process. `gpu_instance` names the MIG
    instance on them. Raises ValueError for values out of range; trouble with files is a warning, never an error.
    """
    return Load(util, memory_mib, power_w, gpu_instance, gpus_of_this_process() if gpus is None else gpus)


def gpus_of_this_process(env: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The device numbers of the GPUs that this process should use.

    What CUDA shows (CUDA_VISIBLE_DEVICES), else what Slurm gave to the step, else to the job. When several ranks of a
    node see the same GPUs they share them out by local rank, as torchrun and most scripts do. When a task of Slurm
    sees fewer than the step has here, they are shared out already (``--gpus-per-task``, ``--gpu-bind``, the script).
    """
    given = _numbers(env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS"))
    visible = _numbers(env.get("CUDA_VISIBLE_DEVICES")) if "CUDA_VISIBLE_DEVICES" in env else given
    if "LOCAL_RANK" in env and "LOCAL_WORLD_SIZE" in env:  # torchrun
        rank, ranks = int(env["LOCAL_RANK"]), int(env["LOCAL_WORLD_SIZE"])
    else:
        rank, ranks = _local_task(env)
        # SLURM_STEP_GPUS is the task's own where Slurm has bound it; SLURM_GPUS_ON_NODE counts the whole step's.
        if len(visible) < max(len(given), int(env.get("SLURM_GPUS_ON_NODE") or 0)):
            return visible
    if ranks <= 1 or not visible:
        return visible
    if len(visible) < ranks:
        return (visible[rank % len(visible)],)
    return visible[rank * len(visible) // ranks : (rank + 1) * len(visible) // ranks]


def _numbers(text: str | None) -> tuple[int, ...]:
    """ "0,2-3" -> (0, 2, 3). As CUDA does, stop at the first thing that is no device ("-1", "NoDevFiles", a UUID)."""
    found: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*(\d{1,3})(?:-(\d{1,3}))?\s*", part)
        if match is None:
            break
        found.extend(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return tuple(found)


def _local_task(env: Mapping[str, str]) -> tuple[int, int]:
    """(the task's number on this node, the step's tasks on this node)."""
    # "2(x3),1": two tasks on each of three nodes, one on the fourth
    counts: list[int] = []
    for match in re.finditer(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts.extend([int(match.group(1))] * min(int(match.group(2) or 1), 65536))
    node = int(env.get("SLURM_NODEID") or 0)
    return int(env.get("SLURM_LOCALID") or 0), counts[node] if node < len(counts) else 1


def _publish() -> None:
    """Make the files agree with the active loads."""
    root, node = (
        os.environ.get("GSUB_EMU_GPUS"),
        os.environ.get("GSUB_EMU_NODE") or os.environ.get("SLURMD_NODENAME"),
    )
    if not root or not node:
        return
    with _lock:
        wanted = {gpu for item in _active for gpu in item.gpus}
        for gpu in wanted | set(_published):
            directory = Path(root, node, str(gpu), "load")
            try:
                if gpu in wanted:
                    _write(directory, gpu, [item for item in _active if gpu in item.gpus])
                else:
                    _published.pop(gpu).unlink()
            except OSError as error:
                warnings.warn(
                    f"the emulated GPU {gpu} of {node} does not show this load: {error}", stacklevel=4
                )


def _write(directory: Path, gpu: int, loads: Sequence[Load]) -> None:
    if gpu not in _published:
        _sweep(directory)
    path = directory / str(os.getpid())
    util, memory, power = (sum(item._values[i] for item in loads) for i in range(3))
    lines = [f"utilization {min(util, 100)}", f"memory_mib {memory}", f"start {_start_time(os.getpid())}"]
    if power:
        lines.append(f"power_mw {power}")
    instances = {item._gpu_instance for item in loads if item._gpu_instance is not None}
    if len(instances) == 1:
        lines.append(f"gpu_instance {instances.pop()}")
    # Any user may write in this directory: an own new file, renamed, follows no link that lies there.
    descriptor, name = tempfile.mkstemp(prefix=".load-", dir=directory)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise
    _published[gpu] = path


def _sweep(directory: Path) -> None:
    """Remove what processes of ours that were killed have left. It counts for nothing, but it would pile up."""
    for entry in os.scandir(directory):
        try:
            if entry.name.isdigit() and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                os.kill(int(entry.name), 0)
        except ProcessLookupError:
            Path(entry.path).unlink()
        except OSError:
            continue


def _start_time(pid: int) -> int:
    """Clock ticks from boot to the process' start (proc(5), field 22): tells it from a later one of the same id."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0  # unknown: the id alone decides


def _at_exit() -> None:
    with _lock:
        _active.clear()
        _publish()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.RLock()
    _active.clear()
    _published.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
