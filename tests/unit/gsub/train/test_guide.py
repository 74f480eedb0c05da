"""docs/checkpoints.md: its code is that of the examples, or runs here."""

from __future__ import annotations

import re

from gsub import train
from tests.unit.gsub.train.running import HELPER, in_job, script

ROOT = HELPER.parents[1]
GUIDE = (ROOT / "docs/checkpoints.md").read_text()
EXAMPLES = ROOT / "examples/checkpoint"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_call_is_in_the_table():
    told = set(re.findall(r"`(?:gsub_train\.)?(\w+)\(", GUIDE))
    assert set(train.__all__) - {"STOPPED"} <= told
    assert f"exit code {train.STOPPED}" in GUIDE


def test_code_is_that_of_the_examples():
    examples = "".join(path.read_text() for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh"))
    rest = blocks("python")[1:]
    assert len(rest) == 3
    for block in rest:
        assert block in examples
    assert "while wait" in blocks("bash")[1]
    for line in blocks("bash")[1].splitlines():
        if line.startswith(("trap", "training", "while", "exit")):
            assert line in examples


def test_the_loop_stops_and_goes_on(tmp_path):
    """The first block, with a `torch` that keeps JSON."""
    around = """
import json, os, signal
class torch:
    load = staticmethod(lambda path: json.load(open(path)))
    save = staticmethod(lambda state, path: json.dump(state, open(path, "w")))
def new_state():
    return {"step": 0}
def train_one_step(state, step):
    state["step"] = step
    print(step)
    if step == 700 and not gsub_train.resuming():
        signal.raise_signal(signal.SIGUSR1)
steps = 1000
"""
    code = around + blocks("python")[0]
    with script(tmp_path, code) as run:
        code_, out, err = run.ends()
    assert code_ == train.STOPPED, err
    assert out.splitlines()[-1] == "700"
    assert err.splitlines()[-1].endswith(f"checkpoint={tmp_path}/checkpoints/700.pt step=700")
    with script(tmp_path, code, in_job(GSUB_RESTART="1")) as run:
        code_, out, err = run.ends()
    assert (code_, out.splitlines()[0], out.splitlines()[-1]) == (0, "701", "1000"), err
