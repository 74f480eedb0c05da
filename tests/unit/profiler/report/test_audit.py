"""`gsub admin audit`: the tables on a terminal and in files, and what goes wrong."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from gsub.cli import main
from gsub.commands.admin.audit import BY
from profiler.report import figures, files
from profiler.store import JobFacts
from tests.unit.profiler.report.history import CLUSTER, fill
from tests.unit.profiler.store.conftest import small_disk
from tests.unit.profiler.store.empty import empty_store
from tests.unit.profiler.store.records import CLUSTER as LAB
from tests.unit.profiler.store.records import ended, started

__all__ = ["small_disk"]
NASTY = "=cmd|'/c calc'!A1[red]\x1b[31mx"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two clusters: Philly's, and one whose user has a name that others would have to suffer for."""
    path = tmp_path_factory.mktemp("audit") / "store.db"
    store = empty_store(f"sqlite:///{path}")
    fill(store, 1500)
    at = time.time() - 7200
    store.take([started(1, at=at, user=NASTY, account="+group"), ended(1, at=at + 3600)], at)
    facts = JobFacts(
        cluster=LAB, job_id=1, restarts=0, user=NASTY, account="+group", state="COMPLETED", name="@run",
        started=at, ended=at + 3600, gpus=2, final=True,
    )  # fmt: skip
    store.enrich([facts], at)
    store.close()
    return path


@pytest.fixture
def audit(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    site = tmp_path.parent / f"{tmp_path.name}.toml"
    site.write_text(f'cluster = "{CLUSTER}"\nstore.url = "sqlite:///{file}"\n')
    monkeypatch.setenv("GSUB_SITE", str(site))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["admin", "audit", *words])
        return (code, *capfd.readouterr())

    return run


YEAR = ("--since", "2024-12-31", "--until", "2026-01-02")


def test_the_tables_in_a_pipe(audit: Run) -> None:
    code, out, err = audit(*YEAR, "--by", "gpu-type")
    assert (code, err) == (0, "")
    assert "\nGPU utilisation by size and status  (1,500 attempts" in out
    assert "\nBy GPU type" in out and "\nBy user" not in out
    assert re.search(r"^attempts +1,500 +1,500 +0$", out, re.MULTILINE)
    assert "…" not in out and "more: --csv" in out, "nothing is cut, long tables say so"


def test_json_has_every_split_and_no_nan(audit: Run) -> None:
    code, out, _ = audit(*YEAR, "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert code == 0 and found["cluster"] == CLUSTER and found["since"].startswith("2025-01-01T")
    assert {f"by_{column}" for column in figures.BY.values()} <= set(found["tables"])
    whole = {row["figure"]: row for row in found["tables"]["totals"]["rows"]}
    assert whole["attempts"]["value"] == 1500
    assert sum(row["gpu_hours"] for row in found["tables"]["by_user"]["rows"]) == pytest.approx(
        whole["GPU-hours"]["value"]
    )
    assert tuple(figures.BY) == BY


def test_it_begins_with_the_records(audit: Run) -> None:
    code, out, err = audit("--json", "--since", "2024-03-01", "--until", "2025-02-01")
    assert (code, err) == (0, "")
    found = json.loads(out)
    rows = found["tables"]["utilisation_over_time"]["rows"]
    assert found["since"].startswith("2025-01-01T"), "when the first attempt started"
    assert 30 <= len(rows) <= 31 and all(row["attempts"] for row in rows), "no day before it, told as empty"
    whole = next(row for row in found["tables"]["totals"]["rows"] if row["figure"] == "GPU-hours")
    assert sum(row["gpu_hours"] for row in rows) == pytest.approx(whole["value"])


@pytest.mark.slow
def test_csv_and_parquet_say_the_same(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert audit(*YEAR, "--csv", str(tmp_path / "csv"))[0] == 0
    assert audit(*YEAR, "--parquet", str(tmp_path / "empty"))[0] == 0
    names = {path.stem for path in (tmp_path / "csv").iterdir()}
    assert {path.stem for path in (tmp_path / "empty").iterdir()} == names | {"jobs"}
    assert set(pd.read_csv(tmp_path / "csv/index.csv")["table"]) == names - {"index"}
    for name in names - {"utilisation_over_time", "index"}:
        text = pd.read_csv(tmp_path / f"csv/{name}.csv", keep_default_na=False, na_values=[""])
        whole = pd.read_parquet(tmp_path / f"empty/{name}.parquet")
        if name == "totals":
            text["unit"] = text["unit"].fillna("")
        pd.testing.assert_frame_equal(text, whole, check_dtype=False)
    frame = pd.read_parquet(tmp_path / "empty/jobs.parquet")
    assert len(frame) == 1500 and str(frame.started.dtype).startswith("datetime64") and frame.started.dt.tz
    assert (tmp_path / "csv").stat().st_mode & 0o077 == 0


def test_names_of_users_stay_text(audit: Run, tmp_path: Path) -> None:
    _, out, _ = audit("--since", "1d", "--by", "user", "--by", "account", "--cluster", LAB)
    assert "=cmd|'/c calc'!A1[red]?[31mx" in out and "\x1b" not in out
    audit("--since", "1d", "--csv", str(tmp_path / "out"), "--cluster", LAB)
    with (tmp_path / "out/by_user.csv").open() as lines:
        assert next(csv.DictReader(lines))["user"].startswith("'=cmd")
    for path in (tmp_path / "out").iterdir():
        with path.open() as lines:
            texts = [
                cell for row in csv.reader(lines) for cell in row if not re.fullmatch(r"[-+]?[\d.e+-]+", cell)
            ]
        assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@"))]
    rows = pd.DataFrame({"name": ["-1", "@x", "+", "\t=1", "ok", None], "number": range(-3, 3)})
    made = files.unformula(rows)
    assert list(made.name[:5]) == ["'-1", "'@x", "'+", "'\t=1", "ok"] and made.name.isna()[5]
    assert list(made.number) == [-3, -2, -1, 0, 1, 2]


@pytest.mark.slow
def test_the_page_has_every_split_and_is_for_its_owner(audit: Run, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    code, out, err = audit(*YEAR, "--html", str(page))
    assert (code, out, err) == (0, f"{page}: 1,500 attempts\n", "")
    assert page.stat().st_mode & 0o777 == 0o600 and [path.name for path in tmp_path.iterdir()] == [
        "audit.html"
    ]
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and text.endswith("</html>\n") and "user000" in text
    assert all(f'<section id="by_{column}"' in text for column in figures.BY.values())
    before = page.read_bytes()
    code, out, err = audit(*YEAR, "--html", str(page))
    assert (
        (code, out) == (2, "")
        and "is there already; nothing was written" in err
        and page.read_bytes() == before
    )
    hidden = tmp_path / "pseudonyms.html"
    assert audit(*YEAR, "--html", str(hidden), "--by", "user", "--pseudonyms")[0] == 0
    assert (
        not re.search(r"user\d\d\d|group\d\d", hidden.read_text()) and "by_account" not in hidden.read_text()
    )


def test_a_page_where_there_is_no_folder(audit: Run, tmp_path: Path) -> None:
    code, out, err = audit(*YEAR, "--html", str(tmp_path / "none/audit.html"))
    assert (code, out) == (1, "") and "cannot be written; nothing is left of it" in err
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert audit(*YEAR, "--html", str(tmp_path / "link"))[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.slow
def test_pseudonyms(audit: Run) -> None:
    _, plain, _ = audit(*YEAR, "--json")
    _, one, _ = audit(*YEAR, "--json", "--pseudonyms")
    _, other, _ = audit(*YEAR, "--json", "--pseudonyms")
    users = [
        {row["user"] for row in json.loads(out)["tables"]["by_user"]["rows"]} for out in (plain, one, other)
    ]
    assert len(users[0]) == len(users[1]) > 100 and not users[1] & (users[0] | users[2])
    wasted = {row["user"] for row in json.loads(one)["tables"]["wasted_by_user"]["rows"]}
    assert wasted == users[1], "one name in all tables"
    assert not re.search(r"user\d\d\d|group\d\d", one)


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--since", "yesterday"), "is no time", 2),
        (("--since", "2025-02-01", "--until", "2025-01-01"), "--since lies after --until", 2),
        (("--until", "2020-01-01"), "it begins 30d ago unless --since says otherwise", 2),
        (("--since", "30d", "--until", "2020-01-01"), "--since lies after --until", 2),
        (("--since", "2020-01-01", "--until", "2020-02-01"), "no job ran from 2020-01-01 to 2020-02-01", 1),
        ((*YEAR, "--json", "--csv", "x"), "exclude each other", 2),
        ((*YEAR, "--html", "x", "--parquet", "y"), "exclude each other", 2),
    ],
)
def test_wrong_questions(audit: Run, words: tuple[str, ...], said: str, code: int) -> None:
    found, out, err = audit(*words)
    assert (found, out) == (code, "") and said in err and "try: " in err


def test_where_nothing_is(audit: Run, tmp_path: Path) -> None:
    code, _, err = audit(*YEAR, "--store", f"sqlite:///{tmp_path}/none.db")
    assert code == 1 and "there is no store here" in err
    code, _, err = audit(*YEAR, "--cluster", "other")
    assert code == 1 and "no jobs of the cluster other" in err
    assert not (tmp_path / "none.db").exists()


def test_without_a_site_file(audit: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsub.site.read_site", lambda _, **__: None)
    code, _, err = audit(*YEAR, "--store", f"sqlite:///{file}")
    assert code == 2 and "no cluster is known" in err and "--cluster" in err
    code, out, _ = audit(*YEAR, "--store", f"sqlite:///{file}", "--cluster", CLUSTER)
    assert code == 0 and "(1,500 attempts)" in out


def test_a_folder_with_something_in_it_is_left_alone(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    code, _, err = audit(*YEAR, "--csv", str(tmp_path))
    assert code == 2 and "is there already" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("kind", ["--csv", "--parquet", "--html"])
@pytest.mark.root
def test_a_full_disk_leaves_nothing(audit: Run, small_disk: Path, kind: str) -> None:
    (small_disk / "filled").write_bytes(bytes(1000 * 1024))
    code, out, err = audit(*YEAR, kind, str(small_disk / "out"))
    assert (code, out) == (1, "") and "nothing is left of it" in err and "No space left" in err
    assert [path.name for path in small_disk.iterdir()] == ["filled"]


@pytest.mark.parametrize(
    ("package", "option"), [("pandas", "--parquet"), ("pyarrow", "--parquet"), ("jinja2", "--html")]
)
def test_without_the_extra(audit: Run, monkeypatch: pytest.MonkeyPatch, package: str, option: str) -> None:
    for name in [name for name in sys.modules if name.startswith("profiler.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = audit(*YEAR, option, "x")
    assert code == 2 and f"{package} is not installed here" in err and "gsub[service,report]" in err


def test_help_needs_no_pandas() -> None:
    program = (
        "import sys; from gsub.cli import main; code = [main(words.split()) for words in "
        "('--help', 'admin --help', 'admin audit --help')];"
        "assert not {'pandas', 'numpy', 'sqlalchemy'} & set(sys.modules); sys.exit(any(code))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "--pseudonyms" in done.stdout, done.stderr
