"""From what an ordinary run told to a point of its user's curve."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gsub.announcing import RUNS, Announcing, runs_folder
from gsub.points import deliver_kept, drop_kept
from gsub.runs import gather
from profiler.points import Measured, read
from profiler.workload import identify
from site_configs.site_model import Site
from tests.unit.profiler.curves.place import SCRIPT, measured, place
from tests.unit.slurm_plugins.keeper.door import ADA, BOB

NAMES = identify(SCRIPT, name="train-1").fingerprints
TELLS = "\nJobId={job} JobState={state} Restarts=0\n   AllocTRES=cpu=8,gres/gpu=2,gres/gpu:a100=2\n"


class User:
    """A user's folder of state, and a Slurm that says `state` of every job ("": it knows none)."""

    def __init__(self, folder: Path, state: str = "COMPLETED") -> None:
        self.state = folder / "state-of-user" / "gsub"
        self.runs = self.state / "runs" / "lab"
        self.runs.mkdir(parents=True)
        self.slurm(folder, state)
        (folder / "site.toml").write_text(
            'cluster = "lab"\n[gpu_types.h200]\n[partitions.gpu]\ngpu_type = "h200"\n'
        )
        self.environ = {
            "XDG_STATE_HOME": str(folder / "state-of-user"),
            "PATH": f"{folder}:/usr/bin:/bin",
            "GSUB_SITE": str(folder / "site.toml"),
        }

    def slurm(self, folder: Path, state: str) -> None:
        text = TELLS.format(job=7, state=state) if state else ""
        for name in ("scontrol", "sacct"):
            program = folder / name
            unknown = "#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n"
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n" if text else unknown)
            program.chmod(0o755)

    def announce(self, job: int = 7, cluster: str = "lab") -> None:
        environ = {**self.environ, RUNS: runs_folder(self.environ, cluster)}
        announcing = Announcing(NAMES, environ, cluster)
        announcing.start(job, None)
        assert announcing._thread is not None
        announcing._thread.join()

    def tell(self, job: int = 7, restarts: int = 0, rate: int = 10, number: int = 1, **facts: Any) -> Path:
        """What a process tells of two minutes."""
        entries = b"".join(
            struct.pack("=QdQ", rate * at, float(rate * at), (1000 + at) * 10**9) for at in range(120)
        )
        environ = {"SLURM_CPUS_ON_NODE": "8", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_PARTITION": "gpu"}
        head = {"v": 1, "mark": f"{job}.json", "ended": True, "environ": environ, **facts}
        path = self.runs / f"{job}-{restarts}-{number}-0123456789ab.run"
        path.write_bytes(json.dumps(head).encode() + b"\n" + entries)
        return path

    def gather(self) -> list[Measured]:
        return list(gather(self.state, self.environ, Site(cluster="lab")))


def test_one_point_of_a_run_that_has_ended(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    user.tell(number=1)
    user.tell(number=2)
    (found,) = user.gather()
    assert (found.source, found.gpu_type, found.gpus, found.job, found.cluster) == (
        "run",
        "a100",
        2,
        7,
        "lab",
    )
    assert found.workload == NAMES
    (point,) = found.points
    assert point.cpus == 8 and point.rate == pytest.approx(20.0) and point.steps > 1000
    assert not list(user.runs.glob("*.run")) and user.gather() == []
    # Who comes late is of the same run: the service passes over it
    user.tell(number=3)
    assert [one.id for one in user.gather()] == [found.id]
    user.tell(restarts=1)
    (again,) = user.gather()
    assert again.id != found.id and again.restarts == 1
    assert read(msgspec.json.encode(again), time.time()) == again


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    user = User(tmp_path, "RUNNING")
    user.announce()
    user.tell()
    assert user.gather() == [] and list(user.runs.glob("*.run"))
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert user.gather() == [] and list(user.runs.glob("*.run"))  # no answer is no end
    user.slurm(tmp_path, "COMPLETED")
    path = user.tell(ended=False)
    assert user.gather() == [] and path.exists()  # it told just now
    os.utime(path, (time.time() - 3600,) * 2)  # it was killed
    (found,) = user.gather()
    assert not path.exists() and found.points[0].at < time.time() - 3000


def test_what_cannot_be_kept_is_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = User(tmp_path)
    user.announce()
    path = user.tell()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gsub.points.put", full)
    deliver_kept(user.environ)
    assert path.exists()
    monkeypatch.undo()
    deliver_kept(user.environ)
    (kept,) = (user.state / "points").glob("*.json")
    assert not path.exists() and json.loads(kept.read_bytes())["job"] == 7


def test_an_attempt_that_another_followed_has_no_type_of_that_one(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    followed = TELLS.format(job=7, state="RUNNING").replace("Restarts=0", "Restarts=1")
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat <<'END'\n{followed}END\n")
    path = user.tell()
    assert user.gather() == [] and not path.exists()
    from gsub.site import read_site

    site = read_site(user.environ)
    assert site is not None
    user.tell()
    (found,) = gather(user.state, user.environ, site)
    assert found.gpu_type == "h200"


@pytest.mark.parametrize(("steps", "count"), [(("0", "1"), 0), (("0", "0"), 1), (("", ""), 1)])
def test_trainings_side_by_side_are_no_one_run(tmp_path: Path, steps: tuple[str, str], count: int) -> None:
    user = User(tmp_path)
    user.announce()
    environ = {"SLURM_CPUS_ON_NODE": "8", "SLURM_GPUS_ON_NODE": "2"}
    for number, step in enumerate(steps):
        user.tell(number=number, environ={**environ, "SLURM_STEP_ID": step})
    assert len(user.gather()) == count


def test_what_waits_of_a_workload_is_forgotten_with_it(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    user.announce(job=9)
    user.tell()
    deliver_kept(user.environ)  # there is no service: it is kept
    path = user.tell(job=9)
    drop_kept("own:other", user.environ)
    assert list((user.state / "points").glob("*.json")) and path.exists()
    drop_kept(NAMES[0], user.environ)
    assert not list((user.state / "points").glob("*.json"))
    assert user.gather() == [] and not path.exists() and not list(user.runs.iterdir())


def test_a_job_that_was_requeued_has_ended_that_run(tmp_path: Path) -> None:
    user = User(tmp_path, "PENDING")
    user.announce()
    user.tell()
    assert len(user.gather()) == 1


def test_a_job_that_slurm_has_forgotten(tmp_path: Path) -> None:
    user = User(tmp_path, "")
    user.announce()
    user.tell()
    (found,) = user.gather()
    assert found.gpu_type == ""
    from gsub.site import read_site

    user.tell()
    site = read_site(user.environ)
    assert site is not None
    (found,) = gather(user.state, user.environ, site)
    assert found.gpu_type == "h200"


def test_another_clusters_jobs_have_marks_of_their_own_and_what_has_none_goes(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce(cluster="elsewhere")
    assert (user.state / "runs" / "elsewhere" / "7.json").exists()
    unknown = user.tell()
    assert user.gather() == [] and not unknown.exists()
    announcing = Announcing(NAMES, {**user.environ, RUNS: str(user.runs)}, "lab")
    announcing.start(9, "elsewhere")  # sbatch -M: its numbers are others
    assert announcing._thread is None


HOSTILE: list[bytes] = [
    b"",
    b"\n" * 1000,
    b"{}\n",
    b'{"mark": "../../etc/passwd", "ended": true}\n' + bytes(24 * 100),
    b'{"mark": "7.json", "ended": true, "environ": {"SLURM_CPUS_ON_NODE": "99999999999"}}\n'
    + b"\xff" * 24 * 9,
    b'{"mark": "7.json", "ended": true, "bound": [' + b"1," * 70000 + b"1]}\n",
    b"[" * 100_000,
    b'{"mark": "7.json", "ended": true, "environ": {"SLURM_CPUS_ON_NODE": "8"}}\n'
    + struct.pack("=QdQQdQ", 1, 1.0, 1, 1 << 63, 1.0, 1 << 63),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_run_is_removed(text: bytes, tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    path = user.tell()
    path.write_bytes(text)
    assert user.gather() == [] and not path.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    elsewhere = tmp_path / "elsewhere"
    user.tell().rename(elsewhere)
    link = user.runs / "7-0-1-0123456789ab.run"
    link.symlink_to(elsewhere)
    assert user.gather() == [] and elsewhere.exists() and not link.is_symlink()


def test_the_next_command_keeps_it_for_the_service_and_the_curve_has_it(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.announce()
    user.tell(rate=6, environ={"SLURM_CPUS_ON_NODE": "8"})
    deliver_kept(user.environ)  # this site has no service
    (kept,) = (user.state / "points").glob("*.json")
    told = kept.read_bytes()
    with place(tmp_path) as here:
        here.post(measured(5.7))
        assert here.post(told).json == {"new": True} and here.post(told).json == {"new": False}
        (known,) = here.curves(ADA)
        assert (known.workload, known.runs, known.knee) == (NAMES[0], 2, 6)
        assert 6.0 in [round(point.rate, 3) for point in known.measured if point.cpus == 8]
        assert here.curves(BOB) == ()


def test_marks_are_bounded_and_can_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = User(tmp_path)
    monkeypatch.setattr("gsub.announcing._MARKS", 3)
    for job in (7, 8, 100, 9):
        user.announce(job)
    assert {path.name for path in user.runs.iterdir()} == {"8.json", "9.json", "100.json"}
    assert (user.runs / "9.json").stat().st_mode & 0o777 == 0o600
    assert runs_folder({**user.environ, "GSUB_REMEMBER": "off"}, "lab") == ""
