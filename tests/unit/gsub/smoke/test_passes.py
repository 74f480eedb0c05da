"""What passed is remembered for a day, and only while nothing of what it rests on has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gsub.argv import split
from gsub.preflight.look import submission
from gsub.sbatch_options import Table
from gsub.smoke import footing
from gsub.smoke.footing import key_of
from gsub.smoke.passes import DAY, MOST, known, remember
from gsub.smoke.request import real_job

KEY = "0123456789abcdef"
SCRIPT = "#!/bin/bash\n#SBATCH -G 8\nsource env/bin/activate\nsrun python src/train.py --config conf/a.json --lr 0.1\n"


def test_a_pass_counts_for_a_day(tmp_path: Path) -> None:
    assert known(tmp_path, KEY) is None
    remember(tmp_path, KEY, 7, 120.0, now=1e9)
    found = known(tmp_path, KEY, now=1e9 + DAY)
    assert found is not None and (found.job, found.seconds) == (7, 120.0)
    assert known(tmp_path, KEY, now=1e9 + DAY + 1) is None
    assert known(tmp_path, KEY, now=1e9 - 1) is None
    assert known(tmp_path, KEY[::-1], now=1e9) is None
    assert (tmp_path / "passes").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "passes" / KEY).stat().st_mode & 0o777 == 0o600


def test_odd_keys_and_spoilt_files_are_no_passes(tmp_path: Path) -> None:
    for key in ("", "../x", "A" * 40, "0" * 100):
        remember(tmp_path, key, 1, 1.0)
        assert known(tmp_path, key) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / KEY).write_text('{"job":')
    assert known(tmp_path, KEY) is None
    remember(Path("/proc/nothing"), KEY, 1, 1.0)  # cannot be written: no word, no error


def test_there_are_never_too_many(tmp_path: Path) -> None:
    for number in range(MOST):
        path = tmp_path / "passes" / f"{number:016x}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (path.stat().st_mtime - 1000 + number,) * 2)
    (tmp_path / "passes" / f"{3:016x}").touch()
    remember(tmp_path, KEY, 1, 1.0)
    names = {path.name for path in (tmp_path / "passes").iterdir()}
    assert len(names) == MOST and KEY in names and f"{3:016x}" in names and f"{0:016x}" not in names


# --- what it rests on -------------------------------------------------------------------------------------------------

Key = Callable[..., str]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Key:
    """The key of the script in a folder, with words ahead of it and variables."""
    job = tmp_path / "job"
    for name in ("src/pkg/__init__.py", "src/train.py", "src/pkg/model.py", "conf/a.json", "t.sh"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("x = 1\n")
    site = job / "env/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    library = tmp_path / "library"
    library.mkdir()
    (library / "mine.py").write_text("y = 1\n")
    (site / "mine.pth").write_text(f"{library}\n")
    monkeypatch.chdir(job)
    monkeypatch.setattr(footing, "SECONDS", 60.0)

    def made(*words: str, script: str = SCRIPT, **environ: str) -> str:
        line = split([*words, "t.sh", "a"], Table.of_all())
        around = {"HOME": str(tmp_path), "PATH": "/usr/bin", **environ}
        real = real_job(line, script.encode(), around, (24, 11))
        return key_of(submission(line, script, around), real, nodes=1, seconds=60.0)

    return made


def test_the_same_is_the_same(key: Key) -> None:
    assert key() == key() != ""
    assert key("-N1", "--output=x", "--time=5") == key()


@pytest.mark.parametrize(
    "path",
    [
        "src/train.py",
        "src/pkg/model.py",
        "conf/a.json",
        "../library/mine.py",
        "env/lib/python3.11/site-packages/mine.pth",
    ],
)
def test_a_changed_file_is_not_missed(key: Key, path: str) -> None:
    before = key()
    Path(path).write_text("x = 2\n")  # as long as before
    assert key() != before


@pytest.mark.parametrize(
    "path", ["src/pkg/new.py", "env/lib/python3.11/site-packages/torch", "../library/more.py"]
)
def test_a_new_file_is_not_missed(key: Key, path: str) -> None:
    before = key()
    Path(path).touch()
    assert key() != before
    Path(path).unlink()


def test_logs_and_checkpoints_change_nothing(key: Key) -> None:
    before = key()
    for name in ("slurm-7.out", "src/model.pt", "runs/7/metrics.json"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert key() == before


def test_words_and_variables_that_matter(key: Key) -> None:
    keys = [
        key(),
        key(script=SCRIPT.replace("0.1", "0.2")),
        key("-p", "other"),
        key("--gpus=a100:8"),
        key("-C", "a|b"),
        key("--export=NONE"),
        key(OMP_NUM_THREADS="3"),
        key(LD_LIBRARY_PATH="/opt/cuda"),
        key("-D", "/tmp"),
    ]
    assert len(set(keys)) == len(keys)
    assert key(SSH_TTY="/dev/pts/3", SLURM_JOB_ID="7") == keys[0]


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("python $(cat which)", False),
        ("srun python $PROGRAM", False),
        ("torchrun --nnodes=$SLURM_NNODES --rdzv_endpoint=$HEAD:29500 src/train.py", True),
        ("python -m pkg.model $(date)", True),
        ("echo $(date)", True),
    ],
)
def test_a_program_that_cannot_be_told_is_not_remembered(key: Key, run: str, told: bool) -> None:
    assert bool(key(script=f"#!/bin/bash\n#SBATCH -G 8\n{run}\n")) == told


def test_too_many_files_are_not_remembered(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footing, "FILES", 5)
    assert key() == ""
