"""Whether a smoke run failed for a reason that would fail the real job as surely: a table of what does not count. Pure.

The script ran with one GPU, and asked for more: whatever it says of counts, sizes of worlds, meshes and shards may be
about that. A run is called failed only where the classifier is sure of a cause that is the user's and has nothing to
do with that; all doubt is inconclusive.

>>> from prolog_epilog.failures.text import LogText
>>> log = LogText.of("output", b"Traceback (most recent call last):\\n"
...     b'  File "train.py", line 3, in <module>\\n    import einops\\n'
...     b"ModuleNotFoundError: No module named 'einops'\\n")
>>> verdict(log, 1).outcome
'failed'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from profiler.findings import Finding
    from prolog_epilog.failures.signature import Rules
    from prolog_epilog.failures.text import LogText

__all__ = ["ANYWHERE", "FAILS", "NEAR", "OURS", "SURE", "Judged", "Row", "Setting", "judged", "verdict"]

FAILS: Final = frozenset(
    {
        "syntax_error",
        "import_error",
        "environment_error",
        "bad_arguments",
        "missing_input",
        "corrupt_input",
        "permission_error",
        "semantic_error",
    }
)
"""Reasons of the taxonomy for which a smoke run can fail."""
SURE: Final = 0.8
"""The confidence that it takes: from here on a log's cause stands against Slurm's word, too (failures.judge)."""
_TIERS: Final = frozenset({"decisive", "explicit"})
_TAIL: Final = 400  # lines behind and before the deciding one that are looked through for ANYWHERE
_STACK: Final = 60  # lines back to which a traceback's source lines are looked for
_INNERMOST: Final = 3
_SIGNALS: Final = 128  # a shell's exit code beyond this is a signal's number, of its last command


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
        r"\b(?:requested|required|expected|needed|but (?:only|got|found|have))",
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
        r"(?i)\bshard(?:s|ed|ing)?\b|all_?(?:gather|reduce|to_all)|process_group|accelerator\.num|"
        r"DistributedSampler|\bdist\.",
        _WORLD,
    ),
    Row(
        "slurm",
        r"SLURM_\w+|PMIX?_\w+|OMPI_\w+|MASTER_(?:ADDR|PORT)|WORLD_SIZE|CUDA_VISIBLE_DEVICES|\bRANK\b|scontrol|nodelist",
        _SHAPE,
    ),
    Row("gpus", r"(?i)cuda:[1-9]|gpu:[1-9]|device_ids|--(?:gpus?|devices|nodes|gpus?-per-node)\b", _GPUS),
    Row(
        "parts",
        r"(?i)rank[_-]?\d|[_-]of[_-]\d|world[_-]?\d|shard[_-]?\d|mp_rank|rng_state_\d|(?<![a-z\d])\d+gpus?\b",
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

_BESIDE: Final = (
    Row("overlay", r"Invalid cross-device link|Value too large|Operation not permitted|Stale file handle|"
                   r"Read-only file system|Permission denied|nobody|nogroup|Errno (?:1|13|18|30|75|116)\b",
        "what the run wrote was kept apart, which may be why"),
)  # fmt: skip
"""What an overlay and a user namespace can cause that the real run would not see."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How the script ran, as far as that can make it fail: below an overlay (`kept`); `wrote` has the names of files
    that it made, `steps`: it started programs outside of its own processes (srun, containers)."""

    kept: bool = False
    wrote: frozenset[str] = frozenset()
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """`failed` or `inconclusive`, the finding behind it, and a sentence."""

    outcome: Literal["failed", "inconclusive"]
    sentence: str
    finding: Finding | None = None


def verdict(
    log: LogText, code: int | None, setting: Setting = Setting(), rules: Rules | None = None
) -> Judged:
    """What the output and the exit code of a script that ended badly come to; a negative code is a signal."""
    from prolog_epilog.failures.classify import Ended, classify

    signal = -code if code is not None and code < 0 else None
    ended = Ended(None, code if signal is None else None, signal)
    return judged(classify([log], ended, rules), log, code, setting)


def judged(finding: Finding, log: LogText, code: int | None, setting: Setting = Setting()) -> Judged:
    """The table over a finding."""
    from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE, REASONS

    how = _how(code)
    if code is not None and (code < 0 or code > _SIGNALS):
        return Judged("inconclusive", f"it {how}, which says little of what the real job will do", finding)
    if finding.reason in (NO_SIGNATURE, NONE) or finding.reason not in REASONS:
        return Judged("inconclusive", f"it {how}, and nothing that is known says why", finding)
    about = REASONS[finding.reason].about
    if finding.reason not in FAILS:
        return Judged(
            "inconclusive", f"it {how}: {finding.reason} ({about}), which need not be so there", finding
        )
    if finding.confidence < SURE or finding.tier not in _TIERS or not finding.evidence:
        return Judged(
            "inconclusive", f"it {how}, perhaps by {finding.reason} ({about}): that is not sure", finding
        )
    doubt = _doubt(finding, log, setting)
    if doubt:
        return Judged("inconclusive", f"it {how} by {finding.reason}, but {doubt}", finding)
    return Judged("failed", f"{finding.reason}: {about}", finding)


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _doubt(finding: Finding, log: LogText, setting: Setting) -> str:
    """Why a failure need not come in the real job; "" where nothing speaks for that."""
    words = [one.text for one in finding.evidence]
    near = [*words, *_message(finding, log), *_sources(finding, log)]
    if finding.reason == "syntax_error":
        return ""
    named = finding.reason != "import_error"  # a module's name is no count: that one fails anywhere
    for row in OURS if named else ():
        if any(re.search(row.pattern, text) for text in near):
            return row.why
    if setting.kept:
        for row in _BESIDE:
            if any(re.search(row.pattern, text) for text in words):
                return row.why
        if finding.reason == "permission_error":
            return _BESIDE[0].why
        if finding.reason in ("missing_input", "corrupt_input", "environment_error", "import_error") and (
            setting.steps or any(name in text for text in words for name in setting.wrote)
        ):
            return _BESIDE[0].why
    for row in NEAR if named else ():
        if any(re.search(row.pattern, text) for text in near):
            return row.why
    around = _around(finding, log)
    for row in ANYWHERE:
        if any(re.search(row.pattern, text) for text in around):
            return row.why
    return ""


def _index(finding: Finding, log: LogText) -> int | None:
    """The deciding line's place in the log."""
    first = finding.evidence[0]
    if first.line is None and first.from_end is None:
        return None
    for index in range(len(log) - 1, -1, -1):
        line = log.line(index)
        if first.line is not None and line.number is not None and line.number <= first.line:
            return index if line.number == first.line else None
        if first.from_end is not None and line.from_end is not None and line.from_end >= first.from_end:
            return index if line.from_end == first.from_end else None
    return None


def _sources(finding: Finding, log: LogText) -> list[str]:
    """The innermost lines of source that a traceback quotes above the deciding line."""
    at = _index(finding, log)
    if at is None:
        return []
    found: list[str] = []
    for index in range(at - 1, max(-1, at - _STACK), -1):
        text = log.line(index).text
        if text.startswith("Traceback"):
            break
        if text.startswith("    ") and text.strip(" ^~"):
            found.append(text)
            if len(found) == _INNERMOST:
                break
    return found


def _message(finding: Finding, log: LogText) -> list[str]:
    """The lines right behind the deciding one: messages of exceptions may have several; and usage lines above it."""
    at = _index(finding, log)
    if at is None:
        return []
    return [log.line(index).text for index in range(at + 1, min(at + 4, len(log)))]


def _around(finding: Finding, log: LogText) -> list[str]:
    at = _index(finding, log)
    middle = at if at is not None else len(log) - 1
    return [log.line(i).text[:2000] for i in range(max(0, middle - _TAIL), min(len(log), middle + _TAIL))]
