"""What becomes of each job in a replay under Slurm's rules: moments, use, and what it waited for."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_plugins.replay.backfill import Held
from slurm_plugins.replay.samples import Samples
from slurm_plugins.replay.slurm_nodes import Need, Places, needs
from slurm_plugins.replay.values import CAUSES, Floats, Replayed, Trace

__all__ = ["Books"]

NEVER: Final = "the cluster never has what it asks for"
WAITS: Final = "still waits at the end"


class Books:
    """A trace's jobs and their nodes; `cut`: its moments are whole seconds, cut off, as accounting has them."""

    def __init__(self, trace: Trace, places: Places) -> None:
        count = len(trace)
        self.trace, self.places = trace, places
        self.state = places.idle()
        self.needs = needs(trace, places)
        self.bill = [need.cpus * need.nodes if need else 0.0 for need in self.needs]
        self.cut = not math.isnan(trace.zero) and not (trace["arrival"] % 1).any()
        self._started, self._ended = np.full(count, np.nan), np.full(count, np.nan)
        self._run_s, self._gpu_s, self._lost = np.zeros(count), np.zeros(count), np.zeros(count)
        self._nodes, self._leaves = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._out_of_order = 0
        self._waited = {cause: np.zeros(count) for cause in CAUSES}
        # What a kind of need waits for, in seconds since the beginning: a job's own is the difference of two looks
        self._clocks: dict[Need, dict[str, float]] = {}
        self._waiting: Counter[Need] = Counter()
        arrivals = trace["arrival"]
        self._looked = float(arrivals[0]) if count else 0.0
        self._samples = Samples(
            arrivals.tolist(), gpus=int(places.gpus.sum()), top=int(places.gpus.max(initial=0))
        )

    def moment(self, when: float) -> float:
        """A moment as the trace's own books would have it."""
        return float(math.floor(when)) if self.cut else when

    def queued(self, row: int, *, again: bool) -> None:
        """The job waits from the last look on. `again`: it has run before."""
        need = self.needs[row]
        if need is None:
            return
        clock = self._clocks.setdefault(need, dict.fromkeys(CAUSES, 0.0))
        self._waiting[need] += 1
        if not again:
            for cause, seconds in clock.items():
                self._waited[cause][row] -= seconds

    def began(self, row: int, began: float, nodes: NDArray[np.int64], *, overtook: bool, again: bool) -> None:
        """The job runs. `overtook`: another is before it in the queue."""
        need = self.needs[row]
        if need is None:
            return
        self._waiting[need] -= 1
        if not self._waiting[need]:
            del self._waiting[need]
        self._out_of_order += overtook
        if not again:
            self._started[row] = began
            for cause, seconds in self._clocks[need].items():
                self._waited[cause][row] += seconds
        self._nodes[row] = len(nodes)
        self._leaves[row] = len(np.unique(self.places.leaf[nodes]))

    def ended(self, row: int, began: float, when: float, held: Held, *, kept: bool) -> None:
        """The run is over. `kept`: what it did counts."""
        end = self.moment(when)
        seconds = end - began
        gpu_s = seconds * held.need.gpus * held.need.nodes
        self._run_s[row] += seconds
        self._gpu_s[row] += gpu_s
        self._lost[row] += 0.0 if kept else gpu_s
        self._ended[row] = end

    def count(self, when: float) -> None:
        """Put the seconds since the last look down to what each kind of job waits for."""
        seconds, self._looked = when - self._looked, when
        if seconds <= 0:
            return
        free = int(self.state.gpus.sum())
        for need in self._waiting:
            self._clocks[need][self._cause(need, free)] += seconds
        state, places = self.state, self.places
        held = (
            float(places.gpus.sum() - free),
            float((places.cpus - state.cpus).sum()),
            float((places.memory - state.memory).sum()),
        )
        self._samples.note(when, held, sum(self._waiting.values()), float(state.gpus.max(initial=0)))

    def _cause(self, need: Need, free: int) -> str:
        if need.gpus * need.nodes > free:
            return "resources"
        able = self.places.may(need) & self.state.fits(need)
        if np.count_nonzero(able) >= need.nodes:
            return "order"
        return "fragmentation" if need.gpus else "resources"

    def told(self, name: str, seed: int, tried: list[int], waiting: list[int], took: float) -> Replayed:
        """The result; `waiting`: rows that never came to their turn."""
        why = [NEVER if need is None else "" for need in self.needs]
        for row in waiting:
            why[row] = WAITS
        return Replayed(
            name,
            seed,
            self._started,
            self._ended,
            self._run_s,
            self._gpu_s,
            self._lost,
            np.array(tried, np.int64),
            self._nodes,
            self._leaves,
            self._waits(),
            why if any(why) else (),
            self._out_of_order,
            self._samples.rows,
            took,
        )

    def _waits(self) -> dict[str, Floats]:
        """Seconds by cause, which sum up to the wait: looks are moments of the clock, a start is the books' second."""
        ran = np.isfinite(self._started)
        wait = np.where(ran, self._started - self.trace["arrival"], 0.0)
        counted = np.where(ran, np.maximum(list(self._waited.values()), 0.0), 0.0)
        whole = counted.sum(axis=0)
        counted *= np.where(whole > 0, wait / np.where(whole > 0, whole, 1.0), 0.0)
        counted[CAUSES.index("order")] += np.where(whole > 0, 0.0, wait)
        return dict(zip(CAUSES, counted, strict=True))
