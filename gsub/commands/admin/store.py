"""`gsub admin backup`, `restore` and `db`: the store of records kept, brought back, brought up to date.

The work is `profiler.store`'s; here it is found, its right user kept, and its errors told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from gsub.errors import FAILED, USAGE, UserError
from gsub.term import one_line

if TYPE_CHECKING:
    from profiler.store import Store

__all__ = ["backup", "cluster_of", "db", "of_store", "opened", "restore", "telling"]

_OF_REPORTS: Final = ("jinja2", "markupsafe", "numpy", "pandas", "pyarrow")
_F = TypeVar("_F", bound=Callable[..., object])

_SQLITE: Final = "sqlite:///"
_FILES: Final = ("", "-wal", "-shm")
"""What SQLite keeps of a database, by the ends of the names."""
_LOCK: Final = "keeper.lock"
"""The keeper's, in gsubd's --state, where the store is too unless the site file says otherwise."""


def of_store(command: _F) -> _F:
    """A command that is told which store: the option `--store`."""
    option = click.option(
        "--store", "url", metavar="URL", help="Another store than the site file's store.url."
    )
    return option(command)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@of_store
def backup(file: Path, url: str | None) -> None:
    """Copy the whole store to FILE, while the service goes on writing.

    FILE appears when it is whole, for its owner's eyes only. It can be restored into SQLite and into PostgreSQL.
    """
    if os.path.lexists(file):
        raise UserError(
            f"{file} is there already; nothing was written",
            fix="give another name, like gsub-$(date +%F).backup",
            exit_code=USAGE,
        )
    with opened(url, read_only=True) as store, telling():
        copied = store.backup(file)
    print(f"{one_line(str(file))}: schema {copied.schema}, {_rows(copied.rows)}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--replace", is_flag=True, help="Remove what the store holds.")
@of_store
def restore(file: Path, replace: bool, url: str | None) -> None:
    """Fill the store from FILE, which `gsub admin backup` made.

    A store that holds something is left alone without --replace. All of it is restored, or nothing changes. Stop the
    service first: what nodes deliver meanwhile would be lost with the old store.
    """
    found, user = _store_url(url)
    _check_place(found, made=True)
    _refuse_running(found)
    with telling():
        from profiler.store import restore as fill

        copied = fill(file, found, replace=replace)
        _hand_over(found, user)
    print(f"restored {one_line(str(file))}: schema {copied.schema}, {_rows(copied.rows)}")


@click.group()
def db() -> None:
    """The store's schema: which it is, and bringing it up to date."""


@db.command()
@of_store
def version(url: str | None) -> None:
    """Print the store's schema."""
    with opened(url, read_only=True) as store, telling():
        print(f"schema {store.version() or 'none'}, in {one_line(store.name)}")


@db.command()
@of_store
def upgrade(url: str | None) -> None:
    """Make the store's tables, or bring them to the schema of this gsub. The service does so when it starts."""
    with opened(url, made=True) as store, telling():
        before, after = store.migrate()
    _hand_over(*_store_url(url))
    done = "is up to date" if before == after else f"was {before or 'none'}"
    print(f"schema {after} ({done}), in {one_line(store.name)}")


def _rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in rows.items() if count) or "no rows"


# --- the store, and whose it is -------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(url: str | None, *, made: bool = False, read_only: bool = False) -> Iterator[Store]:
    """The store. `made`: its file may be made; `read_only`: nothing is written. Raises UserError."""
    found, _ = _store_url(url)
    _check_place(found, made=made, read_only=read_only)
    with telling():
        from profiler.store import open_store

        store = open_store(found, read_only=read_only)
    try:
        yield store
    finally:
        store.close()


def _store_url(url: str | None) -> tuple[str, str]:
    """The address, and the user that the service runs as. Raises UserError."""
    from gsub.site import read_site

    site = read_site(os.environ)
    if url is not None:
        return url, "" if site is None else site.service.user
    if site is None:
        raise UserError(
            "there is no site file here, so no store is known",
            fix="run this on the host where gsubd runs, or name the store with --store",
            exit_code=USAGE,
        )
    return site.store.url, site.service.user


def cluster_of(name: str | None) -> str:
    """The cluster that is asked about: the site file's, if none is named. Raises UserError."""
    from gsub.site import read_site

    site = None if name is not None else read_site(os.environ)
    if site is not None:
        return site.cluster
    if name is None:
        raise UserError(
            "there is no site file here, so no cluster is known",
            fix="name the cluster with --cluster",
            exit_code=USAGE,
        )
    return name


def _check_place(url: str, *, made: bool, read_only: bool = False) -> None:
    """Refuse a SQLite store that is not on this host, or not ours to touch. Raises UserError."""
    if not url.startswith(_SQLITE + "/"):
        return
    file = Path(url.removeprefix(_SQLITE))
    elsewhere = "run this on the host where gsubd runs, or name the store with --store"
    there, folder = _exists(file), _exists(file.parent)
    if not folder or not (there or made):
        missing = file if folder else file.parent
        raise UserError("there is no store here", why=f"{missing} does not exist", fix=elsewhere)
    place = file if there else file.parent
    fixed = _is_fixed(place)
    # Elsewhere who only reads must be allowed to write too: SQLite keeps readers' locks in a file beside the store
    if not os.access(place, os.R_OK if fixed else os.R_OK | os.W_OK):
        raise UserError(
            "the store is not yours to read or change",
            why=f"{file} belongs to {_owner(place)}",
            fix="run this as that user or as root: sudo gsub admin ...",
        )
    if fixed:
        _check_fixed(file, read_only=read_only)


def _is_fixed(place: Path) -> bool:
    """Whether nobody can write there: the file system is mounted read-only."""
    try:
        return bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _check_fixed(file: Path, *, read_only: bool) -> None:
    """Refuse what cannot be done to a store on a read-only file system. Raises UserError."""
    log, locks = (file.with_name(file.name + end) for end in ("-wal", "-shm"))
    if not read_only:
        raise UserError(
            "the store cannot be changed here",
            why=f"{file.parent} is on a read-only file system",
            fix="mount it writable, or copy the store elsewhere: --store sqlite:////PATH/OF/THE/COPY",
        )
    if _exists(log) and log.stat().st_size and not _exists(locks):
        # What was written last is in the log alone: it must be taken in first, and that writes
        raise UserError(
            "the store cannot be read here",
            why=f"{file.parent} is on a read-only file system, and {log.name} was not taken into {file.name} before",
            fix=f"copy {file.name} and {log.name} into another folder, and name that copy with --store",
        )


def _refuse_running(url: str) -> None:
    """Refuse while gsubd's keeper, which locks a file beside the store, writes to it. Raises UserError."""
    if not url.startswith(_SQLITE + "/"):
        return
    lock = Path(url.removeprefix(_SQLITE)).with_name(_LOCK)
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            "gsubd is writing to this store; nothing was restored",
            why="what nodes deliver meanwhile would be lost with the old store",
            fix="systemctl stop gsubd, restore, and start it again",
        ) from None
    finally:
        os.close(handle)


def _exists(path: Path) -> bool:
    """Whether it is there; where we may not even look, it counts as there and not ours."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _owner(path: Path) -> str:
    try:
        return pwd.getpwuid(path.stat().st_uid).pw_name
    except (OSError, KeyError):
        return "another user"


def _hand_over(url: str, user: str) -> None:
    """Give what root has made to the service's user, who else could not write to it. Raises UserError."""
    if os.geteuid() != 0 or not url.startswith(_SQLITE + "/"):
        return
    try:
        owner = pwd.getpwnam(user)
    except KeyError:
        return  # another host's user; the service itself says what it cannot open
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for end in _FILES:
        # its folder is that user's: what lies there under the name may be a trap for root
        try:
            handle = os.open(url.removeprefix(_SQLITE) + end, flags)
        except OSError:
            continue
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == 0:
                os.fchown(handle, owner.pw_uid, owner.pw_gid)
        finally:
            os.close(handle)


# --- what goes wrong ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Tell what the store cannot do, and what is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = {"psycopg": "service,postgresql"}.get(package, "service")
        what = "this gsub cannot open a store"
        if package in _OF_REPORTS:
            extra, what = "service,report", "this gsub cannot make reports"
        raise UserError(
            what,
            why=f"{package} is not installed here",
            fix=f"pip install 'gsub[{extra}]' into gsub's environment; it is needed on the service's host only",
            exit_code=USAGE,
        ) from error
    except (UserError, OSError):
        raise
    except Exception as error:
        from profiler.store import StoreError

        if not isinstance(error, StoreError):
            raise
        raise UserError(
            error.what.rstrip("."),
            why=error.why,
            fix=error.next,
            exit_code=USAGE if error.kind == "wrong" else FAILED,
        ) from error
