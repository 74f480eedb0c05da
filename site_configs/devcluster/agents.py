"""gsub on a cluster's nodes, as a sysadmin would install it: the hooks in slurm.conf, and an agent beside each slurmd.

One host stands for all nodes, so each node has its own folders, which a hook finds by SLURMD_NODENAME.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from site_configs import placing
from site_configs.devcluster.pythonenv import REPOSITORY
from site_configs.devcluster.spec import DevClusterError, Paths

PREFIX: Final = "noded-"
HOOKS: Final = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog"}
"""Keys of slurm.conf, and the files they name."""
_SOURCE: Final = REPOSITORY / "prolog_epilog"
_NODE: Final = "$SLURMD_NODENAME"


def argv(paths: Paths, node: str) -> list[str]:
    """The agent of a node, in the foreground."""
    return [
        f"{paths.venv}/bin/gsub-noded",
        f"--site={paths.site}",
        f"--node={node}",
        f"--run={paths.agent_run(node)}",
        f"--spool={paths.agent_spool(node)}",
        f"--slurmd-spool={paths.root}/spool/{node}",
    ]


def environment(paths: Paths, node: str) -> dict[str, str]:
    """What shows the node's emulated GPUs to its agent."""
    return {
        "LD_LIBRARY_PATH": str(paths.lib),
        "GSUB_EMU_GPUS": str(paths.gpus),
        "GSUB_EMU_NODE": node,
    }


def folders(paths: Paths, node: str) -> tuple[Path, ...]:
    """What systemd-tmpfiles makes on a real node: root's own, and there before the first hook."""
    both = (paths.agent_run(node), paths.agent_spool(node))
    return (*both, *(folder / "new" for folder in both))


def hook(name: str, paths: Paths) -> str:
    """A hook as shipped, with this cluster's folders for those of an ordinary installation.

    Raises DevClusterError: the hook has no line for its folder.
    """
    spool, run = paths.agent_spool(_NODE), paths.agent_run(_NODE)
    try:
        return placing.hook((_SOURCE / name).read_text(), spool=str(spool), run=str(run))
    except placing.PlacingError as error:
        raise DevClusterError(f"{_SOURCE / name}: {error}") from error


def install_hooks(paths: Paths) -> None:
    """Copy the hooks, each at once: slurmd may be running them now."""
    paths.libexec.mkdir(parents=True, exist_ok=True)
    for name in HOOKS.values():
        fresh = paths.libexec / f".{name}.new"
        fresh.write_text(hook(name, paths))
        fresh.chmod(0o755)
        fresh.replace(paths.libexec / name)
