"""What a development cluster is asked to be, and where its files lie."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from site_configs.devcluster.layouts import LAYOUTS, Layout

Release = Literal["host", "trixie", "forky"]
Policy = Literal["observe", "advise", "enforce"]

RELEASES: Final[tuple[Release, ...]] = get_args(Release)
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

# The emulated node: a DGX-like machine, whatever this one really has.
CPUS_PER_NODE: Final = 64
MEMORY_MB_PER_NODE: Final = 512_000
GPU_MODEL: Final = "a100"
# Who gsub's service runs as, where root starts the cluster.
GSUB_USER: Final = "gsub"
# Who gsub-act runs as: an operator in Slurm.
ACT_USER: Final = "gsub-act"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")


class DevClusterError(Exception):
    """The development cluster cannot do what was asked; the message says why and what to do."""

    exit_code = 1


class NotUpError(DevClusterError):
    """There is no such cluster, or it is not up."""


class WrongSpecError(DevClusterError):
    """What was asked for makes no sense: wrong usage."""

    exit_code = 2


def check_name(name: str) -> str:
    """The name of a cluster, which is its folder's too; nothing else may become a path.

    Raises
    ------
    WrongSpecError: it is no name.
    """
    if not _NAME.fullmatch(name):
        raise WrongSpecError(
            f"cluster name {name!r}: want a lower-case letter, then up to 23 letters, digits or '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A development cluster as asked for.

    Parameters
    ----------
    name: of the cluster and of its folder; several names stand side by side.
    nodes, gpus: nodes, and emulated GPUs on each node.
    slurm: `host` takes this machine's own packages; a Debian suite runs in a chroot.
    policy: the mode that the generated site file gives to gsub's policies.
    accounting: slurmdbd on MariaDB.
    gsub: the shim in slurmctld, and gsubd beside it.
    deadline: of the shim, in seconds; None: its own 50 ms. On a busy machine answers come later than that.
    agents: with gsub, the hooks in slurm.conf and a gsub-noded beside each slurmd.
    layouts: of the GPUs of n1, n2...; nodes beyond them are plain.
    short_delays: Slurm schedules every second or two, kills 2 s after SIGTERM, and starts a requeued job after 20 s.
    """

    name: str = "dev"
    nodes: int = 8
    gpus: int = 8
    slurm: Release = "host"
    policy: Policy = "observe"
    accounting: bool = True
    gsub: bool = True
    deadline: float | None = None
    agents: bool = True
    layouts: tuple[Layout, ...] = ()
    short_delays: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.nodes <= 64:
            raise WrongSpecError(f"{self.nodes} nodes: want 1 to 64 (each is a slurmd on this machine)")
        if not 1 <= self.gpus <= 16:
            raise WrongSpecError(f"{self.gpus} GPUs a node: want 1 to 16")
        if self.slurm not in RELEASES:
            raise WrongSpecError(f"release {self.slurm!r}: want one of {', '.join(RELEASES)}")
        if self.policy not in POLICIES:
            raise WrongSpecError(f"policy {self.policy!r}: want one of {', '.join(POLICIES)}")
        if self.deadline is not None and not 0 < self.deadline <= 1:
            raise WrongSpecError(f"a deadline of {self.deadline} s: want more than 0, and at most 1 s")
        unknown = [layout for layout in self.layouts if layout not in LAYOUTS]
        if unknown:
            raise WrongSpecError(f"GPU layout {unknown[0]!r}: want one of {', '.join(LAYOUTS)}")
        if len(self.layouts) > self.nodes:
            raise WrongSpecError(f"{len(self.layouts)} GPU layouts for {self.nodes} nodes")
        if "mig" in self.layouts and self.gpus < 3:
            raise WrongSpecError(
                f"{self.gpus} GPUs a node: the layout mig wants 3 or more (2 of them instances)"
            )

    @property
    def node_names(self) -> tuple[str, ...]:
        """`n1` ... `n8`."""
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    @property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """The leaf switches and their nodes: two halves; one leaf when there is one node."""
        names = self.node_names
        half = (len(names) + 1) // 2
        halves = {"leaf1": names[:half], "leaf2": names[half:]}
        return {leaf: nodes for leaf, nodes in halves.items() if nodes}

    @property
    def has_agents(self) -> bool:
        """Whether hooks and agents are installed."""
        return self.gsub and self.agents

    @property
    def has_act(self) -> bool:
        """Whether gsub-act runs: where gsub may change jobs, with the users and the operators that it needs."""
        return self.gsub and self.accounting and self.policy == "enforce" and os.geteuid() == 0

    def layout(self, node: str) -> Layout:
        """How the GPUs of `node` are laid out."""
        index = self.node_names.index(node)
        return self.layouts[index] if index < len(self.layouts) else "plain"

    def to_json(self) -> str:
        """The specification as it is kept beside the cluster's state."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        """Read what `to_json` wrote."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> ClusterSpec:
        """The specification from its fields as JSON has them."""
        return cls(**{**values, "layouts": tuple(values.get("layouts", ()))})


def state_home() -> Path:
    """The folder that holds every development cluster of this user.

    As root it is readable by all, since the cluster's ordinary users work in it. Without links, since processes are
    found again by this path in their environment.
    """
    chosen = os.environ.get("GSUB_DEVCLUSTER_HOME")
    if chosen:
        return Path(chosen).resolve()
    if os.geteuid() == 0:
        return Path("/var/lib/gsub-devcluster").resolve()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return (state / "gsub-devcluster").resolve()


def cluster_folder(name: str) -> Path:
    """The folder of cluster `name`.

    Raises
    ------
    WrongSpecError: it is no name.
    """
    return state_home() / check_name(name)


def cache_home() -> Path:
    """The folder of what clusters share and a new one need not make again: chroots, Python packages."""
    if os.geteuid() == 0:
        return Path("/var/cache/gsub-devcluster")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gsub-devcluster"


def lock_file(name: str) -> Path:
    """The lock that an `up` or `down` of cluster `name` holds; "ports" is that of the port numbers."""
    return state_home() / f".{name}.lock"


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one cluster, all below `root`."""

    root: Path

    @property
    def etc(self) -> Path:
        """slurm.conf and what goes with it; the site file."""
        return self.root / "etc"

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.root / "run"

    @property
    def munge(self) -> Path:
        """munged's folder: key, socket, log."""
        return self.root / "munge"

    @property
    def log(self) -> Path:
        """A log file a daemon."""
        return self.root / "log"

    @property
    def gpus(self) -> Path:
        """State of the emulated GPUs, `<node>/<index>/`."""
        return self.root / "gpus"

    @property
    def lib(self) -> Path:
        """Where the emulated libnvidia-ml.so.1 lies."""
        return self.root / "lib"

    @property
    def dev(self) -> Path:
        """The device files that gres.conf names."""
        return self.root / "dev"

    @property
    def src(self) -> Path:
        """A copy of our packages, readable by the cluster's users."""
        return self.root / "src"

    @property
    def venv(self) -> Path:
        """The Python that jobs and users of the cluster see."""
        return self.root / "venv"

    @property
    def libexec(self) -> Path:
        """The shim, as in /usr/libexec/gsub."""
        return self.root / "libexec/gsub"

    @property
    def decision_socket(self) -> Path:
        """Where gsubd answers the shim."""
        return self.run / "gsub/decision.sock"

    @property
    def gsub_state(self) -> Path:
        """What gsubd keeps: decisions.jsonl."""
        return self.root / "spool/gsub"

    @property
    def act_socket(self) -> Path:
        """Where gsub-act is asked."""
        return self.run / "gsub-act/act.sock"

    @property
    def act_state(self) -> Path:
        """gsub-act's journal."""
        return self.root / "spool/gsub-act"

    def agent_run(self, node: str) -> Path:
        """The run folder of a node's agent, as /run/gsub-noded on a real one."""
        return self.root / f"noded/{node}"

    def agent_spool(self, node: str) -> Path:
        """The spool of a node's agent and hooks, as /var/spool/gsub on a real one."""
        return self.root / f"spool/gsub-{node}"

    @property
    def home(self) -> Path:
        """A working folder for each user, seen by every node."""
        return self.root / "home"

    @property
    def slurm_conf(self) -> Path:
        """The cluster's slurm.conf."""
        return self.etc / "slurm.conf"

    @property
    def site(self) -> Path:
        """The cluster's site file."""
        return self.etc / "site.toml"

    @property
    def munge_socket(self) -> Path:
        """Where the cluster's own munged listens; munged wants every folder above it to be root's or its own."""
        return self.munge / "socket"

    @property
    def supervisor_socket(self) -> Path:
        """Where the supervisor takes commands (mode 0600)."""
        return self.root / "supervisor.sock"

    @property
    def tag(self) -> Path:
        """Says that the folder is ours to remove; the first file in it."""
        return self.root / ".devcluster"

    @property
    def spec(self) -> Path:
        """The specification the cluster was made from, with its ports."""
        return self.root / "cluster.json"
