"""Hypothesis strategies for requests: what a shim may send, from sensible to hostile."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from slurm_plugins.decide.request import Job, Request

_small = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64])
_odd_number = st.one_of(
    st.integers(-2, 70), st.sampled_from([1 << 31, (1 << 53) - 1, 65534, 65535, -(1 << 53)])
)
_types = st.sampled_from(["", "", "", "a100:", "v100:", "1g.10gb:", "h200:"])
_separators = st.sampled_from(["gres:gpu:", "gres/gpu:", "gpu:"])
_odd_text = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "gres:", "gres:gpu", "gpu:0", "gpu:99999999999999999999", "gres/gpu=1,cpu=3", "shard:2", "(null)",
         "gres:gpu:a100:2,gres:gpu:v100:1", "n[1-99999]", "n[", "[a|b]&c", "((((", "a&b|c", "none"]
    ),
)  # fmt: skip


@st.composite
def gpus(draw: st.DrawFn) -> str:
    """A tres text with GPUs, of any release."""
    return draw(_separators) + draw(_types) + str(draw(_small))


_KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "tres_per_job": gpus(),
    "tres_per_node": st.one_of(gpus(), gpus().map("gres:nvme:1,{}".format), st.just("gres:nvme:1")),
    "tres_per_task": gpus(),
    "tres_per_socket": gpus(),
    "cpus_per_tres": _small.map("gres:gpu:{}".format),
    "mem_per_tres": _small.map(lambda gib: f"gres:gpu:{gib << 10}"),
    "min_nodes": _small,
    "max_nodes": _small,
    "num_tasks": _small,
    "ntasks_per_node": _small,
    "ntasks_per_tres": _small,
    "ntasks_per_socket": _small,
    "sockets_per_node": st.sampled_from([1, 2]),
    "cpus_per_task": _small,
    "pn_min_cpus": _small,
    "min_cpus": _small,
    "min_mem_per_node": _small.map(lambda gib: gib << 13),
    "min_mem_per_cpu": _small.map(lambda gib: gib << 10),
    "shared": st.sampled_from([0, 1, 2, 3]),
    "partition": st.sampled_from(["gpu", "debug", "cpu", "v100", "a100", "v100,a100", "whole", "gpu,debug", "nowhere"]),
    "features": st.sampled_from(["nvlink", "small", "[leaf1|leaf2]", "small|big", "ib&big", "a*2", "none"]),
    "req_nodes": st.sampled_from(["n1", "n[1-2]", "s[1-4]", "b1", "m[1-3]", "zz9"]),
    "exc_nodes": st.sampled_from(["n[1-2]", "b[1-3]", "m1", "n9"]),
    "reservation": st.just("maint"),
    "array_inx": st.just("0-9"),
    "het_job_offset": st.sampled_from([0, 1]),
    "time_limit": st.sampled_from([1, 30, 600, 4320]),
    "req_switch": _small,
    "wait4switch": _small,
    "admin_comment": st.just("a site's own"),
}  # fmt: skip
_ENV = st.dictionaries(
    st.sampled_from([
        "GSUB_REPACK", "GSUB_RETUNE", "GSUB_SENSITIVITY",
        "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE",
    ]),
    st.sampled_from(["yes", "no", "lower", "both", "4"]),
    max_size=2,
)  # fmt: skip
_NUMBER_FIELDS = [name for name, kind in Job.__annotations__.items() if kind == "_Number"]
_TEXT_FIELDS = [name for name, kind in Job.__annotations__.items() if kind == "_Word"]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Mostly what people ask for: a few fields, of which one in some jobs is odd."""
    names = draw(st.lists(st.sampled_from(sorted(_KNOWN)), max_size=6, unique=True))
    fields = {name: draw(_KNOWN[name]) for name in names}
    if draw(st.booleans()):
        fields.setdefault(
            draw(st.sampled_from(["tres_per_job", "tres_per_node", "tres_per_task"])), draw(gpus())
        )
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.sampled_from(_NUMBER_FIELDS))] = draw(_odd_number)
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.sampled_from(_TEXT_FIELDS))] = draw(_odd_text)
    return Job(**fields)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request of sbatch, salloc or srun."""
    batch = draw(st.integers(0, 9)) > 0
    return Request(
        id=draw(st.integers(1, (1 << 53) - 1)),
        uid=draw(st.integers(0, (1 << 32) - 1)),
        job=draw(jobs()),
        env=draw(_ENV) if batch else {},
        batch=batch,
        script_head=draw(st.sampled_from(["", "#!/bin/sh\nsrun true\n"])),
    )
