"""Whether a failed attempt is followed by another, and how: the one function that decides it.

The questions come in the order in which a user would want to hear the answers: is it switched off, can another attempt
help, may this job be run again at all, was it tried often enough; then how; and last whether the site lets gsub do it.

>>> from slurm_plugins.resubmit.values import Memory
>>> memory = Memory(32768, "node", most_mib=512000)
>>> attempt = Attempt("lab", 12, 0, "12", 1000, "OUT_OF_MEMORY", requeue=True, memory=memory)
>>> row = plan(attempt, Failure("cpu_oom", 0.95, "decisive", "root"), Past(), Switches("enforce"), Resubmit(),
...            now=0.0, random=lambda: 0.5)
>>> row.state, row.step, row.memory_mib
('planned', 'requeue', 49152)
>>> print(row.why)
The host's memory was not enough: it is tried again with 48G instead of 32G for each node (1 of 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from profiler.resubmissions import Resubmission, Stop
from prolog_epilog.failures.taxonomy import NO_SIGNATURE, NONE
from site_configs.hostlist import fold
from site_configs.site_model import Resubmit
from slurm_plugins.resubmit.actions import Asked, asked, is_free
from slurm_plugins.resubmit.budget import Spent, spent, wait
from slurm_plugins.resubmit.elsewhere import PLACES, elsewhere, same_evidence
from slurm_plugins.resubmit.more import more_memory
from slurm_plugins.resubmit.values import Attempt, Earlier, Failure, Past, Switches
from slurm_plugins.resubmit.words import about, command, how, nodes, remedy, sentence

__all__ = ["MENDABLE", "plan"]

_OFF: Final = frozenset({"off", *(f"resubmit={no}" for no in ("off", "no", "false", "never", "0"))})
"""Whoever writes one of these means it: other wishes are refused by `=no` (``gsub:repack=no``)."""
_GOES_ON: Final = frozenset(
    {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
    }
)
"""States of a job that somebody has queued again already."""
_CHANGES_THE_JOB: Final = frozenset({"more_memory", "from_checkpoint"})
"""The other actions change only where and when it runs: the same evidence elsewhere refutes them."""
MENDABLE: Final = frozenset(
    {"checkpoint_error", "cpu_oom", "cuda_failure", "cuda_init_failed", "environment_error", "gpu_hardware",
     "import_error", "missing_input", "nccl_error", "nccl_timeout", "no_space", "node_failure", "output_error",
     "permission_error", "time_limit"}
)  # fmt: skip
"""Reasons for which `gsub fix` may know a change: `gsub.fixes`, which is above this floor."""


@dataclass(frozen=True, slots=True)
class _No:
    """Why there is no other attempt: for the row, in words, and the verb of `gsub` that helps ("" none)."""

    stop: Stop
    why: str
    verb: Literal["", "resubmit", "fix", "why"] = ""


@dataclass(frozen=True, slots=True)
class _Yes:
    """How the other attempt is made."""

    why: str
    delay_s: float = 0.0
    avoid: tuple[str, ...] = ()
    memory_mib: int | None = None
    memory_per: Literal["", "node", "cpu"] = ""


def plan(
    attempt: Attempt,
    failure: Failure,
    past: Past,
    switches: Switches,
    policy: Resubmit,
    *,
    now: float,
    random: Callable[[], float],
) -> Resubmission:
    """What follows a failed attempt: a row that is `planned`, with its first step, or `stopped`, with why.

    Parameters
    ----------
    past: the earlier attempts of the job, without this one.
    now: seconds since the epoch. The row is due at once; `delay_s` is how long Slurm then holds the job back.
    random: a number from 0 to 1, asked for at most once; the same answers make the same row.
    """
    wanted = asked(failure, policy)
    row = Resubmission(
        cluster=attempt.cluster,
        job_id=attempt.job_id,
        restarts=attempt.restarts,
        reason=failure.reason[:128],
        action=wanted.action,
        state="stopped",
        at=now,
        why="",
        shown=attempt.id[:128],
    )
    attempt = dataclasses.replace(attempt, state=_plain(attempt.state))
    used = spent(attempt, failure, past)
    free = is_free(failure, attempt.state)
    no = (
        _switched_off(attempt, switches)
        or _moved_on(attempt)
        or _cannot_help(attempt, wanted)
        or _may_not(attempt, policy)
        or _refuted(attempt, failure, used.recent if free else past.attempts, wanted, free)
        or _too_often(wanted, used, policy, free)
    )
    if no is not None:
        return _stopped(row, attempt, no)
    made = _made(attempt, failure, past, wanted, used, policy=policy, random=random)
    if isinstance(made, _No):
        return _stopped(row, attempt, made)
    if switches.mode != "enforce":
        would = f"{about(wanted)}: it would be tried again{made.why}, but the mode here is {switches.mode}."
        return _stopped(row, attempt, _No("mode", would, "resubmit"))
    nth, budget = _which(wanted, used, policy, free)
    return msgspec.structs.replace(
        row,
        state="planned",
        why=sentence(f"{about(wanted)}: it is tried again{made.why} ({nth} of {budget})."),
        nth=nth,
        budget=budget,
        charged=not free,
        due=now,
        delay_s=made.delay_s,
        avoid=made.avoid,
        exclude=fold({*attempt.excluded, *made.avoid}) if made.avoid else "",
        memory_mib=made.memory_mib,
        memory_was_mib=attempt.memory.asked_mib if made.memory_mib else None,
        memory_per=made.memory_per,
        step="requeue",
    )


def _stopped(row: Resubmission, attempt: Attempt, no: _No) -> Resubmission:
    typed = command(no.verb, attempt.id, attempt.job_id) if no.verb else ""
    return msgspec.structs.replace(row, stop=no.stop, why=sentence(no.why), command=typed)


# --- questions, in their order ----------------------------------------------------------------------------------------


def _switched_off(attempt: Attempt, switches: Switches) -> _No | None:
    if not switches.enabled:
        return _No("off", "This site has switched resubmission off.", "resubmit")
    if attempt.wishes & _OFF:
        return _No(
            "off", "Its user has switched resubmission off for it (gsub:off, gsub:resubmit=off).", "resubmit"
        )
    return None


def _plain(state: str) -> str:
    """Slurm's word alone, as of "CANCELLED by 1000"."""
    return state.upper().partition(" ")[0].rstrip("+")


def _moved_on(attempt: Attempt) -> _No | None:
    if attempt.state in _GOES_ON:
        return _No(
            "moved_on", f"Slurm, or somebody else, has queued it again already ({attempt.state.lower()})."
        )
    return None


def _cannot_help(attempt: Attempt, wanted: Asked) -> _No | None:
    if attempt.state in ("CANCELLED", "REVOKED") or wanted.reason == "cancelled":
        return _No("never", "It was cancelled by its user or an administrator, and stays so.")
    if wanted.reason == "requeued":
        return _No("never", f"{about(wanted)}: nothing of it failed.")
    if wanted.action != "never":
        return None
    if wanted.reason == NONE:
        return _No("never", f"{about(wanted)}.")
    if not wanted.sure:
        return _No("confidence", f"{about(wanted)}, and this site does not try that again.", "why")
    verb: Literal["fix", "why"] = "fix" if wanted.reason in MENDABLE else "why"
    if wanted.reason == NO_SIGNATURE:
        told = f"{about(wanted)}, so nothing says that another attempt would end better."
        return _No("never", told, "resubmit")
    told = f"{about(wanted)}: another attempt would end the same way."
    return _No("never", sentence(told, remedy(wanted.reason)), verb)


def _may_not(attempt: Attempt, policy: Resubmit) -> _No | None:
    if attempt.client:
        return _No("off", f"{attempt.client} manages it and may run it again itself, so it is left alone.")
    if attempt.gpus == 0 and not policy.without_gpus:
        return _No(
            "off",
            "It asked for no GPU, and its script may not be safe to run twice: this site leaves such jobs alone.",
            "resubmit",
        )
    if attempt.het:
        return _No("array", "It is a heterogeneous job: gsub does not run these again by itself.", "resubmit")
    if attempt.whole_array:
        return _No("array", "It is a whole array: only its tasks that failed are tried again.", "resubmit")
    if attempt.batch is False:
        return _No("no_requeue", "It is no batch job (salloc, srun): Slurm has no script to run again.")
    if not attempt.requeue:
        told = "It says --no-requeue, or its site does: Slurm may not run it again."
        unknown = "Whether it may be requeued is not known, so it is left alone."
        return _No("no_requeue", unknown if attempt.requeue is None else told, "resubmit")
    if attempt.dependants is None:
        return _No(
            "dependants", "Whether other jobs depend on it is not known, so it is left alone.", "resubmit"
        )
    if attempt.dependants:
        first = ", ".join(attempt.dependants[:3]) + (", ..." if len(attempt.dependants) > 3 else "")
        return _No("dependants", f"Other jobs depend on it ({first}), so it is left alone.", "resubmit")
    return None


def _refuted(
    attempt: Attempt, failure: Failure, earlier: Sequence[Earlier], wanted: Asked, free: bool
) -> _No | None:
    if wanted.action in _CHANGES_THE_JOB or (free and failure.reason == "preempted"):
        return None
    # A lost node leaves no line to compare; a job that takes one after the other with it is given no fourth.
    places = same_evidence(attempt, failure, earlier, _reason if free else _fingerprint)
    if len(places) < PLACES:
        return None
    seen = nodes([name for place in places for name in place])
    return _No(
        "same_evidence",
        f"The same evidence was seen in {len(places)} places ({seen}): it is not the nodes. Trying again cannot help.",
        "why",
    )


def _fingerprint(failure: Failure) -> str:
    return failure.fingerprint


def _reason(failure: Failure) -> str:
    return failure.reason


def _too_often(wanted: Asked, used: Spent, policy: Resubmit, free: bool) -> _No | None:
    if used.total >= policy.budget_most:
        return _No(
            "budget",
            f"It was tried again {used.total} times in its life, the most that this site allows.",
            "resubmit",
        )
    if free:
        return None
    if used.charged >= policy.budget:
        if not policy.budget:
            return _No("budget", "This site gives no further attempts (resubmit.budget is 0).", "resubmit")
        return _No(
            "budget", f"{about(wanted)}. It was tried again {_times(used.charged)} without progress.", "why"
        )
    if wanted.action == "once" and used.once:
        stop: Stop = "budget" if wanted.sure else "confidence"
        return _No(stop, f"{about(wanted)}. It was tried once more already.", "why")
    return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _which(wanted: Asked, used: Spent, policy: Resubmit, free: bool) -> tuple[int, int]:
    """The how-manieth attempt this is, of how many."""
    if free:
        return used.total + 1, policy.budget_most
    return used.charged + 1, used.charged + 1 if wanted.action == "once" else policy.budget


# --- how --------------------------------------------------------------------------------------------------------------


def _made(
    attempt: Attempt,
    failure: Failure,
    past: Past,
    wanted: Asked,
    used: Spent,
    *,
    policy: Resubmit,
    random: Callable[[], float],
) -> _Yes | _No:
    action = wanted.action
    if action == "more_memory":
        return _with_more(attempt, wanted, policy)
    if action == "from_checkpoint":
        return _from_checkpoint(attempt, failure, wanted)
    avoid: tuple[str, ...] = ()
    note, delay = "", 0.0
    if action == "other_node":
        found = elsewhere(attempt, failure, past, policy)
        avoid, note = found.avoid, found.why
        if note:  # it may come to the same node: time for its health checks to see what is wrong with it
            delay = wait(used.waited, policy, random)
    elif action == "once":
        avoid = elsewhere(attempt, failure, past, policy).avoid  # where it can be: chance may be a node's
    elif action == "backoff":
        delay = wait(used.waited, policy, random)
    return _Yes(how(action, avoid=avoid, memory=None, delay_s=delay, note=note), delay, avoid)


def _with_more(attempt: Attempt, wanted: Asked, policy: Resubmit) -> _Yes | _No:
    more = more_memory(attempt.memory, policy.memory_factor)
    was = attempt.memory.asked_mib
    if more.mib is None or not was:
        stop: Stop = more.stop or "unknown"
        return _No(stop, sentence(f"{about(wanted)}, and {more.why}.", remedy(wanted.reason)), "fix")
    said = how("more_memory", avoid=(), memory=(more.mib, was, more.per), delay_s=0.0)
    return _Yes(said, memory_mib=more.mib, memory_per=more.per)


def _from_checkpoint(attempt: Attempt, failure: Failure, wanted: Asked) -> _Yes | _No:
    wished = "checkpoint" in attempt.wishes
    if not wished and not failure.resumes:
        return _No(
            "no_checkpoint",
            f"{about(wanted)}, and nothing says that its script goes on from a checkpoint. If it does, say "
            "--comment=gsub:checkpoint; else ask for more time (--time).",
            "fix",
        )
    if not failure.checkpoint and failure.progressed is not True:
        return _No(
            "no_checkpoint",
            f"{about(wanted)}, and nothing shows that it saved a checkpoint: it would begin anew and end so again.",
            "fix",
        )
    return _Yes(how("from_checkpoint", avoid=(), memory=None, delay_s=0.0))
