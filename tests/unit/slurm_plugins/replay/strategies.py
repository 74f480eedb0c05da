"""Generated traces and clusters, small enough that queues form."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from slurm_plugins.replay.values import Cluster, Job, Nodes, Trace


@st.composite
def clusters(draw, mixed: bool = True) -> Cluster:
    """Leaves of alike nodes; `mixed`: of several sizes."""
    size = draw(st.sampled_from((1, 2, 4, 8)))
    leaves = draw(st.integers(1, 4))
    groups = []
    for leaf in range(leaves):
        gpus = draw(st.sampled_from((2, 4, 8))) if mixed else size
        groups.append(Nodes(draw(st.integers(1, 4)), gpus, gpus * 8.0, gpus * 1000.0, leaf=f"leaf{leaf}"))
        if mixed and draw(st.booleans()):
            groups.append(Nodes(draw(st.integers(1, 2)), 4, 32.0, 4000.0, leaf=f"leaf{leaf}"))
    whole = Cluster("drawn", tuple(groups))
    return replace(whole, quotas={"a": draw(st.integers(1, 2)) * whole.gpus // 2})


_FEW = st.integers(0, 9)
_JOBS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 500), _FEW, _FEW, _FEW), min_size=1, max_size=25
)


def traces(
    sizes: tuple[int, ...] = (1, 1, 1, 2, 3, 4, 6, 8, 12, 16), vectors: bool = False
) -> st.SearchStrategy[Trace]:
    """Up to 25 jobs; `vectors`: some have no GPUs, some state CPUs and memory, or want nodes for themselves."""
    return _JOBS.map(
        lambda rows: Trace.of(_job(number, row, sizes, vectors) for number, row in enumerate(rows))
    )


def _job(number: int, row: tuple[int, ...], sizes: tuple[int, ...], vectors: bool) -> Job:
    arrival, work, size, more, kind = row
    gpus = sizes[size % len(sizes)]
    job = Job(number, float(arrival), float(work), gpus=gpus, limit=work + 30.0 * more, queue="ab"[kind % 2])
    if not vectors:
        return job
    gpus = 0 if kind == 9 else gpus
    return replace(
        job,
        gpus=gpus,
        cpus=float(more * max(gpus, 1)),
        memory=(100.0 * more * max(gpus, 1)) if kind < 5 else 0.0,
        exclusive=kind == 8,
    )
