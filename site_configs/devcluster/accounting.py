"""A cluster's accounting: MariaDB and slurmdbd, both Debian's, both its own."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

from site_configs.devcluster.config import Ports
from site_configs.devcluster.spec import DevClusterError, Paths

Run = Callable[..., "CompletedProcess[str]"]

# Small: one cluster's bookkeeping, several clusters side by side.
_TUNING: Final = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--performance-schema=OFF",
    # On from MariaDB 11.6 on: slurmdbd 26.05 ends itself (fatal) when two of its threads write one job's row.
    "--loose-innodb-snapshot-isolation=OFF",
)
ACCOUNT: Final = "lab"


def mariadb_argv(paths: Paths, ports: Ports, user: str) -> list[str]:
    """The database server in the foreground."""
    return [
        "/usr/sbin/mariadbd",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={paths.root}/spool/mariadb",
        f"--tmpdir={paths.run}/mariadb",
        f"--socket={paths.run}/mariadb/socket",
        f"--pid-file={paths.run}/mariadb/pid",
        f"--port={ports.mariadb}",
        "--bind-address=127.0.0.1",
        *_TUNING,
    ]


def initialise(run: Run, paths: Paths, user: str) -> None:
    """Make the database's system tables, once a cluster."""
    made = paths.root / "spool/mariadb.made"
    if made.exists():
        return
    for half in (paths.root / "spool/mariadb").iterdir():  # of an `up` that was interrupted
        shutil.rmtree(half) if half.is_dir() else half.unlink()
    done = run(
        [
            "mariadb-install-db",
            "--no-defaults",
            f"--user={user}",
            f"--datadir={paths.root}/spool/mariadb",
            # two of them in one /tmp take each other's temporary tables away
            f"--tmpdir={paths.run}/mariadb",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            *_TUNING,
        ],
        timeout=120,
    )
    if done.returncode:
        raise DevClusterError(f"MariaDB could not be initialised:\n{_tail(done)}")
    made.touch()


def grant(run: Run, paths: Paths, password: str) -> None:
    """Make slurmdbd's database and let it in, and nobody else over TCP.

    slurmdbd would make the database itself, after a first connection that fails: libmariadb 11.8.9 (forky) refuses
    every result on a handle used again after a failure ("maximum allowed number of columns (=0)").
    """
    # The password is ours, of [0-9a-f] only: nothing to quote.
    sql = (
        # made without a password, and any user of this machine may connect to a port
        "DROP USER IF EXISTS root@'127.0.0.1', root@'::1'; "
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db; "
        f"CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}'; "
        f"ALTER USER slurm@'127.0.0.1' IDENTIFIED BY '{password}'; "
        "GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';"
    )
    done = run(
        ["mariadb", "--no-defaults", f"--socket={paths.run}/mariadb/socket", "--user=root"],
        input=sql,
        timeout=30,
    )
    if done.returncode:
        raise DevClusterError(f"MariaDB refused slurmdbd's account:\n{_tail(done)}")


def new_password() -> str:
    """A database password nobody needs to know."""
    return secrets.token_hex(16)


def write_private(path: Path, text: str, uid: int, gid: int) -> None:
    """Write a file that only its owner may read, from the first byte on."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(fd, uid, gid)


def register(run: Run, cluster: str, users: Sequence[str]) -> None:
    """Enter cluster, account and users into slurmdbd; what is there already stays."""
    steps = [
        ["add", "cluster", cluster],
        ["add", "account", ACCOUNT, f"Cluster={cluster}", "Description=lab", "Organization=lab"],
        ["add", "user", ",".join(users), f"Account={ACCOUNT}", f"Cluster={cluster}"],
    ]
    for step in steps:
        done = run(["sacctmgr", "-i", *step], timeout=60)
        said = done.stdout + done.stderr
        if done.returncode and "already exist" not in said and "Nothing new added" not in said:
            raise DevClusterError(f"`sacctmgr {' '.join(step)}` failed:\n{_tail(done)}")


def appoint(run: Run, cluster: str, user: str) -> None:
    """Make a user one of Slurm's operators."""
    step = [
        "sacctmgr",
        "-i",
        "add",
        "user",
        user,
        "Account=root",
        f"Cluster={cluster}",
        "AdminLevel=Operator",
    ]
    done = run(step, timeout=60)
    # "Nothing new added" (22.05), "Nothing added" (24.11): it is one already
    if done.returncode and "Nothing" not in done.stdout + done.stderr:
        raise DevClusterError(f"`{' '.join(step)}` failed:\n{_tail(done)}")


def _tail(done: CompletedProcess[str]) -> str:
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])
