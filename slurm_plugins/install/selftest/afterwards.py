"""Scenarios of what is left: no node drained, no job, no hold."""

from __future__ import annotations

from typing import Final

from slurm_plugins.client.errors import SlurmError
from slurm_plugins.install.selftest.outcome import Steps, failed, ok, skipped
from slurm_plugins.install.selftest.world import World

__all__ = ["cleanup", "nodes"]

_CLEAR_SECONDS: Final = 60.0


def nodes(world: World) -> Steps:
    """The nodes are as well as before: none of those that had a job is drained or down."""
    yield
    used = {name for job in world.queue.made for one in world.queue.jobs(job) for name in one.nodes}
    try:
        now = {node.name: node for node in world.all_nodes()}
    except SlurmError as error:
        return skipped(f"Slurm does not tell of its nodes: {error}")
    lost = [
        node.name
        for node in world.nodes
        if node.available and (node.name not in now or not now[node.name].available)
    ]
    ours = [name for name in lost if name in used]
    facts = {"nodes": len(world.nodes), "used": len(used), "lost": len(lost)}
    if ours:
        reasons = "; ".join(sorted({now[name].reason or "no reason" for name in ours if name in now}))
        return failed(
            f"{len(ours)} nodes that ran a job of the selftest take no jobs any more: {reasons}",
            "look at 'sinfo -R'; scontrol update NodeName=... State=RESUME once the cause is known",
            **facts,
        )
    also = f"; {len(lost)} others were lost meanwhile" if lost else ""
    return ok(f"{len(used)} nodes ran jobs, and none was drained{also}", **facts)


def cleanup(world: World) -> Steps:
    """No job of the selftest is left, held or waiting."""
    yield
    until = world.queue.clock.now() + _CLEAR_SECONDS
    while True:
        try:
            left = world.queue.clear(0.0)
        except SlurmError as error:
            return failed(
                f"Slurm does not tell what is left: {error}",
                f"scancel --user={world.queue.who.name} --name=gsub-selftest",
            )
        if not left:
            return ok("no job is left", jobs=world.queue.count)
        if world.queue.clock.now() >= until:
            return failed(
                f"{len(left)} jobs of the selftest are still there",
                f"scancel --user={world.queue.who.name} --name=gsub-selftest",
                left=len(left),
            )
        yield
