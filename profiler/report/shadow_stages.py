"""The stages of a decision in the shadow: how often each would have acted, and what really happened to these attempts.

Each stage has two columns, those that it would have helped and those that it would have harmed, by rules that stand at
its class; where the store cannot tell, it says so. What a stage's verdict takes is in LEAST_HELPED, MOST_HARM,
LEAST_KNOWN, BUSY and LONGER.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil, fsum, log1p
from typing import TYPE_CHECKING, Any, Final

from profiler.bad_nodes import REASONS
from profiler.report.evidence import LEAST, Compared, Figure, counted, interval
from profiler.report.shadow_values import MEMORY, Attempt, Body, Changed, Happened, Stage, Verdict
from profiler.store.early import SEEN
from site_configs.hostlist import HostlistError, expand
from site_configs.site_model import Smoke as SmokeKeys

if TYPE_CHECKING:
    from site_configs.site_model import Site

__all__ = ["ABOVE_GPUS", "BUSY", "LEAST_HELPED", "LEAST_KNOWN", "LONGER", "MOST_HARM", "Stages"]

LEAST_HELPED: Final = 5
"""Fewer attempts that a stage would have helped are no evidence for it."""
MOST_HARM: Final = 0.05
"""Where none was harmed, so large a share may still be: 73 known attempts and more rule out more (95 %)."""
LEAST_KNOWN: Final = 0.5
"""Of those that would have had less, so large a share must be known: those that nobody watched may differ."""
BUSY: Final = 0.9
"""An attempt that kept so much of its CPUs busy, in the mean over its run, could have used more."""
ABOVE_GPUS: Final = 8
"""Jobs with more GPUs than this are looked at for smoke runs, where the site file names no number."""
LONGER: Final = 1.25
"""A wait that may be so many times as long is no harm."""

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_CPUS: Final = frozenset({"cpus_per_task", "cpus_per_tres", "min_cpus", "pn_min_cpus"})
_OURS: Final = ("gang", "topology", "sensitivity", "avoid_nodes")


class Stages:
    """All stages of a decision: each decision with the attempts at its job is added once."""

    def __init__(self, site: Site | None = None) -> None:
        self._gang = _Gang()
        self._topology = _Topology(_leaves(site))
        self._sensitivity = _Sensitivity()
        self._avoid = _AvoidNodes()
        self._limits = _Limits()
        self._smoke = _Smoke(site.smoke if site is not None else SmokeKeys())
        self._own: dict[str, Happened] = {}

    def add(self, body: Body, attempts: Sequence[Attempt], *, settled: bool) -> None:
        """One decision that nothing was done of. `settled`: its job is known, and had its time to run."""
        changes: dict[str, dict[str, Changed]] = {}
        for one in body.changes:
            changes.setdefault(one.stage, {})[one.field] = one
        # What states its shape is what an open one is compared with
        self._gang.add(changes.get("gang"), body, attempts)
        if (found := changes.get("topology")) is not None:
            self._topology.add(found, body, attempts)
        if (found := changes.get("sensitivity")) is not None:
            self._sensitivity.add(found, body, attempts)
        if (found := changes.get("avoid_nodes")) is not None:
            self._avoid.add(found, attempts)
        self._limits.hold_back(body)
        if body.reject is not None:
            self._limits.add(attempts, settled=settled)
        self._smoke.add(attempts)
        for name in changes.keys() - {*_OURS, ""}:
            self._own.setdefault(name, Happened()).add(list(changes[name]), attempts)

    def done(self) -> tuple[Stage, ...]:
        """A row for each stage, also those that would not have acted; a site's own by name at the end."""
        ours = (self._gang, self._topology, self._sensitivity, self._avoid, self._limits, self._smoke)
        return (*(one.done() for one in ours), *(_own(name, self._own[name]) for name in sorted(self._own)))


def _verdict(
    acted: int, helped: int, harmed: int, known: int, *, at_risk: bool = True
) -> tuple[Verdict, str]:
    """By counts alone. `at_risk`: a share of those known could be harmed, so that there must be enough of them."""
    if harmed:
        return "against", f"{harmed} of {known} would have been harmed"
    if not acted:
        return "open", "it would not have acted"
    if at_risk and interval(0, known)[1] > MOST_HARM:
        return "open", f"none of {known} harmed, which is too few to rule harm out (73 would do)"
    if helped < LEAST_HELPED:
        return "open", f"it would have helped {helped}: from {LEAST_HELPED} on that counts"
    return "for", f"it would have helped {helped}, and harmed none that is known"


# --- gang -------------------------------------------------------------------------------------------------------------


class _Gang:
    """Helped: those that ran on more nodes than gang would have given, where fewer nodes went with better use of GPUs.
    Harmed: all, where those that stated their nodes waited longer."""

    def __init__(self) -> None:
        self._happened = Happened()
        self._spread = self._known = 0
        self._use = Compared()
        self._wait = Compared()

    def add(self, changes: Mapping[str, Changed] | None, body: Body, attempts: Sequence[Attempt]) -> None:
        nodes = body.facts.get("nodes")
        if changes is None:
            for one in attempts:
                if isinstance(nodes, int) and one.wait is not None:
                    self._wait.add(one.like, True, log1p(one.wait))
            return
        self._happened.add(list(changes), attempts)
        for one in attempts:
            if one.wait is not None:
                self._wait.add(one.like, False, log1p(one.wait))
            if not isinstance(nodes, int) or one.nodes is None:
                continue
            self._known += 1
            self._spread += one.nodes > nodes
            if one.utilisation is not None:
                self._use.add(one.like, one.nodes <= nodes, one.utilisation)

    def done(self) -> Stage:
        use, waits = self._use.difference(), self._wait.difference()
        wait = None if waits is None else waits.ratio()
        verdict: Verdict = "open"
        if (use is not None and use.high < 0) or (wait is not None and wait.low > 1):
            verdict, why = "against", "fewer nodes went with less use of GPUs, or with longer waits"
        elif use is None or wait is None:
            few = min(*self._use.sizes(), *self._wait.sizes())
            why = f"too few of one kind to compare use and waits (n={few}): {LEAST} of each are needed"
        elif use.low <= 0 or wait.high > LONGER:
            why = "whether fewer nodes are better, and are not waited for longer, does not show yet"
        elif self._spread < LEAST_HELPED:
            why = f"{self._spread} ran on more nodes than it would have given: from {LEAST_HELPED} on that counts"
        else:
            verdict, why = "for", "fewer nodes went with better use of GPUs, and are not waited for longer"
        better = use is not None and use.low > 0
        return Stage(
            name="gang",
            **self._happened.row(),
            benefit=(
                counted("ran on more nodes than it would have given", self._spread, self._known),
                _difference("utilisation on so few nodes, beside more", use, self._use, "points"),
            ),
            harm=(
                _difference(
                    "wait of those that state their nodes, beside open ones", wait, self._wait, "times"
                ),
            ),
            helped=self._spread if better else None,
            harmed=0 if verdict == "for" else None,
            known=self._known,
            verdict=verdict,
            why=why,
            assumes="What differs between attempts in one partition with as many GPUs is the nodes alone.",
        )


def _difference(label: str, found: Any, of: Compared, unit: str) -> Figure:  # noqa: ANN401 - a Difference or None
    first, second = of.sizes()
    if found is None:
        return Figure(label, None, unit, min(first, second))
    return Figure(label, found.value, unit, min(first, second), found.low, found.high)


# --- topology ---------------------------------------------------------------------------------------------------------


class _Topology:
    """Helped: those that ran under more leaf switches than it would have asked for, where fewer went with better use of
    GPUs. Harmed: all, where the waits that it would have allowed are longer than what better use would have saved."""

    def __init__(self, leaves: Callable[[str], int | None]) -> None:
        self._leaves = leaves
        self._happened = Happened()
        self._use = Compared()
        self._spread = self._known = 0
        self._waits = array("d")
        self._runs = array("d")
        self._of_spread = array("d")

    def add(self, changes: Mapping[str, Changed], _: Body, attempts: Sequence[Attempt]) -> None:
        self._happened.add(list(changes), attempts)
        wanted = changes.get("req_switch")
        most = wanted.after if wanted is not None else 1 if "prefer" in changes else None
        wait = changes.get("wait4switch")
        for one in attempts:
            leaves = self._leaves(one.hosts)
            if leaves is None or not isinstance(most, int):
                continue
            self._known += 1
            spread = leaves > most
            if one.utilisation is not None:
                self._use.add(one.like, not spread, one.utilisation)
            if spread:
                self._spread += 1
                self._waits.append(wait.after if wait is not None and isinstance(wait.after, int) else 0.0)
                if one.utilisation is not None and one.run is not None:
                    self._runs.append(one.run)
                    self._of_spread.append(one.utilisation * one.run)

    def done(self) -> Stage:
        use = self._use.difference()
        waits, runs = fsum(self._waits), fsum(self._runs)
        mean = fsum(self._of_spread) / runs if runs else 0.0
        saved = None
        if use is not None and mean > 0:
            # So much longer a spread run takes, by the least of the difference that is sure
            saved = runs * max(0.0, use.low) / (mean + max(0.0, use.low))
        verdict: Verdict = "open"
        if use is not None and use.high < 0:
            verdict, why = "against", "fewer switches went with less use of GPUs"
        elif use is None:
            why = (
                f"too few of one kind to compare use (n={min(self._use.sizes())}): {LEAST} of each are needed"
            )
        elif use.low <= 0 or saved is None:
            why = "whether fewer switches are better does not show yet"
        elif waits > saved:
            verdict, why = "against", "the waits that it allows are longer than what they would save for sure"
        elif self._spread < LEAST_HELPED:
            why = f"{self._spread} were spread over more switches: from {LEAST_HELPED} on that counts"
        else:
            verdict, why = (
                "for",
                "fewer switches went with better use, which saves more than the waits it allows",
            )
        return Stage(
            name="topology",
            **self._happened.row(),
            benefit=(
                counted("ran under more switches than it would have asked for", self._spread, self._known),
                _difference("utilisation under so few switches, beside more", use, self._use, "points"),
                Figure("run time that this would have saved, at least", saved, "s", len(self._runs)),
            ),
            harm=(Figure("waits that it would have allowed these, at most", waits, "s", len(self._waits)),),
            helped=self._spread if use is not None and use.low > 0 else None,
            harmed=self._spread if verdict == "against" else 0 if verdict == "for" else None,
            known=self._known,
            verdict=verdict,
            why=why,
            assumes="A run is shorter as its GPUs are busier, and what differs between attempts in one partition with "
            "as many GPUs is the switches alone. All that are spread would have waited for as long as allowed.",
        )


def _leaves(site: Site | None) -> Callable[[str], int | None]:
    """How many leaf switches a hostlist is under; None where that is not known."""
    from site_configs.topology import TopologyError

    topologies = None
    if site is not None and site.topology.file:
        try:
            topologies = site.topologies()
        except TopologyError:
            topologies = None
    if topologies is None:
        return lambda hosts: None
    network = topologies.of()

    @lru_cache(maxsize=4096)
    def count(hosts: str) -> int | None:
        names = _names(hosts)
        if not names or any(network.leaf_of(name) is None for name in names):
            return None
        return len(network.leaves_of(names))

    return count


def _names(hosts: str) -> tuple[str, ...]:
    try:
        return expand(hosts)
    except HostlistError:
        return ()


# --- sensitivity ------------------------------------------------------------------------------------------------------


class _Sensitivity:
    """Memory. Helped: ran out of memory with less than it would have had. Harmed: peaked above what it would have had.
    What is left to others counts where enough are known to tell that it harms none.

    CPUs. Helped: kept BUSY of its CPUs busy, and would have had more. Harmed: had more than it would have had, and kept
    BUSY of what it would have had busy, or more.
    """

    def __init__(self) -> None:
        self._happened = Happened()
        self._count: Counter[str] = Counter()
        self._memory = array("d")
        self._cpus = array("d")

    def add(self, changes: Mapping[str, Changed], body: Body, attempts: Sequence[Attempt]) -> None:
        self._happened.add(list(changes), attempts)
        if changes.keys() & _CPUS and any(
            one.stage == "sensitivity" and one.inputs.get("knee") is not None and "cpus_per_gpu" in one.inputs
            for one in body.notes
        ):
            self._count["curve"] += len(attempts)
        for one in attempts:
            # What one that runs still comes to use is not known
            ended = one.run is not None
            if changes.keys() & MEMORY:
                self._weigh_memory(one, _memory(changes, one) if ended else None)
            if changes.keys() & _CPUS:
                self._weigh_cpus(one, _cpus(changes, body, one) if ended else None)

    def _weigh_memory(self, one: Attempt, would: float | None) -> None:
        count = self._count
        if would is None or one.asked is None:
            count["memory_unknown"] += 1
            return
        ran_out = one.reason == "cpu_oom" or one.state == "OUT_OF_MEMORY"
        if would > one.asked:
            count["memory_more"] += 1
            count["memory_helped"] += ran_out
        elif would < one.asked:
            count["memory_less"] += 1
            if ran_out or one.peak is not None:
                count["memory_judged"] += 1
                count["memory_harmed"] += ran_out or (one.peak or 0.0) > would
                self._memory.append((one.asked - would) / _GIB * (one.nodes or 1) * one.hours)
            else:
                count["memory_unknown"] += 1

    def _weigh_cpus(self, one: Attempt, would: float | None) -> None:
        count = self._count
        if would is None or one.cpus is None:
            count["cpus_unknown"] += 1
            return
        count["cpus_unknown"] += would != one.cpus and one.used is None
        if would > one.cpus:
            count["cpus_more"] += 1
            if one.used is not None:
                count["cpus_seen"] += 1
                count["cpus_helped"] += one.used >= BUSY * one.cpus
        elif would < one.cpus:
            count["cpus_less"] += 1
            if one.used is not None:
                count["cpus_judged"] += 1
                count["cpus_harmed"] += one.used >= BUSY * would
                self._cpus.append((one.cpus - would) * one.hours)

    def done(self) -> Stage:
        count = self._count
        helped, harmed = (count[f"memory_{name}"] + count[f"cpus_{name}"] for name in ("helped", "harmed"))
        verdict: Verdict = "open"
        why = "it would not have acted, or what it would have given is not known"
        verdicts = []
        for name, word in (("memory", "memory"), ("cpus", "CPUs")):
            less, more = count[f"{name}_less"], count[f"{name}_more"]
            judged = count[f"{name}_judged"]
            if less or more:
                told = _verdict(less + more, LEAST_HELPED, count[f"{name}_harmed"], judged, at_risk=less > 0)
                if told[0] == "for" and judged < LEAST_KNOWN * less:
                    told = "open", f"of {less} that would have had less, what they used is known of {judged}"
                verdicts.append((told[0], f"{word}: {told[1]}"))
        bad = [one for one in verdicts if one[0] != "for"]
        if bad:
            verdict, why = min(bad)  # "against" before "open"
        elif verdicts:
            verdict, why = _verdict(1, helped, 0, 0, at_risk=False)
            if verdict != "for" and count["memory_less"] + count["cpus_less"]:
                verdict, why = (
                    "for",
                    "it would have left to others what these never used, and harmed none that is known",
                )
        return Stage(
            name="sensitivity",
            **self._happened.row(),
            benefit=(
                counted(
                    "memory: ran out of it, and would have had more",
                    count["memory_helped"],
                    count["memory_more"],
                ),
                Figure("memory: left to others", fsum(self._memory), "GiB-hours", len(self._memory)),
                counted(
                    "CPUs: kept all busy, and would have had more", count["cpus_helped"], count["cpus_seen"]
                ),
                Figure("CPUs: left to others", fsum(self._cpus), "CPU-hours", len(self._cpus)),
                Figure(
                    "CPUs: by a measured curve, the others by a GPU's share",
                    count["curve"],
                    "",
                    self._happened.attempts,
                ),
            ),
            harm=(
                counted(
                    "memory: peaked above what they would have had",
                    count["memory_harmed"],
                    count["memory_judged"],
                ),
                counted(
                    "CPUs: used what they would have had, and more",
                    count["cpus_harmed"],
                    count["cpus_judged"],
                ),
                Figure(
                    "run still, or what they had, used or would have had is not known",
                    count["memory_unknown"] + count["cpus_unknown"],
                ),
            ),
            helped=helped,
            harmed=harmed,
            known=count["memory_more"] + count["memory_judged"] + count["cpus_seen"] + count["cpus_judged"],
            verdict=verdict,
            why=why,
            assumes="A run peaks at the memory that it peaked at, whatever it is given; more memory would have been "
            "enough for those that ran out of it. CPUs are means over a run: a short need of more does not show.",
        )


def _memory(changes: Mapping[str, Changed], one: Attempt) -> float | None:
    """Bytes on a node that an attempt would have had."""
    if (node := changes.get("min_mem_per_node")) is not None:
        return float(node.after) * _MIB if isinstance(node.after, int) else None
    if (gpu := changes.get("mem_per_tres")) is not None:
        each = _of_tres(gpu.after)
        return each * _MIB * ceil(one.gpus / one.nodes) if each and one.gpus and one.nodes else None
    cpu = changes["min_mem_per_cpu"].after
    return cpu * _MIB * one.cpus / one.nodes if isinstance(cpu, int) and one.cpus and one.nodes else None


def _cpus(changes: Mapping[str, Changed], body: Body, one: Attempt) -> float | None:
    """CPUs that an attempt would have had in all."""
    if (gpu := changes.get("cpus_per_tres")) is not None:
        each = _of_tres(gpu.after)
        return float(each * one.gpus) if each and one.gpus else None
    if (task := changes.get("cpus_per_task")) is not None:
        tasks = body.facts.get("tasks") or body.asked.num_tasks
        return float(task.after * tasks) if isinstance(task.after, int) and isinstance(tasks, int) else None
    least = changes.get("min_cpus")
    return float(least.after) if least is not None and isinstance(least.after, int) else None


def _of_tres(value: int | str) -> int | None:
    """The number of "gres:gpu:8"."""
    number = str(value).rpartition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() else None


# --- avoid_nodes, limits, a site's own --------------------------------------------------------------------------------


class _AvoidNodes:
    """Helped: failed for a reason that is a node's, on a node that it would have been kept off. Harm is bounded: never
    more than a tenth of a partition is left out; it shows where those nodes failed no more often than others."""

    def __init__(self) -> None:
        self._happened = Happened()
        self._there: list[int] = [0, 0]
        self._elsewhere: list[int] = [0, 0]

    def add(self, changes: Mapping[str, Changed], attempts: Sequence[Attempt]) -> None:
        self._happened.add(list(changes), attempts)
        change = changes.get("exc_nodes")
        if change is None:
            return
        excluded = set(_names(str(change.after))) - set(_names(str(change.before or "")))
        for one in attempts:
            names = _names(one.hosts)
            if not names or one.run is None:
                continue
            counts = self._there if excluded & set(names) else self._elsewhere
            counts[0] += 1
            counts[1] += one.reason in REASONS

    def done(self) -> Stage:
        (there, failed), (others, failed_elsewhere) = self._there, self._elsewhere
        bad, good = interval(failed, there), interval(failed_elsewhere, others)
        verdict: Verdict = "open"
        if not self._happened.jobs:
            why = "no node would have been left out"
        elif min(there, others) < LEAST:
            why = (
                f"too few ran on these nodes, or on others, all the same (n={min(there, others)} of {LEAST})"
            )
        elif bad[1] < good[0]:
            verdict, why = (
                "against",
                "the nodes that it would have left out failed less often than the others",
            )
        elif bad[0] > good[1] and failed >= LEAST_HELPED:
            verdict, why = "for", "the nodes that it would have left out failed more often than the others"
        else:
            why = "whether these nodes fail more often than others does not show yet"
        return Stage(
            name="avoid_nodes",
            **self._happened.row(),
            benefit=(
                counted("failed for a node's reason on a node it would have been kept off", failed, there),
                counted("failed for such a reason elsewhere", failed_elsewhere, others),
            ),
            harm=(
                Figure(
                    "ran there and did not fail so: they would have gone elsewhere", there - failed, "", there
                ),
            ),
            helped=failed,
            harmed=0 if verdict == "for" else there if verdict == "against" else None,
            known=there,
            verdict=verdict,
            why=why,
            assumes="They would have failed as seldom elsewhere as the others did; that they would have waited for "
            "another node is not counted: a tenth of a partition is left out at most.",
        )


_HELD_BACK: Final = "changes clipped or left out, which a limit or the charge was in the way of"


class _Limits:
    """Helped: would have been refused, and did not run in all its time. Harmed: would have been refused, and ran."""

    def __init__(self) -> None:
        self._happened = Happened()
        self._helped = self._harmed = self._unknown = self._held_back = 0

    def hold_back(self, body: Body) -> None:
        """Count a job of which a change was clipped or left out: its user's limits or the charge were in the way."""
        self._held_back += any(one.inputs.get("limited") for one in body.notes)

    def add(self, attempts: Sequence[Attempt], *, settled: bool) -> None:
        self._happened.add(["refused"], attempts)
        if attempts:
            self._harmed += 1
        elif settled:
            self._helped += 1
        else:
            self._unknown += 1

    def done(self) -> Stage:
        known = self._helped + self._harmed
        verdict, why = _verdict(known, self._helped, self._harmed, known, at_risk=False)
        return Stage(
            name="limits",
            **self._happened.row(),
            benefit=(
                counted("refused at once, and never ran", self._helped, known),
                Figure(
                    "may wait still, or Slurm did not take them either, or their job is not known",
                    self._unknown,
                ),
            ),
            harm=(
                counted("refused, and ran", self._harmed, known),
                *([Figure(_HELD_BACK, self._held_back)] if self._held_back else []),
            ),
            helped=self._helped,
            harmed=self._harmed,
            known=known,
            verdict=verdict,
            why=why,
            assumes="A job of which no attempt is known a week later has not run, and would not have run after that.",
        )


class _Smoke:
    """Helped: failed of the script's own fault so early that a smoke run would have seen it, and waited for so long
    that it would have seen it before. What it wrongly holds is not known: it fails on sure failures alone.

    As if all were submitted by `gsub`, above ABOVE_GPUS, or as the site has it.
    """

    def __init__(self, keys: SmokeKeys) -> None:
        self._on = keys.above_gpus is not None
        self._above = ABOVE_GPUS if keys.above_gpus is None else keys.above_gpus
        self._longest = keys.longest
        self._gpus = 2 if keys.two_nodes else 1
        self._happened = Happened()
        self._early = self._helped = 0
        self._saved = array("d")
        self._vain = array("d")

    def add(self, attempts: Sequence[Attempt]) -> None:
        some = [one for one in attempts if one.restarts == 0 and (one.gpus or 0) > self._above]
        if some:
            self._happened.add([f"above_gpus = {self._above}"], some[:1])  # of an array the first task alone
        for one in some[:1]:
            if one.reason not in SEEN or one.run is None or one.run > self._longest:
                continue
            self._early += 1
            if one.wait is not None and one.wait >= self._longest:
                self._helped += 1
                self._saved.append((one.gpus or 0) * one.hours)
                self._vain.append(one.wait / 3600)

    def done(self) -> Stage:
        tried, helped, saved = self._happened.jobs, self._helped, fsum(self._saved)
        cost = self._gpus * tried * self._longest / 3600
        verdict: Verdict = "open"
        if self._on:
            why = "it is on already, so that what failed early is what it did not stop"
        elif helped < LEAST_HELPED:
            why = f"it would have stopped {helped} before they started: from {LEAST_HELPED} on that counts"
        elif saved * interval(helped, tried)[0] * tried / helped <= cost:
            why = "its runs may cost more GPU-hours than it saves for sure; what waits in vain cost, the site knows"
        else:
            verdict, why = "for", "it saves more GPU-hours for sure than its runs can cost"
        return Stage(
            name="smoke",
            **self._happened.row(),
            benefit=(
                counted("failed so early of the script's own fault", self._early, tried),
                counted("... and waited for longer than a smoke run takes", helped, tried),
                Figure("hours that these waited in vain", fsum(self._vain), "h", helped),
                Figure("GPU-hours that these held", saved, "h", helped),
            ),
            harm=(Figure("GPU-hours of smoke runs, at most", cost, "h", tried),),
            helped=helped,
            harmed=0 if verdict == "for" else None,
            known=tried,
            verdict=verdict,
            why=why,
            assumes=f"All jobs with more than {self._above} GPUs are submitted by gsub, and each smoke run takes as "
            "long as smoke.longest allows.",
        )


def _own(name: str, happened: Happened) -> Stage:
    return Stage(
        name=name,
        **happened.row(),
        benefit=(),
        harm=(),
        helped=None,
        harmed=None,
        known=0,
        verdict="open",
        why="a stage of the site's own: what helps or harms there only the site knows",
        assumes="",
    )
