"""`gsub learn`: how throughput depends on CPUs, measured in a run of its own, and what is known of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gsub.commands.explain import Verbatim
from gsub.errors import FAILED, USAGE, UserError
from gsub.term import harmless, is_terminal, one_line

if TYPE_CHECKING:
    from gsub.learning import Asked, Learnt
    from profiler.answers import WorkloadCurve

_MOST_LINES: Final = 20
_DIGITS: Final = 12


@click.command(cls=Verbatim, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGS] | --here ... | --show ... | --forget ...")
def learn(words: Sequence[str]) -> int:
    """How many CPUs a workload can use, measured in about three minutes; the next submission of it gets that many.

    \b
    gsub learn [OPTIONS OF sbatch] SCRIPT [ARGS]
        Submit a job that runs the script on one GPU and measures it. The real job is not submitted.
    gsub learn --here [--cpus N] [--gpus N] [--seconds N] [--workload NAME] [--go-on] [--output] [--json] -- COMMAND
        Run COMMAND in this place and measure it: in a batch script, or by srun in an allocation. When that is done
        COMMAND is ended, unless it is to --go-on. --output shows what it writes.
    gsub learn --show [WORKLOAD] [--json]
        Plot what is known of your workloads.
    gsub learn --forget [--json] SCRIPT [ARGS] | --workload NAME [--user LOGIN]
        Forget what was measured of one of them, as it was wrong. Operators may name another user.
    """
    if words[:1] == ("--here",):
        return _here(words[1:])
    if words[:1] == ("--show",):
        return _show(words[1:])
    if words[:1] == ("--forget",):
        from gsub.commands.learn_forget import forget

        return forget(words[1:])
    if not words:
        raise UserError(
            "there is nothing to learn",
            fix="gsub learn SCRIPT, gsub learn --here -- COMMAND, or gsub learn --show",
            exit_code=USAGE,
        )
    from gsub.commands.submit import submit

    code = submit(["--smoke=only", "--learn", *words])
    if code == 0 and is_terminal(sys.stderr) and "--json" not in words:
        print("when it has ended: gsub learn --show", file=sys.stderr)
    return code


# --- here -------------------------------------------------------------------------------------------------------------


def _here(words: Sequence[str]) -> int:
    from gsub.learning import learn_here

    as_json, workload, asked = _asked(words)
    _in_place(os.environ)
    try:
        found = learn_here(asked, os.environ, lambda line: print(one_line(line), file=sys.stderr, flush=True))
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise UserError(
            f"{asked.command[0]} cannot be run",
            why=error.strerror or "",
            fix="check its path",
            exit_code=USAGE,
        ) from error
    code = _ended(found)
    if as_json:
        from gsub.commands.submit import print_json

        print_json(_facts(found))
    else:
        print("\n".join(_plotted(found)))
    if found.driver.points and found.driver.trusted:
        said = _deliver(found, asked.command, workload)
        if said:
            print(one_line(said), file=sys.stderr)
    return code


def _asked(words: Sequence[str]) -> tuple[bool, str, Asked]:
    """Our options ahead of `--`. Raises UserError."""
    from gsub.learning import Asked
    from profiler.sensitivity import Budget

    flags = {"--json": False, "--go-on": False, "--output": False}
    values: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        if name in flags and not equals:
            flags[name] = True
        elif name in ("--cpus", "--gpus", "--seconds", "--workload") and (equals or rest):
            values[name] = value if equals else rest.pop(0)
        else:
            raise UserError(
                f"gsub learn --here does not know {name}",
                fix="gsub learn --help has the options; the command stands behind --",
                exit_code=USAGE,
            )
    if rest[:1] == ["--"]:
        rest.pop(0)
    if not rest:
        raise UserError("there is no command to run", fix="gsub learn --here -- COMMAND", exit_code=USAGE)
    seconds = _number(values, "--seconds", 20, 3600)
    asked = Asked(
        tuple(rest),
        most=_number(values, "--cpus", 1, 4096),
        gpus=_number(values, "--gpus", 1, 1024),
        budget=Budget() if seconds is None else Budget(seconds=float(seconds)),
        go_on=flags["--go-on"],
        show=flags["--output"],
    )
    return flags["--json"], values.get("--workload", ""), asked


def _number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and least <= int(text) <= most):
        raise UserError(f"{name}={text}: want a number from {least} to {most}", exit_code=USAGE)
    return int(text)


def _in_place(environ: Mapping[str, str]) -> None:
    """Raises UserError in the shell of `salloc` on the login node: the job's CPUs are elsewhere."""
    if environ.get("SLURM_JOB_ID") and not environ.get("SLURMD_NODENAME"):
        raise UserError(
            "this shell is not on a node of the job",
            why="salloc has opened it where it was called",
            fix="srun -N1 -n1 --cpus-per-task=N gsub learn --here -- COMMAND",
            exit_code=USAGE,
        )


def _ended(found: Learnt) -> int:
    """The exit code, and what is said of a command that failed or told no steps."""
    if found.code:
        tail = harmless(found.tail.decode("utf-8", "replace")).splitlines()[-_MOST_LINES:]
        print("\n".join(tail), file=sys.stderr)
        print(f"gsub: the command ended with {found.code}", file=sys.stderr)
        return FAILED
    if not found.driver.points:
        if not found.driver.source:
            print(
                "gsub: no step was seen: let the script call gsub.train.step(), or print its steps",
                file=sys.stderr,
            )
        return FAILED
    return 0


def _plotted(found: Learnt) -> list[str]:
    from gsub.curve_view import plot, rows
    from gsub.sparkline import ramp

    result, driver = found.driver.result, found.driver
    knee = None if result is None else result.knee
    at_knee = None if result is None else result.curve.at(result.knee)
    lines = rows(driver.points, found.gpus, knee, at_knee)
    width = shutil.get_terminal_size().columns
    return plot(lines, width, ramp(sys.stdout, os.environ), knee=knee, gpus=found.gpus, unit=driver.unit)


def _facts(found: Learnt) -> dict[str, Any]:
    import msgspec

    driver, result = found.driver, found.driver.result
    return {
        "points": [msgspec.to_builtins(point) for point in driver.points],
        "steps_from": driver.source,
        "unit": driver.unit,
        "gpus": found.gpus,
        "cap": found.cap,
        "knee": None if result is None else result.knee,
        "trusted": driver.trusted,
        "sure": None if result is None else result.sure,
        "ended": None if result is None else result.why,
        "best": None if result is None else result.curve.top,
        "limit": None if driver.limit is None else {"kind": driver.limit.kind, "text": driver.limit.text},
        "workers": driver.workers,
        "exit_code": found.code,
    }


def _deliver(found: Learnt, command: Sequence[str], workload: str) -> str:
    """Send the points to the service, or keep them; what is said of it."""
    import shlex
    import time

    from gsub import points
    from gsub.site import usable_site
    from profiler.points import Measured
    from profiler.records import new_id
    from profiler.workload import identify

    site = usable_site(os.environ)
    name = os.environ.get("SLURM_JOB_NAME", "")
    identity = identify(shlex.join(command), (), os.environ, name=name, own=workload)
    measured = Measured(
        id=new_id(),
        at=time.time(),
        source="learn",
        workload=identity.fingerprints[:8],
        cluster="" if site is None else site.cluster,
        gpu_type=points.gpu_type(os.environ),
        gpus=found.gpus,
        cap=found.cap,
        points=found.driver.points[-64:],
    )
    return points.deliver(measured, os.environ)


# --- what is known ----------------------------------------------------------------------------------------------------


def _show(words: Sequence[str]) -> int:
    from gsub.curve_view import plot, rows
    from gsub.points import deliver_kept
    from gsub.service import records
    from gsub.sparkline import ramp

    as_json = "--json" in words
    names = [word for word in words if word != "--json"]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        raise UserError("gsub learn --show takes one workload", fix="gsub learn --show NAME", exit_code=USAGE)
    deliver_kept(os.environ)
    found = [one for one in records().curves().curves if not names or _is(one, names[0])]
    if as_json:
        import msgspec

        from gsub.commands.submit import print_json

        print_json({"curves": [msgspec.to_builtins(one) for one in found]})
        return 0
    if not found:
        raise UserError(
            f"nothing was measured of a workload {names[0]}"
            if names
            else "nothing was measured of your workloads",
            fix="gsub learn SCRIPT measures one",
        )
    signs, width = ramp(sys.stdout, os.environ), shutil.get_terminal_size().columns
    for number, one in enumerate(found):
        if number:
            print()
        print("\n".join(harmless(line) for line in _about(one)))
        at_knee = next((rate for cpus, rate in one.curve if cpus == one.knee), None)
        lines = rows(one.measured, one.gpus, one.knee, at_knee)
        print("\n".join(plot(lines, width, signs, knee=one.knee, gpus=one.gpus, unit="rate")))
    return 0


def _is(one: WorkloadCurve, name: str) -> bool:
    """Whether a user means it: by its own name, a fingerprint, or the beginning of one."""
    from profiler.workload import owned

    known = (one.workload, *one.also)
    return owned(name) in known or any(each.startswith(name) for each in known)


def _short(name: str) -> str:
    """A name of the user's own as it is, a digest by its beginning, which `--show` understands too."""
    kind, _, rest = name.partition(":")
    return rest if kind == "own" else f"{kind}:{rest[:_DIGITS]}"


def _about(one: WorkloadCurve) -> Iterator[str]:
    import time

    from gsub.render import count
    from profiler.wording import size, span

    kind = f" of type {one.gpu_type}" if one.gpu_type else ""
    when = span(max(time.time() - one.at, 0))
    yield f"{_short(one.workload)}: {count(one.runs, 'run')} on {count(one.gpus, 'GPU')}{kind}, the last {when} ago"
    if one.knee is not None:
        more = "; more than were tried may give more" if one.open_end else ""
        sure = f" +- {one.spread:.1f}" if one.spread is not None else ""
        yield f"  CPUs for each GPU: {one.knee}{sure}{more}"
    if one.memory_peak is not None:
        yield f"  memory for each GPU: {size(one.memory_peak)} at most so far"
