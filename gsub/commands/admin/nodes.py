"""`gsub admin nodes`: which nodes jobs keep off, what speaks against them, and that one has been looked after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from profiler.answers import BadNode, BadNodes, NodeEvidence

__all__ = ["nodes", "table"]

HEADS: Final = (
    "NODE",
    "PARTITION",
    "REASON",
    "AVOIDED",
    "ROOT",
    "USERS",
    "RAN",
    "PROBABILITY",
    "SINCE",
    "LAST",
)
BRIEF: Final = ("NODE", "PARTITION", "REASON", "AVOIDED")
_RIGHT: Final = frozenset({"ROOT", "RAN", "PROBABILITY"})
_WHOSE: Final = {"root": "yes, by root's word", "user": "yes, by users' logs", "": "yes"}


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> None:
    """Nodes that jobs keep off, and what speaks against nodes.

    ROOT counts what Slurm, the kernel, NVML and the health checks said, USERS what jobs' logs did and of how many
    users: one for each user, workload and day, and for all that fails at once. RAN is how many workloads ran there,
    the older the less. PROBABILITY is that they fail there more than elsewhere in the partition. See
    docs/bad-nodes.md.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gsub.service import records

    found = records().bad_nodes()
    if as_json:
        from gsub.commands.submit import print_json

        print_json(_facts(found))
    else:
        print("\n".join(table(found)))


@nodes.command()
@click.argument("node")
@click.option("--why", required=True, metavar="TEXT", help="What was done, like 'GPU 3 replaced'. Kept.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clear(node: str, why: str, as_json: bool) -> None:
    """Say that NODE has been looked after: what speaks against it so far counts no more. For operators.

    Jobs go there again within seconds. What comes after counts as ever.
    """
    from gsub.service import records

    done = records().clear_node(node, why)
    if as_json:
        from gsub.commands.submit import print_json

        print_json(_facts(done))
        return
    from gsub.term import one_line

    print(f"{one_line(done.node)}: what was known until {_date(done.at)} counts no more")


def table(found: BadNodes) -> Iterator[str]:
    """The table as text, a line a node, partition and reason; harmless on a terminal."""
    from gsub.term import one_line

    if found.at is None:
        yield "nothing is known yet: the service has not weighed the evidence since it started"
        return
    yield f"as of {_date(found.at)}"
    if found.nodes:
        full = any(one.root or one.user for one in found.nodes)
        heads = HEADS if full else BRIEF
        rows = [heads, *(_cells(one, full=full) for one in found.nodes)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
        for row in rows:
            yield "  ".join(_padded(row, heads, widths)).rstrip()
    else:
        yield "no node is avoided"
    for one in found.cleared:
        by = f" by {one_line(one.by)}" if one.by else ""
        yield f"{one_line(one.node)} was cleared on {_date(one.at)}{by}: {one_line(one.why)}"


def _padded(row: Sequence[str], heads: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for head, cell, width in zip(heads, row, widths, strict=True):
        yield cell.rjust(width) if head in _RIGHT else cell.ljust(width)


def _cells(one: BadNode, *, full: bool) -> tuple[str, ...]:
    from gsub.term import one_line

    named = (one_line(one.node), one_line(one.partition), one_line(one.reason), _effect(one))
    if not full:
        return named
    decides = _deciding(one)
    times = [each for each in (one.root, one.user) if each is not None]
    since = min((each.since for each in times if each.since is not None), default=None)
    last = max((each.last for each in times if each.last is not None), default=None)
    return (
        *named,
        "0" if one.root is None else str(one.root.votes),
        "0" if one.user is None else f"{one.user.votes} of {one.user.users}",
        "n/a" if decides is None else f"{decides.trials:.1f}",
        "n/a" if decides is None else _percent(decides.probability),
        _date(since),
        _date(last),
    )


def _effect(one: BadNode) -> str:
    if one.avoided:
        return _WHOSE.get(one.by, "yes")
    return "no room: a tenth is" if one.by else "no"


def _deciding(one: BadNode) -> NodeEvidence | None:
    """The evidence that decides; where none does, the stronger one."""
    if one.by:
        return one.root if one.by == "root" else one.user
    return max(
        (each for each in (one.root, one.user) if each), key=lambda each: each.probability, default=None
    )


def _percent(value: float) -> str:
    """Almost sure is not sure.

    >>> _percent(0.9712), _percent(0.99999), _percent(0.0001)
    ('97 %', '>99 %', '<1 %')
    """
    if value >= 0.995:
        return ">99 %"
    return "<1 %" if value < 0.005 else f"{100 * value:.0f} %"


def _facts(value: Any) -> Any:  # noqa: ANN401 - JSON
    """An answer as JSON with all that it has, also where that is its default."""
    if isinstance(value, tuple):
        return [_facts(one) for one in value]
    names = getattr(value, "__struct_fields__", None)
    return value if names is None else {name: _facts(getattr(value, name)) for name in names}


def _date(at: float | None) -> str:
    return "n/a" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
