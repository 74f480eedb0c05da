"""What can go wrong with the store, told so that an administrator knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import exc

__all__ = ["Kind", "StoreError", "told"]

Kind: TypeAlias = Literal[
    "unreachable",
    "locked",
    "full",
    "not_empty",
    "read_only",
    "damaged",
    "newer",
    "older",
    "slow",
    "refused",
    "wrong",
    "failed",
]


class StoreError(Exception):
    """What happened (`what`), why, and what to do (`next`): a line each.

    `kind` is for programs. After "refused" the store is well, and what was to be written never will be: a value that
    it cannot hold. After every other kind nothing was written, and the same may be tried again.
    """

    def __init__(self, kind: Kind, what: str, why: str, next: str) -> None:  # noqa: A002 - as it is told
        super().__init__("\n".join(line for line in (what, why, next) if line))
        self.kind: Kind = kind
        self.what = what
        self.why = why
        self.next = next


class _Sign(NamedTuple):
    """What the driver says, in part, and what that means."""

    words: tuple[str, ...]
    kind: Kind
    next: str


# The driver's own words: sqlite3 tells no code before Python 3.11, and libpq none before a session exists.
_SIGNS: Final = (
    _Sign(
        (
            "database or disk is full",
            "no space left on device",
            "disk quota exceeded",
            "could not extend file",
        ),
        "full",
        "Make room on the disk of the store; nothing is lost: what waits comes again.",
    ),
    _Sign(
        ("database is locked", "database table is locked", "lock timeout", "deadlock detected"),
        "locked",
        "Look for another gsubd or a backup tool that holds the file; it is tried again.",
    ),
    _Sign(
        ("readonly database", "read-only transaction", "permission denied"),
        "read_only",
        "Give the file and its folder, or the tables, to the user that the service runs as (service.user).",
    ),
    _Sign(
        ("malformed", "not a database", "could not read block", "invalid page"),
        "damaged",
        "Put the file aside and restore the last backup: gsub admin restore FILE.",
    ),
    _Sign(
        ("statement timeout", "interrupted"),
        "slow",
        "Look at the load of the database's host; it is tried again.",
    ),
    _Sign(
        ("unable to open database file", "no such file or directory", "not a directory"),
        "unreachable",
        "Make its folder, owned by the user that the service runs as, on a local disk.",
    ),
    _Sign(("no such table", "does not exist"), "older", "Upgrade the schema: gsub admin db upgrade."),
    _Sign(("disk i/o error",), "unreachable", "Look at the disk of the store (dmesg); it is tried again."),
)
_REFUSED: Final = "The store is well; this value cannot be kept."
_UNREACHABLE: Final = (
    "Check that PostgreSQL runs and that store.url names it; a password goes into ~/.pgpass."
)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn what the driver says into a StoreError that begins with `what`."""
    try:
        yield
    except (OverflowError, UnicodeError) as error:
        raise StoreError("refused", what, str(error)[:300], _REFUSED) from error
    except (exc.SQLAlchemyError, OSError) as error:
        raise _translated(error, what) from error


def _translated(error: Exception, what: str) -> StoreError:
    why = _first_line(getattr(error, "orig", None) or error)
    low = why.lower()
    # Before a session exists, "database ... does not exist" is about the address, not the schema
    begun = not (isinstance(error, exc.OperationalError) and "connection" in low and "failed" in low)
    if begun:
        for sign in _SIGNS:
            if any(words in low for words in sign.words):
                return StoreError(sign.kind, what, why, sign.next)
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return StoreError("refused", what, why, _REFUSED)
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError):
        return StoreError("unreachable", what, why, _UNREACHABLE)
    return StoreError("failed", what, why, "This should not happen; the service's log has the details.")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
