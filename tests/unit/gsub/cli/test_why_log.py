"""`gsub why --log FILE...`: what programs rely on, what people read, and what cannot be read."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from gsub.cli import main
from gsub.errors import UserError
from gsub.why_log import _of_stream, ended_as
from prolog_epilog.failures.reading import HEAD, TAIL
from prolog_epilog.failures.taxonomy import REASONS
from tests.paths import REPOSITORY

IMPORT = """\
Epoch 1: 10%|# | 1/10 [00:01<00:09, 1.0it/s]
Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in <module>
    import einops
ModuleNotFoundError: No module named 'einops'
"""
WELL = "step 10 | loss 0.1\nTraining completed successfully.\n"
KEYS = ["file", "reason", "confidence", "evidence", "line", "tier"]


@pytest.fixture
def why(capfd: pytest.CaptureFixture[str]):
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["why", *words])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def log(tmp_path: Path):
    def write(text: str | bytes, name: str = "train.log") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_one_object_a_line_with_the_promised_keys_first(why, log) -> None:
    files = [log(IMPORT), log(WELL, "well.log"), log("Killed\n", "killed.log")]
    code, out, err = why("--log", *files, "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [list(one)[: len(KEYS)] for one in told] == [KEYS] * 3
    assert [one["file"] for one in told] == files
    assert [one["reason"] for one in told] == ["import_error", "none", "no_signature"]
    assert (told[0]["line"], told[0]["tier"]) == (5, "explicit")
    assert told[0]["evidence"] == "ModuleNotFoundError: No module named 'einops'"
    assert 0.8 <= told[0]["confidence"] <= 1


def test_it_needs_neither_slurm_nor_service_nor_site(
    why, log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GSUB_SITE", str(tmp_path / "none.toml"))
    assert why("--log", log(IMPORT), "--json")[0] == 0


def test_a_person_reads_a_sentence_its_evidence_and_what_to_do(why, log) -> None:
    code, out, err = why("--log", log(IMPORT))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("  import_error, surely: a Python module")
    assert lines[1] == "    train.log:5: ModuleNotFoundError: No module named 'einops'"
    assert lines[2].startswith("  try: Install the module")


@pytest.mark.parametrize(
    ("line", "says", "resumes"),
    [
        ("gsub: checkpoint /s/a%20b.pt step=9", "/s/a b.pt (its script goes on from there)", True),
        ("Saved checkpoint to /s/9.pt", "/s/9.pt (that its script loads it is not known)", False),
    ],
)
def test_the_last_checkpoint_is_told(why, log, line: str, says: str, resumes: bool) -> None:
    text = f"step 1\n{line}\nstep 2\n{IMPORT}"
    assert f"  saved: {says}" in why("--log", log(text))[1].splitlines()
    told = json.loads(why("--log", log(text), "--json")[1])
    assert (told["checkpoint"], told["resumes"]) == (says.partition(" (")[0], resumes)
    assert "saved:" not in why("--log", log(text), "--state", "COMPLETED")[1]
    assert json.loads(why("--log", log(IMPORT), "--json")[1])["checkpoint"] is None


def test_ranks_taken_together_give_one_answer(why, log) -> None:
    files = [log("rank 1: connection closed by peer\n", "0.log"), log(IMPORT, "1.log")]
    code, out, _ = why("--log", "--together", "--json", *files)
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(told) == 1
    assert told[0]["reason"] == "import_error" and told[0]["file"] == ", ".join(files)


def test_a_state_decides_where_the_log_is_silent(why, log) -> None:
    for state, reason in (
        ("TIMEOUT", "time_limit"),
        ("CANCELLED by 1000", "cancelled"),
        ("out_of_memory", "cpu_oom"),
    ):
        told = json.loads(why("--log", log("step 1\n"), "--state", state, "--json")[1])
        assert told["reason"] == reason, state
    assert (
        json.loads(why("--log", log(IMPORT), "--state", "COMPLETED", "--exit-code", "0", "--json")[1])[
            "reason"
        ]
        == "none"
    )


def test_what_cannot_be_read_is_said_and_the_rest_is_answered(why, log, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code, out, err = why("--log", str(tmp_path / "none"), str(fifo), log(IMPORT), "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [one["reason"] for one in told] == ["no_signature", "no_signature", "import_error"]
    assert told[0]["unseen"] == ["is not there"] and "named pipe" in told[1]["unseen"][0]
    assert "cannot read" in err and "none: is not there" in err


def test_a_log_that_would_steer_the_terminal_does_not(why, log) -> None:
    evil = IMPORT.replace("einops", "\x1b]0;owned\x07x\x1b[2J")
    out = why("--log", log(evil))[1]
    assert "\x1b" not in out and "\x07" not in out and "No module named" in out


def test_secrets_are_masked(why, log) -> None:
    token = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    text = f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: bad token {token}\n'
    out = why("--log", log(text), "--json")[1]
    assert token not in out and "hf_" in out


@pytest.mark.parametrize("state", ["FINISHED", "", "COMPLETED\nX"])
def test_a_word_that_is_no_state(state: str) -> None:
    with pytest.raises(UserError, match="no state of a job") as error:
        ended_as(state, None)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("code", ["x", "256", "0:128", "-9", "1:2:3"])
def test_what_is_no_exit_code(code: str) -> None:
    with pytest.raises(UserError, match="no exit code"):
        ended_as(None, code)


def test_exit_codes_as_slurm_writes_them() -> None:
    ended = ended_as("cancelled+", "0:9")
    assert (ended.state, ended.exit_code, ended.signal) == ("CANCELLED", 0, 9)
    assert ended_as(None, "137").exit_code == 137


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--log"], "no log to look at"),
        ([], "wants one job"),
        (["1", "2"], "one job at a time"),
        (["1", "--state", "FAILED"], "--state is of log files only"),
        (["x y"], "no job id"),
    ],
)
def test_wrong_usage(why, words: list[str], said: str) -> None:
    code, _, err = why(*words)
    assert code == 2 and said in err


def test_a_log_from_a_pipe(why, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(IMPORT.encode())

        @staticmethod
        def isatty() -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Stdin())
    told = json.loads(why("--log", "-", "--json")[1])
    assert (told["file"], told["reason"], told["line"]) == ("-", "import_error", 5)


class Endless(io.RawIOBase):
    """A pipe with so many bytes of progress, and a failure at its end."""

    def __init__(self, count: int) -> None:
        self.left = [b"step 1 | loss 2\n" * 65536] * (count >> 20) + [IMPORT.encode()]
        self.most = 0

    def read(self, size: int = -1) -> bytes:
        taken = b""
        while self.left and len(taken) < size:
            taken += self.left.pop(0)
        return taken


def test_of_an_endless_pipe_two_ends_are_kept() -> None:
    text = _of_stream(Endless(64 << 20))  # type: ignore[arg-type]
    assert len(text.data) <= HEAD + TAIL + (4 << 20)
    assert b"einops" in text.data[-200:]
    assert any("were not looked at" in gap for gap in text.unseen)


def test_the_documents_have_each_reason_in_the_tables_words() -> None:
    text = (REPOSITORY / "docs/why.md").read_text()
    rows = [
        line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `") and line.count("|") == 4
    ]
    known = {name.strip(" `"): about.strip() for name, about in rows}
    assert {name: known.get(name) for name in REASONS} == {name: row.about for name, row in REASONS.items()}
