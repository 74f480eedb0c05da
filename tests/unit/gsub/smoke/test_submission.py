"""The real job and its smoke job with a stand-in for sbatch: who is submitted, in which order, and what if not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gsub.argv import split
from gsub.sbatch_options import Table
from gsub.smoke import prepare
from gsub.smoke.passes import remember
from gsub.smoke.plan import Plan, decoded
from gsub.smoke.request import Real
from gsub.smoke.submission import with_dependency
from slurm_plugins.client.values import Partition
from slurm_plugins.decide.request import Job
from slurm_plugins.decide.shape import Shape, shape_of
from tests.paths import REPOSITORY
from tests.waiting import wait_until

FAKE = f"""#!{sys.executable} -IS
import json, os, pathlib, sys
here = pathlib.Path(os.environ["FAKE"])
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if words[:1] == ["--version"]:
    with open(here / "versions", "a") as file:
        file.write("asked\\n")
    print("slurm 24.11.5"); sys.exit()
smoke = any(word.startswith("--job-name=smoke-") for word in words)
stdin = "" if name == "scancel" or sys.stdin.isatty() else sys.stdin.read()
with open(here / "calls", "a") as file:
    variables = sorted(one for one in os.environ if one.startswith("SBATCH_"))
    file.write(json.dumps([name, smoke, words, variables, stdin]) + "\\n")
if name == "scancel":
    sys.exit()
which = "smoke" if smoke else "real"
try:
    (here / f"hold-{{which}}").read_text()
except FileNotFoundError:
    pass
if (here / f"refuse-{{which}}").exists():
    sys.exit("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
if (here / "one-job-only").exists() and any("afterany:8" in word for word in words):
    sys.exit("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)")
number = 8 if smoke else 7
print(number if "--parsable" in words else f"Submitted batch job {{number}}", flush=True)
if "--wait" in words:
    sys.exit(3)
"""
SCRIPT = """#!/bin/bash
#SBATCH -N2 --gpus-per-node=a100:8 --ntasks-per-node=8 --cpus-per-task=4 --mem=64G
#SBATCH -A proj --mail-type=ALL -o mine.txt --signal=TERM@60
srun hostname
"""
MAIN = "import sys; from gsub.cli import main; sys.exit(main())"


@dataclass
class Call:
    """One call of sbatch or scancel."""

    name: str
    smoke: bool
    words: list[str]
    variables: list[str]
    stdin: str

    @property
    def plan(self) -> Plan:
        return decoded(self.stdin.split("GSUB_PLAN'\n")[1].split("\n")[0].encode())

    def option(self, name: str) -> str | None:
        found = [word.partition("=")[2] for word in self.words if word.startswith(f"--{name}=")]
        return found[-1] if found else None


class Gsub:
    """gsub in a folder, with that sbatch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "job"
        self.fake = folder / "fake"
        self.state = folder / "state"
        for one in (self.folder, self.fake):
            one.mkdir()
        for name in ("sbatch", "scancel"):
            (self.fake / name).write_text(FAKE)
            (self.fake / name).chmod(0o755)
        (self.folder / "t.sh").write_text(SCRIPT)

    def start(
        self, *words: str, site: str = "", stdin: int = subprocess.DEVNULL, **env: str
    ) -> subprocess.Popen[str]:
        (self.fake / "calls").unlink(missing_ok=True)
        (self.fake / "site.toml").write_text(f'cluster = "test"\n{site}\n')
        environ = {
            "PATH": f"{self.fake}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.state),
            "GSUB_SITE": str(self.fake / "site.toml"),
            "FAKE": str(self.fake),
            "GSUB_PREFLIGHT": "off",
            **env,
        }
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            env=environ, cwd=self.folder, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def __call__(
        self, *words: str, given: str = "", site: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, site=site, stdin=subprocess.PIPE, **env)
        out, err = process.communicate(given, timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @property
    def calls(self) -> list[Call]:
        try:
            return [Call(*json.loads(line)) for line in (self.fake / "calls").read_text().splitlines()]
        except FileNotFoundError:
            return []

    @property
    def order(self) -> list[str]:
        return [
            call.name if call.name == "scancel" else "smoke" if call.smoke else "real" for call in self.calls
        ]

    def flag(self, name: str) -> None:
        (self.fake / name).touch()

    @contextmanager
    def held(self, which: str) -> Iterator[None]:
        """Keep each submission of this kind waiting: it reads a FIFO that has a writer until the end."""
        fifo = self.fake / f"hold-{which}"
        os.mkfifo(fifo)
        writer = os.open(fifo, os.O_RDWR)
        try:
            yield
        finally:
            fifo.unlink()
            os.close(writer)

    def until(self, order: list[str]) -> None:
        wait_until(lambda: self.order == order, 60, f"the calls {order}", pause=0.01)


@pytest.fixture
def gsub(tmp_path: Path) -> Iterator[Gsub]:
    yield Gsub(tmp_path)


def test_race_submits_the_real_job_first_and_as_it_is(gsub: Gsub) -> None:
    done = gsub("-d", "afterok:5", "--smoke", "t.sh", "a b", SBATCH_PARTITION="gpu", SBATCH_OUTPUT="x")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n")
    real, smoke = gsub.calls
    assert real.words == ["-d", "afterok:5", "t.sh", "a b"] and not real.smoke
    assert smoke.plan.mode == "race" and smoke.plan.real == 7 and smoke.plan.args == ("a b",)
    assert smoke.plan.script == SCRIPT.encode() and smoke.plan.cwd == str(gsub.folder)
    assert smoke.plan.gpus_of_real == 16 and smoke.plan.nodes_of_real == 2
    lines = done.stderr.splitlines()
    assert (
        lines[0].startswith("smoke: 1 GPU x ") and "job 8" in lines[1] and lines[2].endswith("/smoke/8.out")
    )


def test_the_smoke_job_asks_for_one_gpus_share_and_nothing_else_of_the_users(gsub: Gsub) -> None:
    gsub(
        "--smoke",
        "t.sh",
        SBATCH_PARTITION="gpu",
        SBATCH_OUTPUT="x",
        SBATCH_ARRAY_INX="1-9",
        SLURM_HINT="nomultithread",
    )
    smoke = gsub.calls[1]
    assert smoke.variables == []
    asked = dict(word.partition("=")[::2] for word in smoke.words)
    deadline = asked.pop("--deadline")
    assert deadline.startswith("now+")
    assert asked == {
        "--job-name": "smoke-t.sh", "--output": f"{gsub.state}/gsub/smoke/%j.out", "--nodes": "1",
        "--ntasks-per-node": "1", "--gres": "gpu:a100:1", "--time": "6", "--no-requeue": "",
        "--kill-on-invalid-dep": "yes", "--account": "proj", "--partition": "gpu", "--cpus-per-task": "4",
        "--mem": "8192M",
    }  # fmt: skip
    assert "#SBATCH" not in smoke.stdin
    assert (gsub.state / "gsub/smoke").stat().st_mode & 0o777 == 0o700
    # SBATCH_ARRAY_INX makes the real job an array
    assert smoke.plan.array["SLURM_ARRAY_TASK_ID"] == "1"


def test_gate_submits_the_smoke_job_first_and_the_real_one_waits(gsub: Gsub) -> None:
    done = gsub("--smoke=gate", "-d", "afterok:5", "t.sh", "-d")
    assert done.stdout == "Submitted batch job 7\n" and gsub.order == ["smoke", "real"]
    smoke, real = gsub.calls
    assert real.words == ["-d", "afterok:5", "--dependency=afterok:5,afterany:8", "t.sh", "-d"]
    assert smoke.plan.mode == "gate" and smoke.plan.real == 0
    # ahead of what the real job waits for there is nothing to try; and there is an end to the gate
    assert smoke.option("dependency") == "afterok:5" and smoke.option("deadline")


def test_any_of_several_dependencies_takes_no_gate(gsub: Gsub) -> None:
    done = gsub("--smoke=gate", "-d", "afterok:5?afterok:6", "t.sh")
    assert gsub.order == ["real", "smoke"] and "race, not gate" in done.stderr
    assert gsub.calls[0].words == ["-d", "afterok:5?afterok:6", "t.sh"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-N2", "t.sh"], ["-N2", "D", "t.sh"]),
        (["-N2", "--", "t.sh", "--"], ["-N2", "D", "--", "t.sh", "--"]),
        (["-J", "--", "t.sh"], ["-J", "--", "D", "t.sh"]),
        (["--wrap", "hostname"], ["--wrap", "hostname", "D"]),
        (["-N2"], ["-N2", "D"]),
        (["--"], ["D", "--"]),
        ([], ["D"]),
        (["t.sh", "t.sh"], ["D", "t.sh", "t.sh"]),
    ],
)
def test_the_gate_stands_where_it_counts(words: list[str], expected: list[str]) -> None:
    line = split(words, Table.of_all())
    added = with_dependency(line.sbatch, line, "", 9)
    assert [word.replace("--dependency=afterany:9", "D") for word in added] == expected
    again = split(added, Table.of_all())
    assert (again.script, again.args) == (line.script, line.args) and again.given("dependency")


@pytest.mark.slow
def test_a_refused_smoke_job_leaves_the_real_one_alone(gsub: Gsub) -> None:
    gsub.flag("refuse-smoke")
    for way, order in (("race", ["real", "smoke"]), ("gate", ["smoke", "real"])):
        done = gsub(f"--smoke={way}", "t.sh")
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n") and gsub.order == order
        assert "not submitted, the job goes ahead without" in done.stderr and "nvalid account" in done.stderr
        real = next(call for call in gsub.calls if not call.smoke)
        assert real.words == ["t.sh"]
    done = gsub("--smoke=only", "t.sh")
    assert done.returncode == 1 and "was not submitted" in done.stderr and gsub.order == ["smoke"]


def test_a_refused_real_job_has_no_smoke_run(gsub: Gsub) -> None:
    gsub.flag("refuse-real")
    done = gsub("--smoke=gate", "t.sh")
    assert done.returncode != 0 and gsub.order == ["smoke", "real", "scancel"]
    assert gsub.calls[2].words == ["8"] and "job 8 withdrawn" in done.stderr
    done = gsub("--smoke", "t.sh")
    assert done.returncode != 0 and gsub.order == ["real"]


def test_a_gate_never_takes_the_last_place_that_a_user_has(gsub: Gsub) -> None:
    gsub.flag("one-job-only")
    done = gsub("--smoke=gate", "t.sh")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 7\n")
    assert gsub.order == ["smoke", "real", "scancel", "real"] and gsub.calls[3].words == ["t.sh"]
    assert "more jobs than you may submit" in done.stderr


def test_a_script_that_submits_jobs_does_not_do_so_twice(gsub: Gsub) -> None:
    (gsub.folder / "next.sh").write_text("#!/bin/bash\nsbatch --dependency=afterany:$SLURM_JOB_ID t.sh\n")
    (gsub.folder / "t.sh").write_text(SCRIPT + "\nbash next.sh\n")
    done = gsub("--smoke=gate", "t.sh")
    assert (done.returncode, gsub.order) == (0, ["real"]) and "submits jobs" in done.stderr
    (gsub.folder / "t.sh").write_text(SCRIPT + '\n[ -n "$GSUB_SMOKE" ] || bash next.sh\n')
    assert gsub("--smoke=gate", "t.sh").returncode == 0 and gsub.order == ["smoke", "real"]


def test_an_interrupt_between_the_two_leaves_nothing(gsub: Gsub) -> None:
    with gsub.held("smoke"):
        process = gsub.start("--smoke=gate", "t.sh")
        gsub.until(["smoke"])
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert gsub.order == ["smoke", "scancel"] and gsub.calls[1].words == ["8"]


def test_an_interrupt_while_the_real_job_is_submitted_takes_the_gate_back(gsub: Gsub) -> None:
    with gsub.held("real"):
        process = gsub.start("--smoke=gate", "t.sh")
        gsub.until(["smoke", "real"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert gsub.order == ["smoke", "real", "scancel"]


def test_an_interrupt_after_the_real_job_was_submitted_takes_nothing_away(gsub: Gsub) -> None:
    with gsub.held("smoke"):
        process = gsub.start("--smoke=race", "t.sh")
        gsub.until(["real", "smoke"])
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "Submitted batch job 7" in out and gsub.order == ["real", "smoke"]


@pytest.mark.slow
def test_what_is_printed_is_of_the_real_job(gsub: Gsub) -> None:
    done = gsub("--smoke", "--parsable", "t.sh")
    assert (done.stdout, done.stderr) == ("7\n", "")
    done = gsub("--smoke", "--wait", "t.sh")
    assert done.returncode == 3 and gsub.order == ["real", "smoke"] and "--wait" not in gsub.calls[1].words
    done = gsub("--smoke", "--quiet", "t.sh")
    assert (done.stdout, done.stderr) == ("", "") and gsub.order == ["real", "smoke"]
    facts = json.loads(gsub("--smoke=gate", "--json", "t.sh").stdout)
    assert facts["job_id"] == 7 and facts["smoke"]["job_id"] == 8 and facts["smoke"]["way"] == "gate"


@pytest.mark.slow
def test_only_submits_the_smoke_job_alone(gsub: Gsub) -> None:
    done = gsub("--smoke=only", "t.sh")
    assert (done.returncode, done.stdout, gsub.order) == (0, "Submitted batch job 8\n", ["smoke"])
    assert gsub("--smoke=only", "--parsable", "t.sh").stdout == "8\n"
    assert gsub("--smoke=only", "--wait", "t.sh").returncode == 3
    assert json.loads(gsub("--smoke=only", "--json", "t.sh").stdout)["smoke"]["job_id"] == 8


@pytest.mark.parametrize("preflight", ["on", "off"])
def test_a_script_on_standard_input_is_read_once(gsub: Gsub, preflight: str) -> None:
    done = gsub("--smoke", given=SCRIPT, GSUB_PREFLIGHT=preflight)
    assert done.stdout == "Submitted batch job 7\n" and gsub.order == ["real", "smoke"]
    assert gsub.calls[0].stdin == SCRIPT and gsub.calls[1].plan.script == SCRIPT.encode()


def test_a_wrapped_command_is_a_script(gsub: Gsub) -> None:
    gsub("--smoke", "-G2", "--wrap=hostname")
    assert gsub.calls[1].plan.script.endswith(b"\nhostname\n") and gsub.calls[1].plan.name == "wrap"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--wrap=hostname"], "no GPU"),
        (["-G1", ":", "-G1", "--wrap=hostname"], "heterogeneous"),
        (["-G1", "-H", "--wrap=hostname"], "held"),
        (["-G1", "--array=x", "--wrap=hostname"], "array"),
        (["-G1", "-d", "expand:4", "--wrap=hostname"], "dependency"),
        (["-G1", "-Mother", "--wrap=hostname"], "another cluster"),
    ],
)
def test_a_job_without_a_smoke_run_is_submitted_with_one_line(gsub: Gsub, words: list[str], why: str) -> None:
    done = gsub("--smoke=gate", *words)
    assert done.stdout == "Submitted batch job 7\n" and gsub.calls[0].words == words and len(gsub.calls) == 1
    assert len(done.stderr.splitlines()) == 1 and why in done.stderr
    assert gsub(*words, site="[smoke]\nabove_gpus = 0").stderr == ""


@pytest.mark.slow
def test_the_sites_wish(gsub: Gsub) -> None:
    def order(*words: str, site: str, **env: str) -> list[str]:
        assert gsub(*words, "t.sh", site=f"[smoke]\n{site}", **env).returncode == 0
        return gsub.order

    assert order(site="above_gpus = 16") == ["real"]
    assert order(site='above_gpus = 15\nway = "gate"\ntwo_nodes = true') == ["smoke", "real"]
    assert gsub.calls[0].option("nodes") == "2" and gsub.calls[0].plan.gpus == 2
    assert order("--no-smoke", site="above_gpus = 0") == ["real"]
    assert order("--job-name=nf-ALIGN", site="above_gpus = 0") == ["real"]  # its program hears of a failure itself
    assert order("--comment=rule_a_wildcards_b", "--smoke", site="above_gpus = 0") == ["real", "smoke"]
    assert order("--comment=x,gsub:off", site="above_gpus = 0") == ["real"]
    assert order("--smoke", site='above_gpus = 0\nlongest = "60 s"\nmax_wait = "10 s"', GSUB="off") == [
        "real",
        "smoke",
    ]
    assert gsub.calls[1].plan.seconds == 60 and gsub.calls[1].option("deadline") == "now+195"
    assert order("--smoke", site="enabled = false") == ["real"]


@pytest.mark.parametrize(
    ("words", "code"), [(["--smoke=maybe"], 2), (["--learn", "--no-smoke"], 2), (["--smoke="], 2)]
)
def test_words_that_clash_submit_nothing(gsub: Gsub, words: list[str], code: int) -> None:
    done = gsub(*words, "t.sh")
    assert done.returncode == code and gsub.calls == [] and "nothing was submitted" in done.stderr


@pytest.mark.slow
def test_a_pass_is_not_tried_again_until_something_changes(gsub: Gsub) -> None:
    (gsub.folder / "t.sh").write_text(f"{SCRIPT}python3 train.py\n")
    (gsub.folder / "train.py").write_text("import helper\n")
    (gsub.folder / "helper.py").write_text("x = 1\n")

    def smoked(*words: str, **env: str) -> str:
        assert gsub("--smoke", "t.sh", *words, **env).returncode == 0
        plans = [call.plan for call in gsub.calls if call.smoke]
        return plans[0].key if plans else ""

    key = smoked("a")
    assert key
    remember(gsub.state / "gsub", key, 3, 100.0)
    done = gsub("--smoke", "t.sh", "a")
    assert gsub.order == ["real"] and len(done.stderr.splitlines()) == 1 and "(job 3)" in done.stderr
    facts: dict[str, Any] = json.loads(gsub("--smoke", "--json", "t.sh", "a").stdout)["smoke"]
    assert (facts["job_id"], facts["passed"]) == (None, 3)
    assert smoked("b") and smoked("a", OMP_NUM_THREADS="3")
    assert gsub("--smoke=only", "t.sh", "a").returncode == 0 and gsub.order == ["smoke"]
    (gsub.folder / "helper.py").write_text("x = 2\n")  # a module that the script's program imports
    assert smoked("a") not in ("", key)


def test_a_learning_run_begins_with_the_cap(gsub: Gsub) -> None:
    site = "[partitions.gpu]\ncpus_per_node = 64\ngpus_per_node = 8\n[resources]\nmax_cpus_per_gpu = 24"
    done = gsub("--smoke=only", "--learn", "-pgpu", "t.sh", site=site)
    assert gsub.calls[0].option("cpus-per-task") == "24" and gsub.calls[0].plan.learn, done.stderr
    assert gsub.calls[0].plan.cpus == 24 and gsub.calls[0].plan.seconds >= 180


@pytest.mark.parametrize(
    ("stated", "partition"), [({}, "gpu"), ({"partition": "cpu"}, "cpu"), ({"partition": "big,cpu"}, "big")]
)
def test_the_cap_is_that_of_the_partition_where_the_job_will_be(
    stated: dict[str, str | None], partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def partitions(self) -> tuple[Partition, ...]:
            names = {"cpu": False, "gpu": True}
            return tuple(Partition(name=one, state="UP", is_default=yes) for one, yes in names.items())

    monkeypatch.setattr("gsub.client.connect", Client)
    shape = shape_of(Job())
    assert isinstance(shape, Shape)
    assert prepare._partition(Real(stated, "t", "/", shape, "")) == partition


def test_a_dry_run_tells_the_price_and_submits_nothing(gsub: Gsub) -> None:
    done = gsub("--dry-run", "--smoke", "t.sh")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("smoke: 1 GPU x "), done.stderr
    assert all("--test-only" in call.words or "--help" in call.words for call in gsub.calls)
    facts = json.loads(gsub("--dry-run", "--smoke", "--json", "--wrap=hostname").stdout)
    assert "no GPU" in facts["smoke"][0]


def test_sbatch_is_asked_for_its_release_once(gsub: Gsub) -> None:
    (gsub.folder / "t.sh").write_text(SCRIPT.replace("-o mine.txt", "-o logs/mine.txt"))
    done = gsub("--smoke", "t.sh", GSUB_PREFLIGHT="")
    assert done.returncode == 0, done.stderr
    assert (gsub.fake / "versions").read_text() == "asked\n"


NO_TEXT = "an argument or a path is not UTF-8"


@pytest.mark.parametrize("way", ["--smoke", "--smoke=gate"])
@pytest.mark.parametrize("words", [("t.sh", "a\udcff"), ("b\udcff.sh",)], ids=["argument", "script"])
def test_what_is_not_utf_8_has_no_run_and_one_line_says_so(
    gsub: Gsub, way: str, words: tuple[str, ...]
) -> None:
    (gsub.folder / words[0]).write_text(SCRIPT)
    done = gsub(way, *words)
    assert done.returncode == 0 and [call.smoke for call in gsub.calls] == [False]
    assert done.stderr.splitlines() == [f"smoke: no run for this job: {NO_TEXT}"]
    done = gsub("--dry-run", way, *words)
    assert f"smoke: no run for this job: {NO_TEXT}" in done.stdout and "smoke: 1 GPU" not in done.stdout


def test_what_is_not_utf_8_cannot_be_smoked_only(gsub: Gsub) -> None:
    done = gsub("--smoke=only", "t.sh", "a\udcff")
    assert done.returncode == 1 and NO_TEXT in done.stderr and gsub.calls == []
