"""`gsub report`: the API's own jobs, the command against a real keeper, the screen and the files."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gsub.cli import main
from gsub.printed import Line
from gsub.report_view import Queue, as_csv, facts, lines
from profiler.answers import Advice, Figure, Report, ReportCause, ReportOutcome, ReportReason, ReportWait
from profiler.records import Record
from profiler.store.facts import JobFacts
from slurm_plugins.client.parse import tres
from slurm_plugins.client.states import NodeState
from slurm_plugins.client.values import Hosts, Node
from slurm_plugins.decide.free import cause
from tests.unit.gsub.cli.service import Site, keeper, write_site
from tests.unit.gsub.cli.test_waiting import pending
from tests.unit.profiler.store.records import CLUSTER, ended, started
from tests.unit.slurm_plugins.keeper.door import ADA, BOB, OPERATOR, Door, new_store

NOW = float(int(time.time()) - 3600)
Run = Callable[..., tuple[int, str, str]]


def told(number: int, uid: int, **more: object) -> tuple[list[Record], JobFacts]:
    """What a node and Slurm tell of a job of half an hour on two GPUs."""
    records: list[Record] = [started(number, at=NOW - 1800, uid=uid), ended(number, at=NOW)]
    known: dict[str, object] = {
        "restarts": 0, "state": "COMPLETED", "uid": uid, "name": "train", "started": NOW - 1800, "ended": NOW,
        "submitted": NOW - 2400, "gpus": 2, "final": True,
    }  # fmt: skip
    return records, JobFacts(cluster=CLUSTER, job_id=number, **(known | more))  # type: ignore[arg-type]


# --- the API --------------------------------------------------------------------------------------------------------


def test_everybody_is_told_of_own_jobs_alone(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for number, uid in ((1, ADA), (2, BOB), (3, BOB), (4, OPERATOR)):
        records, known = told(number, uid)
        store.take(records, NOW)
        store.enrich([known], NOW)
    door = Door(store)
    for uid, jobs in ((ADA, 1), (BOB, 2), (OPERATOR, 1), (0, 0)):
        got = asyncio.run(door.ask(uid, "GET", "/v1/report"))
        found = msgspec.json.decode(got.body, type=Report)
        assert (got.status, found.jobs, found.cluster) == (200, jobs, CLUSTER)
        assert found.until - found.since == 30 * 86400
    for query in (f"uid={BOB}", "user=bob", "account=a", "since=yesterday"):
        assert asyncio.run(door.ask(ADA, "GET", f"/v1/report?{query}")).status == 400
    assert asyncio.run(door.ask(None, "GET", "/v1/report")).status == 401
    before = asyncio.run(door.ask(ADA, "GET", f"/v1/report?until={NOW - 86400}"))
    assert msgspec.json.decode(before.body, type=Report).attempts == 0
    door.close()
    store.close()


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three jobs of the asker, one of somebody else."""
    uids = (os.getuid(), os.getuid(), os.getuid(), 4242)
    both = [told(number, uid) for number, uid in enumerate(uids, 1)]
    records = [record for some, _ in both for record in some]
    with keeper(tmp_path_factory.mktemp("report"), [known for _, known in both], records) as one:
        yield one


@pytest.fixture
def gsub(site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("GSUB_SITE", str(site.file))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["report", *words])
        return (code, *capfd.readouterr())

    return run


def test_a_screen(gsub: Run) -> None:
    code, out, err = gsub()
    assert (code, err) == (0, "")
    assert out.startswith(f"my jobs on {CLUSTER} from ") and "3 attempts at 3 jobs" in out
    # 3 x 2 GPUs x half an hour, and 10 minutes of waiting each
    rows = {line.split("  ")[1]: line.split() for line in out.splitlines() if line.startswith("  ")}
    assert rows["GPU-hours"] == ["GPU-hours", "3.0", "3", "0"]
    assert "n/a" in rows["utilisation"] and rows["utilisation"][-2:] == ["3", "3"]
    assert rows["completed"] == ["completed", "3.0", "100", "%", "3", "0"]
    assert rows["all"] == ["all", "10", "min", "10", "min", "100", "%", "3", "0"]
    assert "what waits now is not known: " in out, "there is no Slurm here"
    assert "what waits" not in gsub("--until", "2026-01-01T00:00", "--since", "2025-12-01")[1]


def test_json_and_csv_say_the_same(gsub: Run, tmp_path: Path) -> None:
    code, out, _ = gsub("--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 0 and list(found) == ["cluster", "since", "until", "tables"]
    code, out, _ = gsub("--csv", str(tmp_path / "out"))
    assert (code, out) == (0, f"{tmp_path}/out: {len(found['tables'])} tables of 3 attempts\n")
    assert {file.stem for file in (tmp_path / "out").iterdir()} == {*found["tables"], "index"}
    for name, table in found["tables"].items():
        with (tmp_path / f"out/{name}.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        texts = [{key: "" if one is None else str(one) for key, one in row.items()} for row in table["rows"]]
        assert rows == texts, name
        assert table["rows"] or name in ("failures", "advice")
    code, out, err = gsub("--csv", str(tmp_path / "out"))
    assert (code, out) == (2, "") and "is there already" in err and "try: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "is no time"),
        (("--since", "1d", "--until", "2d"), "--since lies after --until"),
        (("--json", "--csv", "x"), "exclude each other"),
    ],
)
def test_wrong_questions(gsub: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = gsub(*words)
    assert (code, out) == (2, "") and said in err and "try: " in err


def test_nothing_ran(gsub: Run) -> None:
    code, out, err = gsub("--since", "2020-01-01", "--until", "2020-02-01")
    assert (code, err) == (0, "") and "none of yours ran then" in out and "--since 8w" in out
    assert json.loads(gsub("--since", "2020-01-01", "--until", "2020-02-01", "--json")[1])["tables"]


def test_the_service_is_down(gsub: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(tmp_path / "site.toml", "http://127.0.0.1:9", site.socket)
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "site.toml"))
    code, out, err = gsub()
    assert (code, out) == (1, "") and "does not answer" in err and "try: " in err
    write_site(tmp_path / "site.toml", "", site.socket)
    assert gsub()[0] == 2


def test_it_needs_neither_pandas_nor_a_database(site: Site) -> None:
    program = (
        "import sys; from gsub.cli import main; code = main(['report', '--json']) or main(['report']);"
        "found = {'pandas', 'numpy', 'sqlalchemy', 'rich'} & set(sys.modules); print(found);"
        "sys.exit(code or len(found))"
    )
    environ = os.environ | {"GSUB_SITE": str(site.file)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


# --- the view by itself ---------------------------------------------------------------------------------------------

FULL = Report(
    cluster="lab\x1b[31m",
    since=NOW - 30 * 86400,
    until=NOW,
    attempts=123_456,
    jobs=120_000,
    gpu_seconds=Figure(3.6e9, 120_000, 5),
    utilisation=Figure(None, 120_000, 120_000),
    idle_gpu_seconds=Figure(30.0, 120_000, 7),
    failed_gpu_seconds=Figure(3.6e8, 120_000),
    wasted_gpu_seconds=Figure(3.7e8, 120_000),
    held_seconds=Figure(3.6e6, 123_456, 100_000),
    queued_seconds=Figure(7.2e6, 123_456, 10),
    outcomes=tuple(
        ReportOutcome(one, 20_000, 6e8) for one in ("completed", "cancelled", "timeout", "failed", "unknown")
    ),
    failures=(
        ReportReason("invalid_memory_access", 1000, 1e8, 7265.0),
        ReportReason("cuda_version_mismatch", 1000, 1e8, 7265.0),
        ReportReason("nccl_timeout", 100, 1e7, 86400.0 * 3),
        ReportReason("n/a", 10, None, None, 10),
    ),
    causes=(
        ReportCause("resources", 123_456, 10, 4, 1999.9 * 3600),
        ReportCause("user", 123_456, 100_000, 20_000, 3.6e6),
        ReportCause("other", 123_456, 10, 0, 0.0),
        ReportCause("n/a", 123_456, 10, 7, 360.0),
    ),
    waits=(
        ReportWait("1", 1000, 0, 60.0, 6000.0, 7.2e6, 10),
        ReportWait("all", 2000, 0, 60.0, 9e5, 7.2e6, 10),
    ),
    advice=(
        Advice("no_checkpoint", 12, 40, 801, 1.2e6),
        Advice("smoke", 5, 90, 802, 9e5, {"import_error": 5.0}),
        Advice("spare_gpus", 8, 700, 803, 8e5, {"gpus": 32.0, "unused": 24.0}),
        Advice("unused_gpus", 1, 700, 804, 7e5),
        Advice("cpus", 3, 10, 805, 6e5, {"seen": 100.0, "busy": 31.0}),
        Advice("memory", 30, 40, 806, None, {"asked": 30 * 64.0 * 2**30, "most_used": 9.0 * 2**30}),
        Advice("time_limit", 80, 100, 807, None, {"asked": 80 * 86400.0, "most_used": 7200.0}),
        Advice("of_a_later_service", 2, 3, 808),
    ),
)
QUEUE = Queue((("locality", 8, 7200.0), ("user", 1, 60.0), ("locality", None, None)))


def text(view: Iterator[Line]) -> str:
    return "\n".join(line.text for line in view)


def test_it_fits_on_eighty_columns_and_says_all() -> None:
    shown = text(lines(FULL, QUEUE))
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown and "…" not in shown
    assert "123,456 attempts at 120,000 jobs" in shown and "1,000,000.0" in shown
    said = " ".join(shown.split())
    assert "12 attempts ran into the time limit, and no log shows a checkpoint: 333.3 GPU-hours" in said
    assert "5 attempts failed of what a smoke run finds on one GPU (import_error 5)" in said
    assert "8 attempts used 1 of 4 GPUs in the mean" in said and "1 attempt never used a GPU" in said
    assert "and 4 more: --json or --csv has them" in said
    assert "fragmentation, locality 8 2 h 2 1" in said, "GPUs, the longest wait, jobs, of one not known"
    assert "dependency, begin time, hold 1,000.0 33 % 20,000 123,456 100,000" in said
    assert (
        said.index("resources 1,999.9")
        < said.index("dependency, begin time, hold")
        < said.index("not known 0.1")
    )
    assert "other" not in said.partition("Waiting by cause")[2].partition("Waiting now")[0], (
        "nobody waited for that"
    )
    assert "utilisation n/a 120,000 120,000" in said, "what is not known is not 0"
    first = shown.splitlines()[:24]
    assert any("What would have helped" in line for line in first), "on the first screen"


def test_every_sentence_is_in_the_data() -> None:
    tables = facts(FULL, QUEUE)["tables"]
    assert isinstance(tables, dict)
    sentences = {row["what"]: row["sentence"] for row in tables["advice"]["rows"]}
    assert "GPUs stood at 31 % (last: job 805)" in sentences["cpus"]
    assert (
        "30 of 40 attempts" in sentences["memory"]
        and "64 GiB asked in the mean, 9 GiB used at most" in sentences["memory"]
    )
    assert "1 d asked in the mean, 2 h run at most" in sentences["time_limit"]
    assert sentences["of_a_later_service"].startswith("2 attempts: of_a_later_service")
    mended = {row["reason"]: row["mended_by"] for row in tables["failures"]["rows"]}
    assert mended == {
        "invalid_memory_access": "you",
        "cuda_version_mismatch": "framework",
        "nccl_timeout": "the site",
        "n/a": "",
    }


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    nasty = msgspec.structs.replace(FULL, failures=(ReportReason("=cmd|'/c calc'!A1", 1),))
    as_csv(tmp_path / "out", nasty)
    assert "\n'=cmd|" in (tmp_path / "out/failures.csv").read_text()


def free(gpus: int, state: NodeState = NodeState.MIXED, features: tuple[str, ...] = ()) -> Node:
    """A node of eight A100, of which so many are free."""
    return Node(
        name=f"n{gpus}", state=state, gres=tres("gres/gpu:a100=8"), tres=tres("cpu=64,gres/gpu=8"),
        tres_allocated=tres(f"gres/gpu={8 - gpus}"), partitions=("gpu",), features=features,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "priority"),
        ({"reason": "Resources", "switches": 1}, "locality"),
        ({"reason": "Resources"}, "resources"),
        # As many are free as it wants, on nodes that cannot take it so
        ({"reason": "Resources", "gpus": 4}, "locality"),
        ({"reason": "Resources", "gpus": 5}, "resources"),
        ({"reason": "Resources", "gpus": 4, "partition": "cpu"}, "resources"),
        # ... of its type, on nodes with its features that it does not exclude
        ({"reason": "Resources", "gpus": 4, "tres_per_node": tres("gres/gpu:a100=4")}, "locality"),
        ({"reason": "Resources", "gpus": 1, "tres_per_node": tres("gres/gpu:h100=1")}, "resources"),
        (
            {"reason": "Resources", "gpus": 1, "tres_per_job": tres("gres/gpu:a100=1,gres/gpu:h100=1")},
            "resources",
        ),
        ({"reason": "Resources", "gpus": 3, "features": "(ib|eth)&big"}, "locality"),
        ({"reason": "Resources", "gpus": 4, "features": "ib"}, "resources"),
        ({"reason": "Resources", "gpus": 1, "features": "ib*2&big*1"}, "resources"),
        ({"reason": "Resources", "gpus": 3, "excluded_nodes": Hosts("n[3-9]")}, "resources"),
        # ... and on the nodes that it names, if it wants no more
        ({"reason": "Resources", "gpus": 4, "required_nodes": Hosts("n1"), "num_nodes": 1}, "resources"),
        ({"reason": "Resources", "gpus": 4, "required_nodes": Hosts("n[1,3]"), "num_nodes": 2}, "locality"),
        ({"reason": "Resources", "gpus": 4, "required_nodes": Hosts("n1"), "num_nodes": 2}, "locality"),
        ({"reason": "QOSMaxGRESPerUser", "gpus": 4}, "limits"),
        ({"reason": "MaxGRESPerAccount"}, "limits"),
        ({"reason": "Dependency"}, "user"),
        ({"reason": None}, "other"),
    ],
)
def test_what_a_job_waits_for(changes: dict[str, object], expected: str) -> None:
    nodes = [free(1), free(3, features=("ib", "big")), free(2, state=NodeState.DOWN)]
    assert cause(pending(**changes), nodes) == expected
    if expected != "locality" or "switches" in changes:
        assert cause(pending(**changes)) == expected


@pytest.mark.parametrize(
    ("told", "most"), [("gres/gpu=3", 1), ("gres/gpu=4,gres/gpu:v100=1,gres/gpu:a100=3", 3)]
)
def test_gpus_of_two_types_on_a_node(told: str, most: int) -> None:
    """Four of each: where Slurm does not tell by type what is held, all of that may be of the type that is wanted."""
    node = dataclasses.replace(
        free(0), gres=tres("gres/gpu:a100=4,gres/gpu:v100=4"), tres_allocated=tres(told)
    )
    for gpus, expected in ((most, "locality"), (most + 1, "resources")):
        job = pending(reason="Resources", gpus=gpus, tres_per_node=tres(f"gres/gpu:v100={gpus}"))
        assert cause(job, [node]) == expected
