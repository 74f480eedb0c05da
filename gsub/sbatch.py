"""Running the real sbatch: the user's words, environment, standard input and signals, and what it answers.

sbatch's standard output is handed on as it comes. Of its standard error, messages are handed on as they come and
errors are kept back: when the submission fails they become the reason in our one error, else they are handed on
before the job's number, as sbatch printed them.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from gsub.errors import USAGE, UserError
from gsub.submissions import Keeping
from slurm_plugins.client.submission import SUBMITTED

PROGRAM: Final = "sbatch"

# Handed on at once: what plugins say to the user, and that sbatch waits for the controller.
_MESSAGE: Final = re.compile(rb"sbatch: (?!error: |fatal: |unrecognized |option |invalid option )|.*retrying")
_FORWARDED: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that sbatch says it made; `cluster` only when sbatch names one (`-M`, federations)."""

    job_id: int
    cluster: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one run of sbatch.

    `returncode` is negative for a signal. `errors` is the standard error that was kept back, `messages` what
    was handed on.
    """

    returncode: int
    submitted: Submitted | None
    stdout: str
    errors: str
    messages: str


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told while sbatch runs: standard output, messages, that the job was made, and each second passed."""

    stdout: Callable[[bytes], None]
    message: Callable[[bytes], None]
    submitted: Callable[[Submitted], None]
    second: Callable[[int], None]


def clean_environment() -> dict[str, str]:
    """The environment as the user's shell made it.

    In the C locale Python sets LC_CTYPE for itself and its children (PEP 538); the job's environment would
    differ from the one that sbatch alone would have given it.
    """
    environ = dict(os.environ)
    if "LC_CTYPE" in environ:
        try:
            initial = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            return environ
        if not any(variable.startswith(b"LC_CTYPE=") for variable in initial):
            del environ["LC_CTYPE"]
    return environ


_OURS: Final = re.compile(r"^sbatch: (?=gsub[ :])", re.MULTILINE)


def told(messages: str) -> str:
    r"""sbatch's messages, those of gsub beside the controller without sbatch's name before them.

    >>> told("sbatch: gsub set --nodes=2 (not stated before): it fits\nsbatch: lua: hello\n")
    'gsub set --nodes=2 (not stated before): it fits\nsbatch: lua: hello\n'
    """
    return _OURS.sub("", messages)


def submitted(stdout: str) -> Submitted | None:
    r"""The job in sbatch's standard output, `--parsable` or not; the line must have ended.

    >>> submitted("Submitted batch job 7 on cluster blue\n"), submitted("8;red\n"), submitted("8")
    (Submitted(job_id=7, cluster='blue'), Submitted(job_id=8, cluster='red'), None)
    """
    found = SUBMITTED.search(stdout)
    if not found:
        return None
    return Submitted(int(found[1] or found[3]), found[2] or found[4])


def run(
    words: Sequence[str],
    listener: Listener,
    *,
    environ: Mapping[str, str],
    folder: str = "",
    stdin: bytes | None = None,
) -> Answer:
    """Run sbatch with `words` as its arguments and wait for it.

    Parameters
    ----------
    folder: where sbatch lies; empty for PATH.
    stdin: its standard input; None for ours.

    Raises UserError when there is no sbatch.
    """
    keeping = Keeping(words, environ)

    def submitted(job: Submitted) -> None:
        listener.submitted(job)
        keeping.start(job.job_id, job.cluster)

    with _started(words, environ, folder, stdin) as process, _forwarding(process):
        answer = _listen(process, replace(listener, submitted=submitted))
    keeping.end()
    return answer


def hand_on(program: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the sbatch at a path with all that is ours handed on as it is; returns its exit code, negative for a signal.

    A process of its own, since ours has the mark by which `gsub.nesting` knows what was started.
    """
    try:
        process = subprocess.Popen([PROGRAM, *words], executable=program, env=environ, close_fds=False)
    except OSError as error:
        raise _not_run(program, error) from None
    with process, _forwarding(process):
        return process.wait()


def _not_run(program: str, error: OSError) -> UserError:
    return UserError(
        f"cannot run {program}",
        why=error.strerror or str(error),
        fix="submit on a machine that has Slurm's commands on PATH",
        exit_code=USAGE,
    )


@contextlib.contextmanager
def _started(
    words: Sequence[str], environ: Mapping[str, str], folder: str, stdin: bytes | None
) -> Iterator[subprocess.Popen[bytes]]:
    program = str(Path(folder, PROGRAM)) if folder else PROGRAM
    with _given(stdin) as source:
        try:
            # argv[0] stays "sbatch" wherever it lies: Slurm keeps the command line with the job (SubmitLine).
            process = subprocess.Popen(
                [PROGRAM, *words],
                executable=program,
                env=environ,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # What the shell opened is sbatch's: `<(...)`, --export-file=NUMBER. Python's own close by themselves
                close_fds=False,
            )
        except OSError as error:
            raise _not_run(program, error) from None
    with process:
        yield process


@contextlib.contextmanager
def _given(stdin: bytes | None) -> Iterator[IO[bytes] | None]:
    if stdin is None:
        yield None
        return
    import tempfile

    # A file and not a pipe: whatever the size, nobody has to feed sbatch while listening to it.
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        yield file


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that reach us reach sbatch, who decides what they mean, as if it had been started itself."""

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    # nohup and `&` ignore some of them for us: they stay ignored
    before = {
        number: signal.signal(number, forward)
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(process: subprocess.Popen[bytes], listener: Listener) -> Answer:
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - both are pipes
    stdout = b""
    partial = b""
    errors: list[bytes] = []
    messages: list[bytes] = []
    job: Submitted | None = None

    def take(line: bytes) -> None:
        # Once there is a job there is no failure to explain: all is handed on.
        if job is not None or _MESSAGE.match(line):
            messages.append(line)
            listener.message(line)
        else:
            errors.append(line)

    seconds = 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(timeout=1)
            if not ready:
                seconds += 1
                listener.second(seconds)
            # sbatch writes its errors before the number: what both pipes hold by now is handed on in that order
            for key, _ in sorted(ready, key=lambda one: one[0].fileobj is process.stdout):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    stdout += chunk
                    known, job = job, job or submitted(stdout.decode(errors="replace"))
                    if known is None and job is not None:
                        for line in errors:
                            take(line)
                        errors.clear()
                    listener.stdout(chunk)
                    if known is None and job is not None:
                        listener.submitted(job)
                else:
                    *lines, partial = (partial + chunk).split(b"\n")
                    for line in lines:
                        take(line + b"\n")
    if partial:
        take(partial)
    return Answer(
        returncode=process.wait(),
        submitted=job,
        stdout=stdout.decode(errors="replace"),
        errors=b"".join(errors).decode(errors="replace"),
        messages=b"".join(messages).decode(errors="replace"),
    )
