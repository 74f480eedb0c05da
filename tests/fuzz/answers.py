"""Answers for the shim: right ones, the same with values outside of the table, and noise."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from slurm_plugins.decide.edits import EDITS, EditError, check, check_env
from slurm_plugins.decide.steps import ENV_NAMES
from tests.fuzz import words

_VARIABLES = (*sorted(ENV_NAMES), "GSUB_DECISION")
_LETTERS = "abcXYZ019_.:-"
_TEXTS: dict[str, tuple[str, ...]] = {
    "gres": ("gpu:4", "gpu:a100:8", "gres/gpu:2"),
    "cpus_per_tres": ("gres:gpu:8", "gres/gpu:6"),
    "mem_per_tres": ("gres:gpu:16384",),
    "features": ("a100&h200", "[leaf1|leaf2]", "(a100|h200)*2"),
    "prefer": ("h200",),
    "exc_nodes": ("n[1-4],m7", "n00001"),
    "admin_comment": ("gsub:d-0123456789abcdef",),
}


@dataclass(frozen=True)
class Answer:
    """What the server sends to one question, and what is known of it.

    `fields` is the object that was written, None where the bytes are something else; `right` says that it obeys the
    contract in all. `close`: the server hangs up behind it, for the shim would wait for more.
    """

    line: bytes
    fields: dict[str, Any] | None
    right: bool
    close: bool


def right(random: Random, number: int, *, batch: bool) -> dict[str, Any]:
    """An answer as the service gives them."""
    mode = random.choice(("enforce", "enforce", "enforce", "advise", "observe"))
    fields: dict[str, Any] = {
        "v": 1,
        "id": number,
        "decision": f"d-{random.getrandbits(64):016x}",
        "mode": mode,
    }
    fields |= {"edits": {}, "env": {}, "say": [], "reject": None}
    if mode == "observe":
        return fields
    lines = ("gsub set --nodes=2 (not stated before): é", "one", "")
    fields["say"] = [random.choice(lines) for _ in range(random.randrange(9))]
    if mode == "advise":
        return fields
    if random.random() < 0.1:
        fields["reject"] = "\n".join(["never can run", "because", "so"][: random.randrange(1, 4)])
        fields["say"] = fields["reject"].splitlines()
        return fields
    for name in random.sample(sorted(EDITS), random.randrange(8)):
        edit = EDITS[name]
        if edit.kind == "int":
            fields["edits"][name] = random.choice((edit.low, edit.high, random.randint(edit.low, edit.high)))
        else:
            fields["edits"][name] = random.choice(_TEXTS[name])
    if {"min_mem_per_node", "min_mem_per_cpu"} <= set(fields["edits"]):
        del fields["edits"]["min_mem_per_cpu"]
    if batch:
        for name in random.sample(_VARIABLES, random.randrange(4)):
            fields["env"][name] = "".join(random.choice(_LETTERS) for _ in range(random.randrange(20)))
    return fields


def spoil(random: Random, fields: dict[str, Any]) -> dict[str, Any]:
    """The same with one to three things wrong."""
    for _ in range(random.randrange(1, 4)):
        kind = random.randrange(8)
        name = random.choice(sorted(EDITS))
        if kind == 0:
            fields["edits"][name] = words.anything(random)
        elif kind == 1:
            fields["edits"][
                random.choice(("user_id", "script", "priority", "account", "nice", words.text(random)))
            ] = 1
        elif kind == 2:
            fields["edits"][name] = random.choice(words.NUMBERS)
        elif kind == 3:
            fields["edits"][name] = words.text(random)
        elif kind == 4:
            name = random.choice(("SLURM_NTASKS", "LD_PRELOAD", "PATH", "GSUB_DECISION", words.text(random)))
            fields["env"][name] = random.choice((words.text(random), words.anything(random)))
        elif kind == 5:
            fields["say"] = random.choice(
                ([words.text(random)] * random.randrange(12), words.anything(random))
            )
        elif kind == 6:
            fields["reject"] = random.choice((words.text(random), words.anything(random)))
        else:
            fields[random.choice(sorted(fields))] = words.anything(random)
        for part in ("edits", "env"):
            if not isinstance(fields.get(part), dict):
                return fields
    return fields


def make(random: Random, number: int, *, batch: bool) -> Answer:
    """The answer to question `number`: four in ten are right, three spoilt, the rest mangled, stale or noise."""
    kind = random.randrange(10)
    if kind < 4:
        fields = right(random, number, batch=batch)
        stale = b""
        if random.random() < 0.2 and number > 1:  # of questions that nobody waits for any more
            old = right(random, number - 1, batch=batch)
            stale = (words.encode(random, old) + b"\n") * random.randrange(1, 5)
        return Answer(stale + words.encode(random, fields) + b"\n", fields, True, random.random() < 0.1)
    if kind == 9:
        return Answer(words.noise(random) + random.choice((b"", b"\n")), None, False, True)
    fields = right(random, number, batch=batch)
    if kind < 7:
        fields = spoil(random, fields)
        return Answer(words.encode(random, fields) + b"\n", fields, False, True)
    line = words.mangle(random, words.encode(random, fields)) + random.choice((b"", b"\n"))
    return Answer(line, None, False, True)


def forbidden(fields: dict[str, Any], *, batch: bool) -> bool:
    """Whether the contract says that such an answer changes nothing: something in it is outside of the table."""
    edits, env = fields.get("edits"), fields.get("env")
    if fields.get("mode") != "enforce" or not isinstance(edits, dict) or not isinstance(env, dict):
        return True
    if isinstance(fields.get("v"), bool) or fields.get("v") != 1 or not isinstance(fields.get("say"), list):
        return True
    if fields.get("reject") is not None or (env and not batch):
        return True
    try:
        for name, value in edits.items():
            # JSON has one kind of number
            check(name, int(value) if isinstance(value, float) and value.is_integer() else value)
        for name, value in env.items():
            if not isinstance(value, str) or not (name in ENV_NAMES or name.startswith("GSUB")):
                return True
            check_env(name, value)
    except EditError:
        return True
    return {"min_mem_per_node", "min_mem_per_cpu"} <= set(edits)
