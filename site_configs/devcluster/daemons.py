"""The daemons of a cluster: the command of each, and who runs it."""

from __future__ import annotations

from site_configs.devcluster import agents, gsubd
from site_configs.devcluster.accounting import mariadb_argv
from site_configs.devcluster.config import Ports
from site_configs.devcluster.spec import ACT_USER, ClusterSpec, DevClusterError, Paths


def command(name: str, spec: ClusterSpec, paths: Paths, ports: Ports, mysql: str) -> tuple[list[str], str]:
    """The foreground command of daemon `name`, and the system user that runs it on a machine where we are root.

    Names are munged, mariadbd, slurmdbd, slurmctld, slurmd-<node>, gsubd, gsub-act and noded-<node>. `mysql` is the
    database's user.

    Raises
    ------
    DevClusterError: the cluster has no such daemon.
    """
    kind, _, node = name.partition("-")
    if kind == "munged":
        options = [f"--{what}-file={paths.munge / what}" for what in ("key", "pid", "seed", "log")]
        return [
            "/usr/sbin/munged",
            "--foreground",
            "--num-threads=2",
            f"--socket={paths.munge_socket}",
            *options,
        ], "munge"
    if kind == "mariadbd" and spec.accounting:
        return mariadb_argv(paths, ports, mysql), "mysql"
    if kind == "slurmdbd" and spec.accounting:
        return ["/usr/sbin/slurmdbd", "-D"], "slurm"
    if kind == "slurmctld":
        return ["/usr/sbin/slurmctld", "-D", "-f", str(paths.slurm_conf)], "slurm"
    if kind == "slurmd" and node in spec.node_names:
        return ["/usr/sbin/slurmd", "-D", "-N", node, "-f", str(paths.slurm_conf)], "root"
    if kind == "gsubd" and spec.gsub:
        return gsubd.argv(paths, ports), gsubd.USER
    if name == "gsub-act" and spec.has_act:
        return gsubd.act_argv(paths), ACT_USER
    if kind == "noded" and node in spec.node_names and spec.has_agents:
        return agents.argv(paths, node), "root"
    raise DevClusterError(f"cluster {spec.name!r} has no daemon {name!r}")


def environment(name: str, paths: Paths) -> dict[str, str]:
    """What daemon `name` finds in its environment besides what all find."""
    kind, _, node = name.partition("-")
    return agents.environment(paths, node) if kind == "noded" else {}
