"""Python tracebacks as structure: what was raised, where, in what chain, by which rank.

Logs bend them: progress bars and other ranks write in between, starts are cut off, launchers indent them, rich draws
boxes around them, Ray, joblib and PyTorch print the one of another process inside their own. So a reader goes line by
line, keeps one open traceback a rank, and passes over what is no part of it.

The forms are those of CPython's `Lib/traceback.py`, IPython's `ultratb.py`, rich's `traceback.py`, Ray's
`exceptions.py`, multiprocessing's and joblib's remote tracebacks, and PyTorch's `torch/_utils.py`
(`ExceptionWrapper`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from prolog_epilog.failures.signature import compiled
from prolog_epilog.failures.text import Line, LogText

__all__ = ["Frame", "Link", "Raised", "read", "traces"]

Link: TypeAlias = Literal["", "cause", "context", "inner"]
"""How it follows the one before: not at all; `raise ... from`; raised while that was handled; it is what that wraps."""

_LAUNCHERS: Final = frozenset(
    {
        "ActorDiedError",
        "BrokenProcessPool",
        "CalledProcessError",
        "ChildFailedError",
        "Exit",
        "FailedJobError",
        "HorovodRunError",
        "LocalWorkerFailed",
        "ProcessExitedException",
        "ProcessRaisedException",
        "RayActorError",
        "SignalException",
        "SystemExit",
        "TerminatedWorkerError",
        "TimeoutExpired",
        "UncaughtException",
    }
)
"""What is raised because another process ended: it says that, not why."""
_WRAPPERS: Final = re.compile(
    r"RemoteTraceback$|^RayTaskError|ExceptionGroup$|^WorkerError$|^JoblibException$|^TransportableException$"
)
_WRAPPED: Final = re.compile(r"Caught \w+ in (?:DataLoader worker|replica|pin memory thread)|ray::")
_NEVER: Final = re.compile(
    r"Warning$|^(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|FATAL|Epoch|Step|Error|Exception ignored)$"
)

_TYPE: Final = r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\(\w+\))?)"
_NAMED: Final = re.compile(
    r"^" + _TYPE + r"(?::[ \t]*(?P<message>.*))?$",
)
_DOUBLED: Final = re.compile(r"^((?:[A-Za-z_]\w*\.){0,12}[A-Za-z_]\w{0,80}(?:Error|Exception))\1: ?: ?(.*)$")
"""Two ranks that write one exception to one file: each writes the type, then each the message."""
_LOUD: Final = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Expired|Iteration|Fault)(?:\(\w+\))?$"
)
_QUIET: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)+[A-Z]\w*$|^[A-Z][a-z]+[A-Z]\w+$|^[A-Z]{2,}[a-z]\w+$")
_LOGGED: Final = re.compile(
    r"^(?:.{0,60}?\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|Exception|Caught|E)\b[\])]?[ :\-|]{1,4}|E {2,}|mxnet\.base\.)"
)
_FRAME: Final = re.compile(
    r'^(?P<pad>\s*)File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$'
)
_IPYTHON: Final = re.compile(
    r"^(?:File )?(?P<file>\S+?\.(?:py|pyx|ipynb)|<[^>]+>)(?::(?P<line>\d+),)? in (?P<function>[^(]+)(?:\(.*)?$"
)
_RICH: Final = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+) in (?P<function>\S+)$")
_ARROW: Final = re.compile(r"^\s*(?:-+>|❱)\s*\d+\s+(?P<source>.*)$")
_HEAD: Final = re.compile(r"Traceback \(most recent call last\)|^Traceback:$")
_WRAPS: Final = re.compile(r"^" + _TYPE + r": Traceback \(most recent call last\)")
_ORIGINAL: Final = re.compile(r"^\s*Original Traceback")
_CAUSE: Final = "The above exception was the direct cause of the following exception"
_CONTEXT: Final = "During handling of the above exception, another exception occurred"
_TERMINATED: Final = re.compile(r"^-- Process \d+ terminated with the following error")
_GROUP: Final = re.compile(r"^\s*(?:\|\s|\+-\+-+|\+-{4,})")
_BOX: Final = re.compile(r"^\s*[│┃|]\s?(.*?)\s*[│┃|]?\s*$")
_CARETS: Final = re.compile(r"^\s*[\^~\-]+\s*$")
_AFTER: Final = 12
"""Lines of a message that are kept after its first: `load_state_dict` lists keys on the next ones."""
_PATIENCE: Final = 60
"""Lines of others in a row after which a traceback without an end is given up."""
_REACH: Final = 24
"""Lines around a hit that are looked at."""
_HITS: Final = 1500
"""Lines with a hit that are looked at from a log's start, and as many from its end: what a hostile log can cost."""
_LATE: Final = 96 << 10
"""Bytes at its end that are looked through for them."""
_FRAMES: Final = 400

_SEARCH: Final = compiled(
    r"""Traceback \(most recent|", line [0-9]|above exception|[a-z](?:Error|Exception|Interrupt|Exit|Timeout)\b"""
    r"""|Error:|Exception:|terminated with the following error"""
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of the stack: where, in what function, what the source line is ("" where it was not printed)."""

    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        """``file:function:source``, in which rules of purpose search."""
        return f"{self.file}:{self.function}:{self.source}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a log shows: its type with dots, its message, its frames from the outermost in.

    `first` is the index of its first line, `at` the line that names it; `type` is "" where the log was cut off before
    that. `link` says how it follows the one before it in its chain.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    first: int
    at: Line
    link: Link = ""
    bare: bool = False

    @property
    def name(self) -> str:
        """The type's last part: ``OutOfMemoryError`` of ``torch.cuda.OutOfMemoryError``."""
        return self.type.split("(")[0].rsplit(".", 1)[-1]

    @property
    def launcher(self) -> bool:
        """Whether it only says that another process ended."""
        return self.name in _LAUNCHERS

    @property
    def wrapper(self) -> bool:
        """Whether it only carries the exception of another process or task."""
        return bool(_WRAPPERS.search(self.name) or _WRAPPED.match(self.message))


@dataclass(slots=True)
class _Open:
    """The traceback of one rank that is being read."""

    first: int
    indent: int = 0
    frames: list[Frame] = field(default_factory=list)
    source_due: bool = False
    last: Line | None = None
    idle: int = 0


class _Reader:
    """Reads the lines of one rank, and says what it raised."""

    def __init__(self) -> None:
        self.done: list[Raised] = []
        self._open: _Open | None = None
        self._link: Link = ""
        self._message: int = 0
        self._seen = -1

    def feed(self, line: Line) -> None:
        """Take the next line."""
        if line.index > self._seen + _PATIENCE:
            self._drop()
            self._link = ""
        self._seen = line.index
        body = _plain(line.text)
        if self._link_of(body, line) or self._head(body, line) or self._frame(body, line):
            self._message = 0
        elif self._raised(body, line):
            self._message = _AFTER
        else:
            self._other(body)

    def close(self) -> list[Raised]:
        """All that was raised, in the order of the log."""
        self._drop()
        return self.done

    def _link_of(self, body: str, line: Line) -> bool:
        if _CAUSE in body or _CONTEXT in body:
            self._drop()
            if self.done and line.index - self.done[-1].at.index <= _PATIENCE:
                self._link = "cause" if _CAUSE in body else "context"
            return True
        if _TERMINATED.match(body.strip()):
            self._drop()
            self._link = "inner"
            return True
        return False

    def _head(self, body: str, line: Line) -> bool:
        if not _HEAD.search(body):
            return False
        wraps = _WRAPS.match(body.strip())
        if wraps and self._open is not None:
            # "ImportError: Traceback (most recent call last):": its message is another's traceback.
            opened, self._open = self._open, None
            self._add(Raised(wraps["type"], "", tuple(opened.frames), opened.first, line, self._link))
            self._link = "inner"
        self._drop()
        if wraps or _ORIGINAL.match(body):
            self._link = "inner"
        self._open = _Open(line.index, _indent(body), last=line)
        return True

    def _frame(self, body: str, line: Line) -> bool:
        found = _FRAME.match(body)
        if found is None and self._open is not None:
            stripped = body.strip()
            found = _RICH.match(stripped) or _IPYTHON.match(stripped)
            arrow = _ARROW.match(body)
            if found is None and arrow and self._open.frames:
                self._open.frames[-1] = replace(self._open.frames[-1], source=arrow["source"].strip())
                return True
        if found is None:
            return False
        if self._open is None:
            self._open = _Open(line.index)
            if self.done and self.done[-1].wrapper and line.index - self.done[-1].at.index <= _REACH:
                self._link = "inner"
        opened = self._open
        if len(opened.frames) >= _FRAMES:
            del opened.frames[_FRAMES // 2]
        opened.frames.append(Frame(found["file"], int(found["line"] or 0), (found["function"] or "").strip()))
        opened.source_due, opened.last, opened.idle = True, line, 0
        return True

    def _raised(self, body: str, line: Line) -> bool:
        opened = self._open
        stripped = body.strip()
        deep = _indent(body) - (opened.indent if opened else 0)
        if (
            opened is not None
            and opened.source_due
            and deep >= 3
            and not _LOUD.search(stripped.split(":")[0])
        ):
            return False
        named = _named(stripped, within=opened is not None and bool(opened.frames))
        bare = named is None and opened is None
        if bare:
            logged = _LOGGED.match(stripped)
            named = _named(stripped[logged.end() :], within=False) if logged else None
        if named is None or (deep > 8 and opened is None):
            return False
        name, message = named
        frames = tuple(opened.frames) if opened else ()
        first = opened.first if opened else line.index
        self._open = None
        self._add(Raised(name, message, frames, first, line, self._link, bare=not frames))
        return True

    def _add(self, raised: Raised) -> None:
        self.done.append(raised)
        self._link = ""

    def _other(self, body: str) -> None:
        if self._open is not None:
            opened = self._open
            if opened.source_due and body.strip() and _indent(body) >= opened.indent + 2:
                if not _CARETS.match(body):
                    opened.frames[-1] = replace(opened.frames[-1], source=body.strip()[:400])
                opened.source_due = False
                return
            opened.idle += 1
            if opened.idle > _PATIENCE:
                self._drop()
            return
        if self._message and self.done:
            self._message -= 1
            last = self.done[-1]
            stripped = body.strip()
            if stripped and body[:1] in (" ", "\t") and len(last.message) < 2000:
                self.done[-1] = replace(last, message=(last.message + "\n" + stripped[:600]).strip())
            else:
                self._message = 0

    def _drop(self) -> None:
        """Close what is open without its end: a log that was cut off, or another process' lines."""
        opened, self._open = self._open, None
        if opened is not None and opened.frames and opened.last is not None:
            self._add(Raised("", "", tuple(opened.frames), opened.first, opened.last, self._link))


def _named(text: str, *, within: bool) -> tuple[str, str] | None:
    """The type and message of a line that ends a traceback. Outside of one only what is plainly an exception counts."""
    found = _NAMED.match(_DOUBLED.sub(r"\1: \2", text[:4000]))
    if found is None:
        return None
    name = found["type"]
    short = name.rsplit(".", 1)[-1]
    if _NEVER.search(short) or short == short.lower():
        return None
    if short in ("Exception", "Error") and found["message"] is None:
        return None
    loud = bool(_LOUD.search(short)) and (found["message"] is not None or within or "." in name)
    if not loud and not (within and _QUIET.match(name)):
        return None
    return name, (found["message"] or "").strip()


def _plain(text: str) -> str:
    """A line without the bars of exception groups, rich's boxes and pytest's "E"."""
    if _GROUP.match(text):
        text = re.sub(r"^(\s*)[|+][-+]*\s?", r"\1", text)
        while _GROUP.match(text):
            text = re.sub(r"^(\s*)[|+][-+]*\s?", r"\1", text)
        return text
    if text.lstrip()[:1] in ("│", "┃"):
        boxed = _BOX.match(text)
        return boxed[1] if boxed else text
    return text


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def read(lines: Iterable[Line]) -> list[Raised]:
    """What these lines raise, in their order. Each rank is read by itself."""
    readers: dict[int | None, _Reader] = {}
    for line in lines:
        reader = readers.get(line.rank)
        if reader is None:
            if len(readers) >= 1024:
                continue
            reader = readers[line.rank] = _Reader()
        reader.feed(line)
    done = [raised for reader in readers.values() for raised in reader.close()]
    return sorted(done, key=lambda raised: raised.at.index)


def traces(text: LogText, most: int = _HITS) -> list[tuple[Raised, ...]]:
    """The chains of exceptions in a log, each from its first exception on, in the order in which they end.

    `most`: lines with a hit that are looked at from its start, and as many from its end.
    """
    chains: list[list[Raised]] = []
    last: dict[int | None, list[Raised]] = {}
    for raised in read(_near(text, most)):
        chain = last.get(raised.at.rank)
        if chain is not None and raised.link:
            chain.append(raised)
        else:
            chain = last[raised.at.rank] = [raised]
            chains.append(chain)
    return [tuple(chain) for chain in chains]


def _near(text: LogText, most: int) -> Iterator[Line]:
    """The lines around all that may be part of a traceback."""
    end = 0
    for hit in _hits(text, most):
        for index in range(max(end, hit - 1), min(len(text), hit + _REACH)):
            yield text.line(index)
        end = max(end, hit + _REACH)


def _hits(text: LogText, most: int) -> list[int]:
    found: list[int] = []
    position = 0
    data = text.data
    while len(found) < most and (match := _SEARCH.search(data, position)):
        index = text.index_at(match.start())
        found.append(index)
        position = text.end_of(index)
    if len(found) >= most:
        position = max(position, len(data) - _LATE)
        late: deque[int] = deque(maxlen=most)
        while match := _SEARCH.search(data, position):
            index = text.index_at(match.start())
            late.append(index)
            position = text.end_of(index)
        found += late
    return found
