"""What a site file says, as values: the site's tables, their keys, kinds, defaults and documentation.

Each field is one key of the file; docs/site-file.md is generated from it. Durations are seconds, sizes MiB,
and None means "not stated". `site_configs.site` loads the file.
"""

# ruff: noqa: RUF009 - t.key() makes a dataclasses.field, which ruff cannot know

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from site_configs import kinds as t
from site_configs.alerts_table import Alerts
from site_configs.clients_table import ClientProgram
from site_configs.resubmit_table import Resubmit

if TYPE_CHECKING:
    from site_configs.topology import Topologies

__all__ = [
    "MODES",
    "Account",
    "Agent",
    "Alerts",
    "Check",
    "ClientProgram",
    "Failures",
    "GpuType",
    "Health",
    "Locality",
    "Mode",
    "Partition",
    "Policy",
    "Receipt",
    "Resources",
    "Resubmit",
    "Service",
    "Site",
    "Slurm",
    "Smoke",
    "Store",
    "TopologySource",
]

Mode = Literal["observe", "advise", "enforce"]
MODES: tuple[Mode, ...] = ("observe", "advise", "enforce")
"""From the most cautious to the least."""

_USER = t.word("a user name", r"[a-z_][a-z0-9_.-]{0,63}\$?", "Write login names, not groups or uids.")
_CLUSTER = t.word(
    "a cluster name", r"[a-z0-9][a-z0-9_-]{0,39}", "Copy ClusterName from slurm.conf, in lower case."
)
_LINE = t.word("a short line of text", r"[^\x00-\x1f\x7f]{1,100}", "Write 1 to 100 characters on one line.")
_NAME = t.word(
    "a name", r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", "Write letters, digits, and _ . : - between them."
)
_PREFIX = t.word(
    "the start of a feature", r"[A-Za-z][A-Za-z0-9_.-]{0,31}", 'Write how the features start, like "leaf".'
)
_ARGUMENT = t.word(
    "a text", r"[^\x00]{1,4096}", "Write each argument as a text of its own; no shell reads it."
)
_SERVICE_URL = t.address(
    "the address of the service",
    r"https?://(\[[A-Fa-f0-9.:]+\]|[A-Za-z0-9.-]+)(:(?P<port>[0-9]*))?(/[^\s]*)?",
    'Write it like "http://controller:6831".',
)
_MAIL_HOST = t.address(
    "the address of a mail server",
    r"[A-Za-z0-9.-]{1,253}(:(?P<port>[0-9]{1,5}))?",
    'Write it like "smtp.example.org" or "localhost:25".',
)
_MAIL_FROM = t.word(
    "a mail address", r"[^\s<>,;:\x00-\x1f@]{1,64}@[A-Za-z0-9.-]{1,253}", 'Write it like "gsub@example.org".'
)
_MAIL_DOMAIN = t.word("a mail domain", r"[A-Za-z0-9.-]{1,253}", 'Write it like "example.org".')
_STORE_URL = t.word(
    "the address of a store",
    r"sqlite:////[^\s?#]+|postgresql\+psycopg://[^\s:@/]*(@[^\s@/]*)?/(?!\S*[?&]password=)[^\s]+",
    'Write "sqlite:////PATH" or "postgresql+psycopg://USER@HOST/NAME"; a password goes into ~/.pgpass.',
)


@dataclass(frozen=True, slots=True)
class Slurm:
    """Where Slurm is, when its commands do not find it by themselves."""

    conf: str = t.key(
        "", t.PATH, "slurm.conf, handed to Slurm's commands as SLURM_CONF. Unset: they look themselves."
    )
    bin: str = t.key("", t.PATH, "Folder of sbatch, squeue... Unset: PATH.")
    munge_socket: str = t.key("", t.PATH, "Socket of munged (AuthInfo in slurm.conf). Unset: MUNGE's own.")
    backend: Literal["commands", "pyslurm"] = t.key(
        "commands",
        t.choice("commands", "pyslurm"),
        "What gsub's services read nodes and partitions by. pyslurm must be 25.11.2 or newer.",
    )


@dataclass(frozen=True, slots=True)
class TopologySource:
    """Where the network's shape is declared: a file, or features; neither means a flat network."""

    file: str = t.key(
        "", t.PATH, "Slurm's topology.conf, or topology.yaml (25.05 and newer). Unset: no file."
    )
    feature_prefix: str = t.key(
        "",
        _PREFIX,
        "Without a topology plugin: the node features that start so name a leaf each. Unset: none do.",
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """How far gsub may go. Partitions and accounts may say otherwise."""

    mode: Mode = t.key(
        "observe",
        t.choice(*MODES),
        "observe: decide and record; advise: also tell the user; enforce: also change the job.",
    )
    rollout: int = t.key(
        100,
        t.PERCENT,
        "Share of users whom the mode covers, chosen by uid and stable; the others are observed.",
    )
    repack: bool = t.key(
        False, t.FLAG, "May gang change a stated shape (nodes x GPUs) of the same number of GPUs?"
    )
    retune: Literal["off", "lower", "both"] = t.key(
        "off",
        t.choice("off", "lower", "both"),
        "May sensitivity change stated CPUs and memory: not at all, down, or both ways?",
    )
    sensitivity: Literal["on", "share", "off"] = t.key(
        "on",
        t.choice("on", "share", "off"),
        "CPUs and memory that a job leaves open: by what was measured of its workload, by a GPU's share of a node "
        "alone, or left alone.",
    )


@dataclass(frozen=True, slots=True)
class Locality:
    """What keeping a job together is worth: a wait of up to (slowdown - 1) x run_time, at most max_wait.

    The two defaults serve workloads that nothing is known about yet.
    """

    slowdown: float = t.key(
        1.15,
        t.ratio(1, 10),
        "Run time of a spread job over that of a compact one; 1 means that spreading costs nothing.",
    )
    run_time: int = t.key(4 * 3600, t.DURATION, "Expected run time of a job.")
    max_wait: int = t.key(
        1800,
        t.DURATION,
        "Longest wait for locality. Slurm cuts it at max_switch_wait (SchedulerParameters, default 300 s).",
    )


@dataclass(frozen=True, slots=True)
class Resources:
    """Bounds on the CPUs and memory that gsub gives to a job, for each of its GPUs."""

    max_cpus_per_gpu: int | None = t.key(
        None, t.count(1, 4096, "CPUs"), "Most CPUs that gsub gives per GPU. Unset: no cap but the node."
    )
    max_memory_per_gpu: int | None = t.key(
        None, t.SIZE, "Most memory that gsub gives per GPU. Unset: no cap but the node."
    )
    keep_cpus_per_gpu: int = t.key(
        1, t.count(0, 4096, "CPUs"), "CPUs left for each remaining GPU of a node when a job gets more."
    )
    keep_memory_per_gpu: int = t.key(
        4096, t.SIZE, "Memory left for each remaining GPU of a node when a job gets more."
    )


@dataclass(frozen=True, slots=True)
class Smoke:
    """The short run on one GPU that finds failures before a big job does."""

    above_gpus: int | None = t.key(
        None,
        t.count(0, 1_000_000, "GPUs"),
        "Jobs with more GPUs than this are smoked unasked. Unset: only when asked.",
    )
    way: Literal["race", "gate"] = t.key(
        "race",
        t.choice("race", "gate"),
        "race: the real job queues at once and is held if the smoke fails; gate: it waits for the smoke.",
    )
    max_wait: int = t.key(
        600, t.DURATION, "A smoke that has not started by then is dropped and lifts its gate."
    )
    two_nodes: bool = t.key(
        False, t.FLAG, "Smoke jobs of several nodes on two nodes with a GPU each, not on one GPU?"
    )
    longest: int = t.key(
        600, t.DURATION, "Longest smoke; how long one takes follows from when jobs fail, 10 min at most."
    )
    enabled: bool = t.key(True, t.FLAG, "May users have jobs smoked at all?")


@dataclass(frozen=True, slots=True)
class Failures:
    """How ended jobs are judged."""

    signatures: tuple[str, ...] = t.key(
        (), t.listing(t.PATH, "a list of paths"), "Signature files of the site, read after gsub's own."
    )


@dataclass(frozen=True, slots=True)
class Service:
    """Where gsubd listens."""

    url: str = t.key("", _SERVICE_URL, "Its HTTP API. Unset: gsub works without, with less to tell.")
    socket: str = t.key("/run/gsub/decision.sock", t.PATH, "The decision socket on the controller's host.")
    user: str = t.key(
        "gsub", _USER, "Who gsubd runs as: nodes and users believe its answers only from there."
    )
    node_addresses: Literal["off", "known", "strict"] = t.key(
        "known",
        t.choice("off", "known", "strict"),
        "A node's records are refused from the address that Slurm has for another node (known), from any but "
        "its own (strict), or from none (off: nodes behind a gateway that is a node itself).",
    )


@dataclass(frozen=True, slots=True)
class Store:
    """Where gsubd keeps what happened."""

    url: str = t.key(
        "sqlite:////var/lib/gsub/store.db",
        _STORE_URL,
        "SQLAlchemy address, without a password: every user can read this file.",
    )
    retention: int = t.key(365 * 86400, t.duration(86400), "Records older than this are removed.")
    series_retention: int = t.key(
        90 * 86400,
        t.duration(86400),
        "A job's course over time is removed after this; its summary stays. At most retention.",
    )


@dataclass(frozen=True, slots=True)
class Agent:
    """gsub-noded, on each compute node."""

    interval: int = t.key(10, t.duration(1, 3600), "From one look at the GPUs to the next.")
    deadline: int = t.key(
        5, t.duration(1), "How long a look may take; a driver that is slower counts as hung."
    )
    report: int = t.key(60, t.duration(1), "How often the usage of a running job is delivered.")
    spool: str = t.key("/var/spool/gsub", t.PATH, "Folder on a local disk for records on their way.")
    spool_size: int = t.key(
        256, t.size(1), "Most that the spool holds; then series go first, summaries last."
    )
    findings: bool = t.key(
        True, t.FLAG, "Are the logs of a job that ended read, as its user, for why it failed?"
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A health check: one of gsub's, changed; or, with a command, one of the site's."""

    name: str
    enabled: bool = t.key(True, t.FLAG, "Is it run?")
    on_fail: Literal["none", "comment", "drain"] | None = t.key(
        None,
        t.choice("none", "comment", "drain"),
        "none: record it; comment: also tell operators; drain: no new job here. Unset: as the check says.",
    )
    command: tuple[str, ...] = t.key(
        (),
        t.listing(_ARGUMENT, "a list of texts"),
        "Program and arguments, run as root: exit code 0 is well, 1 a warning, other an error; "
        "its first line is the detail. Unset: one of gsub's checks.",
    )
    every: int | None = t.key(None, t.DURATION, "From one run to the next. Unset: as the check says.")
    deadline: int | None = t.key(
        None, t.DURATION, "A run that takes longer is given up. Unset: as the check says."
    )
    warn: float | None = t.key(
        None, t.ratio(0, 1e12), "Where a warning starts, in the check's unit. Unset: its own."
    )
    fail: float | None = t.key(
        None, t.ratio(0, 1e12), "Where an error starts, in the check's unit. Unset: its own."
    )
    paths: tuple[str, ...] = t.key(
        (), t.listing(t.PATH, "a list of paths"), "Folders or mounts that it looks at. Unset: its own."
    )
    nodes: tuple[str, ...] = t.key((), t.HOSTLIST, "Only on these nodes. Unset: on all.")


@dataclass(frozen=True, slots=True)
class Health:
    """Checks of a node's health, run by gsub-noded ahead of need."""

    enabled: bool = t.key(True, t.FLAG, "Are any checks run? Where /etc/gsub/health.off exists, none are.")
    drain: bool = t.key(
        False, t.FLAG, "May a failed check keep new jobs off a node? Only where policy.mode is enforce."
    )
    checks: Mapping[str, Check] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(Check), "")
    )


@dataclass(frozen=True, slots=True)
class Receipt:
    """The summary that a user gets of an ended job."""

    shown: bool = t.key(True, t.FLAG, "At the user's next gsub command?")
    mail: bool = t.key(False, t.FLAG, "By mail too?")
    mail_server: str = t.key("localhost:25", _MAIL_HOST, "Where mail is handed in (SMTP).")
    mail_from: str = t.key("", _MAIL_FROM, "The sender. Unset: gsub@ the controller's full name.")
    mail_domain: str = t.key(
        "", _MAIL_DOMAIN, "Users' addresses are NAME@ this. Unset: the mail server adds its own."
    )
    mail_above_gpu_hours: float = t.key(
        0.0, t.ratio(0, 1e9), "Only for jobs that held more GPU-hours than this."
    )


@dataclass(frozen=True, slots=True)
class GpuType:
    """A type of GPU, named as in Gres=gpu:NAME:8."""

    name: str
    memory: int | None = t.key(None, t.SIZE, "Memory of one GPU. Unset: as NVML says.")
    product: str = t.key(
        "", _LINE, "What NVML calls it (nvidia-smi -L), where Slurm's name says less. Unset: not known."
    )


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of slurm.conf. One that is not declared is treated as the site says."""

    name: str
    nodes: tuple[str, ...] = t.key(
        (), t.HOSTLIST, "Its nodes, as Nodes= in slurm.conf. Unset: as Slurm says."
    )
    gpus_per_node: int | None = t.key(
        None, t.count(0, 1024, "GPUs"), "GPUs of one node. Unset: as Slurm says."
    )
    cpus_per_node: int | None = t.key(
        None, t.count(1, 65536, "CPUs"), "CPUs= of one node in slurm.conf. Unset: as Slurm says."
    )
    memory_per_node: int | None = t.key(
        None, t.SIZE, "RealMemory= of one node in slurm.conf. Unset: as Slurm says."
    )
    gpu_type: str = t.key(
        "", _NAME, "Type of its GPUs, one of [gpu_types], where Gres does not name it. Unset: as Slurm says."
    )
    topology: str = t.key(
        "", _NAME, "Its topology in topology.yaml (Topology= in slurm.conf). Unset: the cluster's default."
    )
    mode: Mode | None = t.key(
        None, t.choice(*MODES), "As policy.mode, for this partition. Unset: policy.mode."
    )
    rollout: int = t.key(100, t.PERCENT, "As policy.rollout, for this partition's mode.")
    locality: Locality = t.key(Locality(), t.table(Locality), "As [locality]; what is unset is the site's.")
    resources: Resources = t.key(
        Resources(), t.table(Resources), "As [resources]; what is unset is the site's."
    )


@dataclass(frozen=True, slots=True)
class Account:
    """A Slurm account that is treated in its own way."""

    name: str
    mode: Mode | None = t.key(None, t.choice(*MODES), "As policy.mode, for this account. Unset: policy.mode.")
    rollout: int = t.key(100, t.PERCENT, "As policy.rollout, for this account's mode.")


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster and its people."""

    # Without a site file there is Site(cluster=""): gsub observes.

    cluster: str = field(metadata=t.about(_CLUSTER, "ClusterName of slurm.conf: records are kept under it."))
    name: str = t.key("", _LINE, "What people call the site. Unset: the cluster's name.")
    operators: tuple[str, ...] = t.key(
        (), t.listing(_USER, "a list of user names"), "Users who see everybody's records."
    )
    slurm: Slurm = t.key(Slurm(), t.table(Slurm), "")
    topology: TopologySource = t.key(TopologySource(), t.table(TopologySource), "")
    policy: Policy = t.key(Policy(), t.table(Policy), "")
    locality: Locality = t.key(Locality(), t.table(Locality), "")
    resources: Resources = t.key(Resources(), t.table(Resources), "")
    smoke: Smoke = t.key(Smoke(), t.table(Smoke), "")
    failures: Failures = t.key(Failures(), t.table(Failures), "")
    resubmit: Resubmit = t.key(Resubmit(), t.table(Resubmit), "")
    service: Service = t.key(Service(), t.table(Service), "")
    store: Store = t.key(Store(), t.table(Store), "")
    agent: Agent = t.key(Agent(), t.table(Agent), "")
    health: Health = t.key(Health(), t.table(Health), "")
    receipt: Receipt = t.key(Receipt(), t.table(Receipt), "")
    alerts: Alerts = t.key(Alerts(), t.table(Alerts), "")
    gpu_types: Mapping[str, GpuType] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(GpuType), "")
    )
    partitions: Mapping[str, Partition] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(Partition), "")
    )
    accounts: Mapping[str, Account] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(Account), "")
    )
    clients: Mapping[str, ClientProgram] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(ClientProgram), "")
    )

    def partition(self, name: str) -> Partition:
        """The partition as declared, or what the site says of every other one."""
        return self.partitions.get(name) or Partition(name, locality=self.locality, resources=self.resources)

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes that are stated: the site's, and those of partitions and accounts that have one of their own."""
        stated = [partition.mode for partition in self.partitions.values()]
        stated += [account.mode for account in self.accounts.values()]
        return frozenset({self.policy.mode, *(mode for mode in stated if mode is not None)})

    def mode_for(self, *, partition: str, account: str, uid: int) -> Mode:
        """How far gsub may go with one user's job.

        A partition or an account that states a mode replaces the site's; where both do, the more cautious
        counts. Raising a rollout only adds users: a uid keeps its place. Case counts for partitions alone.
        """
        folded = account.casefold()
        of_account = next((one for name, one in self.accounts.items() if name.casefold() == folded), None)
        stated = [
            _covered(scope.mode, scope.rollout, uid)
            for scope in (self.partitions.get(partition), of_account)
            if scope is not None and scope.mode is not None
        ]
        return min(stated, key=MODES.index, default=_covered(self.policy.mode, self.policy.rollout, uid))

    def topologies(
        self, nodes: Iterable[str] = (), features: Mapping[str, Iterable[str]] | None = None
    ) -> Topologies:
        """Read the declared topology; a site that declares none has a flat one.

        `nodes` are the cluster's as Slurm has them (default: those of the declared partitions), `features`
        each node's. Raises TopologyError.
        """
        from site_configs.topology import Topologies, Topology, load_topologies

        nodes = tuple(nodes) or tuple(dict.fromkeys(n for p in self.partitions.values() for n in p.nodes))
        if self.topology.file:
            return load_topologies(self.topology.file, nodes)
        if self.topology.feature_prefix:
            one = Topology.from_features(features or {}, self.topology.feature_prefix)
        else:
            one = Topology.flat(nodes)
        return Topologies({one.name: one}, one.name)


def _covered(mode: Mode, rollout: int, uid: int) -> Mode:
    """The mode for those whom the rollout covers, observe for the others."""
    return mode if zlib.crc32(b"gsub rollout %d" % uid) % 100 < rollout else "observe"
