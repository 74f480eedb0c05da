"""Which GPUs of the node are a job's: from the numbers that Slurm gives to its prolog to device files and UUIDs.

SLURM_JOB_GPUS counts the GPUs in the order in which slurmd has them, from 0, whatever their device files are called:
with ``File=/dev/nvidia[1,3-5]`` its "0" is nvidia1, with ``[2-3]`` and then ``[0-1]`` it is nvidia2, and a MIG instance
counts as one GPU. So slurmd is asked for its list (``slurmd -G``, what it found by AutoDetect included). Seen on Slurm
22.05.8, 24.11.5 and 26.05.5 [M].

The prolog of a job that has GPUs of several types (gpu:a100:2,gpu:1g.10gb:1) is told of a part of them alone, on all
three [M], and nothing there says so: such a job's other GPUs are missing in its record, whose note says that they may.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.gpu import GpuIdentity, GpuSample, minor_of
from profiler.records import GpuRef

_log = logging.getLogger(__name__)

_DEADLINE = 3.0  # seconds for slurmd -G, which takes 30 ms; with AutoDetect it asks a driver that may hang
_RETRY = 60.0  # seconds after a failure
_RENEW = 600.0  # seconds after which the list is asked for again: a GPU may have been added
_LINE = re.compile(
    r"Gres Name=(?P<name>\S+) Type=(?P<type>\S+) Count=(?P<count>\d+) .*?\bFile=(?P<files>\S+)"
)
_CAPABILITY = re.compile(r"nvidia-cap(\d+)$")
_MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
_MIG_LINE = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")
_FIRST_CAPABILITY, _A_GPU, _AN_INSTANCE = (
    3,
    135,
    9,
)  # how the driver numbers them, where it does not list them
_SBIN = "/usr/sbin:/usr/local/sbin:/opt/slurm/sbin:/sbin"
_MAX_GPUS = 1024
_SHARES = frozenset({"shard", "mps"})

Capabilities = Mapping[int, tuple[int, int, int | None]]
"""The number of a file nvidia-cap<n> -> (GPU by its device file, GPU instance, compute instance)."""


@dataclass(frozen=True, slots=True)
class GresGpu:
    """What slurmd calls a GPU: its device files, of which a MIG instance has several."""

    files: tuple[str, ...]
    type: str = ""


@dataclass(frozen=True, slots=True)
class Gres:
    """The node's GPUs in slurmd's order, and whether parts of them (shards, MPS) can be asked for."""

    gpus: tuple[GresGpu, ...]
    shared: bool = False


def parse(text: str) -> Gres:
    """Read what ``slurmd -G`` printed.

    22.05 prints a line for each file of a MIG instance, newer releases a line for each GPU.
    """
    gpus: list[GresGpu] = []
    shared = False
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        count, kind = int(match["count"]), "" if match["type"] == "(null)" else match["type"]
        shared |= match["name"] in _SHARES and count > 0
        if match["name"] != "gpu" or len(gpus) + count > _MAX_GPUS:
            continue
        files = () if match["files"] == "(null)" else _files(match["files"])
        if gpus and files and all(_CAPABILITY.search(file) for file in files):
            gpus[-1] = GresGpu(gpus[-1].files + files, gpus[-1].type)
        elif files and count == len(files):  # a line for a whole range of files
            gpus += [GresGpu((file,), kind) for file in files]
        else:
            gpus += [GresGpu(files, kind)] * (count if not files else 1)
    return Gres(tuple(gpus), shared)


def _files(text: str) -> tuple[str, ...]:
    """Paths as slurmd prints them, ranges spelt out: "/dev/nvidia[1,3-5]"."""
    files: list[str] = []
    for path in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([0-9,-]+)\]", path)
        numbers = _numbers(match[2]) if match else None
        files += [f"{match[1]}{number}" for number in numbers] if match and numbers else [path]
    return tuple(files[:_MAX_GPUS])


def capabilities(text: str) -> Capabilities:
    """Read /proc/driver/nvidia-caps/mig-minors."""
    return {
        int(number): (int(gpu), int(instance), int(compute) if compute else None)
        for gpu, instance, compute, number in _MIG_LINE.findall(text)
    }


def ask_slurmd(node: str, *, deadline: float = _DEADLINE) -> str:
    """What ``slurmd -G`` prints for this node; raises OSError or TimeoutError, and never waits for longer."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"
    slurmd = shutil.which("slurmd", path=path)
    if slurmd is None:
        raise FileNotFoundError(f"there is no slurmd on {path}")
    child = subprocess.Popen(
        [slurmd, "-N", node, "-G"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, _ = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        child.kill()  # and not waited for: it may sleep in a driver, out of reach
        raise TimeoutError(f"slurmd -G did not answer within {deadline:g} s") from None
    if child.returncode != 0:
        raise OSError(f"slurmd -G ended with {child.returncode}: {out.strip()[-200:]}")
    return out


class NodeGpus:
    """The GPUs of jobs on this node. `ask` returns slurmd's list, as `ask_slurmd` does."""

    def __init__(
        self,
        ask: Callable[[], str],
        *,
        mig_minors: Path = _MIG_MINORS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._mig_minors = mig_minors
        self._clock = clock
        self._gres: Gres | None = None
        self._next = 0.0
        self._lock = threading.Lock()
        self._trouble = ""

    def load(self) -> bool:
        """Ask slurmd anew; whether it answered. Takes as long as `ask` does."""
        with self._lock:
            self._next = self._clock() + _RETRY
            try:
                gres = parse(self._ask())
            except (OSError, ValueError) as error:
                if str(error) != self._trouble:
                    _log.warning("Which GPUs Slurm has on this node is not known: %s", error)
                self._trouble = str(error)
                return False
            self._trouble = ""
            self._gres, self._next = gres, self._clock() + _RENEW
            return True

    @property
    def shared(self) -> bool:
        """Whether jobs can have parts of a GPU here: Slurm does not tell a prolog which job has."""
        return self._gres is not None and self._gres.shared

    @property
    def several_types(self) -> bool:
        """Whether there are GPUs of several types: of a job that asked for more than one, `of` knows a part."""
        return self._gres is not None and len({gpu.type for gpu in self._gres.gpus}) > 1

    def count(self) -> int | None:
        """How many whole GPUs slurmd has here; None where it has not told. Asks nobody."""
        gres = self._gres
        if gres is None:
            return None
        whole = {self._minor(gpu) or f"without a file: {place}" for place, gpu in enumerate(gres.gpus)}
        return len(whole)

    def _minor(self, gpu: GresGpu) -> str:
        """What tells a whole GPU from another: its device file's number, also for an instance; "" without one."""
        for file in gpu.files:
            match = _CAPABILITY.search(file)
            if match is None:
                return str(minor_of(file)) if file[-1:].isdigit() else file
            return str((self._listed().get(int(match[1])) or _computed(int(match[1])))[0])
        return ""

    def _listed(self) -> Capabilities:
        try:
            return capabilities(self._mig_minors.read_text())
        except OSError:
            return {}

    def of(self, env: Mapping[str, str], sample: GpuSample | None) -> tuple[GpuRef, ...] | None:
        """A job's GPUs by the variables of its prolog and a look at the node; None where they are not known.

        Waits for slurmd, and only as long as `ask` does, as long as nothing is known of its list.
        """
        if not env.get("SLURM_JOB_GPUS"):
            return ()
        self._renew()
        there = () if sample is None else tuple(reading.gpu for reading in sample.readings)
        named = _by_uuid(env.get("CUDA_VISIBLE_DEVICES", ""), there)
        numbers = _numbers(env["SLURM_JOB_GPUS"])
        if named and numbers is not None and len(named) == len(numbers):
            return named
        if self._gres is None or numbers is None:
            return None
        known = self._gres.gpus
        refs = [self._ref(known[number], there) if number < len(known) else None for number in numbers]
        return tuple(ref for ref in refs if ref is not None) if None not in refs else None

    def _renew(self) -> None:
        if self._clock() < self._next:
            return
        if self._gres is None:
            self.load()
        elif not self._lock.locked():
            threading.Thread(target=self.load, name="gres", daemon=True).start()

    def _ref(self, gpu: GresGpu, there: Sequence[GpuIdentity]) -> GpuRef | None:
        whole = [file for file in gpu.files if not _CAPABILITY.search(file)]
        caps = [int(match[1]) for file in gpu.files if (match := _CAPABILITY.search(file))]
        try:
            minor = minor_of(whole[0]) if whole else None
        except ValueError:
            return None
        if caps:
            return self._instance(caps, there)
        found = [one for one in there if one.minor == minor and one.mig is None]
        if minor is None:
            return None
        return _ref_of(found[0]) if found else GpuRef(minor=minor)

    def _instance(self, caps: Sequence[int], there: Sequence[GpuIdentity]) -> GpuRef | None:
        """The MIG instance with these capability files; None if nobody has looked at the GPU yet."""
        listed = self._listed()
        places = [listed.get(cap) or _computed(cap) for cap in caps]
        gpu, instance, _ = places[0]
        compute = next((place[2] for place in places if place[2] is not None), None)
        for one in there:
            if one.mig is None or one.minor != gpu or one.mig.gpu_instance != instance:
                continue
            if compute is None or one.mig.compute_instance in (None, compute):
                return _ref_of(one)
        return None


def _computed(capability: int) -> tuple[int, int, int | None]:
    gpu, rest = divmod(capability - _FIRST_CAPABILITY, _A_GPU)
    instance, place = divmod(rest, _AN_INSTANCE)
    return gpu, instance, place - 1 if place else None


def _by_uuid(visible: str, there: Sequence[GpuIdentity]) -> tuple[GpuRef, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by UUID, as it does for MIG instances that slurmd found by itself."""
    by_uuid = {gpu.uuid: gpu for gpu in there}
    names = [name.strip() for name in visible.split(",")]
    if not all(name in by_uuid for name in names):
        return ()
    return tuple(_ref_of(by_uuid[name]) for name in names)


def _ref_of(gpu: GpuIdentity) -> GpuRef:
    return GpuRef(gpu.minor, gpu.uuid, gpu.name[:256], gpu.mig.parent_uuid if gpu.mig else None)


def _numbers(text: str) -> tuple[int, ...] | None:
    """ "0,2" or "0-2,4" as numbers; None for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None or len(found) > _MAX_GPUS:
            return None
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(dict.fromkeys(found))
