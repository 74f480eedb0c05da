"""Thousands of random answers: none raises, none changes what the table does not allow."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from slurm_plugins.decide import edits
from slurm_plugins.decide.edits import EDITS
from tests.unit.slurm_plugins.lua.lua import Shim

JOB = {"tres_per_node": "gres:gpu:2", "num_tasks": 4, "comment": "mine", "priority": 7}
VARIABLES = {"SLURM_NTASKS": "4", "PATH": "/bin"}
NAMES = [*EDITS, "priority", "script", "user_id", "environment", "pn_min_memory", "", "min_nodes ", "__index"]
ENV_NAMES = ["SLURM_NTASKS", "GSUB_DECISION", "PATH", "LD_PRELOAD", "SLURM_X", ""]
ATOMS: list[Any] = [
    *(0, 1, -1, 2, 65_000, 65_001, 2**31, 2**40, 2**53, 2**64, 10**400, 1.5, -0.0, 1e300),
    *(
        "",
        "a",
        "n[1-4]",
        "a|b",
        "gres:gpu:2",
        "%s%n",
        "x" * 300,
        "\x00",
        "\n",
        "\x1b[0m",
        "é",
        "😀",
        "' OR 1",
        "$(id)",
    ),
    *(None, True, False, [], {}, [1], {"a": 1}),
]
ANSWERS = 2500


def answers(draw: random.Random) -> Iterator[bytes]:
    """Answers that are right but for some parts, and then some with bytes changed."""
    while True:
        body: dict[str, Any] = {
            "v": 1,
            "id": 1,
            "mode": "enforce",
            "edits": {},
            "env": {},
            "say": [],
            "reject": None,
        }
        wild = draw.random() < 0.6
        for name in draw.sample(NAMES if wild else [*EDITS], draw.randrange(4)):
            body["edits"][name] = _value(draw, name, wild)
        for name in draw.sample(ENV_NAMES if wild else ENV_NAMES[:2], draw.randrange(2)):
            body["env"][name] = draw.choice(["1", "a:b", *(ATOMS if wild else [])])
        if wild and draw.random() < 0.2:
            body[draw.choice([*body, "more"])] = draw.choice(ATOMS)
        line = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        if wild and draw.random() < 0.3:
            line = _spoilt(draw, line)
        yield line.replace(b"\n", b" ") or b" "


def _value(draw: random.Random, name: str, wild: bool) -> Any:
    edit = EDITS.get(name)
    if edit is None or (wild and draw.random() < 0.2):
        return draw.choice(ATOMS)
    if edit.kind == "int":
        beyond = [edit.low - 1, edit.high + 1] if wild else []
        return draw.choice([edit.low, edit.high, draw.randint(edit.low, edit.high), *beyond])
    return draw.choice(["1", "x" * edit.high, *(["x" * (edit.high + 1), "a b", "é"] if wild else [])])


def _spoilt(draw: random.Random, line: bytes) -> bytes:
    raw = bytearray(line)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(raw) or 1)
        match draw.randrange(4):
            case 0:
                raw[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del raw[at : at + draw.randrange(8)]
            case 2:
                raw[at:at] = raw[: draw.randrange(40)]
            case _:
                del raw[at:]
    return bytes(raw)


def test_random_answers_do_no_harm(shim: Shim) -> None:
    draw = random.Random(20260503)
    lines = [line for line, _ in zip(answers(draw), range(ANSWERS), strict=False)]
    carried_out = 0
    for line, reply in zip(lines, shim.feed(lines, JOB, env=VARIABLES), strict=True):
        assert "raised" not in reply, line
        if "dropped" in reply:
            assert reply["job"] == JOB, line
            assert reply["env"] == VARIABLES, line
            continue
        carried_out += bool(reply["writes"])
        for name in reply["writes"]:
            if name.startswith("env."):
                name = name.removeprefix("env.")
                assert name in ("SLURM_NTASKS", "GSUB_DECISION"), line
                edits.check_env(name, reply["env"][name])
            else:
                value = reply["job"][{"gres": "tres_per_node"}.get(name, name)]
                edits.check(name, value)
        untouched = {"comment": "mine", "priority": 7}
        assert {**reply["job"], **untouched} == reply["job"], line
    assert carried_out > ANSWERS / 10


def test_an_answer_for_salloc_sets_no_variable(shim: Shim) -> None:
    draw = random.Random(5)
    lines = [line for line, _ in zip(answers(draw), range(500), strict=False)]
    for line, reply in zip(lines, shim.feed(lines, JOB, env=None), strict=True):
        assert "raised" not in reply, line
        assert not [name for name in reply["writes"] if name.startswith("env.")], line
