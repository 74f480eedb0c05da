"""Sets of nodes and amounts of resources, as types that behave like builtins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["NO_HOSTS", "NO_TRES", "Hosts", "Tres"]


@dataclass(frozen=True, slots=True)
class Hosts:
    """A set of nodes as Slurm writes it; counts and names are worked out by ClusterShell when asked for.

    >>> hosts = Hosts("n[1-3],m7")
    >>> list(hosts), len(hosts), "n2" in hosts
    (['m7', 'n1', 'n2', 'n3'], 4, True)
    """

    expression: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The node names, sorted as ClusterShell sorts them (``n2`` before ``n10``)."""
        if not self.expression:
            return ()
        # Late: 28 ms, and most callers only print the expression.
        from ClusterShell.NodeSet import NodeSet

        return tuple(NodeSet(self.expression))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return bool(self.expression)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Tres(Mapping[str, int]):
    """Trackable resources: an immutable, hashable mapping of name to count, memory in bytes.

    Names are slurmdbd's: ``cpu``, ``mem``, ``node``, ``billing``, ``gres/gpu``, ``gres/gpu:a100``,
    ``license/matlab``. Made by `parse.tres`, which reads all the forms that Slurm writes.

    >>> Tres((("cpu", 4), ("gres/gpu:a100", 2))).gpus
    2
    """

    pairs: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        for key, count in self.pairs:
            if key == name:
                return count
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self.pairs) == dict(other)

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))

    def __repr__(self) -> str:
        return f"Tres({dict(self.pairs)!r})"

    @property
    def gpus(self) -> int | None:
        """GPUs of all types; None when no GPU is named."""
        if "gres/gpu" in self:
            return self["gres/gpu"]
        typed = [count for name, count in self.pairs if name.startswith("gres/gpu:")]
        return sum(typed) if typed else None

    @property
    def gpu_type(self) -> str | None:
        """The type of GPU when exactly one is named."""
        types = {name.partition(":")[2] for name, _ in self.pairs if name.startswith("gres/gpu:")}
        return types.pop() if len(types) == 1 else None

    @property
    def memory(self) -> int | None:
        """Bytes of memory in all."""
        return self.get("mem")


NO_HOSTS = Hosts()
NO_TRES = Tres()
