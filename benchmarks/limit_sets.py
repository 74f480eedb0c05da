"""Sets of limits, charges and jobs for the limits oracle (`oracle_limits`), as data.

A job says how it fares without gsub: it runs, waits, or is refused. The oracle checks that, so that each limit is known
to bind. A node has 64 CPUs, 512000 MiB and 8 GPUs, so a GPU's share is 8 CPUs and 64000 MiB; a set has two nodes to
itself in each mode, and no job waits for room. Unless a set says otherwise, a partition gives 2000 MiB for a CPU, and a
job without CPUs gets one for each task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CHARGED", "CONFIGS", "CURVES", "SETS", "THREADS", "Config", "Fate", "Job", "LimitSet"]

Fate = Literal["runs", "waits", "refused"]
Script = Literal["plain", "light", "hungry"]
Config = Literal["plain", "threads", "caps", "charged", "max_tres"]

_SAFE: Final = "AccountingStorageEnforce=associations,limits,qos,safe"
CONFIGS: Final[dict[Config, tuple[str, ...]]] = {
    "plain": (),
    "threads": (),
    "caps": ("MaxArraySize=9", "MaxMemPerNode=96000", "EnforcePartLimits=ALL", _SAFE),
    "charged": (_SAFE,),
    "max_tres": ("PriorityFlags=MAX_TRES",),
}
"""Lines of slurm.conf that hold for all partitions; sets are grouped by them. Where one partition has
TRESBillingWeights the site charges, and gsub leaves the charge of all jobs as it is: such sets are apart."""
THREADS: Final = ("CoresPerSocket=32 ThreadsPerCore=1", "CoresPerSocket=16 ThreadsPerCore=2")
"""The nodes' cores, and what they are where the configuration is `threads`: Slurm gives out whole cores."""
CHARGED: Final[frozenset[Config]] = frozenset({"charged", "max_tres"})
"""Where partitions have TRESBillingWeights. Elsewhere Slurm's billing is a job's CPUs, and no charge."""

CURVES: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "light": tuple((cpus, min(cpus, 3.0)) for cpus in (8, 6, 4, 3, 2)),
    "hungry": tuple((cpus, min(cpus, 11.4)) for cpus in (24, 12, 6, 13, 10, 11)),
}
"""Script -> its throughput at so many CPUs for each GPU: enough are 3, and 12."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sbatch.

    Parameters
    ----------
    fate: how it fares without gsub.
    words: options of sbatch; ``{p}`` and ``{s}`` are the set's partitions, ``{q}`` its QOS, ``$J0`` the number of its
        first job. Components of a heterogeneous job are divided by " : ". Without -p the job goes to ``{p}``, without
        -q and with a QOS in the set to ``{q}``, without -t it has an hour.
    script: which of the three scripts; two have a measured curve.
    env: variables of sbatch.
    user: 1 or 2.
    """

    fate: Fate
    words: str
    script: Script = "plain"
    env: str = ""
    user: int = 1


@dataclass(frozen=True, slots=True)
class LimitSet:
    """Limits, charges and the jobs under them.

    Parameters
    ----------
    parent, account, user, qos, partition_qos: words of sacctmgr for each; the account is below the parent where there
        is one, and the QOS is there where it has words.
    default_qos: jobs do not name the QOS, since it is their user's default.
    partition, second: words of slurm.conf; the second partition is there where it has words.
    config: which lines of slurm.conf hold.
    since: the first release of Slurm that knows it.
    """

    name: str
    jobs: tuple[Job, ...]
    parent: str = ""
    account: str = ""
    user: str = ""
    qos: str = ""
    partition_qos: str = ""
    default_qos: bool = False
    partition: str = "DefMemPerCPU=2000"
    second: str = ""
    config: Config = "plain"
    since: tuple[int, int] = (0, 0)


def _runs(words: str, script: Script = "plain", env: str = "", user: int = 1) -> Job:
    return Job("runs", words, script, env, user)


def _waits(words: str, script: Script = "plain", env: str = "", user: int = 1) -> Job:
    return Job("waits", words, script, env, user)


def _refused(words: str, script: Script = "plain", env: str = "", user: int = 1) -> Job:
    return Job("refused", words, script, env, user)


_BOTH: Final = "GSUB_RETUNE=both"
_LOWER: Final = "GSUB_RETUNE=lower"

# --- limits of associations -----------------------------------------------------------------------------------------

_ASSOCIATIONS: Final = (
    LimitSet(
        "account MaxTRES cpu",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5"), _runs("-n2 -G2"), _runs("-G1", "hungry")),
        account="MaxTRES=cpu=4",
    ),
    LimitSet(
        "account MaxTRES mem",
        (_runs("-G1"), _runs("-G1 --mem=4000"), _waits("-G1 --mem=4001"), _runs("-n1 -c2 -G1")),
        account="MaxTRES=mem=4000",
    ),
    LimitSet(
        "account MaxTRES mem between",
        (_runs("-G1"), _runs("-G2 -n2"), _runs("-G1 --mem-per-cpu=1000 -c3"), _runs("-N2 --gpus-per-node=1")),
        account="MaxTRES=mem=40001",
    ),
    LimitSet(
        "account MaxTRES gpu",
        (_runs("-G1"), _runs("-G2"), _waits("-G3"), _runs("--gres=gpu:2")),
        account="MaxTRES=gres/gpu=2",
    ),
    LimitSet(
        "account MaxTRES gpu of a type",
        (_runs("-G1"), _runs("-Ga100:2"), _waits("-Ga100:3")),
        account="MaxTRES=gres/gpu:a100=2",
    ),
    LimitSet(
        "account MaxTRES node",
        (_runs("-G4"), _runs("-N1 -G2"), _waits("-N2 --gpus-per-node=1")),
        account="MaxTRES=node=1",
    ),
    LimitSet(
        "account MaxTRES billing, charged by CPUs",
        (_runs("-G1"), _runs("-G2"), _runs("-G1 -c8"), _waits("-G1 -c9")),
        account="MaxTRES=billing=8",
    ),
    LimitSet(
        "account MaxTRESPerNode cpu",
        (_runs("-G1"), _runs("-N2 --gpus-per-node=2"), _runs("-G1 -c4"), _waits("-G1 -c5")),
        account="MaxTRESPerNode=cpu=4",
    ),
    LimitSet(
        "account MaxTRESPerNode mem",
        (_runs("-G1"), _runs("-N2 --gpus-per-node=1"), _waits("-G1 --mem=10001"), _runs("-G1 --mem=10000")),
        account="MaxTRESPerNode=mem=10000",
    ),
    LimitSet(
        "account MaxTRESMins cpu",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5"), _runs("-G1 -c5 -t48")),
        account="MaxTRESMins=cpu=240",
    ),
    LimitSet(
        "account GrpTRES cpu, used up exactly",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1")),
        account="GrpTRES=cpu=8",
    ),
    LimitSet(
        "account GrpTRES cpu, one is left",
        (_runs("-G1"), _runs("-G1 -c6"), _runs("-G1"), _waits("-G1")),
        account="GrpTRES=cpu=8",
    ),
    LimitSet(
        "account GrpTRES mem",
        (_runs("-G1"), _runs("-G1 --mem=6000"), _waits("-G1 --mem=1000"), _waits("-G1 -n1 -c2")),
        account="GrpTRES=mem=8000",
    ),
    LimitSet(
        "account GrpTRES gpu",
        (_runs("-G2"), _runs("-n2 --gpus-per-task=1"), _waits("-G1")),
        account="GrpTRES=gres/gpu=4",
    ),
    LimitSet(
        "account GrpTRES node",
        (_runs("-G2"), _runs("-N1 -G2"), _waits("-N2 --gpus-per-node=1")),
        account="GrpTRES=node=1",
    ),
    LimitSet(
        "account GrpTRES billing",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1 -c2")),
        account="GrpTRES=billing=8",
    ),
    LimitSet(
        "account GrpTRESMins cpu, none left",
        (_waits("-G1"), _waits("-G1 -c2")),
        account="GrpTRESMins=cpu=0",
    ),
    LimitSet(
        "account GrpTRESRunMins cpu",
        (_runs("-G1"), _runs("-G1 -c3"), _waits("-G1"), _waits("-G2 -t1")),
        account="GrpTRESRunMins=cpu=240",
    ),
    LimitSet(
        "account GrpTRESRunMins mem",
        (_runs("-G1"), _runs("-G1"), _waits("-G1")),
        account="GrpTRESRunMins=mem=240000",
    ),
    LimitSet(
        "account GrpJobs and GrpSubmit",
        (_runs("-G1"), _runs("-G2"), _waits("-G1"), _refused("-G1")),
        account="GrpJobs=2 GrpSubmit=3",
    ),
    LimitSet(
        "account MaxJobs and MaxSubmit",
        (_runs("-G1"), _waits("-G1"), _refused("-G1"), _runs("-G1", user=2)),
        account="MaxJobs=1 MaxSubmitJobs=2",
    ),
    LimitSet(
        "account MaxWall and GrpWall",
        (_runs("-G1 -t30"), _waits("-G1 -t31"), _runs("-G2 -t29")),
        account="MaxWall=30 GrpWall=600",
    ),
    LimitSet(
        "parent MaxTRES cpu",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5")),
        parent="MaxTRES=cpu=4",
    ),
    LimitSet(
        "parent MaxTRES, the account's own is nearer",
        (_runs("-G1"), _runs("-G1 -c16"), _waits("-G1 -c17"), _runs("-G1", "hungry")),
        parent="MaxTRES=cpu=4,mem=40000",
        account="MaxTRES=cpu=16",
    ),
    LimitSet(
        "parent GrpTRES cpu and mem",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1"), _waits("-G1", user=2)),
        parent="GrpTRES=cpu=8,mem=16000",
        account="GrpTRES=cpu=100",
    ),
    LimitSet(
        "parent GrpTRESRunMins billing",
        (_runs("-G1 -c4"), _runs("-G1 -c4"), _waits("-G1")),
        parent="GrpTRESRunMins=billing=480",
    ),
    LimitSet(
        "user MaxTRES below the account's",
        (_runs("-G1"), _runs("-G1 -c2 --mem=3000"), _waits("-G1 -c3"), _waits("-G1 --mem=3001")),
        account="MaxTRES=cpu=64",
        user="MaxTRES=cpu=2,mem=3000",
    ),
    LimitSet(
        "user GrpTRES cpu, retuned",
        (_runs("-n1 -c2 -G1", env=_BOTH), _runs("-G1 --cpus-per-gpu=5", env=_BOTH), _runs("-n1 -c1 -G1", env=_BOTH)),
        user="GrpTRES=cpu=8",
    ),
)  # fmt: skip

# --- limits of QOS --------------------------------------------------------------------------------------------------

_QOS: Final = (
    LimitSet(
        "QOS MaxTRES cpu",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5"), _runs("-G4")),
        qos="MaxTRES=cpu=4",
    ),
    LimitSet(
        "QOS MaxTRES, DenyOnLimit",
        (_runs("-G1"), _runs("-G1 -c2 --mem=4000"), _refused("-G1 --mem=4001"), _refused("-G1 -c5"), _runs("-n2 -G2")),
        qos="MaxTRES=cpu=4,mem=4000 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS MaxTRESPerNode",
        (_runs("-G1"), _runs("-N2 --gpus-per-node=2"), _waits("-G1 -c5"), _waits("-G1 --mem=9000")),
        qos="MaxTRESPerNode=cpu=4,mem=8000",
    ),
    LimitSet(
        "QOS MaxTRESPU cpu",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1"), _runs("-G1", user=2)),
        qos="MaxTRESPU=cpu=8",
    ),
    LimitSet(
        "QOS MaxTRESPU mem, the default QOS",
        (_runs("-G1"), _runs("-G1 --mem=6000"), _waits("-G1")),
        qos="MaxTRESPU=mem=8000",
        default_qos=True,
    ),
    LimitSet(
        "QOS MaxTRESPA",
        (_runs("-G1"), _runs("-G2 -c4"), _waits("-G2"), _runs("-G1", user=2)),
        qos="MaxTRESPA=cpu=8,gres/gpu=4",
    ),
    LimitSet(
        "QOS MaxJobsPU, MaxSubmitPU",
        (_runs("-G1"), _runs("-G1"), _waits("-G1"), _refused("-G1"), _runs("-G2", user=2)),
        qos="MaxJobsPU=2 MaxSubmitJobsPU=3",
    ),
    LimitSet(
        "QOS MaxJobsPA, MaxSubmitPA",
        (_runs("-G1"), _waits("-G1"), _waits("-G1", user=2), _refused("-G1", user=2)),
        qos="MaxJobsPA=1 MaxSubmitJobsPA=3",
    ),
    LimitSet(
        "QOS MinTRES cpu",
        (_runs("-G1 -c4"), _runs("-G1 --cpus-per-gpu=4", "light", _LOWER), _runs("-G1 -n1 -c4", "light", _BOTH)),
        qos="MinTRES=cpu=4",
    ),
    LimitSet(
        "QOS MinTRES, DenyOnLimit",
        (_refused("-G1 -c3"), _runs("-G1 -c4 --mem=8000"), _runs("-G1 --cpus-per-gpu=4 --mem=8000", "light", _LOWER)),
        qos="MinTRES=cpu=4,mem=8000 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS MinTRES gpu",
        (_runs("-G2"), _waits("-G1"), _runs("-n2 --gpus-per-task=1")),
        qos="MinTRES=gres/gpu=2",
    ),
    LimitSet(
        "QOS GrpTRES above the account's",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1")),
        qos="GrpTRES=cpu=8",
        account="GrpTRES=cpu=4",
    ),
    LimitSet(
        "QOS GrpTRES gpu, DenyOnLimit",
        (_runs("-G3"), _runs("-G1"), _waits("-G1"), _refused("-G5")),
        qos="GrpTRES=gres/gpu=4 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS MaxTRES node, DenyOnLimit",
        (_runs("-G4"), _waits("-G16"), _refused("-N2 --gpus-per-node=1"), _runs("-n4 --gpus-per-task=1")),
        qos="MaxTRES=node=1 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS MaxTRESPU node and gpu, DenyOnLimit",
        (_runs("-G4"), _waits("-G12"), _runs("-N2 --gpus-per-node=1", user=2), _refused("-G17", user=2)),
        qos="MaxTRESPU=node=2,gres/gpu=15 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS GrpTRESRunMins, NoDecay",
        (_runs("-G1"), _runs("-G1 -c3"), _waits("-G1")),
        qos="GrpTRESRunMins=cpu=240 Flags=NoDecay",
    ),
    LimitSet(
        "QOS GrpTRESMins billing, NoDecay",
        (_runs("-G1"), _runs("-G1 -c2"), _waits("-G1 -c999 -t6000")),
        qos="GrpTRESMins=billing=600 Flags=NoDecay",
    ),
    LimitSet(
        "QOS GrpJobs, GrpSubmit",
        (_runs("-G1"), _waits("-G2"), _refused("-G1")),
        qos="GrpJobs=1 GrpSubmit=2",
    ),
    LimitSet(
        "QOS MaxWall, GrpWall, DenyOnLimit",
        (_runs("-G1 -t30"), _refused("-G1 -t31"), _runs("-G2 -t10")),
        qos="MaxWall=30 GrpWall=600 Flags=DenyOnLimit",
    ),
    LimitSet(
        "QOS MaxTRESMins billing",
        (_runs("-G1"), _runs("-G1 -c8"), _waits("-G1 -c9"), _runs("-G2", "hungry")),
        qos="MaxTRESMins=billing=480",
    ),
    LimitSet(
        "QOS MaxTRESRunMinsPU and PA",
        (_runs("-G1"), _runs("-G1 -c3"), _waits("-G1"), _runs("-G1 -c2", user=2), _waits("-G1", user=2)),
        qos="MaxTRESRunMinsPU=cpu=240 MaxTRESRunMinsPA=cpu=360",
    ),
    LimitSet(
        "QOS LimitFactor",
        (_runs("-G1"), _runs("-G1 -c7"), _waits("-G1")),
        qos="LimitFactor=2",
        account="GrpTRES=cpu=4",
    ),
    LimitSet(
        "QOS UsageFactor",
        (_runs("-G1"), _runs("-G1 -c8"), _waits("-G1 -c9")),
        qos="UsageFactor=2 MaxTRESMins=cpu=480",
    ),
    LimitSet(
        "partition's QOS MaxTRES",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5")),
        partition_qos="MaxTRES=cpu=4,mem=9000",
    ),
    LimitSet(
        "partition's QOS before the job's",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5")),
        partition_qos="MaxTRES=cpu=4",
        qos="MaxTRES=cpu=8",
    ),
    LimitSet(
        "OverPartQOS",
        (_runs("-G1"), _runs("-G1 -c8"), _waits("-G1 -c9")),
        partition_qos="MaxTRES=cpu=4",
        qos="MaxTRES=cpu=8 Flags=OverPartQOS",
    ),
    LimitSet(
        "partition's QOS GrpTRES and MaxTRESPU",
        (_runs("-G1"), _runs("-G1 -c3"), _waits("-G1"), _runs("-G1 -c2", user=2), _waits("-G1 -c3", user=2)),
        partition_qos="GrpTRES=cpu=8 MaxTRESPU=cpu=4",
    ),
)  # fmt: skip

# --- limits of partitions, charges ----------------------------------------------------------------------------------

_PARTITIONS: Final = (
    LimitSet(
        "partition MaxTime and MaxNodes",
        (_runs("-G1 -t30"), _waits("-G1 -t31"), _runs("-G8 -t9"), _waits("-N2 --gpus-per-node=1 -t9")),
        partition="DefMemPerCPU=2000 MaxTime=30 MaxNodes=1",
    ),
    LimitSet(
        "partition MaxCPUsPerNode",
        (_runs("-G1 -c8"), _runs("-G1"), _runs("-G1"), _runs("-G1"), _runs("-G1"), _runs("-G2")),
        partition="DefMemPerCPU=2000 MaxCPUsPerNode=16",
    ),
    LimitSet(
        "partition MaxCPUsPerSocket",
        (_runs("-G1 -c4"), _runs("-G1"), _runs("-G1"), _runs("-G1"), _runs("-G1"), _runs("-G2")),
        partition="DefMemPerCPU=2000 MaxCPUsPerSocket=8",
        since=(23, 2),
    ),
    LimitSet(
        "partition MaxMemPerCPU",
        (_runs("-G1"), _runs("-G1 -c2 --mem=4000"), _runs("-G1 --mem=4000"), _runs("-G1 -n2 --mem=3000")),
        partition="DefMemPerCPU=1000 MaxMemPerCPU=2000",
        account="MaxTRES=cpu=8",
    ),
    LimitSet(
        "partition MaxMemPerNode",
        (_runs("-G1"), _runs("-G2 --mem=32000"), _refused("-G1 --mem=32001"), _runs("-G1 --mem=20000", env=_BOTH)),
        partition="DefMemPerCPU=2000 MaxMemPerNode=32000",
    ),
    LimitSet(
        "partition DefMemPerGPU",
        (_runs("-G1"), _runs("-G2 -c4"), _waits("-G5"), _runs("-G1 --mem-per-gpu=16000", env=_BOTH)),
        partition="DefMemPerGPU=4000",
        account="MaxTRES=mem=16000",
    ),
    LimitSet(
        "partition DefCpuPerGPU",
        (_runs("-G1"), _runs("-G2"), _waits("-G3"), _runs("-G1", "light"), _runs("-G1", "hungry")),
        partition="DefCpuPerGPU=2 DefMemPerCPU=1000",
        account="MaxTRES=cpu=4",
    ),
    LimitSet(
        "partition OverSubscribe=EXCLUSIVE",
        (_runs("-G1"), _runs("-G1 --mem=9000", user=2), _waits("-N2 --gpus-per-node=1")),
        partition="DefMemPerCPU=2000 OverSubscribe=EXCLUSIVE",
        account="MaxTRES=cpu=64,mem=130000",
    ),
    LimitSet(
        "partition without default memory",
        (_runs("-G1"), _runs("-G1 -c2"), _runs("-G1 --mem=0", user=2)),
        partition="",
        account="MaxTRES=mem=512000",
    ),
    LimitSet(
        "charged by all resources",
        (_runs("-G1"), _runs("-G1 -c4 --mem=8000"), _runs("-G8"), _runs("-G1 --cpus-per-gpu=2", "hungry", _BOTH)),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=4.0",
        config="charged",
    ),
    LimitSet(
        "charged by GPUs alone",
        (_runs("-G1"), _runs("-G2 -c2"), _runs("-n2 -N2 -G4"), _waits("-G9")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=GRES/gpu=1.0",
        account="MaxTRES=billing=8",
        config="charged",
    ),
    LimitSet(
        "charged by memory, GrpTRES billing",
        (_runs("-G1 --mem=8000"), _runs("-G2"), _waits("-G1 --mem=9000")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=Mem=1G",
        account="GrpTRES=billing=16",
        config="charged",
    ),
    LimitSet(
        "two partitions, one charges and one limits",
        (_runs("-p{p},{s} -G1"), _runs("-p{s},{p} -G1 -c4"), _runs("-p{s} -G1"), _waits("-p{p} -G1 -c5")),
        partition="DefMemPerCPU=2000",
        second="DefMemPerCPU=1000 TRESBillingWeights=CPU=1.0,Mem=0.5G",
        partition_qos="MaxTRES=cpu=4",
        config="charged",
    ),
)  # fmt: skip

# --- kinds of jobs --------------------------------------------------------------------------------------------------

_JOBS: Final = (
    LimitSet(
        "arrays under GrpTRES and MaxTRES",
        (_runs("-a1-3 -G1"), _runs("-a1-2 -G1 -c2"), _waits("-a1-2 -G1"), _waits("-G1 -c6")),
        account="GrpTRES=cpu=7 MaxTRES=cpu=5",
    ),
    LimitSet(
        "arrays under GrpJobs and GrpSubmit",
        (_waits("-a1-4 -G1"), _waits("-a1-2%1 -G1"), _refused("-a1-3 -G1")),
        account="GrpJobs=3 GrpSubmit=8",
    ),
    LimitSet(
        "heterogeneous jobs under MaxTRES",
        (_runs("-G1 : -G2"), _runs("-G1 -c4 : -c2"), _waits("-G1 -c5 : -G1")),
        account="MaxTRES=cpu=4",
    ),
    LimitSet(
        "heterogeneous jobs under GrpTRES",
        (_runs("-G1 : -G2 -n2"), _runs("-G1 -c2 : -G1 -c3"), _waits("-G1 : -G1")),
        account="GrpTRES=cpu=8,mem=20000",
    ),
    LimitSet(
        "dependencies",
        (_runs("-G1"), _waits("-G1 -dafterok:$J0"), _runs("-G1 -dafter:$J0"), _waits("-G1 -c9 -dafter:$J0")),
        account="MaxTRES=cpu=8",
    ),
    LimitSet(
        "whole nodes under MaxTRES",
        (_runs("-G8"), _runs("-G1"), _waits("-G1 --exclusive")),
        account="MaxTRES=cpu=16",
    ),
    LimitSet(
        "whole nodes under GrpTRES",
        (_runs("-G1 --exclusive"), _runs("-G8 -c8"), _waits("-G1")),
        account="GrpTRES=cpu=72",
    ),
    LimitSet(
        "whole nodes are charged",
        (_runs("-G8"), _runs("-G1 --exclusive")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=1.0,GRES/gpu=1.0",
        account="GrpTRES=billing=200",
        config="charged",
    ),
    LimitSet(
        "several nodes under MaxTRES",
        (_runs("-G16"), _waits("-N2 -n4 -c5 -G4"), _waits("-N2 --gpus-per-node=1 --mem=20001")),
        account="MaxTRES=cpu=16,mem=40000",
    ),
    LimitSet(
        "several nodes under GrpTRES",
        (_runs("-N2 -G4"), _runs("-n4 -N2 --gpus-per-task=1"), _waits("-N2 -n2 -G2 -c2")),
        account="GrpTRES=cpu=8,mem=200000",
    ),
    LimitSet(
        "stated values, retuned, under MaxTRES",
        (
            _runs("-n1 -c2 -G1", env=_BOTH),
            _runs("-G1 --cpus-per-gpu=2", "hungry", _BOTH),
            _runs("-G1 -c2 --mem=3000", env=_BOTH),
            _waits("-G1 -c6", env=_BOTH),
            _runs("-G1 --mem-per-gpu=2000", env=_BOTH),
        ),
        qos="MaxTRES=cpu=5,mem=9000",
    ),
    LimitSet(
        "a type of GPU under GrpTRES",
        (_runs("--gres=gpu:a100:2"), _runs("-Ga100:2 -n2"), _waits("-Ga100:1")),
        account="GrpTRES=gres/gpu:a100=4",
    ),
)  # fmt: skip

# --- lines of slurm.conf for all partitions -------------------------------------------------------------------------

_THREADS: Final = (
    LimitSet(
        "threads, account MaxTRES cpu",
        (_runs("-G1"), _runs("-G1 -c4"), _waits("-G1 -c5"), _runs("-n2 -G2"), _runs("-G1", "light")),
        account="MaxTRES=cpu=5",
        config="threads",
    ),
    LimitSet(
        "threads, account GrpTRES cpu",
        (_runs("-G1"), _runs("-G1 -c6"), _waits("-G1")),
        account="GrpTRES=cpu=8",
        config="threads",
    ),
    LimitSet(
        "threads, QOS MaxTRES mem and MaxTRESPerNode cpu",
        (_runs("-G1"), _runs("-N2 --gpus-per-node=1"), _waits("-G1 --mem=9001"), _waits("-G1 -c8")),
        qos="MaxTRES=mem=9000 MaxTRESPerNode=cpu=7",
        config="threads",
    ),
    LimitSet(
        "threads, one of each core",
        (
            _runs("-G1 --threads-per-core=1"),
            _runs("-G1 -c2 --threads-per-core=1"),
            _waits("-G1 -c3 --threads-per-core=1"),
        ),
        account="MaxTRES=cpu=4",
        config="threads",
    ),
)  # fmt: skip

_MAX_TRES: Final = (
    LimitSet(
        "charged by the most of resources",
        (_runs("-G1"), _runs("-G1 -c4"), _runs("-G2 --mem=60000"), _runs("-G8")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=8.0",
        config="max_tres",
    ),
    LimitSet(
        "charged by the most, MaxTRES billing",
        (_runs("-G1"), _runs("-G2"), _waits("-G3"), _waits("-G1 -c17"), _runs("-G1", "hungry")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=1.0,Mem=0.125G,GRES/gpu=8.0",
        account="MaxTRES=billing=16",
        config="max_tres",
    ),
    LimitSet(
        "charged by the most, GrpTRES billing",
        (_runs("-G1"), _runs("-G1 -c8"), _waits("-G1")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=1.0,Mem=0.125G,GRES/gpu=8.0",
        account="GrpTRES=billing=16",
        config="max_tres",
    ),
    LimitSet(
        "charged by the most, GrpTRESRunMins billing",
        (_runs("-G1 -t30"), _runs("-G1 -c2 -t30"), _waits("-G1 -t31")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=0.5,GRES/gpu=4.0",
        qos="GrpTRESRunMins=billing=240",
        config="max_tres",
    ),
)

_CAPS: Final = (
    LimitSet(
        "MaxMemPerNode of the cluster",
        (_runs("-G1"), _runs("-G2"), _runs("-G2 --mem=96000"), _refused("-G1 --mem=96001"), _runs("-G4 -c2")),
        config="caps",
    ),
    LimitSet(
        "MaxMemPerNode of the cluster, the partition has its own",
        (_runs("-G1"), _runs("-G2 --mem=120000"), _runs("-G4")),
        partition="DefMemPerCPU=2000 MaxMemPerNode=130000",
        config="caps",
    ),
    LimitSet(
        "EnforcePartLimits, partitions with different limits",
        (_runs("-p{p},{s} -G1"), _runs("-p{p},{s} -G2"), _refused("-p{p},{s} -G1 --mem=32001"), _runs("-p{p} -G1")),
        partition="DefMemPerCPU=2000 MaxMemPerNode=64000",
        second="DefMemPerCPU=1000 MaxMemPerNode=32000 MaxNodes=1 MaxTime=60",
        config="caps",
    ),
    LimitSet(
        "MaxArraySize",
        (_runs("-a1-8 -G1"), _refused("-a1-9 -G1"), _waits("-a1-3%1 -G1")),
        account="GrpTRES=cpu=9",
        config="caps",
    ),
    LimitSet(
        "safe, GrpTRESMins cpu",
        (_runs("-G1"), _runs("-G1 -c3"), _waits("-G1")),
        account="GrpTRESMins=cpu=250",
        config="caps",
    ),
    LimitSet(
        "safe, GrpTRESMins gpu and billing",
        (_runs("-G1"), _runs("-G2"), _waits("-G1 -c2")),
        partition="DefMemPerCPU=2000 TRESBillingWeights=CPU=0.5,Mem=0.125G,GRES/gpu=1.0",
        qos="GrpTRESMins=gres/gpu=200,billing=9999 Flags=NoDecay",
        config="charged",
    ),
    LimitSet(
        "safe, MaxTRESMins mem and GrpWall",
        (_runs("-G1 -t60"), _runs("-G1 --mem=4000 -t30"), _waits("-G1 --mem=4001 -t30")),
        account="MaxTRESMins=mem=120000 GrpWall=100",
        config="caps",
    ),
)  # fmt: skip

SETS: Final = (*_ASSOCIATIONS, *_QOS, *_PARTITIONS, *_JOBS, *_THREADS, *_MAX_TRES, *_CAPS)
