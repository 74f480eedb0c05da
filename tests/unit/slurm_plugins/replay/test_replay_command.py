"""`gsub admin replay`: what is typed, what is printed, what is refused; text of others is harmless everywhere."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
import time
from collections import Counter
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from gsub.cli import main
from gsub.replay_page import ticks
from tests.paths import DATA
from tests.unit.profiler.report.pages import HOSTILE

HEAD = "JobIDRaw|JobID|User|Account|Partition|State|Submit|Start|End|NNodes|NodeList|ReqTRES|AllocTRES"
T = 1_790_000_000


def export(path: Path, count: int = 60, partition: str = "gpu", user: str = "ada") -> Path:
    """One of a small busy cluster: jobs of 1 to 16 GPUs on n[1-4], some of them in the CPUs' partition."""
    lines = [HEAD]
    for n in range(count):
        gpus = (1, 4, 8, 16, 0)[n % 5]
        nodes = 2 if gpus == 16 else 1
        where = "n[1-2]" if nodes == 2 else f"n{n % 4 + 1}"
        tres = f"cpu={max(gpus, 1) * 4},mem={max(gpus, 1) * 8}G,node={nodes}" + (
            f",gres/gpu={gpus}" if gpus else ""
        )
        begin = T + n * 60
        lines.append(
            f"{n + 1}|{n + 1}|{user}|lab|{partition}|COMPLETED|{begin}|{begin + 30}|{begin + 630}|{nodes}|{where}|"
            f"{tres}|{tres}"
        )
    lines.append(f"99|99|{user}|lab|{partition}|RUNNING|{T}|{T}|Unknown|1|n1|cpu=1|cpu=1")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Tags(HTMLParser):
    """The elements of a page, and attributes that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]):
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["admin", "replay", *map(str, words)])
        return (code, *capfd.readouterr())

    return run


def test_policies_stand_side_by_side_with_what_was_recorded(told, tmp_path):
    code, out, err = told(
        export(tmp_path / "october.psv"), "--policy", "fifo+pack", "--policy", "fifo+skip", "--nodes", "4x8"
    )
    assert (code, err) == (0, "")
    assert (
        "october (sacct): 60 jobs" in out and "on 4x8: 4 nodes, 32 GPUs" in out and "1 has not ended" in out
    )
    (head,) = [line for line in out.splitlines() if line.startswith("figure ")]
    assert re.split(r"\s{2,}", head.strip()) == [
        "figure",
        "fifo+pack",
        "fifo+skip",
        "as recorded",
        "rests on jobs",
    ]
    waits = next(line for line in out.splitlines() if line.startswith("wait p50"))
    assert "30 s" in waits and waits.rstrip().endswith("60")
    assert "n/a" in next(line for line in out.splitlines() if line.startswith("on fewest nodes"))
    assert "Queueing delay by size" in out and "Queueing delay by cause" in out


def test_json_has_all_of_it_and_null_for_what_is_not_known(told, tmp_path):
    code, out, _ = told(export(tmp_path / "a"), "--policy", "fifo+pack", "--json", "--seed", 7)
    made = json.loads(out)
    assert code == 0 and made["seed"] == 7 and made["trace"]["left_out"] == {"has not ended": 1}
    assert made["cluster"]["gpus"] > 0 and any("as large as was in use" in note for note in made["notes"])
    first, was = made["runs"]
    assert (first["name"], was["name"]) == ("fifo+pack", "as recorded")
    assert first["figures"]["jct"]["jobs"] == 60 and first["figures"]["use"]["gpus"] > 0
    assert was["figures"]["on_fewest_nodes"] is None and was["figures"]["wait"]["mean"] == 30
    assert [size["size"] for size in first["figures"]["by_size"]] == ["0", "1", "2-4", "5-8", "9-16"]


def test_a_file_of_any_name_and_a_cluster_without_gpus(told, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.psv"))
    lines = [HEAD] + [
        f"{n}|{n}|a|lab|cpu|FAILED|{T}|{T}|{T + 9}|1|c1|cpu=4,mem=1G|cpu=4,mem=1G" for n in (1, 2)
    ]
    path.write_text("\n".join(lines))
    for more in ((), ("--json",), ("--html", tmp_path / "page.html")):
        code, out, err = told(path, *more)
        assert code == 0, err
    code, out, _ = told(path, "--json")
    made = json.loads(out)
    assert made["trace"]["name"] == "??" and made["cluster"]["gpus"] == 0
    assert any("no job has a GPU" in note for note in made["notes"])
    code, _, err = told(path, "--gpu-jobs")
    assert code == 2 and "none of the jobs has a GPU" in err and "AccountingStorageTRES" in err
    assert "span" not in err, "no other span has one"
    code, _, err = told(path, "--gpu-jobs", "--since", "2030-01-01")
    assert code == 2 and "ask for another span" in err
    code, _, err = told(export(tmp_path / "a", 5), "--gpu-jobs", "--since", "4 min")
    assert code == 2 and "none of the jobs of that span has a GPU" in err


def test_what_is_asked_for_is_what_is_replayed(told, tmp_path):
    path = export(tmp_path / "a")

    def jobs(*words: object) -> int:
        code, out, err = told(path, "--policy", "fifo", "--json", *words)
        assert code == 0, err
        return int(json.loads(out)["trace"]["jobs"])

    assert jobs("--gpu-jobs") == 48
    assert jobs("--since", "10 min") == 50 and jobs("--until", "10 min") == 10
    assert jobs("--since", "2026-09-01", "--until", "2027-01-01") == 60


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch):
    """Sets the local zone."""

    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("local", "name", "day", "hour"),
    [("UTC0", "UTC", "2026-09-21", "15:00"), ("AHEAD-12", "AHEAD", "2026-09-22", "03:00")],
)
def test_all_dates_are_local_and_name_their_zone(told, tmp_path, zone, local, name, day, hour):
    """The export is of 14:13 to 15:12 UTC: of the next day, twelve hours ahead."""
    zone(local)
    path, page = export(tmp_path / "a"), tmp_path / "page.html"
    named = f"{day} to {day} ({name})"
    code, out, err = told(path, "--policy", "fifo", "--since", day)
    assert code == 0, err
    assert named in out and "60 jobs" in out
    code, _, err = told(path, "--until", day)
    assert code == 2 and f"arrive from {named}" in err
    code, *_ = told(path, "--policy", "fifo", "--html", page)
    text = page.read_text()
    assert code == 0 and named in text and f"from ({name})" in text and f"time ({name})" in text
    assert f"{day[5:]} {hour}" in text, "a tick"
    assert f"{day} {hour[:2]}:0" in text, "a row"


def test_a_day_on_a_page_begins_at_local_midnight(zone):
    """Also after the night in which clocks are changed, in Berlin that of 2026-10-25."""
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    zero = datetime(2026, 10, 24, 7).timestamp()
    moments = ticks(zero, np.array([0.0, 2 * 86400.0]))
    assert [label[6:] for _, label in moments] == (["12:00", "18:00", "00:00", "06:00"] * 2)[:-1]
    assert all(label == f"{datetime.fromtimestamp(zero + at):%m-%d %H:%M}" for at, label in moments)
    days = ticks(zero, np.array([0.0, 6 * 86400.0]))
    assert [label for _, label in days] == [f"10-{day}" for day in range(25, 31)]
    assert all(f"{datetime.fromtimestamp(zero + at):%H:%M}" == "00:00" for at, _ in days)


def test_slurms_own_rules_come_from_its_files(told, tmp_path):
    """Two wait for a node that a third has: without shares the first of them gets it, with shares who has used less."""
    lines = [HEAD]
    for n, (user, gpus) in enumerate((("busy", 16), ("ann", 16), ("zoe", 4))):
        tres = f"cpu=8,gres/gpu={gpus},mem=8G,node=1"
        begin = T + n
        lines.append(
            f"{n + 1}|{n + 1}|{user}|{user}|gpu|COMPLETED|{begin}|{begin}|{begin + 4000}|1|n1|{tres}|{tres}"
        )
    path, conf, shares = tmp_path / "a", tmp_path / "slurm.conf", tmp_path / "shares"
    path.write_text("\n".join(lines))
    conf.write_text(
        "ClusterName=c\nNodeName=n1 CPUs=64 RealMemory=512000 Gres=gpu:16\nPartitionName=gpu Nodes=n1\n"
        "PriorityType=priority/multifactor\nPriorityWeightFairshare=100000\n"
    )
    shares.write_text(
        "Account|User|RawShares|RawUsage\nroot||1|0\nann||1|900000\n ann|ann|1|900000\nzoe||1|0\n zoe|zoe|1|0\n"
    )
    first = []
    for more in ((), ("--shares", shares)):
        code, out, err = told(path, "--cluster", conf, "--policy", "slurm", "--json", *more)
        assert code == 0, err
        by_size = {
            one["size"]: one["wait"]["p50"] for one in json.loads(out)["runs"][0]["figures"]["by_size"]
        }
        first.append("zoe" if by_size["2-4"] < by_size["9-16"] else "ann")
    assert first == ["ann", "zoe"], "who has used much comes later, where the shares are known"
    code, _, err = told(path, "--cluster", conf, "--policy", "slurm", "--shares", conf)
    assert code == 2 and "no table of sshare" in err
    code, _, err = told(path, "--cluster", conf, "--policy", "slurm", "--qos", tmp_path / "no")
    assert code == 2 and "no such file" in err


@pytest.mark.parametrize("named", ["slurm.conf", "site.toml"])
def test_rules_that_cannot_be_read_are_told_with_their_file(told, tmp_path, named):
    path, conf = export(tmp_path / "a"), tmp_path / "slurm.conf"
    conf.write_text("NodeName=n[1-4] CPUs=64 RealMemory=512000 Gres=gpu:8\nPriorityWeightAge=abc\n")
    (tmp_path / "site.toml").write_text('cluster = "c"\n[slurm]\nconf = "slurm.conf"\n')
    code, out, err = told(path, "--cluster", tmp_path / named, "--policy", "slurm")
    assert (code, out) == (2, "") and "PriorityWeightAge=abc" in err and f"{conf}:" in err and "try:" in err


def test_a_note_is_told_once(told, tmp_path):
    path, conf = export(tmp_path / "a"), tmp_path / "slurm.conf"
    conf.write_text("NodeName=n[1-4] CPUs=64 RealMemory=512000 Gres=gpu:8\n" + "NodeSet=a Feature=b\n" * 2)
    code, out, err = told(path, "--cluster", conf, "--policy", "slurm", "--policy", "fifo")
    assert code == 0, err
    assert out.count("NodeSet=a") == 1


def test_a_real_clusters_export_replays_near_its_record(told):
    """Jobs of a development cluster, with its slurm.conf, shares and QOS: half of the starts within half a minute."""
    folder = DATA / "replay/slurm-22.05"
    rules = (
        "--cluster",
        folder / "slurm.conf",
        "--qos",
        folder / "qos.psv",
        "--shares",
        folder / "sshare.psv",
    )
    code, out, err = told(folder / "export.psv", *rules, "--policy", "slurm", "--json")
    assert code == 0, err
    slurm, was = json.loads(out)["runs"]
    assert slurm["figures"]["jobs"] == slurm["figures"]["finished"] == 150 == was["figures"]["finished"]
    assert slurm["figures"]["start_error"]["p50"] < 30
    assert slurm["figures"]["wait"]["mean"] == pytest.approx(was["figures"]["wait"]["mean"], rel=0.25)


def test_remedies_multiply_policies(told, tmp_path):
    code, out, _ = told("generate:jobs=300,per_hour=100,like=philly", "--nodes", "20x8", "--policy", "fifo+skip",
                        "--remedy", "none", "--remedy", "gsub", "--json")  # fmt: skip
    none, gsub = json.loads(out)["runs"]
    assert code == 0 and (none["name"], gsub["name"]) == ("fifo+skip, none", "fifo+skip, gsub")
    assert none["bill"]["struck"] == gsub["bill"]["struck"] > 0 and gsub["bill"]["rescued"] > 0
    code, out, _ = told("generate:jobs=300,per_hour=100,like=philly", "--nodes", "20x8", "--policy", "fifo+skip",
                        "--remedy", "none", "--remedy", "gsub")  # fmt: skip
    lost, saved = (
        [float(word.replace(",", "")) for word in re.findall(r"-?[\d,]+\.\d", line)][:2]
        for line in out.splitlines()
        if line.startswith(("GPU-hours lost", "GPU-hours saved"))
    )
    assert saved == [0.0, pytest.approx(lost[0] - lost[1], abs=0.2)]
    code, out, _ = told("generate:jobs=300,per_hour=100,like=philly", "--nodes", "20x8", "--remedy", "gsub")
    assert code == 0 and "compare GPU-hours" in out and "of them passed later" in out


def test_standard_input_is_a_trace(told, tmp_path, monkeypatch):
    class Input:
        buffer = io.BytesIO(export(tmp_path / "a").read_bytes())

    monkeypatch.setattr(sys, "stdin", Input())
    code, out, _ = told("-", "--policy", "fifo")
    assert code == 0 and "standard input (sacct): 60 jobs" in out


def test_a_page_is_written_once_for_its_owner(told, tmp_path):
    path, page = export(tmp_path / "a"), tmp_path / "replay.html"
    code, out, _ = told(path, "--policy", "fifo+pack", "--nodes", "4x8", "--html", page)
    assert code == 0 and "60 jobs" in out and stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "default-src 'none'" in text and len(re.findall("<svg", text)) == 10 and text.count("<table") == 7
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text), "nothing is fetched"
    before = page.stat().st_mtime_ns
    code, _, err = told(path, "--html", page)
    assert code == 2 and "is there already" in err and page.stat().st_mtime_ns == before
    code, _, err = told(path, "--html", tmp_path / "no" / "replay.html")
    assert code == 1 and "cannot be written" in err


@pytest.mark.parametrize("name", HOSTILE[:8])
def test_what_others_wrote_is_shown_as_text(told, tmp_path, name):
    """Names of partitions and files: in no table, or harmless there."""
    word = name.replace("|", "/").replace("\n", " ")
    path = export(tmp_path / (word.replace("/", "_")[:80] or "x"), partition=word)
    page = tmp_path / "page.html"
    code, _, _ = told(path, "--policy", "fifo", "--nodes", "1x4", "--html", page)
    text = page.read_text()
    seen = Tags()
    seen.feed(text)
    assert code == 0 and seen.tags["img"] == 0 and seen.tags["script"] == 1 and not seen.handlers
    code, out, _ = told(path, "--policy", "fifo", "--nodes", "1x4")
    assert code == 0 and "\x1b" not in out and "\u202e" not in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere.psv"], "no such file"),
        (["generate:jobs=x"], "cannot be read"),
        (["TRACE", "--policy", "best"], "no word of a policy"),
        (["TRACE", "--policy", "fifo+retries=x"], "not a number"),
        (["TRACE", "--remedy", "pray"], "no way to retry"),
        (["TRACE", "--nodes", "many"], "are no nodes"),
        (["TRACE", "--nodes", "4x8", "--cluster", "x.toml"], "exclude each other"),
        (["TRACE", "--json", "--html", "x.html"], "exclude each other"),
        (["TRACE", "--cluster", "nowhere.toml"], "cannot be read"),
        (["TRACE", "--cluster", "TRACE"], "describes no cluster"),
        (["TRACE", "--since", "soon"], "no time"),
        (["TRACE", "--since", "2030-01-01"], "no job is left"),
        (["TRACE", "--since", "9999-12-31T23:59:59"], "no job is left"),
        (["generate:jobs=5", "--since", "2026-01-01"], "names no dates"),
        (["TRACE", "--quotas", "most"], "quota 'most'"),
        (["TRACE", "--quotas", "gpu=4,nobody=1"], "no such queue"),
        (["TRACE", "--quotas", "gpu=-1"], "quota"),
        (["TRACE", "--seed", "-1"], "--seed"),
        (["TRACE", "--processes", "0"], "--processes"),
        ([], "TRACE"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(told, tmp_path, words, why):
    path = export(tmp_path / "a")
    code, out, err = told(*(str(path) if word == "TRACE" else word for word in words))
    assert (code, out) == (2, "") and why in err and "Traceback" not in err
    assert len(err.strip().splitlines()) <= 4


def test_help_names_the_forms_of_a_trace(told):
    code, out, _ = told("--help")
    assert code == 0 and "generate:jobs=1000" in out and "sacct" in out
    main(["admin", "--help"])
