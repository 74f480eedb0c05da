"""Scenarios of the decision: it is made, it is what the mode allows, and Slurm's own answers stay what they are."""

from __future__ import annotations

from typing import Final

from slurm_plugins.install.selftest.outcome import EndedError, Steps, failed, ok, skipped
from slurm_plugins.install.selftest.queue import Asked, Wish
from slurm_plugins.install.selftest.shown import differences
from slurm_plugins.install.selftest.world import DOCTOR, World, until

__all__ = ["cpu_only", "decision", "limits", "opt_out"]

_TRIES: Final = 3
_WRITTEN_SECONDS: Final = 15.0
_COMMENT: Final = frozenset({"Comment", "SubmitLine"})
_MARK: Final = frozenset({"AdminComment"})
_TOO_MANY: Final = 10_000
"""GPUs that no node has."""


def decision(world: World) -> Steps:
    """A job with a GPU is decided about, and changed in enforce alone."""
    world.needs_gpus()
    queue = world.queue
    twin = world.twin()
    asked, tries = _asked(world)
    if not asked.said:
        return failed(
            f"{tries} submissions in a row passed without a decision: gsubd was not asked, or did not answer in time",
            f"{DOCTOR}: it looks at job_submit.lua, the shim's files, gsubd and its socket",
            submit_seconds=round(asked.seconds, 3),
        )
    assert asked.job is not None and twin.job is not None  # noqa: S101 - submit() made them
    changed = differences(queue.shown(twin.job), queue.shown(asked.job))
    queue.cancel(asked.job)
    made = any(line.startswith("gsub set ") for line in asked.said)
    facts = {
        "mode": world.mode,
        "tries": tries,
        "changed_fields": len(changed),
        "submit_seconds": round(asked.seconds, 3),
        "submit_seconds_without": round(twin.seconds, 3),
    }
    if world.mode != "enforce" and (changed or made):
        what = ", ".join(changed) or "told as made"
        return failed(
            f"the site is in {world.mode}, and yet the job is not as it was asked for: {what}",
            "'gsub admin mode' says which mode gsubd has in force; until it is clear, systemctl stop gsubd",
            **facts,
        )
    if world.mode == "enforce" and made and not set(changed) - _MARK:
        return failed(
            "gsub told of a change in enforce, and the job does not have it",
            f"{DOCTOR}; the slurmctld log has what the shim dropped",
            **facts,
        )
    if world.journal is not None:
        yield from until(
            queue.clock.now,
            _WRITTEN_SECONDS,
            lambda: world.written(asked.digest),
            lambda: failed(
                "the decision was made, and gsubd did not write it down",
                "is the disk of gsubd's state folder full? Its log and gsub_records_dropped_total tell",
                **facts,
            ),
        )
    done = f"changed in {', '.join(changed)}" if changed else "the job is as it was asked for"
    return ok(f"decided in {world.mode}; {done}", **facts, written=world.journal is not None or None)


def _asked(world: World) -> tuple[Asked, int]:
    """A job that asks gsub to tell all. A busy machine may answer after the shim's deadline: then again."""
    queue = world.queue
    for tries in range(1, _TRIES + 1):
        asked = queue.submit(Wish("decision", gpus=queue.open_gpus, later=True, word="explain"))
        if asked.said:
            break
        if tries < _TRIES:
            assert asked.job is not None  # noqa: S101 - submit() made it
            queue.cancel(asked.job)
            queue.made.remove(asked.job)
    return asked, tries


def cpu_only(world: World) -> Steps:
    """A job without GPUs passes at once: gsubd is not asked."""
    yield
    asked = world.queue.ask(Wish("cpu-only", gpus=0, word="explain"), only=True)
    if asked.code:
        return skipped(f"the site takes no job without GPUs here: {asked.last}")
    if asked.said or world.written(asked.digest) is not None:
        return failed(
            "a job without GPUs was asked about",
            f"{DOCTOR}: the shim's files may not be of one version",
        )
    return ok("not asked about", submit_seconds=round(asked.seconds, 3))


def opt_out(world: World) -> Steps:
    """A user who says gsub:off is left alone."""
    yield
    world.needs_gpus()
    queue = world.queue
    twin = world.twin()
    asked = queue.submit(
        Wish("opt-out", gpus=queue.open_gpus, later=True, word="explain", comment="gsub:off")
    )
    assert asked.job is not None and twin.job is not None  # noqa: S101 - submit() made them
    changed = differences(queue.shown(twin.job), queue.shown(asked.job), but=_COMMENT)
    queue.cancel(asked.job)
    if asked.said or changed or world.written(asked.digest) is not None:
        what = f"changed in {', '.join(changed)}" if changed else "asked about"
        return failed(
            f"a job with --comment=gsub:off was {what}",
            f"does the site's own job_submit.lua change comments? Else: {DOCTOR}",
        )
    return ok("--comment=gsub:off leaves a job alone", submit_seconds=round(asked.seconds, 3))


def limits(world: World) -> Steps:
    """A job that can never run is refused as Slurm does; gsub's words come beside that, in enforce instead of it."""
    yield
    world.needs_gpus()
    options = ("--nodes=1", f"--gpus-per-node={_TOO_MANY}")
    alone = world.queue.ask(Wish("limits", gpus=0, word="off", options=options), only=True)
    asked = world.queue.ask(Wish("limits", gpus=0, word="explain", options=options), only=True)
    if not alone.code:
        raise EndedError(skipped(f"Slurm takes a job of {_TOO_MANY} GPUs on a node here"))
    words = len(set(asked.lines) - set(alone.lines))
    facts = {"mode": world.mode, "words": words}
    if not asked.code:
        return failed("Slurm refuses the job without gsub, and takes it with gsub", DOCTOR, **facts)
    if world.mode != "enforce" and set(alone.lines) - set(asked.lines):
        return failed(
            f"the site is in {world.mode}, and yet Slurm's own words to the user are not shown",
            "'gsub admin mode' says which mode gsubd has in force",
            **facts,
        )
    return ok(f"refused, as without gsub; gsub adds {words} line{'s' * (words != 1)}", **facts)
