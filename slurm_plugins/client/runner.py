"""Running Slurm's commands so that their answer depends on nothing but Slurm.

No shell, one deadline, bounded output, an environment without the variables by which a user changes formats, and
one table that says what Slurm's complaints mean.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from .errors import (
    NoSuchJob,
    SlurmError,
    SlurmNotInstalled,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreachable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Completed", "Runner", "check", "complaint", "reading_environment", "run_command"]

# A full queue of 100,000 jobs is about 100 MB of squeue's text; what is larger is not an answer.
MAX_OUTPUT = 512 << 20
MAX_MESSAGES = 1 << 20

# Variables that change what a reading command prints or which cluster it asks (ENVIRONMENT VARIABLES in each man page).
_CHANGES_OUTPUT = (
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SCONTROL_",
    "SCANCEL_",
    "SLURM_BITSTR_LEN",
    "SLURM_CLUSTERS",
    "SLURM_DEBUG_FLAGS",
    "SLURM_JSON",
    "SLURM_TIME_FORMAT",
    "SLURM_YAML",
    "LANG",
    "LC_",
)
_PINNED = {
    "LC_ALL": "C",
    # seconds since 1970: local times are ambiguous for an hour a year
    "SLURM_TIME_FORMAT": "%s",
    # long lists of array tasks are cut at 64 characters without it
    "SLURM_BITSTR_LEN": "0",
    # else 22.05 shows a task that waits to run again among those that never ran; later ones: decode.folded_tasks
    "SQUEUE_ARRAY_UNIQUE": "1",
}

# What Slurm says -> whose silence it means; the first line that matches decides, specific ones first.
_UNREACHABLE: tuple[tuple[str, str], ...] = (
    ("Could not establish a configuration source", "config"),
    ("Parsing error at unrecognized key", "slurm.conf"),
    ("Parse error in file", "slurm.conf"),
    ("Unable to process configuration file", "slurm.conf"),
    ("Unable to process slurm.conf", "slurm.conf"),
    ("Unable to establish configuration source", "config"),
    ("fetch_config:", "config"),
    ("Problem talking to the database", "slurmdbd"),
    ("Sending PersistInit", "slurmdbd"),
    ("failed to open persistent connection", "slurmdbd"),
    ("to contact slurmdbd", "slurmdbd"),
    ("Unable to contact slurm controller", "slurmctld"),
    ("Unable to connect to database", "slurmdbd"),
    ("Socket timed out on send/recv operation", "slurmctld"),
    ("Zero Bytes were transmitted or received", "slurmctld"),
    ("Transport endpoint is not connected", "slurmctld"),
    ("Protocol authentication error", "slurmctld"),
    ("Slurm controller is in standby mode", "slurmctld"),
    ("Connection refused", "slurmctld"),
)
_NO_SUCH_JOB = ("Invalid job id specified", "Invalid job id ")


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left behind; text is UTF-8 with undecodable bytes kept as surrogates."""

    command: str
    returncode: int
    stdout: str
    stderr: str


def reading_environment(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for a command that only reads: nothing in it that changes the output's form or the cluster asked."""
    clean = {name: value for name, value in env.items() if not name.startswith(_CHANGES_OUTPUT)}
    return clean | _PINNED


def complaint(done: Completed, *, job_id: int | str | None = None) -> SlurmError:
    """The error that a failed command means. ``job_id``: the one job that was asked about."""
    message = done.stderr.strip()
    for line, daemon in _UNREACHABLE:
        if line in message:
            return SlurmUnreachable(daemon, _line_with(message, line))
    if job_id is not None and any(sign in message for sign in _NO_SUCH_JOB):
        return NoSuchJob(job_id)
    return SlurmRefused(done.command, _without_prefixes(message), done.returncode)


def check(done: Completed, *, job_id: int | str | None = None) -> Completed:
    """``done`` if it is an answer; raise what it is otherwise.

    An exit code of 0 beside a complaint that a daemon is silent is not an answer: sacct has printed empty tables
    that way.
    """
    if done.returncode == 0 and not (done.stderr and any(sign in done.stderr for sign, _ in _UNREACHABLE)):
        return done
    raise complaint(done, job_id=job_id)


def _line_with(message: str, sign: str) -> str:
    return _without_prefixes(next(line for line in message.splitlines() if sign in line))


def _without_prefixes(message: str) -> str:
    """Slurm's message without ``sbatch: error: `` in front of each line, and of at most three lines."""
    lines = [_PREFIX.sub("", line).strip() for line in message.splitlines()]
    return "\n".join([line for line in lines if line][-3:])


_PREFIX = re.compile(r"^(?:sbatch|squeue|sinfo|scontrol|sacct|scancel): (?:error: |fatal: )?")


class Runner:
    """Runs Slurm's commands with one environment and one deadline (seconds; None = none).

    ``run`` stands in for what runs one command, for a cluster that is reached by other means.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        timeout: float | None = 60.0,
        run: Callable[..., Completed] | None = None,
    ) -> None:
        self.env: Mapping[str, str] = dict(os.environ if env is None else env)
        self._timeout = timeout
        self._run = run or run_command

    def read(self, argv: Sequence[str], *, daemon: str = "slurmctld") -> Completed:
        """Run a command that only reads, in the pinned environment; its exit code is the caller's to judge."""
        return self._run(
            argv, env=reading_environment(self.env), stdin=None, timeout=self._timeout, daemon=daemon
        )

    def read_pieces(
        self, argv: Sequence[str], take: Callable[[bytes, bytes], None], *, daemon: str = "slurmctld"
    ) -> Completed:
        """As `read`; what the command prints goes to ``take`` as it comes, beside all that it has complained of before.

        What else runs commands than `run_command` gives all of it at once.
        """
        if self._run is not run_command:
            done = self.read(argv, daemon=daemon)
            take(_encode(done.stdout), _encode(done.stderr))
            return done
        env = reading_environment(self.env)
        return run_command(argv, env=env, timeout=self._timeout, daemon=daemon, take=take)

    def write(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None,
    ) -> Completed:
        """Run a command that acts, in the environment *as it is*: sbatch hands it on to the job."""
        return self._run(
            argv, env=self.env if env is None else env, stdin=stdin, timeout=timeout, daemon="slurmctld"
        )


def run_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes | None = None,
    timeout: float | None = None,
    daemon: str = "slurmctld",
    take: Callable[[bytes, bytes], None] | None = None,
) -> Completed:
    """Run ``argv`` in exactly ``env``, for ``timeout`` seconds at most; ``take`` is as in `Runner.read_pieces`.

    Raises SlurmNotInstalled when there is no such command, SlurmTimeout (naming ``daemon``) at the deadline,
    SlurmRefused when the output has no end.
    """
    source = subprocess.DEVNULL if stdin is None else _readable(stdin)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            # its own session: ended as a whole, and no SIGINT from the user's terminal while sbatch submits
            start_new_session=True,
        )
    except FileNotFoundError as error:
        # Popen says the same of a working directory that has gone
        raise SlurmNotInstalled(argv[0]) from error
    finally:
        if source >= 0:
            os.close(source)
    with process:
        try:
            out, messages = _collect(process, None if timeout is None else monotonic() + timeout, take)
        except _DeadlineError as error:
            _end(process)
            # Slurm's commands retry for a minute to read a slurm.conf that is not there
            silent = "config" if b"cannot stat file" in error.messages else daemon
            raise SlurmTimeout(argv[0], timeout or 0.0, silent) from error
        except _OutputError as error:
            _end(process)
            raise SlurmRefused(
                argv[0], f"{argv[0]} printed more than {MAX_OUTPUT >> 20} MiB: that is no answer."
            ) from error
        except BaseException:
            _end(process)
            raise
    return Completed(argv[0], process.returncode, _decode(out), _decode(messages))


class _DeadlineError(Exception):
    """Time is over; `messages` is what the command said on stderr until then."""

    def __init__(self, messages: bytes) -> None:
        self.messages = messages
        super().__init__("deadline")


class _OutputError(Exception):
    """Output beyond MAX_OUTPUT."""


def _readable(data: bytes) -> int:
    """A file descriptor from which ``data`` can be read; memory, so that no reader can block us."""
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _collect(
    process: subprocess.Popen[bytes],
    deadline: float | None,
    take: Callable[[bytes, bytes], None] | None,
) -> tuple[bytes, bytes]:
    """All of stdout, but for what ``take`` took, and the first MAX_MESSAGES of stderr, until both are closed and the
    process has ended.
    """
    assert process.stdout is not None and process.stderr is not None  # noqa: S101  (opened as pipes above)
    out, messages = bytearray(), bytearray()
    printed = 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, messages)
        while selector.get_map():
            ready = selector.select(_left(deadline))
            if not ready:
                raise _DeadlineError(bytes(messages))
            # What was said on stderr before a line was printed is known before that line is taken
            for key, _ in sorted(ready, key=lambda one: one[0].data is out):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data is out:
                    printed += len(data)
                    if printed > MAX_OUTPUT:
                        raise _OutputError
                    if take is None:
                        out += data
                    else:
                        take(data, bytes(messages))
                elif len(messages) < MAX_MESSAGES:
                    messages += data
    try:
        process.wait(_left(deadline))
    except subprocess.TimeoutExpired:
        raise _DeadlineError(bytes(messages)) from None
    return bytes(out), bytes(messages)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with all its children; it leads its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape")
