"""The runner of the parts, on tiny suites: what passes, what fails, what is unsteady, and what ends at all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from site_configs.devcluster.spec import RELEASES
from tests.side_by_side import MOST_UNSTEADY, Part, Run, parts_here, run

ROOT = Path(__file__).resolve().parents[1]

GOOD = "def test_one(): pass\ndef test_two(): pass\n"
BAD = "def test_good(): pass\ndef test_bad():\n    assert 'left' == 'right'\n"
FLAKY = """
    from pathlib import Path
    import pytest
    MARK = Path(__file__).with_suffix('.mark')

    @pytest.mark.parametrize('value', ['a b', 'x::y[1]'])
    def test_flaky(value):
        seen = MARK.exists() and value in MARK.read_text()
        with MARK.open('a') as file:
            file.write(value)
        assert seen, 'the first time never works'

    def test_steady(): pass
"""
MANY_FLAKY = """
    from pathlib import Path
    import pytest
    MARK = Path(__file__).with_suffix('.mark')

    @pytest.mark.parametrize('value', range({count}))
    def test_flaky(value):
        seen = MARK.with_suffix('.' + str(value))
        first = not seen.exists()
        seen.touch()
        assert not first
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make test files by name; returns the runner's exit code and what it said."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/pytest.ini").write_text("[pytest]\n")

    def _run(capsys: pytest.CaptureFixture[str], **files: str) -> tuple[int, str]:
        for name, text in files.items():
            (tmp_path / f"suite/test_{name}.py").write_text(textwrap.dedent(text))
        parts = [Part(name, (f"test_{name}.py",)) for name in files]
        code = run(parts, cwd=tmp_path / "suite")
        return code, capsys.readouterr().out

    return _run


def last(out: str) -> str:
    """The closing line without its frame and its seconds."""
    found = re.fullmatch(r"=+ (.*) in [\d.]+s =+", out.splitlines()[-1])
    assert found, out
    return found[1]


def row(out: str, part: str) -> list[str]:
    """The words of a part's line in the table."""
    table = out[out.index("minutes") :]
    return next(line for line in table.splitlines() if line.startswith(f"{part} ")).split()


def test_all_pass(suite, capsys, tmp_path):
    skipped = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"
    code, out = suite(capsys, one=GOOD, two=GOOD + skipped)
    assert code == 0
    assert last(out) == "4 passed, 1 skipped"
    assert row(out, "one")[1:5] == ["2", "0", "0", "0"]
    assert row(out, "two")[1:5] == ["2", "0", "1", "0"]
    assert not list(tmp_path.glob("gsub-tests-*")), "outputs of a good run stay behind"


def test_a_failure_is_run_twice_and_fails_the_run_with_its_output(suite, capsys):
    code, out = suite(capsys, one=GOOD, two=BAD)
    assert code == 1
    assert last(out) == "1 failed, 3 passed"
    assert "two: 1 failed, running again alone: test_two.py::test_bad" in out
    assert "##### two: failed" in out
    assert "AssertionError: assert 'left' == 'right'" in out
    assert "unsteady: passed" not in out


def test_unsteady_tests_are_named_and_do_not_fail_the_run(suite, capsys):
    code, out = suite(capsys, one=GOOD, two=FLAKY)
    assert code == 0
    assert last(out) == "5 passed"
    assert row(out, "two")[1:5] == ["3", "0", "0", "2"]
    named = out[out.index("unsteady: passed when run again alone") :]
    assert "two: test_two.py::test_flaky[a b]: AssertionError: the first time never works" in named
    assert "two: test_two.py::test_flaky[x::y[1]]: AssertionError" in named
    told = out[out.index("##### two: failed at first") : out.index("unsteady: passed")]
    assert "assert seen, 'the first time never works'" in told


def test_too_many_unsteady_tests_fail_the_run(suite, capsys):
    half = MANY_FLAKY.format(count=MOST_UNSTEADY // 2 + 1)
    code, out = suite(capsys, one=half, two=half)
    assert code == 1
    assert last(out) == f"{2 * (MOST_UNSTEADY // 2 + 1)} passed, 1 error"
    assert f"more than {MOST_UNSTEADY} fail the run" in out


def test_a_part_that_fails_everywhere_is_not_tried_again(suite, capsys):
    code, out = suite(capsys, one=MANY_FLAKY.format(count=MOST_UNSTEADY + 1))
    assert code == 1
    assert last(out) == f"{MOST_UNSTEADY + 1} failed"
    assert "running again" not in out


def test_an_error_in_a_fixture_counts_as_a_failure(suite, capsys):
    text = "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    1 / 0\ndef test_x(broken): pass\n"
    code, out = suite(capsys, one=text)
    assert code == 1
    assert last(out) == "1 error"
    assert "ZeroDivisionError" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import no_such_module_at_all\n",
            "stopped before its tests were through; test_two.py: ModuleNotFound",
        ),
        ("def test_x(): assert True\ndef test_(:\n", "stopped before its tests were through"),
        ("X = 1\n", "no tests"),
        (
            "import os, signal\ndef test_x(): os.kill(os.getpid(), signal.SIGSEGV)\n",
            "died of SIGSEGV in test_two",
        ),
        ("import pytest\ndef test_x(): pytest.exit('enough', returncode=9)\n", "exit code 9"),
    ],
    ids=["import", "syntax", "empty", "crash", "exit"],
)
def test_a_part_in_trouble_fails_the_run_and_is_not_tried_again(suite, capsys, text, said):
    code, out = suite(capsys, one=GOOD, two=text)
    assert code == 1
    assert f"##### two: {said}" in out
    assert last(out) == "2 passed, 1 error"
    assert "running again" not in out


def test_a_hung_part_is_ended_and_its_stacks_are_told(suite, capsys, tmp_path, monkeypatch):
    hangs, over = tmp_path / "hangs", Run.over
    monkeypatch.setattr(Run, "over", lambda self, limit_s: over(self, 0.0 if hangs.exists() else limit_s))
    text = f"""
        import threading
        def test_first(): pass
        def test_hangs():
            open({str(hangs)!r}, 'w').close()
            threading.Event().wait()
    """
    code, out = suite(capsys, two=text)
    assert code == 1
    assert "hung, ended after 0 min in test_two.py::test_hangs" in out
    assert "in test_hangs" in out[: out.index("part  ")], "no stacks"
    assert last(out) == "1 passed, 1 error"


def test_a_part_that_does_not_end_after_its_tests_is_ended(suite, capsys, monkeypatch):
    monkeypatch.setattr("tests.side_by_side.ENDING_S", 8.0)
    text = """
        import threading
        def never_ends():
            threading.Event().wait()
        def test_leaves_a_thread():
            threading.Thread(target=never_ends).start()
    """
    code, out = suite(capsys, one=GOOD, two=text)
    assert code == 1
    assert "hung, ended after 0 min in its end, after the last test: a thread goes on" in out
    assert "in never_ends" in out[: out.index("part  ")], "no stacks"
    assert last(out) == "3 passed, 1 error"


def test_what_is_compiled_is_kept(suite, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code, out = suite(capsys, good=GOOD)
    assert code == 0, out
    assert list(tmp_path.glob("suite/__pycache__/test_good.*.pyc"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_being_stopped_ends_the_parts_and_lets_them_clean_up(tmp_path, how):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_x.py").write_text(
        textwrap.dedent("""
        import os, pathlib, pytest, time
        HERE = pathlib.Path(__file__).parent

        @pytest.fixture
        def cluster():
            (HERE / 'up').write_text(str(os.getpid()))
            yield
            (HERE / 'up').rename(HERE / 'down')

        def test_long(cluster):
            time.sleep(600)
        """)
    )
    runner = "import sys; sys.argv = ['x']; import tests.side_by_side as s; "
    runner += "s.parts_here = lambda: (s.Part('x', ('test_x.py',)),); sys.exit(s.main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", runner], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), "the part never began")
    child = int((tmp_path / "up").read_text())
    process.send_signal(how)
    out, _ = process.communicate(timeout=120)
    until(lambda: (tmp_path / "down").exists(), "the part did not clean up")
    if how is not signal.SIGKILL:
        assert process.returncode == 130
        assert out.endswith("interrupted\n")
        assert not Path(f"/proc/{child}").exists()


def until(condition, complaint: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def covers(part: Part, path: str, marker: str) -> bool:
    """Whether a part runs a file's tests of that marker, by its arguments."""
    folders = [each for each in part.args if each.startswith("tests/")]
    ignored = [each.removeprefix("--ignore=") for each in part.args if each.startswith("--ignore=")]
    chosen = part.args[part.args.index("-m") + 1] if "-m" in part.args else marker
    inside = not folders or any(path.startswith(f"{each}/") for each in folders)
    return inside and not any(path.startswith(f"{each}/") for each in ignored) and chosen == marker


def test_each_test_is_in_one_part_and_on_each_release(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CI", "true")
    parts = parts_here()
    assert len({part.name for part in parts}) == len(parts)
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 100
    for path in files:
        assert sum(covers(part, path, "not cluster") for part in parts) == 1, path
        on = [
            release
            for part in parts
            if covers(part, path, "cluster")
            for release in (
                part.args[part.args.index("--slurm") + 1].split(",") if "--slurm" in part.args else RELEASES
            )
        ]
        assert sorted(on) == sorted(RELEASES), path
    named = {each for part in parts for each in part.args if each.startswith("tests/")}
    assert all((ROOT / each).is_dir() for each in named)
