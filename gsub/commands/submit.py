"""`gsub [options] SCRIPT [ARGS]`: submit with the real sbatch, and say what became of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gsub.argv import CommandLine, is_ours, split
from gsub.errors import USAGE, UserError
from gsub.nesting import find_marks, next_program
from gsub.remedies import explain
from gsub.sbatch import PROGRAM, Answer, Listener, Submitted, clean_environment, hand_on, run, told
from gsub.sbatch_options import Table
from gsub.site import Slurm, check_sbatch, check_site
from gsub.term import Spinner, give_up_stdout, harmless, is_terminal

if TYPE_CHECKING:
    from gsub.announcing import Announcing
    from gsub.preflight.values import Verdict
    from gsub.smoke.beside import Beside


def submit(words: Sequence[str]) -> int:
    """Submit; returns the exit code. Raises UserError when nothing was submitted."""
    line = split(words, Table.of_all())
    environ = clean_environment()
    try:
        if marks := find_marks():  # all but sbatch itself was done above us
            program = next_program(environ, check_site(environ).folder, marks)
            code = hand_on(program, line.sbatch, environ)
            return _die_likewise(-code) if code < 0 else code
        slurm = check_sbatch(environ)
        if slurm.conf:
            environ.setdefault("SLURM_CONF", slurm.conf)
        if line.unsure and any(is_ours(word) for word in words):
            line = split(words, installed_table(environ, slurm.folder))
        _contradictions(line)
        if "--dry-run" in line.ours:
            from gsub.commands.dry_run import dry_run

            return dry_run(line, environ, slurm)
        return _submit(line, environ, slurm)
    except UserError as error:
        if "--json" in line.ours:
            print_json(error.facts())
        raise


def _contradictions(line: CommandLine) -> None:
    if "--watch" in line.ours and line.given("wait"):
        raise UserError(
            "--watch and --wait both wait for the job; nothing was submitted",
            fix="give one: --watch shows the job, --wait returns its exit code",
            exit_code=USAGE,
        )
    if "--watch" in line.ours and "--json" in line.ours:
        raise UserError(
            "--json answers with one object, --watch with many lines; nothing was submitted",
            fix="submit with --json, then 'gsub watch JOB'",
            exit_code=USAGE,
        )


def _submit(line: CommandLine, environ: Mapping[str, str], slurm: Slurm) -> int:
    as_json, watch, folder = "--json" in line.ours, "--watch" in line.ours, slurm.folder
    from gsub.preflight.gate import gate

    looked = gate(line, environ, folder)
    smoke, stdin = _smoke(line, looked.stdin, environ, slurm)
    environ, announcing = _named(line, stdin, environ, slurm)
    # Handed on as it is, unless we are asked for more than sbatch would say.
    words: Sequence[str] = line.audible if as_json or watch or smoke is not None else line.sbatch
    silent = as_json or (smoke is not None and line.given("quiet"))
    listener = _Screen(line, silent=silent, smoke=smoke, announcing=announcing)
    plain = words
    if smoke is not None:
        from gsub.smoke.beside import InterruptedSubmission

        smoke.before()
        if smoke.alone:
            return _smoke_alone(line, smoke)
        try:
            words = smoke.gated(words)
        except InterruptedSubmission as signalled:
            return _die_likewise(signalled.number)
    try:
        answer = run(words, listener.listener(), environ=environ, folder=folder, stdin=stdin)
    finally:
        listener.spinner.hide()
        if smoke is not None and listener.job is None:
            smoke.refused()
    if smoke is not None and answer.returncode > 0 and smoke.took_its_place(answer.errors):
        answer = run(plain, listener.listener(), environ=environ, folder=folder, stdin=stdin)
        listener.spinner.hide()
    if answer.submitted is not None and answer.returncode == -signal.SIGINT and not line.given("wait"):
        # A ^C that came too late for sbatch: it had done all there was to do
        answer = replace(answer, returncode=0)
    try:
        return _afterwards(line, answer, listener, verdict=looked.verdict, environ=environ, slurm=slurm)
    except KeyboardInterrupt:
        if as_json and answer.submitted is not None:
            print(f"gsub: job {answer.submitted.job_id} was submitted", file=sys.stderr)
        raise


def _afterwards(
    line: CommandLine,
    answer: Answer,
    screen: _Screen,
    *,
    verdict: Verdict,
    environ: Mapping[str, str],
    slurm: Slurm,
) -> int:
    """What follows when sbatch has ended: its errors, our answer, the watching; returns the exit code."""
    smoke = screen.smoke
    screen.announcing.end()
    if answer.returncode < 0:
        return _die_likewise(-answer.returncode)
    if answer.returncode and answer.submitted is None and answer.errors:
        raise _meant(line, explain(answer.errors))
    screen.message(answer.errors.encode())
    if slurm.site is not None:
        from gsub.points import deliver_kept

        deliver_kept(environ, slurm.site)
    if "--json" in line.ours:
        found = [finding.facts() for finding in verdict.findings]
        more = {"preflight": found} if found else {}
        facts = _facts(line, answer) | more | ({"smoke": smoke.facts()} if smoke is not None else {})
        with _telling(answer.submitted.job_id if answer.submitted is not None else None):
            print_json(facts)
    elif "--watch" in line.ours and answer.submitted is not None:
        job = answer.submitted
        if job.cluster is not None:
            raise UserError(
                f"job {job.job_id} is submitted, but jobs of another cluster cannot be watched from here",
                fix=f"squeue -M {job.cluster} -j {job.job_id}",
            )
        from gsub.commands.watch import follow

        return follow(str(job.job_id), fresh=True, smoke=smoke.followed if smoke is not None else None)
    return answer.returncode


def _named(
    line: CommandLine, given: bytes | None, environ: Mapping[str, str], slurm: Slurm
) -> tuple[Mapping[str, str], Announcing]:
    """The job's environment with its workload's name in it, where the site has use for that; and where its steps go."""
    from gsub.announcing import RUNS, Announcing, runs_folder
    from gsub.workload_name import named, own_name

    environ = {name: value for name, value in environ.items() if name != RUNS}  # of the job that we are in
    nothing = environ, Announcing((), environ, "")
    if slurm.site is None or environ.get("GSUB", "").strip().lower() == "off":
        own_name(line)  # wrong is wrong everywhere
        return nothing
    from gsub.script_text import text_of

    reads = line.script is not None or line.wrap is not None
    try:
        text = given if given is not None else text_of(line) if reads else b""
        environ, names = named(line, text, environ)
        if names and slurm.site.service.url and (folder := runs_folder(environ, slurm.site.cluster)):
            environ[RUNS] = folder
        return environ, Announcing(names, environ, slurm.site.cluster)
    except UserError:
        raise
    except Exception:
        if "--debug" in line.ours:
            raise
        return nothing  # our bug: a name is not worth the job


def _smoke(
    line: CommandLine, given: bytes | None, environ: Mapping[str, str], slurm: Slurm
) -> tuple[Beside | None, bytes | None]:
    """The smoke run beside the job; and the script, where standard input was read for it."""
    from gsub.smoke.options import may_be_wanted

    if not may_be_wanted(line, slurm.site.smoke if slurm.site is not None else None, environ):
        return None, given
    from gsub.smoke.beside import beside

    return beside(line, given, slurm.site, environ, slurm.folder)


def _smoke_alone(line: CommandLine, smoke: Beside) -> int:
    """`--smoke=only`: the smoke job is what is submitted, and sbatch's words are said of it."""
    from gsub.smoke.plan import PlanError
    from gsub.smoke.submission import Refused

    try:
        done = smoke.only(("--wait",) if line.given("wait") else ())
    except (Refused, PlanError) as error:
        raise UserError("the smoke run was not submitted", why=str(error)) from None
    with _telling(done.job_id):
        if "--json" in line.ours:
            print_json({"job_id": None, "smoke": smoke.facts(), "exit_code": done.returncode})
        elif not line.given("quiet"):
            print(done.job_id if line.given("parsable") else f"Submitted batch job {done.job_id}", flush=True)
    if "--watch" in line.ours:
        from gsub.commands.watch import follow

        return follow(str(done.job_id), fresh=True)
    return done.returncode


def _meant(line: CommandLine, error: UserError) -> UserError:
    """The error; with `gsub statsu`, where there is no such script, also the command that was meant."""
    from gsub.cli import COMMANDS

    if not line.script or line.sbatch[0] != line.script or os.path.exists(line.script):  # noqa: PTH110
        return error
    import difflib

    close = difflib.get_close_matches(line.script, COMMANDS, n=1)
    if close:
        error.fix = f"did you mean 'gsub {close[0]}'? If not: {error.fix}"
    return error


class _Screen:
    """Hands on what sbatch says; on a terminal it adds what became of the request."""

    def __init__(
        self, line: CommandLine, *, silent: bool, smoke: Beside | None, announcing: Announcing
    ) -> None:
        self.line = line
        self.silent = silent
        self.smoke = smoke
        self.announcing = announcing
        # sbatch reads the script from the keyboard: no spinner over the user's typing
        typing = line.script is None and line.wrap is None
        self.spinner = Spinner(allowed=not typing)
        self.job: Submitted | None = None
        self.unwritten: OSError | None = None

    def listener(self) -> Listener:
        return Listener(self.stdout, self.message, self.submitted, self.second)

    def stdout(self, chunk: bytes) -> None:
        if not self.silent:
            self.spinner.hide()
            self.unwritten = _write(sys.stdout.fileno(), chunk) or self.unwritten

    def message(self, text: bytes) -> None:
        if text:
            self.spinner.hide()
            shown = told(text.decode(errors="surrogateescape"))
            if is_terminal(sys.stderr):
                shown = harmless(shown)
            _write(sys.stderr.fileno(), shown.encode(errors="surrogateescape"))

    def submitted(self, job: Submitted) -> None:
        self.job = job
        self.announcing.start(job.job_id, job.cluster)
        if self.smoke is not None:
            self.smoke.begun(job.job_id)
        if self.unwritten is not None:
            _tell_unwritten(job.job_id, self.unwritten)
            return
        plain = self.silent or self.line.given("parsable") or not is_terminal(sys.stdout)
        if plain or job.cluster is not None:
            return
        from gsub.commands.describe import describe

        for text in describe(job.job_id):
            print(text, flush=True)

    def second(self, _passed: int) -> None:
        if self.job is None:
            self.spinner.show("sbatch is waiting for the Slurm controller")
        else:
            self.spinner.show(f"job {self.job.job_id} has not ended yet")


def _write(descriptor: int, data: bytes) -> OSError | None:
    # Straight to the descriptor: what sbatch says must appear in its order, whoever reads it.
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        return error  # nobody reads on, or the disk is full; the job exists, and its exit code is still ours to give
    return None


@contextmanager
def _telling(job_id: int | None) -> Iterator[None]:
    """Around the writing of an answer: a job that is in is named in any case, for who would else submit it again."""
    try:
        yield
    except OSError as error:
        if job_id is None:
            raise
        give_up_stdout()
        _tell_unwritten(job_id, error)


def _tell_unwritten(job_id: int, error: OSError) -> None:
    why = error.strerror or str(error)
    print(f"gsub: job {job_id} was submitted, but the answer cannot be written: {why}", file=sys.stderr)


def _facts(line: CommandLine, answer: Answer) -> dict[str, object]:
    job = answer.submitted
    return {
        "job_id": job.job_id if job else None,
        "cluster": job.cluster if job else None,
        "command": [PROGRAM, *line.sbatch],
        "script": line.script,
        "args": list(line.args),
        "messages": told(answer.messages + answer.errors).splitlines(),
        "exit_code": answer.returncode,
    }


def print_json(facts: Mapping[str, object]) -> None:
    """Print one JSON object on a line; only ASCII, so that any terminal and any locale takes it."""
    import json

    print(json.dumps(facts), flush=True)


def installed_table(environ: Mapping[str, str], folder: str) -> Table:
    """The options of the sbatch that is installed here, those of the site's plugins included."""
    import subprocess

    from gsub.sbatch_release import sbatch_release

    try:
        told = subprocess.run(
            [str(Path(folder, PROGRAM)) if folder else PROGRAM, "--help"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        told = ""  # the submission itself will tell what is wrong
    release = sbatch_release(environ, folder)
    table = Table.of_release(f"{release[0]:02d}.{release[1]:02d}") if release else Table.of_all()
    return table.with_help(told)


def _die_likewise(number: int) -> int:
    """End as sbatch did, so that the shell sees the signal; 128 + n where we cannot."""
    sys.stdout.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
