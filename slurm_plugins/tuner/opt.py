"""Synergy-OPT: the yardstick, two programs solved by HiGHS. Far too slow to schedule with.

Source: Synergy (OSDI'22), section 4.3 and the artifact's `synergy_opt.py`. Needs the extra `solver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_plugins.tuner.placing import Request
from slurm_plugins.tuner.values import Shape, Share


@dataclass(frozen=True)
class Ideal:
    """Each job's share and speed on one big machine, and the sum of speeds."""

    shares: dict[int, Share]
    speeds: dict[int, float]

    @property
    def total(self) -> float:
        """The objective: no placement of these jobs has a larger sum of speeds (whole shares of the curves' points)."""
        return sum(self.speeds.values())


def opt(requests: Sequence[Request], servers: int, shape: Shape, seconds: float = 60.0) -> Ideal:
    """Program 1: one point of its curve a job, the largest sum of speeds, none below proportional.

    On one big machine eight GPUs could have 12 CPUs each, which no server of 24 CPUs can give them: for gangs see
    `whole`.

    Raises:
        ValueError: the jobs do not fit, or HiGHS found no proven optimum in `seconds`.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    fair = shape.proportional
    points = [
        (row, request.gpus, share, speed)
        for row, request in enumerate(requests)
        for share, speed in request.curve.points
        if speed >= request.curve.speed(fair)
    ]
    count = len(points)
    one = csr_array((np.ones(count), ([p[0] for p in points], range(count))), shape=(len(requests), count))
    use = np.array([[g * s.cpus for _, g, s, _ in points], [g * s.memory for _, g, s, _ in points]])
    found = milp(
        -np.array([speed for *_, speed in points]),
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one, 1, 1),
            LinearConstraint(use, -np.inf, [servers * shape.cpus, servers * shape.memory]),
        ],
        options={"time_limit": seconds},
    )
    if found.status != 0:
        raise ValueError(f"HiGHS found no optimum for {len(requests)} jobs: {found.message}")
    chosen = [points[i] for i in np.flatnonzero(found.x > 0.5)]
    return Ideal(
        {requests[row].job: share for row, _, share, _ in chosen},
        {requests[row].job: speed for row, _, _, speed in chosen},
    )


def whole(requests: Sequence[Request], servers: int, shape: Shape, seconds: float = 10.0) -> float:
    """The largest sum of speeds with every job whole on one server, or what HiGHS has proven in `seconds` that it is no
    more than. Program 1 with servers: a bound that placements of gangs can reach. Small clusters only.

    Raises:
        ValueError: a job needs more GPUs than a server has, or the jobs do not fit.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if any(request.gpus > shape.gpus for request in requests):
        raise ValueError("a job needs more than one server")
    options = [
        (row, server, request.gpus, share, speed)
        for row, request in enumerate(requests)
        for share, speed in request.curve.choices(request.gpus, shape).points
        for server in range(servers)
    ]
    count = range(len(options))
    one = csr_array(
        (np.ones(len(options)), ([row for row, *_ in options], count)), shape=(len(requests), len(options))
    )
    uses = [
        csr_array(
            (
                [gpus * need(share) for _, _, gpus, share, _ in options],
                ([at for _, at, *_ in options], count),
            ),
            shape=(servers, len(options)),
        )
        for need in (lambda share: 1.0, lambda share: share.cpus, lambda share: share.memory)
    ]
    found = milp(
        -np.array([speed for *_, speed in options]),
        integrality=np.ones(len(options)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one, 1, 1),
            *(
                LinearConstraint(use, -np.inf, most)
                for use, most in zip(uses, (shape.gpus, shape.cpus, shape.memory), strict=True)
            ),
        ],
        options={"time_limit": seconds},
    )
    if found.mip_dual_bound is None or found.status == 2:
        raise ValueError(f"{len(requests)} jobs do not fit whole on {servers} servers: {found.message}")
    return float(-found.mip_dual_bound)


def spread(
    requests: Sequence[Request], ideal: Ideal, servers: int, shape: Shape
) -> dict[int, dict[int, float]] | None:
    """Program 2: what fraction of each job runs on which server, at the ideal's shares; None when infeasible.

    At a vertex of the program at most 3 jobs a server are split, one for each resource that binds.
    """
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    rows, columns, values = [], [], []
    for j, request in enumerate(requests):
        share = ideal.shares[request.job]
        for k, need in enumerate((1.0, share.cpus, share.memory)):
            for i in range(servers):
                rows.append(3 * i + k)
                columns.append(j * servers + i)
                values.append(request.gpus * need)
    count = len(requests) * servers
    whole = csr_array(
        (np.ones(count), ([c // servers for c in range(count)], range(count))), shape=(len(requests), count)
    )
    found = linprog(
        np.zeros(count),
        A_ub=csr_array((values, (rows, columns)), shape=(3 * servers, count)),
        b_ub=np.tile([shape.gpus, shape.cpus, shape.memory], servers),
        A_eq=whole,
        b_eq=np.ones(len(requests)),
        bounds=(0, 1),
        method="highs-ds",
    )
    if found.status != 0:
        return None
    parts = found.x.reshape(len(requests), servers)
    return {
        request.job: {i: float(parts[j, i]) for i in range(servers) if parts[j, i] > 1e-9}
        for j, request in enumerate(requests)
    }
