"""Counters, gauges and a histogram, written as Prometheus reads them (text format 0.0.4).

Counting is a dictionary's += and is done in the event loop, or under the lock of whoever counts elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "Counter", "Gauge", "Gauges", "Histogram", "Registry"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_MAX_SERIES = 1000
"""Series of one metric: a label that somebody else fills must not fill our memory."""


class Counter:
    """A number that only grows, for each combination of label values.

    >>> questions = Counter("questions_total", "Questions.", ["mode"])
    >>> questions.add("observe")
    >>> list(questions.lines())[-1]
    'questions_total{mode="observe"} 1'
    """

    kind = "counter"

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.about = about
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, by: float = 1) -> None:
        """Count; one value for each label."""
        values = self._values
        if labels not in values and len(values) >= _MAX_SERIES:
            labels = ("other",) * len(self._labels)
        values[labels] = values.get(labels, 0) + by

    def value(self, *labels: str) -> float:
        """How often so far."""
        return self._values.get(labels, 0)

    def lines(self) -> Iterator[str]:
        """The samples, in order of their labels."""
        yield from _header(self.name, self.about, self.kind)
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_braces(self._labels, labels)} {_number(value)}"


class Gauge:
    """A number that is looked up when somebody asks; None leaves it out: what is not known is not 0."""

    def __init__(self, name: str, about: str, read: Callable[[], float | None], kind: str = "gauge") -> None:
        self.name = name
        self.about = about
        self.kind = kind
        self._read = read

    def lines(self) -> Iterator[str]:
        """The sample, if there is a value."""
        value = self._read()
        if value is not None:
            yield from _header(self.name, self.about, self.kind)
            yield f"{self.name} {_number(value)}"


class Gauges:
    """Numbers by one label, looked up when somebody asks; None leaves all out: what is not known is not 0."""

    kind = "gauge"

    def __init__(
        self, name: str, about: str, label: str, read: Callable[[], Mapping[str, float] | None]
    ) -> None:
        self.name = name
        self.about = about
        self._label = label
        self._read = read

    def lines(self) -> Iterator[str]:
        """The samples, in order of their labels."""
        values = self._read()
        if values is not None:
            yield from _header(self.name, self.about, self.kind)
            for value, number in sorted(values.items()):
                yield f"{self.name}{_braces((self._label,), (value,))} {_number(number)}"


class Histogram:
    """How many values lie below each bound, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.about = about
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Take one value in."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        """Buckets (each holds those below it), sum and count."""
        yield from _header(self.name, self.about, self.kind)
        total = 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {_number(self._sum)}"
        yield f"{self.name}_count {total}"


class Registry:
    """All metrics of a process, in the order of their making."""

    def __init__(self) -> None:
        self._all: list[Counter | Gauge | Gauges | Histogram] = []

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Counter:
        """A new counter; its name ends in _total."""
        made = Counter(name, about, labels)
        self._all.append(made)
        return made

    def gauge(self, name: str, about: str, read: Callable[[], float | None]) -> Gauge:
        """A new gauge."""
        made = Gauge(name, about, read)
        self._all.append(made)
        return made

    def gauges(
        self, name: str, about: str, label: str, read: Callable[[], Mapping[str, float] | None]
    ) -> Gauges:
        """New gauges by a label, of a few values that `read` alone chooses."""
        made = Gauges(name, about, label, read)
        self._all.append(made)
        return made

    def total(self, name: str, about: str, read: Callable[[], float]) -> Gauge:
        """A counter that is kept elsewhere and looked up when asked for."""
        made = Gauge(name, about, read, "counter")
        self._all.append(made)
        return made

    def histogram(self, name: str, about: str, bounds: Sequence[float]) -> Histogram:
        """A new histogram with these upper bounds."""
        made = Histogram(name, about, bounds)
        self._all.append(made)
        return made

    def text(self) -> str:
        """What /metrics answers."""
        return "".join(f"{line}\n" for metric in self._all for line in metric.lines())


def _header(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(v)}"' for name, v in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
