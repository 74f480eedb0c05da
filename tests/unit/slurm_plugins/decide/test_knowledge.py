"""What was learnt, looked up: which jobs are one workload, what a file of records gives, and what it survives."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugins.decide.context import Curve
from slurm_plugins.decide.knowledge import Profiles, WorkloadRecord, fingerprints, load, read
from slurm_plugins.decide.request import Job, Request

SCRIPT = "#!/bin/bash\n#SBATCH --gpus=8\n# our model\nmodule load cuda\nsrun python train.py --lr 0.1\n"


def request(
    name: str | None = "train", script: str = SCRIPT, uid: int = 1000, size: int | None = None
) -> Request:
    return Request(
        id=1,
        uid=uid,
        job=Job(name=name),
        batch=bool(script),
        script_head=script,
        script_bytes=len(script) if size is None else size,
    )


def record(fingerprint: str, **more: object) -> bytes:
    line = {"kind": "workload", "cluster": "c", "uid": 1000, "workload": fingerprint, "gpu_type": "a100"}
    return json.dumps({**line, **more}).encode()


SAME = {
    "other resources": request(script=SCRIPT.replace("--gpus=8", "--gpus=16 --time=1:00:00")),
    "another comment": request(script=SCRIPT.replace("our model", "our best model")),
    "another layout": request(script=SCRIPT.replace("module load cuda\n", "\n\tmodule  load cuda \r\n")),
    "another seed in its name": request(name="train"),
}
OTHER = {
    "another command": request(script=SCRIPT.replace("0.1", "0.2")),
    "another name": request(name="finetune"),
    "longer than what travels along": request(size=100_000),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_workload(name):
    assert fingerprints(SAME[name]) == fingerprints(request())


@pytest.mark.parametrize("name", OTHER)
def test_another_workload(name):
    assert fingerprints(OTHER[name])[0] != fingerprints(request())[0]


def test_digits_of_a_name_do_not_count():
    one, other = (fingerprints(request(name=f"run{seed}-x", script="")) for seed in (7, 12))
    assert one == other == ("name:run#-x",)


def test_fingerprints_do_not_change_between_releases():
    """Records are kept for a year: a fingerprint that changed would lose what was learnt."""
    assert fingerprints(request()) == (
        "script:3c046e857b449185d70b11eff424c42f",
        "text:449b4203db4a97b239496ce766b6a4ac",
    )


def test_a_script_under_a_new_name_is_found_by_its_text():
    by_text = fingerprints(request())[1]
    profiles, problems = read([record(by_text, slowdown=1.4)], "c")
    assert not problems
    found = profiles.workload(request(name="another"), "a100")
    assert found is not None and (found.slowdown, found.source) == (1.4, "workload")


def test_a_workload_belongs_to_its_user_cluster_and_gpu_type():
    profiles, _ = read([record(fingerprints(request())[0], slowdown=1.4)], "c")
    assert profiles.workload(request(), "a100")
    assert profiles.workload(request(uid=1001), "a100") is None
    assert profiles.workload(request(), "h100") is None
    assert read([record(fingerprints(request())[0])], "other")[0].workload(request(), "a100") is None


def test_its_class_where_nothing_is_known_of_a_workload():
    of_class = b'{"kind":"class","cluster":"c","gpu_type":"a100","runs":80,"slowdown":1.1,"run_time":5400}'
    profiles, _ = read([of_class, record("name:known", slowdown=2.0)], "c")
    found = profiles.workload(request(uid=7), "a100")
    assert found is not None and (found.slowdown, found.run_time, found.source) == (1.1, 5400, "class")
    assert profiles.workload(request(name="known", script=""), "a100").slowdown == 2.0  # type: ignore[union-attr]


def test_a_record_holds_all_that_stages_ask_for():
    line = record(
        fingerprints(request())[0],
        runs=12,
        slowdown=1.3,
        run_time=7200,
        memory_peak=41000,
        curve={"points": [[2, 0.7], [8, 1.0]], "memory": [[32768, 1.0]], "uncertainty": 0.01},
    )
    found = read([line], "c")[0].workload(request(), "a100")
    assert found is not None
    assert (found.runs, found.slowdown, found.run_time, found.memory_peak) == (12, 1.3, 7200, 41000)
    assert found.curve == Curve(((2.0, 0.7), (8.0, 1.0)), ((32768, 1.0),), 0.01)


def test_a_later_line_replaces_an_earlier_one_and_nodes_keep_their_order():
    lines = [record("name:x", slowdown=1.1), record("name:x", slowdown=1.9)]
    lines += [
        json.dumps(
            {"kind": "avoid", "cluster": "c", "partition": "gpu", "node": n, "reason": "Xid 79"}
        ).encode()
        for n in ("n9", "n2")
    ]
    profiles, problems = read(lines, "c")
    assert not problems
    assert profiles.workload(request(name="x", script=""), "a100").slowdown == 1.9  # type: ignore[union-attr]
    assert list(profiles.avoid("gpu")) == ["n9", "n2"]
    assert profiles.avoid("cpu") == {}


BAD = {
    "not JSON": b"{",
    "no record": b"[1, 2]",
    "an unknown kind": b'{"kind":"spell","cluster":"c"}',
    "a slowdown of nothing": record("name:x", slowdown=0),
    "a slowdown that is a text": record("name:x", slowdown="1.3"),
    "a run time below zero": record("name:x", run_time=-1),
    "not a number": b'{"kind":"class","cluster":"c","slowdown":NaN}',
    "a curve that goes back": record("name:x", curve={"points": [[8, 1.0], [4, 0.9]]}),
    "a curve with a point twice": record("name:x", curve={"points": [[8, 1.0], [8, 0.9]]}),
    "a node that is none": b'{"kind":"avoid","cluster":"c","partition":"gpu","node":"n[1-9]","reason":"x"}',
    "not UTF-8": b'{"kind":"class","cluster":"\xff"}',
    "a line without end": b'{"kind":"class","cluster":"' + b"c" * 70_000 + b'"}',
    "deep": b"[" * 5000,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_left_out_and_reported_with_its_number(name):
    profiles, problems = read([record("name:x", slowdown=1.1), b"\n", BAD[name]], "c", "profiles.jsonl")
    assert len(problems) == 1
    assert problems[0].startswith("profiles.jsonl:3: ")
    assert profiles.workload(request(name="x", script=""), "a100").slowdown == 1.1  # type: ignore[union-attr]


def test_a_file_of_bad_lines_gives_few_words():
    _, problems = read([b"{"] * 500, "c", "p")
    assert len(problems) == 20
    assert problems[-1] == "p: 481 more lines cannot be used"


def test_a_file_that_is_not_there_is_an_empty_one(tmp_path):
    assert load(tmp_path / "profiles.jsonl", "c") == (Profiles(), ())
    (tmp_path / "profiles.jsonl").write_bytes(record("name:x", slowdown=1.1) + b"\n")
    assert load(tmp_path / "profiles.jsonl", "c")[0].workload(request(name="x", script=""), "a100")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "profiles.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        load(tmp_path / "profiles.jsonl", "c")


def test_ten_thousand_workloads_are_looked_up_without_looking_through_them():
    class Counting(dict):  # type: ignore[type-arg]
        asked = 0

        def get(self, key, default=None):
            self.asked += 1
            return super().get(key, default)

    profiles = Profiles.of((WorkloadRecord("c", 1000, f"name:w{n}", "a100") for n in range(10_000)), "c")
    counting = Counting(profiles.workloads)
    Profiles(counting, {}, {}, frozenset({1000})).workload(request(), "a100")
    assert len(profiles.workloads) == 10_000
    assert counting.asked == 2


@given(st.text(max_size=300), st.text(max_size=2000), st.integers(0, 1 << 40))
def test_any_script_and_name_has_fingerprints(name, script, size):
    found = fingerprints(request(name, script, size=size))
    assert all(0 < len(text) <= 256 for text in found)
    assert found == fingerprints(request(name, script, size=size))


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_are_read(lines):
    read(lines, "c")
