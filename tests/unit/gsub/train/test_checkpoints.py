"""What the helper tells of checkpoints, and which of them it finds again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

from gsub import train
from tests.unit.gsub.train.running import HELPER, PATIENCE, PYTHONS, in_job, script

SAVE = """
for name in {names!r}:
    open(name, "w").write("x")
    print(gsub_train.checkpointed(name, {step}))
"""


def told(tmp_path: Path, names: list[str], step: object = None, **env: str) -> list[str]:
    """What is written to standard error when these files are told of, one after the other."""
    with script(tmp_path, SAVE.format(names=names, step=step), in_job(**env)) as run:
        code, out, err = run.ends()
    assert (code, out) == (0, "True\n" * len(names))
    return err.splitlines()


class TestTelling:
    def test_path_and_step(self, tmp_path):
        assert told(tmp_path, ["a.pt"], 12) == [f"gsub: checkpoint {tmp_path}/a.pt step=12"]

    def test_without_a_step(self, tmp_path):
        assert told(tmp_path, ["a.pt"]) == [f"gsub: checkpoint {tmp_path}/a.pt"]
        assert told(tmp_path, ["a.pt"], "'many'") == [f"gsub: checkpoint {tmp_path}/a.pt"]

    @pytest.mark.parametrize("name", ["a b\n.pt", "é☃.pt", "x'\"%;\x1b[31m.pt"])
    def test_any_name_is_one_word_of_one_line(self, tmp_path, name):
        (line,) = told(tmp_path, [name])
        assert line.isascii() and line.isprintable()
        _, _, path = line.split(" ")
        assert unquote(path) == f"{tmp_path}/{name}"

    def test_one_line_in_ten_seconds(self, tmp_path):
        assert told(tmp_path, ["a.pt", "b.pt", "c.pt"]) == [f"gsub: checkpoint {tmp_path}/a.pt"]

    def test_the_last_is_told_at_the_stop(self, tmp_path):
        code = SAVE.format(names=["a.pt", "b.pt"], step=5) + "gsub_train.stop()\n"
        with script(tmp_path, code) as run:
            code_, _, err = run.ends()
        assert code_ == 75
        assert err.splitlines()[-1] == (
            f"gsub: stopped before its time limit (by itself), checkpoint={tmp_path}/b.pt step=5"
        )

    @pytest.mark.parametrize(
        ("env", "lines"),
        [
            ({"SLURM_PROCID": "0"}, 1),
            ({"SLURM_PROCID": "3"}, 0),
            ({"RANK": "0", "SLURM_PROCID": "1"}, 1),  # torchrun's
            ({"RANK": "8", "SLURM_PROCID": "0"}, 0),
        ],
    )
    def test_rank_0_speaks_for_all(self, tmp_path, env, lines):
        assert len(told(tmp_path, ["a.pt"], **env)) == lines

    def test_nothing_is_told_outside_a_job(self, tmp_path):
        env = in_job()
        del env["SLURM_JOB_ID"]
        with script(tmp_path, SAVE.format(names=["a.pt"], step=1) + "gsub_train.stop()\n", env) as run:
            assert run.ends() == (75, "True\n", "")

    @pytest.mark.parametrize("name", ["missing.pt", "empty.pt", "folder"])
    def test_what_is_not_there_is_not_told(self, tmp_path, name):
        (tmp_path / "empty.pt").touch()
        (tmp_path / "folder").mkdir()
        with script(tmp_path, f"print(gsub_train.checkpointed({name!r}))") as run:
            assert run.ends() == (0, "False\n", "")

    def test_an_address_is_told_as_it_is(self, tmp_path):
        with script(tmp_path, "print(gsub_train.checkpointed('s3://bucket/run 1/12', 4))") as run:
            assert run.ends() == (0, "True\n", "gsub: checkpoint s3://bucket/run%201/12 step=4\n")

    def test_no_line_is_longer_than_one_write(self, tmp_path):
        with script(tmp_path, "print(gsub_train.checkpointed('s3://bucket/' + 'x' * 5000))") as run:
            assert run.ends() == (0, "True\n", "")

    def test_a_closed_standard_error_is_no_error(self, tmp_path):
        code = "import os; os.close(2)\n" + SAVE.format(names=["a.pt"], step=1)
        with script(tmp_path, code) as run:
            assert run.ends()[:2] == (0, "True\n")

    def test_lines_of_many_processes_are_not_mixed(self, tmp_path):
        code = "import sys; sys.path.insert(0, sys.argv[1])\nimport train\n" + (
            "for each in range(200):\n"
            "    train._state.next_line = 0\n"
            "    train.checkpointed('s3://b/' + 'x' * 1500, each)\n"
        )
        with (tmp_path / "log").open("wb") as log:
            reader, writer = os.pipe()
            runs = [
                subprocess.Popen(
                    [sys.executable, "-c", code, str(HELPER.parent)], stderr=writer, env=in_job()
                )
                for _ in range(4)
            ]
            os.close(writer)
            with os.fdopen(reader, "rb") as pipe:
                log.write(pipe.read())
        assert [run.wait(PATIENCE) for run in runs] == [0] * 4
        lines = (tmp_path / "log").read_text().splitlines()
        assert len(lines) == 800
        wanted = [f"gsub: checkpoint s3://b/{'x' * 1500} step={each}" for each in range(200)]
        assert sorted(lines) == sorted(wanted * 4)


class TestSaving:
    def test_the_old_one_stays_until_the_new_one_is_whole(self, tmp_path):
        path = tmp_path / "deep/a.npz"
        with train.saving(path) as part:
            Path(part).write_text("one")
        assert part.endswith(".npz") and Path(part).parent == path.parent
        with train.saving(path) as part:
            Path(part).write_text("two")
            assert path.read_text() == "one"
        assert path.read_text() == "two"
        assert list(path.parent.iterdir()) == [path]

    def test_what_was_not_saved_leaves_nothing(self, tmp_path):
        with pytest.raises(KeyboardInterrupt), train.saving(tmp_path / "a.pt") as part:
            Path(part).write_text("half")
            raise KeyboardInterrupt
        with pytest.raises(FileNotFoundError), train.saving(tmp_path / "b.pt"):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_what_was_abandoned_long_ago_is_removed(self, tmp_path):
        old, young, others = (tmp_path / name for name in (".part-1-a.pt", ".part-2-a.pt", "a.part-1"))
        for path in (old, young, others):
            path.write_text("half")
        for path in (old, others):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        with train.saving(tmp_path / "a.pt") as part:
            Path(part).write_text("one")
        assert set(tmp_path.iterdir()) == {young, others, tmp_path / "a.pt"}

    @pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
    def test_a_process_killed_amid_it_leaves_the_old_one(self, tmp_path, python):
        code = """
        import os, signal
        for text in ("one", "two"):
            with gsub_train.saving("ck/a.pt", 1) as part:
                open(part, "w").write(text)
                if text == "two":
                    os.kill(os.getpid(), signal.SIGKILL)
        """
        with script(tmp_path, code, python=python) as run:
            assert run.ends()[0] == -9
        assert len(list((tmp_path / "ck").iterdir())) == 2
        assert train.latest(tmp_path / "ck") == str(tmp_path / "ck/a.pt")
        assert (tmp_path / "ck/a.pt").read_text() == "one"


def safetensors(size: int) -> bytes:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def archive(path: Path, size: int = 20_000) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", os.urandom(size))
    return path.read_bytes()


def make(folder: Path, files: dict[str, bytes], since: int = 1_700_000_000) -> None:
    """Files, each a second younger than the one before; a name that ends in `/` is an empty folder."""
    for number, (name, data) in enumerate(files.items()):
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for each in (path, *path.relative_to(folder).parents[:-1]):
            os.utime(folder / each, (since + number, since + number))


class TestLatest:
    @pytest.mark.parametrize(
        ("files", "pattern", "found"),
        [
            ({}, "*", None),
            ({"1.pt": b"x", "2.pt": b"x"}, "*.pt", "2.pt"),
            ({"2.pt": b"x", "1.pt": b"x"}, "*.pt", "1.pt"),  # written last, whatever its number
            ({"1.pt": b"x", "best.ckpt": b"x"}, "*.pt", "1.pt"),
            ({"1.pt": b"x", "2.pt": b""}, "*.pt", "1.pt"),
            ({"1.pt": b"x", ".2.pt": b"x", "3.pt.tmp": b"x", "4.pt~": b"x", "5.pt.part": b"x"}, "*", "1.pt"),
            ({"1.pt": b"x", "config.json": b"{}", "train.log": b"x"}, "*", "1.pt"),
            ({"1.safetensors": safetensors(9), "2.safetensors": safetensors(9)[:-1]}, "*", "1.safetensors"),
            ({"1.safetensors": safetensors(9), "2.safetensors": safetensors(9)[:20]}, "*", "1.safetensors"),
            # folders
            ({"step-1/a.pt": b"x", "step-2/": b""}, "step-*", "step-1"),
            ({"step-1/a.pt": b"x", "step-2/a.pt": b""}, "step-*", "step-1"),
            ({"step-1/a.pt": b"x", "step-2/a.pt.tmp": b"x"}, "*", "step-1"),
            ({"step-1/a.pt": b"x", "step-2/.tmpWoLvup": b""}, "*", "step-1"),  # safetensors at its work
            ({"9/a.pt": b"x", "10.orbax-checkpoint-tmp-16/a.pt": b"x"}, "*", "9"),
            ({"checkpoint-1/a.pt": b"x", "tmp-checkpoint-2/a.pt": b"x"}, "*", "checkpoint-1"),
            ({"1/.metadata": b"x", "1/__0_0.distcp": b"x", "2/__0_0.distcp": b"x"}, "*", "1"),
            (
                {
                    "checkpoint-1/training_args.bin": b"x",
                    "checkpoint-1/trainer_state.json": b"{}",
                    "checkpoint-2/training_args.bin": b"x",
                },
                "checkpoint-*",
                "checkpoint-1",
            ),
        ],
    )
    def test_the_newest_that_is_whole(self, tmp_path, files, pattern, found):
        make(tmp_path, files)
        assert train.latest(tmp_path, pattern) == (found and str(tmp_path / found))

    @pytest.mark.parametrize("having", ["trainer_state.json", "sub/done"])
    def test_a_folder_without_what_is_saved_last_is_passed_over(self, tmp_path, having):
        make(tmp_path, {f"checkpoint-1/{having}": b"x", "checkpoint-2/model.safetensors": safetensors(9)})
        assert train.latest(tmp_path, "checkpoint-*") == str(tmp_path / "checkpoint-2")
        assert train.latest(tmp_path, "checkpoint-*", having=having) == str(tmp_path / "checkpoint-1")

    def test_a_folder_that_is_being_removed_is_not_the_newest(self, tmp_path):
        make(tmp_path, {"step-1/a.pt": b"x", "step-1/b.pt": b"x", "step-2/a.pt": b"x", "step-2/b.pt": b"x"})
        (tmp_path / "step-1/b.pt").unlink()
        assert train.latest(tmp_path) == str(tmp_path / "step-2")

    def test_an_archive_that_was_cut_off_is_passed_over(self, tmp_path):
        whole = archive(tmp_path / "made")
        (tmp_path / "made").unlink()
        make(tmp_path, {"1.pt": whole, "2.pt": whole[:-100], "3.pt": whole[:5000]})
        assert train.latest(tmp_path) == str(tmp_path / "1.pt")

    def test_at_one_time_the_highest_number(self, tmp_path):
        make(tmp_path, {f"step-{number}.pt": b"x" for number in (9, 100, 20)})
        for path in tmp_path.iterdir():
            os.utime(path, (1_700_000_000, 1_700_000_000))
        assert train.latest(tmp_path) == str(tmp_path / "step-100.pt")

    def test_a_folder_that_is_not_there_has_none(self, tmp_path):
        assert train.latest(tmp_path / "none") is None
        (tmp_path / "file").touch()
        assert train.latest(tmp_path / "file") is None

    def test_a_relative_folder_gives_an_absolute_path(self, tmp_path, monkeypatch):
        make(tmp_path, {"ck/1.pt": b"x"})
        monkeypatch.chdir(tmp_path)
        assert train.latest("ck") == str(tmp_path / "ck/1.pt")

    def test_what_cannot_be_read_is_passed_over(self, tmp_path):
        make(tmp_path, {"1.pt": b"x"})
        (tmp_path / "2.pt").symlink_to("gone")
        (tmp_path / "3.pt").symlink_to("3.pt")
        assert train.latest(tmp_path) == str(tmp_path / "1.pt")
