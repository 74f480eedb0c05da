"""Words that take away the certainty of a smoke run's failure: tables that one can read and extend.

The script had one GPU, and perhaps asked for more. What it says of counts, sizes of worlds, meshes and shards may be
about that, and what a smoke run does otherwise than the real one may be why it failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ANYWHERE", "BESIDE", "NEAR", "OURS", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """Words that take away a failure's certainty: who says them, a pattern, and the end of a sentence that says why."""

    who: str
    pattern: str
    why: str


_GPUS: Final = "it asks for GPUs that the smoke job does not have"
_WORLD: Final = "it is about the number of ranks, and the smoke job has one GPU"
_NODE: Final = "no GPU could be used, which may be the node's fault"
_SHAPE: Final = "it is about the shape of the allocation, and the smoke job's is another"

ANYWHERE: Final = (
    # errors of launchers and libraries in their own words: what comes after them may come from them
    Row("cuda", r"invalid device ordinal|cudaErrorInvalidDevice", _GPUS),
    Row(
        "torch",
        r"Attempting to deserialize object on CUDA device \d+ but torch\.cuda\.device_count\(\) is",
        _GPUS,
    ),
    Row("torch", r"Duplicate GPU detected", _GPUS),
    Row(
        "torch",
        r"[Ii]nvalid device id|Invalid CUDA '?device=|CUDA device .{0,40} (?:is )?not available",
        _GPUS,
    ),
    Row(
        "torch",
        r"device >= 0 && device < num_gpus|module must have its parameters .{0,40} device_ids\[0\]",
        _GPUS,
    ),
    Row("torch", r"No CUDA GPUs are available|Found no NVIDIA driver", _NODE),
    Row("lightning", r"You requested gpu: \[|But your machine only has: \[", _GPUS),
    Row(
        "lightning",
        r"You set `?--?n(?:tasks|odes)|does not match the number of (?:tasks|devices|nodes)",
        _SHAPE,
    ),
    Row("lightning", r"`?(?:num_nodes|devices)`? .{0,60}does not match", _SHAPE),
    Row("accelerate", r"num_processes.{0,80}(?:must|should|greater|less)|one GPU .{0,60}multi", _SHAPE),
    Row("tensorflow", r"unknown device.{0,60}GPU:[1-9]|/(?:device:)?GPU:[1-9]\d* unknown device", _GPUS),
    Row(
        "jax", r"only \d+ (?:device|TPU|GPU)s? (?:are|is) available|[Rr]equires at least \d+ devices?", _GPUS
    ),
    Row("jax", r"cannot reshape array of size \d+ into shape .{0,80}(?:mesh|device)", _GPUS),
    Row("jax", r"mesh.{0,80}number of devices", _GPUS),
    Row("srun", r"[Oo]nly allocated \d+ nodes? asked for \d+|can't run \d+ processes on \d+ nodes", _SHAPE),
    Row("srun", r"[Uu]nable to create step for job|[Mm]ore processors requested than permitted", _SHAPE),
    Row("srun", r"[Rr]equested node configuration is not available|[Ii]nvalid generic resource", _SHAPE),
    Row("srun", r"[Mm]emory required by task is not available|[Uu]nable to allocate resources", _SHAPE),
    Row("srun", r"[Ii]nvalid number of nodes|[Tt]oo many tasks|[Nn]ode count specification", _SHAPE),
    Row("srun", r"srun: (?:error|fatal): .{0,200}(?:mutually exclusive|[Ii]nvalid|--\w|SLURM_)", _SHAPE),
    Row(
        "srun",
        r"srun: error: .{0,80}(?:[Nn]odelist|[Rr]elative|hostlist|not in (?:the )?job|distribution)",
        _SHAPE,
    ),
    Row("srun", r"error: .{0,60}(?:het(?:erogeneous)?|pack)[ _-]?(?:group|job)", _SHAPE),
    Row("slurm", r"slurmstepd: error: .{0,200}(?:[Cc]pus? bind|binding|gres|[Ee]xceeded)", _SHAPE),
    Row(
        "mpi",
        r"not enough slots available|All nodes which are allocated for this job are already filled",
        _SHAPE,
    ),
    Row("mpi", r"more processes than (?:the )?(?:available|ppr|slots|cpus)|oversubscrib", _SHAPE),
    Row("horovod", r"Requested more processes \(\d+\) than|horovod.{0,60}slots", _SHAPE),
    Row("deepspeed", r"[Nn]o slot '?\d+'? specified on host|No slots? .{0,40}found", _SHAPE),
    Row("deepspeed", r"Num nodes of the allocation", _SHAPE),
    Row(
        "deepspeed",
        r"train_batch_size is not equal to micro_batch_per_gpu|Check batch related parameters",
        _WORLD,
    ),
    Row("deepspeed", r"(?i)\b[dmtp]p world[ _]size of \d+|data[ _-]?parallel world size", _WORLD),
    Row("megatron", r"world[ _-]?size .{0,80}(?:not |must be )(?:evenly )?divisible", _WORLD),
    Row(
        "megatron",
        r"(?:tensor|pipeline|context|expert|data|model)[ _-](?:model[ _-])?parallel.{0,80}"
        r"(?:divisible|greater|less|must|cannot|exceed|invalid)",
        _WORLD,
    ),
    Row("megatron", r"(?:divisible|multiple|divide).{0,80}(?:parallel|world|ranks?\b)", _WORLD),
    Row(
        "torch", r"divisible by (?:the )?(?:world|number of (?:gpu|device|rank|process|replica|node))", _WORLD
    ),
    Row(
        "torch",
        r"[Ii]nvalid rank|rank .{0,40}(?:out of range|should be in the interval|less than world)",
        _WORLD,
    ),
    Row(
        "torch",
        r"[Mm]esh should not be bigger than default world|[Mm]esh (?:size|dim|shape).{0,80}world",
        _WORLD,
    ),
    Row(
        "torch",
        r"(?:world|group|mesh)[ _]?size .{0,60}(?:greater|smaller|less|larger|match|expected|must)",
        _WORLD,
    ),
    Row("torch", r"(?:expected|requires?|needs?|at least|must be) .{0,30}world[ _]?size", _WORLD),
    Row(
        "torch",
        r"(?:different|mismatch(?:ed)?|changed) .{0,40}world[ _]?size|world[ _]?size.{0,40}mismatch",
        _WORLD,
    ),
    Row("torchelastic", r"[Uu]nsupported nproc|nproc_per_node.{0,60}(?:invalid|must|error)", _SHAPE),
    Row("vllm", r"[Nn]umber of (?:attention heads|GPUs) .{0,80}(?:divisible|less|tensor)", _WORLD),
    Row("ray", r"placement group|No available node types can fulfill|available GPUs", _WORLD),
)
"""Errors in the words of those who make them: what stands around them, in front or behind, may come from them."""

NEAR: Final = (
    Row(
        "programs",
        r"(?i)(?:need|require|expect|want|ask|at least|must|found|only|got|ha[vds]e?|detected|visible|available|see)"
        r"\w*:? .{0,40}?\b\d+ (?:\w+ )?(?:gpus?|ranks?|nodes?|devices?|tasks?|process(?:es)?|hosts?|replicas?)\b",
        _SHAPE,
    ),
    Row(
        "programs",
        r"(?i)\b(?:gpus?|ranks?|nodes?|devices?|tasks|processes|hosts|replicas)\b.{0,40}"
        r"\b(?:requested|required|expected|needed|but (?:only|got|found|have)\b.{0,20}\d)",
        _SHAPE,
    ),
    Row(
        "programs", r"(?i)(?:number of|num_?|n_|#)(?:gpu|rank|node|device|task|process|host|replica)", _SHAPE
    ),
    Row(
        "counts",
        r"(?i)world[_ ]?size|n(?:um)?_?(?:gpus?|nodes|ranks?|devices|tasks|processes|replicas|procs)\b|device_count|"
        r"nproc|nnodes|ntasks|get_rank|local_?rank|global_rank|node_rank|(?<![a-z])rank\b",
        _WORLD,
    ),
    Row(
        "parallel",
        r"(?i)(?:tensor|pipeline|context|expert|data|model|sequence)_(?:model_)?parallel|parallel_(?:state|size)|"
        r"\b[tpdce]p_(?:size|degree|rank|group|world)|\bn_?(?:tp|pp|dp)\b|device_?mesh|mesh_shape",
        _WORLD,
    ),
    Row(
        "parallel",
        r"(?i)\.shard\(|all_?(?:gather|reduce|to_all)|process_group|accelerator\.num|"
        r"DistributedSampler|\bdist\.",
        _WORLD,
    ),
    Row(
        "slurm",
        r"(?:SLURMD?|SBATCH)_\w+|PMIX?_\w+|OMPI_\w+|MASTER_(?:ADDR|PORT)|WORLD_SIZE|CUDA_VISIBLE_DEVICES|\bRANK\b|scontrol|nodelist",
        _SHAPE,
    ),
    Row("lists", r"(?i)\b(?:hosts?|nodes?|gpus?|devices?|ranks?)\[|ZeroDivisionError|modulo by zero", _WORLD),
    Row("gpus", r"(?i)cuda:[1-9]|gpu:[1-9]|device_ids|--(?:gpus?|devices|nodes|gpus?-per-node)\b", _GPUS),
    Row(
        "parts",
        r"(?i)rank[_-]?\d|of[_-]?0*1(?!\d)|world[_-]?\d|mp_rank|rng_state_\d|(?<![a-z\d])\d+gpus?\b",
        _WORLD,
    ),
)
"""Weaker words: they count on the deciding line, in the message that goes on behind it, and on the innermost lines of
source above it."""

OURS: Final = (
    Row("wandb", r"(?i)wandb|weights ?(?:&|and) ?biases", "Weights & Biases is offline in a smoke run"),
    Row(
        "trackers", r"(?i)neptune|clearml|comet|mlflow", "trackers of experiments are offline in a smoke run"
    ),
    Row("offline", r"(?i)\boffline\b", "trackers of experiments are offline in a smoke run"),
    Row("gsub", r"GSUB_SMOKE|gsub-smoke", "it is about the smoke run itself"),
    Row(
        "sockets", r"AF_UNIX path too long", "the smoke run's folder for temporary files has too long a name"
    ),
)
"""What a smoke run itself may have caused."""

BESIDE: Final = (
    Row("overlay", r"Invalid cross-device link|Value too large|Operation not permitted|Stale file handle|"
                   r"Read-only file system|Permission denied|Inappropriate ioctl|Operation not supported|"
                   r"Bad owner or permissions|dubious ownership|Errno (?:1|13|18|25|30|75|95|116)\b",
        "what the run wrote was kept apart, which may be why"),
)  # fmt: skip
"""What an overlay and a user namespace can cause that the real run would not see."""
