"""The configuration files of a development cluster: pure text from a specification.

Facts of `slurm.conf` on one machine (several slurmd, GPU device files, cgroups off) are in docs/devcluster.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from site_configs.devcluster import layouts
from site_configs.devcluster.agents import HOOKS
from site_configs.devcluster.spec import (
    CPUS_PER_NODE,
    GPU_MODEL,
    GSUB_USER,
    MEMORY_MB_PER_NODE,
    ClusterSpec,
    Paths,
)

PARTITIONS: Final = {
    "gpu": "Default=YES MaxTime=7-00:00:00 DefaultTime=01:00:00 PriorityTier=1",
    "debug": "MaxTime=00:30:00 DefaultTime=00:10:00 PriorityTier=1",
    # preempts jobs of the two above, by requeue
    "urgent": "MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=10",
}


_DELAYS: Final = {
    "AuthInfo": "",
    "KillWait": "5",
    "SchedulerParameters": "batch_sched_delay=0,bf_interval=2,sched_min_interval=100000",
}
_SHORT_DELAYS: Final = {
    # Slurm keeps a requeued job back as long as its credential lives, 120 s by default. Under 15 s gsub holds a job to
    # change it, and does not at most sites; a step that starts later than this on a busy machine is refused.
    "AuthInfo": ",cred_expire=20",
    "KillWait": "2",
    "SchedulerParameters": "batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=100000",
}


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports on the loopback address, a run of consecutive numbers from `base`."""

    base: int

    @property
    def slurmctld(self) -> int:
        """The controller's."""
        return self.base

    @property
    def slurmdbd(self) -> int:
        """The accounting daemon's."""
        return self.base + 1

    @property
    def mariadb(self) -> int:
        """The database's."""
        return self.base + 2

    @property
    def gsubd(self) -> int:
        """gsubd's HTTP."""
        return self.base + 3

    @property
    def api(self) -> int:
        """gsub's HTTP API."""
        return self.base + 4

    def slurmd(self, index: int) -> int:
        """The node daemon's of node number `index` (from 1)."""
        return self.base + 4 + index

    @staticmethod
    def count(spec: ClusterSpec) -> int:
        """How many ports a cluster takes."""
        return 5 + spec.nodes


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the daemons run as, and what this machine is called.

    `slurm_user` runs slurmctld and slurmdbd, `slurmd_user` the node daemons (root where there are several users).
    """

    hostname: str
    slurm_user: str
    slurmd_user: str


def slurm_conf(spec: ClusterSpec, paths: Paths, ports: Ports, who: Identity) -> str:
    """The cluster's slurm.conf; the same text serves 22.05 to 26.05."""
    cpus_per_gpu = CPUS_PER_NODE // spec.gpus
    delays = _SHORT_DELAYS if spec.short_delays else _DELAYS
    lines = [
        "# Development cluster, written by site_configs.devcluster; `up` writes it again.",
        f"ClusterName={spec.name}",
        f"SlurmctldHost={who.hostname}(127.0.0.1)",
        f"SlurmctldPort={ports.slurmctld}",
        f"SlurmUser={who.slurm_user}",
        f"SlurmdUser={who.slurmd_user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={paths.munge_socket}{delays['AuthInfo']}",
        "CredType=cred/munge",
        f"StateSaveLocation={paths.root}/spool/slurmctld",
        f"SlurmdSpoolDir={paths.root}/spool/%n",
        f"SlurmctldPidFile={paths.run}/slurmctld.pid",
        f"SlurmdPidFile={paths.run}/slurmd-%n.pid",
        f"SlurmctldLogFile={paths.log}/slurmctld.log",
        f"SlurmdLogFile={paths.log}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "LogTimeFormat=iso8601_ms",
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "PrologFlags=Alloc",
        "ReturnToService=2",
        f"KillWait={delays['KillWait']}",
        "MinJobAge=300",
        "TCPTimeout=5",
        "SlurmctldTimeout=60",
        "SlurmdTimeout=300",
        "JobRequeue=1",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={delays['SchedulerParameters']}",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "GresTypes=gpu",
        "TopologyPlugin=topology/tree",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "JobCompType=jobcomp/none",
    ]
    if spec.gsub:
        lines.append("JobSubmitPlugins=lua")
    if spec.has_agents:
        lines += [f"{key}={paths.libexec}/{name}" for key, name in HOOKS.items()]
    if spec.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={ports.slurmdbd}",
            f"AccountingStoragePass={paths.munge_socket}",
            "AccountingStorageTRES=gres/gpu",
            "AccountingStorageEnforce=associations,limits,qos",
            "AccountingStoreFlags=job_comment,job_script,job_env",
            "PriorityType=priority/multifactor",
        ]
    else:
        lines += ["AccountingStorageType=accounting_storage/none"]
    for leaf, members in spec.leaves.items():
        for layout, group in groupby(members, key=spec.layout):
            nodes = tuple(group)
            start, stop = int(nodes[0][1:]), int(nodes[-1][1:])
            lines.append(
                f"NodeName={_nodes(nodes)} NodeHostname={who.hostname} NodeAddr=127.0.0.1 "
                f"Port={_range(ports.slurmd(start), ports.slurmd(stop))} "
                f"CPUs={CPUS_PER_NODE} Sockets=2 CoresPerSocket={CPUS_PER_NODE // 2} ThreadsPerCore=1 "
                f"RealMemory={MEMORY_MB_PER_NODE} Gres={layouts.gres(layout, spec.gpus, GPU_MODEL)} "
                f"Feature={GPU_MODEL},{leaf}"
            )
    everyone = _nodes(spec.node_names)
    # Without a stated need a job gets CPUs and memory in proportion to its GPUs, as most sites have it.
    defaults = f"DefCpuPerGPU={cpus_per_gpu} DefMemPerCPU={MEMORY_MB_PER_NODE // CPUS_PER_NODE}"
    lines += [
        f"PartitionName={name} Nodes={everyone} {limits} State=UP {defaults}"
        for name, limits in PARTITIONS.items()
    ]
    return "\n".join(lines) + "\n"


def gres_conf(spec: ClusterSpec, paths: Paths) -> str:
    """The GPUs' device files; a `Count` without `File` would make the nodes INVAL."""
    lines = []
    for layout, group in groupby(spec.node_names, key=spec.layout):
        lines += layouts.gres_conf(_nodes(tuple(group)), layout, spec.gpus, GPU_MODEL, paths.dev)
    return "\n".join(lines) + "\n"


def topology_conf(spec: ClusterSpec) -> str:
    """Two leaf switches under a spine."""
    leaves = [f"SwitchName={leaf} Nodes={_nodes(nodes)}" for leaf, nodes in spec.leaves.items()]
    return "\n".join([*leaves, f"SwitchName=spine Switches={','.join(spec.leaves)}"]) + "\n"


def cgroup_conf() -> str:
    """cgroups off: wanted by 24.11 and newer; 22.05 does not know the key and needs none."""
    return "CgroupPlugin=disabled\n"


def slurmdbd_conf(paths: Paths, ports: Ports, who: Identity, password: str) -> str:
    """slurmdbd.conf; holds the database's password, so its mode is 0600."""
    return "\n".join(
        [
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={ports.slurmdbd}",
            f"SlurmUser={who.slurm_user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={paths.munge_socket}",
            f"LogFile={paths.log}/slurmdbd.log",
            f"PidFile={paths.run}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={ports.mariadb}",
            "StorageUser=slurm",
            f"StoragePass={password}",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def _nodes(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"n[{names[0][1:]}-{names[-1][1:]}]"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def site_toml(spec: ClusterSpec, paths: Paths, ports: Ports, user: str = GSUB_USER) -> str:
    """The cluster's site file, as a sysadmin would write it; `user` runs gsubd."""
    lines = [
        "# The development cluster as a site; every key is in docs/site-file.md.",
        f'cluster = "{spec.name}"',
        'name = "Development cluster"',
        "",
        "[slurm]",
        f'conf = "{paths.slurm_conf}"',
        f'munge_socket = "{paths.munge_socket}"',
        "",
        "[topology]",
        f'file = "{paths.etc}/topology.conf"',
        "",
        "[policy]",
        f'mode = "{spec.policy}"',
        "",
        "[service]",
        f'socket = "{paths.decision_socket}"',
        f'user = "{user}"',
        *([f'url = "http://127.0.0.1:{ports.api}"'] if spec.gsub else []),
        "",
        "[store]",
        f'url = "sqlite:///{paths.gsub_state}/store.db"',
        "",
        "[agent]",
        "# jobs are short here; a site's default is 10 s and 60 s",
        'interval = "2 s"',
        'report = "4 s"',
        "",
        f"[gpu_types.{GPU_MODEL}]",
        'memory = "80G"',
        'product = "NVIDIA A100-SXM4-80GB"',
    ]
    for name in PARTITIONS:
        lines += [
            "",
            f"[partitions.{name}]",
            f'nodes = "{_nodes(spec.node_names)}"',
            f"gpus_per_node = {spec.gpus}",
            f"cpus_per_node = {CPUS_PER_NODE}",
            f'memory_per_node = "{MEMORY_MB_PER_NODE}M"',
            f'gpu_type = "{GPU_MODEL}"',
        ]
    return "\n".join(lines) + "\n"
