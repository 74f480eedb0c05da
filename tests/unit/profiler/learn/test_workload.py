"""Which runs are the same workload, and what that rests on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.workload import essence, exact, identify, like, owned
from slurm_plugins.decide.knowledge import fingerprints, read
from slurm_plugins.decide.request import Job, Request

SCRIPT = """#!/bin/bash
#SBATCH --gpus=8
module load cuda/12
source venv/bin/activate
export SEED=17
OUT=/scratch/runs/2024-05-01
mkdir -p $OUT
srun python train.py --lr 0.1 --seed 7 --output-dir $OUT --batch-size $BATCH "$@" > run.log 2>&1
"""
ARGUMENTS = ("--epochs", "10", "--run-name", "first", "--depth=50")
ENVIRONMENT = {
    "BATCH": "64",
    "VIRTUAL_ENV": "/home/a/venv",
    "TERM": "xterm",
    "HOME": "/home/a",
    "SSH_TTY": "/dev/pts/1",
}


def run(
    script: str = SCRIPT, arguments: tuple[str, ...] = ARGUMENTS, name: str = "train-1", **environment: str
) -> str:
    return identify(script, arguments, {**ENVIRONMENT, **environment}, name=name).fingerprints[0]


SAME = {
    "another seed in the script": run(SCRIPT.replace("--seed 7", "--seed 8").replace("SEED=17", "SEED=18")),
    "a seed with an equals sign": run(SCRIPT.replace("--seed 7", "--seed=7"))
    and run(SCRIPT.replace("17", "3")),
    "another output": run(SCRIPT.replace("OUT=/scratch/runs/2024-05-01", "OUT=/proj/me/b")),
    "another log": run(SCRIPT.replace("> run.log", "> other.log")),
    "other options of Slurm": run(SCRIPT.replace("--gpus=8", "--gpus=4 --time=1:00:00 -A other")),
    "another comment": run(SCRIPT + "# that was all\n"),
    "another layout": run(SCRIPT.replace("--lr 0.1", "  --lr \\\n    0.1")),
    "another name of the run": run(arguments=("--epochs", "10", "--run-name", "second", "--depth=50")),
    "another number in the job's name": run(name="train-2"),
    "another job name": run(name="other"),
    "another terminal": run(TERM="vt100", SSH_TTY="/dev/pts/9", HOME="/home/b"),
    "a variable that nothing names": run(FOO="1"),
    "Slurm's variables": run(SLURM_JOB_ID="7", SLURM_NTASKS="8"),
    "a key that nothing names": run(WANDB_API_KEY="abc"),
}
OTHER = {
    "another learning rate": run(SCRIPT.replace("0.1", "0.2")),
    "another program": run(SCRIPT.replace("train.py", "eval.py")),
    "another module": run(SCRIPT.replace("cuda/12", "cuda/11")),
    "another size": run(arguments=("--epochs", "10", "--run-name", "first", "--depth=101")),
    "one more argument": run(arguments=(*ARGUMENTS, "--amp")),
    "no arguments": run(arguments=()),
    "another environment": run(VIRTUAL_ENV="/home/a/venv2"),
    "a variable that the script names": run(BATCH="128"),
    "another number of threads": run(OMP_NUM_THREADS="4"),
    "an input": run(SCRIPT.replace("> run.log", "< run.log")),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_workload(name):
    assert SAME[name] == run()


@pytest.mark.parametrize("name", OTHER)
def test_another_workload(name):
    assert OTHER[name] != run()


PAIRS = [
    # two words of a command line, whether they are one workload
    ("--seed 1", "--seed 2", True),
    ("--random-seed=1", "--random-seed=2", True),
    ("seed=1", "seed=2", True),
    ("trainer.seed=1", "trainer.seed=2", True),
    ("-o a.pt", "-o b.pt", True),
    ("--save-dir a", "--save-dir b", True),
    ("--checkpoint_dir=a", "--checkpoint_dir=b", True),
    ("hydra.run.dir=a", "hydra.run.dir=b", True),
    ("--wandb-name a", "--wandb-name b", True),
    ("--master_port 29501", "--master_port 29502", True),
    ("--rdzv-endpoint=n1:29500", "--rdzv-endpoint=n2:29500", True),
    ("in/2024-01-31/x", "in/2024-02-01/x", True),
    ("in/20240131-120000", "in/20240201-130501", True),
    ("/tmp/tmp.a8fJ2k/x", "/tmp/tmp.b9xK3l/x", True),
    ("id-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "id-6fa459ea-ee8a-3ca4-894e-db77e160355e", True),
    ("--api-key=a", "--api-key=b", True),
    ("--data a", "--data b", False),
    ("--batch-size 32", "--batch-size 64", False),
    ("--num_workers=4", "--num_workers=8", False),
    ("--d_out 32", "--d_out 64", False),
    ("--tokenizer a", "--tokenizer b", False),
    ("--max-tokens 512", "--max-tokens 1024", False),
    ("--log-every 1", "--log-every 1000", False),
    ("--save-every 1", "--save-every 1000", False),
    ("--input a", "--input b", False),
    ("--seeds-per-batch 4", "--seeds-per-batch 8", False),
    ("--steps 20000", "--steps 30000", False),
    ("-s 1", "-s 2", False),
    ("model=a", "model=b", False),
]


@pytest.mark.parametrize(("one", "other", "same"), PAIRS)
@pytest.mark.parametrize("where", ["script", "arguments"])
def test_what_counts_on_a_command_line(one, other, same, where):
    def of(words: str) -> str:
        if where == "script":
            return identify(f"python train.py {words} --amp\n").fingerprints[0]
        return identify("python train.py $@\n", [*words.split(), "--amp"]).fingerprints[0]

    assert (of(one) == of(other)) is same


def test_what_counted_and_what_did_not_can_be_shown():
    identity = identify(SCRIPT, ARGUMENTS, ENVIRONMENT, name="train-7")
    why = {token.text: token.why for token in identity.ignored}
    assert why["--seed 7"] == "a seed"
    assert why["OUT=/scratch/runs/2024-05-01"] == "where output goes"
    assert why["--run-name first"] == "a name of the run"
    assert why["digits of train-7"] == "a number of the run"
    counted = [(token.part, token.text) for token in identity.counted]
    assert ("environment", "BATCH=64") in counted and ("argument", "--depth=50") in counted
    assert not any("TERM" in text or "HOME" in text for _, text in counted)


def test_secrets_are_nowhere():
    identity = identify(
        "export HF_TOKEN=hf_abc\npython t.py --api-key sesame --password=geheim $MY_SECRET\n",
        environment={"MY_SECRET": "psst", "BATCH": "1"},
    )
    assert not any(word in repr(identity) for word in ("hf_abc", "sesame", "geheim", "psst"))


def test_the_users_own_name_counts_alone():
    one = identify("a.sh\n", own="My ResNet")
    assert one.fingerprints == ("own:my-resnet",) == identify("b.sh\n", own=" my  resnet ").fingerprints
    assert owned("x" * 1000) == "own:" + "x" * 64
    assert owned("a\n\x1b[31mb") == "own:a-[31mb"


def test_fallbacks_go_from_the_most_telling_to_the_least():
    kinds = [key.partition(":")[0] for key in identify(SCRIPT, ARGUMENTS, ENVIRONMENT, name="x").fingerprints]
    assert kinds == ["run", "args", "script", "text", "like"]
    assert identify(name="run-7").fingerprints == ("name:run-#",)
    assert identify().fingerprints == ()
    one, other = identify(SCRIPT, ("--a",), name="x"), identify(SCRIPT, ("--b",), name="x")
    assert not set(one.fingerprints[:2]) & set(other.fingerprints[:2])
    assert one.fingerprints[2:] == other.fingerprints[2:]


def request(script: str = SCRIPT, name: str = "train-1", comment: str | None = None) -> Request:
    job = Job(name=name, comment=comment)
    return Request(id=1, uid=1000, job=job, script_head=script, script_bytes=len(script), batch=True)


def test_decisions_and_records_know_a_workload_by_the_same_fingerprints():
    known = identify(SCRIPT, ARGUMENTS, ENVIRONMENT, name="train-1").fingerprints
    assert set(fingerprints(request())) < set(known)
    assert known[-1] == like(SCRIPT, "train-1")


def record(workload: str) -> bytes:
    line = {"kind": "workload", "cluster": "c", "uid": 1000, "workload": workload, "slowdown": 1.5}
    return json.dumps(line).encode()


def test_a_submission_with_another_seed_is_known_by_its_likeness():
    profiles, problems = read([record(like(SCRIPT, "train-1"))], "c")
    assert not problems
    assert profiles.workload(request(SCRIPT.replace("--seed 7", "--seed 8"), "train-2"), "") is not None
    assert profiles.workload(request(SCRIPT.replace("--lr 0.1", "--lr 0.2")), "") is None
    assert profiles.workload(request(name="other"), "") is None


def test_a_comment_names_a_workload():
    profiles, _ = read([record("own:resnet"), record(exact(SCRIPT, "train-1")[0])], "c")
    assert profiles.workload(request("other.sh\n", comment="gsub:workload=ResNet"), "") is not None
    assert profiles.workload(request(comment="gsub:workload=other"), "") is None
    assert profiles.workload(request(comment="gsub:workload"), "") is not None  # names nothing


HOSTILE = [
    '"' * 200_000, "'" * 99_999, '"a' * 100_000, "\\" * 200_000, "a " * 100_000, "--seed " * 40_000, "=" * 200_000,
    "a_" * 100_000 + "seed", ("x_" * 60 + "=1 ") * 2000, "20240101" * 30_000, ">" * 200_000, "$SLURM_" * 30_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_scripts_are_harmless(text):
    identity = identify(text, [text] * 20, {"VIRTUAL_ENV": text}, name=text)
    assert all(len(key) <= 256 for key in identity.fingerprints)
    assert all(len(token.text) < 2 * 4096 + 100 or token.why for token in identity.tokens)


@given(st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.text())
@settings(deadline=None)
def test_any_run_has_an_identity(script, arguments, environment, name):
    one = identify(script, arguments, environment, name=name)
    assert one == identify(script, arguments, environment, name=name)
    assert set(exact(script, name)) <= set(one.fingerprints) or not essence(script)
