"""`gsub admin replay`: what policies would have done to a trace of jobs, side by side."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gsub.errors import USAGE, UserError
from gsub.page_file import put, refuse

if TYPE_CHECKING:
    from gsub.replay_view import Compared
    from slurm_plugins.replay.cluster_of import Found
    from slurm_plugins.replay.policy import Policy
    from slurm_plugins.replay.runs import Done, Run
    from slurm_plugins.replay.traces import Reading
    from slurm_plugins.replay.values import Trace

__all__ = ["replay"]

_POLICIES: Final = ("fifo+pack", "fifo+easy")
_OF_SLURM: Final = ("slurm", "fifo+easy")
"""For a trace of Slurm's."""
_SHORT: Final = 5000
"""A trace with fewer jobs is replayed in this process, sooner than another starts, unless --processes is given."""
_EXTRA: Final = frozenset({"numpy", "jinja2", "markupsafe"})


@click.command()
@click.argument("trace")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="A policy, like slurm, fifo+pack or philly; said several times, they are compared. "
    "[fifo+easy, with slurm for an export of sacct, else with fifo+pack]",
)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The cluster: a site file, slurm.conf, or what 'scontrol -o show node' printed. [as the trace tells]",
)
@click.option(
    "--nodes", metavar="NxG", help="The cluster, in short: 64x8, 64x8:96c:512G, 64x8/16 (16 a leaf)."
)
@click.option(
    "--quotas",
    metavar="Q",
    help="What queues may count on: demand (in proportion to what their jobs hold), even, or QUEUE=GPUS,... [demand, "
    "where a policy has quotas]",
)
@click.option(
    "--qos", type=click.Path(path_type=Path), metavar="FILE", help="For slurm: of 'sacctmgr -P show qos'."
)
@click.option(
    "--shares", type=click.Path(path_type=Path), metavar="FILE", help="For slurm: of 'sshare -alP'."
)
@click.option(
    "--remedy",
    "remedies",
    multiple=True,
    metavar="RETRY[/SMOKE]",
    help="Have jobs fail as Philly's did, and be tried again so: none, three, philly, gsub, knowing; smoke runs: none, "
    "gate, race.",
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Only jobs that arrived then or later: a local date, or 7d from its begin.",
)
@click.option("--until", metavar="WHEN", help="Only jobs that arrived before then.")
@click.option("--gpu-jobs", is_flag=True, help="Leave out jobs without GPUs.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="What is drawn by chance is drawn by. [0]"
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Policies at a time. [one a CPU over a long trace]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="One page with plots, that needs nothing else: for a browser, a mail, a printer.",
)
def replay(  # noqa: PLR0917 - click gives them by their names
    trace: str,
    policies: tuple[str, ...],
    cluster: Path | None,
    nodes: str | None,
    quotas: str | None,
    qos: Path | None,
    shares: Path | None,
    remedies: tuple[str, ...],
    since: str | None,
    until: str | None,
    gpu_jobs: bool,
    seed: int,
    processes: int | None,
    as_json: bool,
    html: Path | None,
) -> None:
    """What would these policies have done to last month? Nothing is asked of Slurm, nothing is changed.

    TRACE is an export of sacct (docs/replay.md has the command), a published trace (Philly, ITP, openb, Synergy),
    "-" for standard input, or jobs that are drawn: generate:jobs=1000,per_hour=60,like=philly.
    """
    if as_json and html is not None:
        raise UserError("--json and --html exclude each other", fix="give one of them", exit_code=USAGE)
    if cluster is not None and nodes is not None:
        raise UserError("--cluster and --nodes exclude each other", fix="give one of them", exit_code=USAGE)
    with _telling():
        if html is not None:
            refuse(html, "replay")
        reading = _narrowed(_read(trace), since, until, gpu_jobs=gpu_jobs)
        made = _compared(
            reading,
            policies or (_OF_SLURM if reading.kind == "sacct" else _POLICIES),
            remedies,
            cluster=_Places(cluster, nodes, quotas, qos, shares),
            seed=seed,
            processes=processes,
        )
        _put(made, as_json=as_json, html=html)


@contextmanager
def _telling() -> Iterator[None]:
    """Tell what is wrong with what was given, and what is not installed. Raises UserError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        raise UserError(
            "this gsub cannot replay",
            why=f"{package} is not installed here",
            fix="pip install 'gsub[replay]' into gsub's environment",
            exit_code=USAGE,
        ) from error


# --- what is replayed -----------------------------------------------------------------------------------------------


def _read(text: str) -> Reading:
    from slurm_plugins.replay.traces import TraceError, read
    from slurm_plugins.replay.traces.generate import PREFIX, generated

    try:
        if text.startswith(PREFIX):
            return generated(text)
        if text == "-":
            with tempfile.TemporaryDirectory(prefix="gsub-replay-") as folder:
                path = Path(folder, "standard input")
                with path.open("wb") as file:
                    while piece := sys.stdin.buffer.read(1 << 20):
                        file.write(piece)
                return read(path)
        return read(Path(text))
    except TraceError as error:
        raise UserError(error.problem, fix=error.remedy, exit_code=USAGE) from error


def _narrowed(reading: Reading, since: str | None, until: str | None, *, gpu_jobs: bool) -> Reading:
    """The jobs that are asked for; the others are counted. Raises UserError where none is left."""
    from dataclasses import replace

    from gsub.replay_view import days

    trace = reading.trace
    begin = None if since is None else _when(trace, since, "--since")
    end = None if until is None else _when(trace, until, "--until")
    if begin is not None:
        trace = trace.only(trace["arrival"] >= begin, f"arrived before {since}")
    if end is not None:
        trace = trace.only(trace["arrival"] < end, f"arrived at {until} or later")
    if gpu_jobs and len(trace):
        trace = trace.only(trace["gpus"] > 0, "no GPU")
        if not len(trace):
            raise _no_gpus(reading)
    if not len(trace):
        first, last = (reading.trace["arrival"][place] for place in (0, -1))
        span = f"its jobs arrive within {(last - first) / 86400:,.1f} days"
        if trace.zero:
            span = f"its jobs arrive from {days(trace.zero + first, trace.zero + last)}"
        raise UserError("no job is left of the trace", why=span, fix="ask for another span", exit_code=USAGE)
    return replace(reading, trace=trace)


def _no_gpus(reading: Reading) -> UserError:
    """What to tell where --gpu-jobs leaves nothing: another span helps only where the trace has such jobs."""
    if (reading.trace["gpus"] > 0).any():
        why, fix = "none of the jobs of that span has a GPU", "ask for another span, or leave out --gpu-jobs"
    elif reading.kind == "sacct":
        why = "none of the jobs has a GPU: is gres/gpu in AccountingStorageTRES?"
        fix = "look with 'scontrol show config', or leave out --gpu-jobs"
    else:
        why, fix = "none of the jobs has a GPU", "leave out --gpu-jobs"
    return UserError("no job is left of the trace", why=why, fix=fix, exit_code=USAGE)


def _when(trace: Trace, text: str, option: str) -> float:
    """Seconds of the trace: so long after its begin, or a date. Raises UserError."""
    from site_configs.units import parse_duration

    first = float(trace["arrival"][0])
    try:
        return first + parse_duration(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"{option} {text}: no time",
            fix="write a date like 2026-10-15 or 2026-10-15T08:00, or how long after the trace's begin: 7d, 36 h",
            exit_code=USAGE,
        ) from None
    if not trace.zero:
        raise UserError(
            f"{option} {text}: the trace names no dates",
            fix="write how long after its begin: 7d",
            exit_code=USAGE,
        )
    return at - trace.zero


class _Places(NamedTuple):
    """Where the cluster and its rules are told of."""

    cluster: Path | None
    nodes: str | None
    quotas: str | None
    qos: Path | None
    shares: Path | None


def _cluster(reading: Reading, cluster: Path | None, nodes: str | None) -> Found:
    from dataclasses import replace

    from slurm_plugins.replay.cluster_of import Found, alike, cluster_of, fitting, inferred
    from slurm_plugins.replay.traces import TraceError

    try:
        if nodes is not None:
            found = Found(alike(nodes))
        elif cluster is not None:
            found = cluster_of(cluster, reading.cluster)
        elif reading.cluster is not None:
            note = (
                "nodes are those of the trace's jobs, as large as was in use at once: --cluster knows better"
            )
            found = Found(reading.cluster, (note,) if reading.kind == "sacct" else ())
        else:
            found = inferred(reading.trace)
        fits = fitting(found.cluster, reading.trace)
    except TraceError as error:
        raise UserError(error.problem, fix=error.remedy, exit_code=USAGE) from error
    return replace(found, cluster=fits.cluster, notes=(*found.notes, *fits.notes))


def _with_quotas(found: Found, trace: Trace, text: str | None, *, bound: bool) -> Found:
    """The cluster with quotas, where they are told or a policy has use for them. Raises UserError."""
    from dataclasses import replace

    from slurm_plugins.replay.quotas import quotas
    from slurm_plugins.replay.traces import TraceError

    queues = len(trace.words["queue"])
    if text is None and not (bound and queues > 1):
        return found
    try:
        made = quotas(text or "demand", trace, found.cluster.gpus)
    except TraceError as error:
        raise UserError(error.problem, fix=error.remedy, exit_code=USAGE) from error
    note = f"quotas of {queues} queues are supposed, in proportion to what their jobs hold: --quotas knows better"
    notes = found.notes if text else (*found.notes, note)
    return replace(found, cluster=replace(found.cluster, quotas=made), notes=notes)


# --- replaying ------------------------------------------------------------------------------------------------------


def _compared(
    reading: Reading,
    policies: Sequence[str],
    remedies: Sequence[str],
    *,
    cluster: _Places,
    seed: int,
    processes: int | None,
) -> Compared:
    from gsub.replay_view import Compared, Shown
    from slurm_plugins.replay.figures import RECORDED, figures, recorded
    from slurm_plugins.replay.policy import Policy, PolicyError
    from slurm_plugins.replay.runs import Remedy, Run

    try:
        wanted = [Policy.parse(text) for text in dict.fromkeys(policies)]
        tried: list[Remedy | None] = [Remedy.parse(text) for text in dict.fromkeys(remedies)]
    except PolicyError as error:
        raise UserError(f"--policy {error}", fix="docs/replay.md has all words", exit_code=USAGE) from error
    except ValueError as error:
        raise UserError(f"--remedy {error}", exit_code=USAGE) from error
    trace = reading.trace
    bound = any(one.quotas != "off" or one.order == "fair_share" for one in wanted)
    found = _with_quotas(
        _cluster(reading, cluster.cluster, cluster.nodes), trace, cluster.quotas, bound=bound
    )
    wanted = [_as_slurm(one, found, cluster) if one.order == "slurm" else one for one in wanted]
    runs = [
        Run(trace, found.cluster, policy, seed, remedy) for policy in wanted for remedy in tried or [None]
    ]
    done = _replayed(runs, processes)
    columns = [
        Shown(one.name, figures(trace, found.cluster, one.replayed), one.replayed, one.bill) for one in done
    ]
    was = recorded(trace)
    if was is not None:
        columns.append(Shown(RECORDED, figures(trace, found.cluster, was), was))
    notes = tuple(dict.fromkeys((*reading.notes, *found.notes)))
    return Compared(trace, reading.kind, found.cluster, columns, seed, notes)


def _as_slurm(policy: Policy, found: Found, told: _Places) -> Policy:
    """The policy with the site's own weights and intervals, as far as they are told of. Raises UserError."""
    from dataclasses import replace

    from slurm_plugins.replay.slurm_rules import SlurmRules
    from slurm_plugins.replay.traces.files import lines

    def text(path: Path) -> str:
        with lines(path) as some:
            return "\n".join(some)

    if not (found.slurm_conf or told.qos or told.shares):
        return policy
    # One after the other, so that what cannot be read is told with its file
    mend = "mend a copy of it, or of what it includes, and name that with --cluster"
    with _telling_of(found.conf, mend):
        rules = SlurmRules.parse(found.slurm_conf)
    if told.qos is not None:
        with _telling_of(told.qos, "write it anew: sacctmgr -P show qos"):
            rules = replace(rules, qos_priority=SlurmRules.parse("", qos=text(told.qos)).qos_priority)
    if told.shares is not None:
        with _telling_of(told.shares, "write it anew: sshare -alP"):
            rules = replace(rules, shares=SlurmRules.parse("", sshare=text(told.shares)).shares)
    return replace(policy, slurm=rules)


@contextmanager
def _telling_of(path: Path | None, fix: str) -> Iterator[None]:
    """Tell which file has what cannot be read of Slurm's own rules. Raises UserError."""
    from slurm_plugins.replay.traces import TraceError

    try:
        yield
    except TraceError as error:
        raise UserError(error.problem, fix=error.remedy, exit_code=USAGE) from error
    except ValueError as error:
        raise UserError(
            f"{path}: Slurm's own rules cannot be read: {error}", fix=fix, exit_code=USAGE
        ) from error


def _replayed(runs: Sequence[Run], processes: int | None) -> list[Done]:
    from gsub.term import Spinner
    from slurm_plugins.replay.runs import RunError, side_by_side

    spinner = Spinner()
    shares = [0.0] * len(runs)

    def told(number: int, share: float) -> None:
        shares[number] = share
        spinner.show("  ".join(f"{run} {part:.0%}" for run, part in zip(runs, shares, strict=True)))

    try:
        usual = 1 if len(runs[0].trace) < _SHORT else os.cpu_count() or 1
        return side_by_side(runs, processes=processes or usual, told=told)
    except RunError as error:
        raise UserError(f"{error.run} cannot be replayed", why=error.why) from error
    finally:
        spinner.hide()


# --- out ------------------------------------------------------------------------------------------------------------


def _put(made: Compared, *, as_json: bool, html: Path | None) -> None:
    from gsub.replay_view import as_data, show
    from profiler.wording import plain

    if as_json:
        import msgspec

        print(msgspec.json.encode(as_data(made)).decode())
    elif html is not None:
        from gsub.replay_page import page

        put(html, page(made), "replay")
        print(f"{plain(str(html))}: {len(made.trace):,} jobs, {len(made.columns)} columns")
    else:
        show(made)
