"""`python -m site_configs.devcluster up|down|status|restart|env|run`: a real Slurm on this machine."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import cast

import click

from site_configs.devcluster.cluster import Cluster
from site_configs.devcluster.layouts import LAYOUTS, Layout
from site_configs.devcluster.spec import (
    POLICIES,
    RELEASES,
    ClusterSpec,
    DevClusterError,
    NotUpError,
    Policy,
    Release,
)

_name = click.option(
    "--name", default="dev", show_default=True, help="Which cluster; several stand side by side."
)


class _Group(click.Group):
    """Tells a `DevClusterError` in its own words, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; exit 1 when the cluster cannot do what was asked."""
        try:
            return super().invoke(ctx)
        except DevClusterError as error:
            click.echo(f"devcluster: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            raise  # click's own business
        except OSError as error:
            click.echo(f"devcluster: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Group)
def main() -> None:
    """A real Slurm on this machine: n nodes with emulated GPUs, on loopback ports of their own."""


@main.command()
@_name
@click.option("--nodes", default=8, show_default=True, help="Nodes n1, n2... on two leaf switches.")
@click.option("--gpus", default=8, show_default=True, help="Emulated GPUs a node.")
@click.option(
    "--slurm", type=click.Choice(RELEASES), default="host", show_default=True, help="Whose Slurm packages."
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="observe",
    show_default=True,
    help="Mode in the site file.",
)
@click.option("--accounting/--no-accounting", default=True, show_default=True, help="slurmdbd on MariaDB.")
@click.option("--gsub/--no-gsub", default=True, show_default=True, help="Shim and gsubd.")
@click.option(
    "--agents/--no-agents", default=True, show_default=True, help="Hooks, and gsub-noded on each node."
)
@click.option("--layouts", default="", help=f"Of the GPUs of n1,n2...: {', '.join(LAYOUTS)}; default: plain.")
@click.option("--deadline", type=float, help="Of the shim, in seconds, at most 1; default: its own, 50 ms.")
def up(  # noqa: PLR0917 - click passes them by name
    name: str,
    nodes: int,
    gpus: int,
    slurm: Release,
    policy: Policy,
    accounting: bool,
    gsub: bool,
    agents: bool,
    layouts: str,
    deadline: float | None,
) -> None:
    """Start the cluster; once it is up, do nothing but renew its copy of gsub."""
    laid_out = cast(tuple[Layout, ...], tuple(filter(None, layouts.split(","))))
    spec = ClusterSpec(
        name, nodes, gpus, slurm, policy, accounting, gsub, deadline, agents=agents, layouts=laid_out
    )
    started = time.monotonic()
    cluster = Cluster.up(spec, say=_progress())
    took = time.monotonic() - started
    click.echo(f"cluster {name!r} is up: Slurm {cluster.version}, {nodes} nodes x {gpus} GPUs ({took:.1f} s)")


@main.command()
@_name
@click.option("--all", "everything", is_flag=True, help="Every cluster of this user.")
def down(name: str, everything: bool) -> None:
    """End the cluster and remove its state; no process and no mount stays."""
    failed = False
    for each in Cluster.names() if everything else (name,):
        try:
            ended = Cluster.down(each)
        except (DevClusterError, OSError) as error:
            # the others are ended all the same
            click.echo(f"devcluster: {error}", err=True)
            failed = True
            continue
        click.echo(f"cluster {each!r} is down" if ended else f"there is no cluster {each!r}")
    sys.exit(1 if failed else 0)


@main.command()
@_name
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(name: str, as_json: bool) -> None:
    """Say what runs; exit 1 when the cluster is not up."""
    try:
        facts = Cluster.find(name).status()
    except NotUpError:
        facts = {"name": name, "up": False}
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    elif facts["up"]:
        click.echo(
            f"cluster {name!r}: Slurm {facts['version']} ({facts['release']}), state in {facts['state']}"
        )
        click.echo(f"nodes: {', '.join(facts['node_states'])}; daemons: {', '.join(facts['daemons'])}")
    else:
        click.echo(f"cluster {name!r} is not up")
    sys.exit(0 if facts["up"] else 1)


@main.command()
@_name
@click.argument("daemon")
def restart(name: str, daemon: str) -> None:
    """Restart one daemon: gsubd after a change to gsub, slurmctld, slurmdbd, slurmd-n3..."""
    Cluster.find(name).restart(daemon)
    click.echo(f"{daemon} is restarted")


@main.command()
@_name
def env(name: str) -> None:
    """Print the variables that make a shell part of the cluster: eval "$(... env)"."""
    cluster = Cluster.find(name)
    if cluster.rootfs.is_chroot:
        raise DevClusterError(
            f"cluster {name!r} runs Slurm of Debian {cluster.release} in a chroot, which this shell is not in.\n"
            f"Use: run --name {name} -- bash"
        )
    for key, value in cluster.env.items():
        click.echo(f"export {key}={shlex.quote(value)}" + (':"$PATH"' if key == "PATH" else ""))


@main.command(context_settings={"ignore_unknown_options": True})
@_name
@click.option("--user", help="One of the cluster's ordinary users; default: whoever runs this.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str, user: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND inside the cluster's environment, chroot included; its exit code is ours."""
    cluster = Cluster.find(name)
    cluster.say = lambda text: click.echo(f"devcluster: {text}", err=True)
    cluster.exec(command, user=user)


def _progress() -> Callable[[str], None]:
    started = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:5.1f} s] {text}", err=True)

    return say


if __name__ == "__main__":
    # What ends a command must let it clean up, as Ctrl-C does: a half-made cluster is taken down again.
    for sig in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sig) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(sig, lambda number, _: sys.exit(128 + number))
    main(prog_name="python -m site_configs.devcluster")
