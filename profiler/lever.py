"""The CPU lever: how many CPUs a running job has, made fewer and given back.

`AffinityLever` narrows the CPUs on which the threads of a process tree may run (sched_setaffinity(2)), as Slurm itself
would have with a smaller allocation: whole cores with their hyperthreads, spread over what the job has. A thread that
had chosen CPUs of its own keeps its share of them: its CPUs are folded onto the fewer ones, and given back as they
were. `EmulatedLever` writes the count into a file that emulated workloads read: the development cluster's nodes claim
more CPUs than the machine has.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from profiler.process_tree import ProcessTree
from profiler.whole_file import put

__all__ = ["EMULATED", "AffinityLever", "EmulatedLever", "Lever", "choose", "fold", "pick"]

EMULATED: Final = "GSUB_EMULATED_CPUS"
"""The variable that names the file of an `EmulatedLever`."""
_PASSES: Final = 3  # a thread may start another while it is being narrowed
_MOST_THREADS: Final = 20_000

Mask = frozenset[int]


class Lever(Protocol):
    """What narrows a job's CPUs."""

    @property
    def cap(self) -> int:
        """The most CPUs that it can give: those of the job."""

    def set(self, cpus: int) -> None:
        """Give the job this many CPUs from now on. Raises ValueError unless 1 <= cpus <= cap, OSError."""

    def again(self) -> None:
        """Do the same to what has started since. Called often, quick where nothing has."""

    def restore(self) -> None:
        """Give all back as it was. May be called at any time, any number of times."""


def pick(cpus: int, cores: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """`cpus` of the CPUs of these cores: whole cores, evenly spread; of one only a part where it does not come out.

    >>> pick(4, [(0, 8), (1, 9), (2, 10), (3, 11)]), pick(3, [(0, 8), (1, 9), (2, 10)])
    ((0, 8, 2, 10), (0, 8, 1))
    """
    chosen: list[int] = []
    whole = sum(map(len, cores))
    wanted = min(cpus, whole)
    # The fewest cores that hold them, each from its own stretch of the row
    count = next(
        n
        for n in range(1, len(cores) + 1)
        if n == len(cores) or sum(len(cores[i * len(cores) // n]) for i in range(n)) >= wanted
    )
    for index in range(count):
        chosen += cores[index * len(cores) // count]
    return tuple(chosen[:wanted])


def fold(mask: Collection[int], every: Sequence[int], chosen: Sequence[int]) -> Mask:
    """What of `chosen` becomes of CPUs of `every`: its stretches go to the chosen ones in their order.

    >>> sorted(fold({0, 1, 2, 3}, range(8), (0, 1, 4, 5))), sorted(fold({7}, range(8), (0, 4)))
    ([0, 1], [4])
    """
    places = {cpu: index for index, cpu in enumerate(every)}
    return frozenset(chosen[places[cpu] * len(chosen) // len(every)] for cpu in mask if cpu in places)


def cores(
    cpus: Collection[int], folder: Path = Path("/sys/devices/system/cpu")
) -> tuple[tuple[int, ...], ...]:
    """These CPUs by core, hyperthreads together, in the order of their numbers; each its own where nobody tells."""
    found: dict[tuple[int, ...], None] = {}
    for cpu in sorted(cpus):
        siblings = {cpu}
        with contextlib.suppress(OSError, ValueError):
            siblings |= _numbers(
                (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
            )
        found.setdefault(tuple(sorted(siblings.intersection(cpus))))
    return tuple(found)


def _numbers(text: str) -> set[int]:
    """CPUs of a list as the kernel writes it: 0-3,8. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


class AffinityLever:
    """The lever of a process tree. `allowed` are the job's CPUs on this node; by default those of this process, which
    Slurm binds to them; `most` is the job's own count where Slurm does not bind.

    Raises ValueError where there is no CPU.
    """

    def __init__(
        self, tree: ProcessTree, allowed: Collection[int] | None = None, most: int | None = None
    ) -> None:
        self._tree = tree
        mine = os.sched_getaffinity(0) if allowed is None else set(allowed)
        self._cores = cores(mine)
        self._every = tuple(cpu for core in self._cores for cpu in core)
        self._cap = min(len(self._every), most or len(self._every))
        if self._cap < 1:
            raise ValueError("no CPU is allowed")
        self._chosen: tuple[int, ...] | None = None  # None: all as it was
        self._wanted: dict[
            tuple[int, int], Mask
        ] = {}  # thread, began -> what it had before us or chose since
        self._given: dict[tuple[int, int], Mask] = {}  # -> what we gave it last
        self._made: dict[Mask, set[Mask]] = {}  # what was wanted -> all that we ever made of it
        self.untouched = 0
        """Threads that could not be narrowed, when last tried: they run elsewhere, or are another user's."""

    @property
    def cap(self) -> int:
        """See `Lever.cap`."""
        return self._cap

    def set(self, cpus: int) -> None:
        """See `Lever.set`."""
        if not 1 <= cpus <= self._cap:
            raise ValueError(f"cannot give {cpus} of {self._cap} CPUs")
        self._chosen = pick(cpus, self._cores)
        self.again()

    def again(self) -> None:
        """See `Lever.again`."""
        for _ in range(_PASSES):
            if not self._pass():
                return

    def restore(self) -> None:
        """See `Lever.restore`."""
        self._chosen = None
        if self._given:
            self.again()

    def _pass(self) -> bool:
        """Look at each thread once; whether one had to be changed."""
        changed, self.untouched = False, 0
        there: set[tuple[int, int]] = set()
        parents: dict[int, tuple[int, int]] = {}
        for process in self._tree.processes():
            main = parents[process.pid] = (process.pid, process.began)
            above = parents.get(process.parent)
            for thread in _threads(process.pid):
                key = (thread, process.began)
                if len(there) >= _MOST_THREADS:
                    return changed
                there.add(key)
                try:
                    changed |= self._one(key, above if key == main else main)
                except ProcessLookupError:
                    there.discard(key)
                except OSError:
                    self.untouched += 1
        for gone in self._wanted.keys() - there:
            del self._wanted[gone]
            self._given.pop(gone, None)
        return changed

    def _one(self, key: tuple[int, int], above: tuple[int, int] | None) -> bool:
        """Narrow a thread that was started by `above`. Raises OSError."""
        now: Mask = frozenset(os.sched_getaffinity(key[0]))
        if self._given.get(key) != now:
            self._wanted[key] = self._due(now, None if above is None else self._wanted.get(above))
        wanted = self._wanted[key]
        target = wanted if self._chosen is None else fold(wanted, self._every, self._chosen)
        if not target:
            self.untouched += 1
            return False
        if target != now:
            os.sched_setaffinity(key[0], target)
            self._made.setdefault(wanted, set()).add(target)
            # What the kernel made of it: a cgroup may allow less
            now, changed = frozenset(os.sched_getaffinity(key[0])), True
            self._made[wanted].add(now)
        else:
            changed = False
        self._given[key] = now
        return changed

    def _due(self, now: Mask, parents: Mask | None) -> Mask:
        """What a thread is due that has `now`, not by us: what its parent is, where it has that from its parent as we
        had narrowed it; else what it has, as its own choice.
        """
        if parents is not None and now in self._made.get(parents, ()):
            return parents
        due = [wanted for wanted, made in self._made.items() if now in made]
        return max(due, key=len, default=now)


def _threads(pid: int) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in os.listdir(f"/proc/{pid}/task") if name.isdecimal())  # noqa: PTH208
    except OSError:
        return ()


class EmulatedLever:
    """Writes the count into a file, for workloads that only play at using CPUs."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._cap = most

    @property
    def cap(self) -> int:
        """See `Lever.cap`."""
        return self._cap

    def set(self, cpus: int) -> None:
        """See `Lever.set`."""
        if not 1 <= cpus <= self._cap:
            raise ValueError(f"cannot give {cpus} of {self._cap} CPUs")
        put(self._path, f"{cpus}\n".encode())

    def again(self) -> None:
        """See `Lever.again`."""

    def restore(self) -> None:
        """See `Lever.restore`."""
        with contextlib.suppress(OSError):
            self.set(self._cap)


def choose(tree: ProcessTree, environ: Mapping[str, str]) -> Lever:
    """The lever for a run: the emulated one where the environment names its file, else the real one.

    The job's count is Slurm's, SLURM_CPUS_ON_NODE, where it does not bind the job to its CPUs. Raises ValueError.
    """
    told = environ.get("SLURM_CPUS_ON_NODE", "")
    most = int(told) if told.isdecimal() and 0 < int(told) < 1 << 16 else None
    path = environ.get(EMULATED)
    if path:
        return EmulatedLever(Path(path), most or os.cpu_count() or 1)
    return AffinityLever(tree, most=most)
