"""CPUs and memory of jobs: by cgroups of both versions, in folders like real ones, and by /proc, made and real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.host import HostReading
from prolog_epilog.agent import proc_use
from prolog_epilog.agent.host_use import HostReader
from prolog_epilog.agent.proc_use import ProcReader

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE = 60.0


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


# --- cgroups ---


def version2(root: Path, scope: str = "slurmstepd.scope", job: int = 7, used: int = 500) -> Path:
    write(root, cgroup__controllers="cpuset cpu memory\n")
    folder = root / "system.slice" / scope / f"job_{job}"
    write(
        folder,
        cpu__stat="usage_usec 12500000\nuser_usec 12000000\nsystem_usec 500000\n",
        memory__current=f"{used}\n",
        memory__peak="900\n",
        memory__max="1000\n",
        memory__stat="anon 300\nfile 200\ninactive_file 150\n",
        memory__events="low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
        cpuset__cpus__effective="0-3,8\n",
    )
    return folder


def test_cgroup_version_2(tmp_path: Path) -> None:
    version2(tmp_path)
    reader = HostReader("n1", cgroups=tmp_path, proc=tmp_path / "proc")
    assert reader.read([7, 8]) == {7: HostReading("cgroup2", 12.5, 5.0, 500, 350, 900, 1000, 1)}


def test_cgroup_version_2_of_an_older_kernel_and_without_limits(tmp_path: Path) -> None:
    folder = version2(tmp_path)
    for name in ("memory.peak", "memory.events", "cpuset.cpus.effective", "memory.stat"):
        (folder / name).unlink()
    (folder / "memory.max").write_text("max\n")
    reader = HostReader("n1", cgroups=tmp_path, proc=tmp_path / "proc")
    assert reader.read([7]) == {7: HostReading("cgroup2", 12.5, None, 500)}


def test_a_cgroup_that_does_not_count_memory_is_not_taken(tmp_path: Path) -> None:
    (version2(tmp_path) / "memory.current").unlink()
    assert HostReader("n1", cgroups=tmp_path, proc=tmp_path / "proc").read([7]) == {}


def test_several_slurmd_on_one_machine(tmp_path: Path) -> None:
    version2(tmp_path, "n1_slurmstepd.scope", used=1)
    version2(tmp_path, "n2_slurmstepd.scope", used=2)
    for node, used in (("n1", 1), ("n2", 2)):
        (reading,) = HostReader(node, cgroups=tmp_path, proc=tmp_path / "proc").read([7]).values()
        assert reading.memory_bytes == used
    assert HostReader("n3", cgroups=tmp_path, proc=tmp_path / "proc").read([7]) == {}


@pytest.mark.parametrize("base", ["slurm", "slurm_n1"])
@pytest.mark.parametrize("limit", [1000, 9223372036854771712])
def test_cgroup_version_1(tmp_path: Path, base: str, limit: int) -> None:
    place = f"{base}/uid_1000/job_7"
    write(tmp_path / "cpuacct" / place, cpuacct__usage="12500000000\n")
    write(tmp_path / "cpuset" / place, cpuset__cpus="0-3\n")
    write(
        tmp_path / "memory" / place,
        memory__usage_in_bytes="500\n",
        memory__max_usage_in_bytes="900\n",
        memory__limit_in_bytes=f"{limit}\n",
        memory__stat="cache 200\ninactive_file 1\ntotal_inactive_file 150\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    reader = HostReader("n1", cgroups=tmp_path, proc=tmp_path / "proc")
    expected = HostReading("cgroup1", 12.5, 4.0, 500, 350, 900, limit if limit == 1000 else None, 2)
    assert reader.read([7]) == {7: expected}


# --- a made /proc ---


class Proc:
    """A folder like /proc. `root` of the reader is this user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def put(
        self,
        pid: int,
        parent: int,
        *,
        name: str = "python",
        ticks: int = 0,
        waited: int = 0,
        start: int = 1,
        job: int | None = None,
        node: str = "n1",
        cluster: str = "one",
        pages: tuple[int, int] = (0, 0),
        uid: int | None = None,
        runs: str | None = None,
        title: str | None = None,
        environ: bytes | None = None,
    ) -> None:
        """`name` is what it calls itself, `runs` its program; `title` stands in its cmdline."""
        fields = ["S", parent, *[0] * 9, ticks, 0, waited, 0, 0, 0, 0, 0, start, 0]
        folder = self.folder / str(pid)
        if environ is None:
            told = f"A=1\0SLURM_JOB_ID={job}\0SLURMD_NODENAME={node}\0SLURM_CLUSTER_NAME={cluster}\0"
            environ = b"" if job is None else told.encode()
        write(folder, stat=f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (folder / "environ").write_bytes(environ)
        write(folder, statm=f"9999 {pages[0]} {pages[1]} 1 0 1 0\n")
        real = os.getuid() if uid is None else uid
        write(folder, status=f"Name:\t{name}\nUid:\t{real}\t0\t0\t0\n")
        write(folder, cmdline=f"{title or name}\0\0")
        (folder / "exe").unlink(missing_ok=True)
        (folder / "exe").symlink_to(f"/usr/sbin/{runs or name}")

    def end(self, *pids: int) -> None:
        for pid in pids:
            shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path / "proc")
    made.put(1, 0, name="systemd")
    made.put(50, 1, name="slurmstepd", waited=5)
    return made


def reader_of(proc: Proc) -> ProcReader:
    return ProcReader("n1", cluster="one", proc=proc.folder, root=os.getuid())


def ticks(reader: ProcReader, job: int = 7) -> int:
    return round((reader.read([job])[job].cpu_seconds or 0) * TICK)


def test_processes_of_a_job_are_summed_and_shared_pages_count_once(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=100, waited=20, pages=(50, 10))
    proc.put(61, 60, job=7, ticks=300, pages=(40, 30))
    proc.put(62, 1, job=8, ticks=999, pages=(999, 0))
    proc.put(63, 50, job=7, node="n2", ticks=999, pages=(999, 0))
    proc.put(64, 1, ticks=999)
    proc.put(65, 50, job=7, cluster="two", ticks=999, pages=(999, 0))
    (found,) = reader_of(proc).read([7]).values()
    assert found == HostReading("proc", 425 / TICK, None, (50 + 30) * PAGE, 50 * PAGE)


def test_time_of_processes_that_ended_is_kept_and_counted_once(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10)
    proc.put(61, 60, job=7, ticks=300)
    proc.put(62, 1, job=7, ticks=40)  # its parent has gone
    reader = reader_of(proc)
    assert ticks(reader) == 5 + 10 + 300 + 40
    proc.end(61, 62)
    proc.put(60, 50, job=7, ticks=10, waited=310)  # which had waited for 61
    assert ticks(reader) == 5 + 10 + 310 + 40
    proc.end(60)
    proc.put(50, 1, name="slurmstepd", waited=5 + 330)
    assert ticks(reader) == 5 + 330 + 40
    proc.end(50)
    assert ticks(reader) == 5 + 330 + 40


@pytest.mark.parametrize("daemon", ["lingers", "waits later", "ends"])
def test_what_ends_together_with_its_parent_counts_once(proc: Proc, daemon: str) -> None:
    """The last program of a batch script and the shell end between two looks, while the step daemon tidies up."""
    proc.put(60, 50, name="bash", job=7, ticks=10)
    proc.put(61, 60, job=7, ticks=300)
    reader = reader_of(proc)
    assert ticks(reader) == 5 + 10 + 300
    proc.end(60, 61)
    if daemon == "lingers":
        proc.put(50, 1, name="slurmstepd", waited=5 + 10 + 300 + 4)
    elif daemon == "ends":
        proc.end(50)
    assert ticks(reader) == 5 + 10 + 300 + 4 * (daemon == "lingers")
    if daemon == "waits later":
        proc.put(50, 1, name="slurmstepd", waited=5 + 10 + 300 + 4)
        assert ticks(reader) == 5 + 10 + 300 + 4


def test_a_number_that_is_given_again_is_another_process(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10)
    proc.put(62, 1, job=7, ticks=40)
    reader = reader_of(proc)
    assert ticks(reader) == 55
    proc.put(62, 1, job=8, ticks=500, start=2)
    assert ticks(reader) == 55
    proc.put(62, 60, job=7, ticks=3, start=3)
    assert ticks(reader) == 58


def test_a_process_between_fork_and_exec_is_recognised_at_the_next_look(proc: Proc) -> None:
    proc.put(60, 50, name="slurmstepd")
    reader = reader_of(proc)
    assert reader.read([7]) == {}
    proc.put(60, 50, job=7, ticks=10)
    assert ticks(reader) == 15


def test_nobody_can_put_processes_on_anothers_job(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10, uid=1000)
    proc.put(61, 1, job=7, ticks=500, uid=1001)  # says so itself
    proc.put(70, 1, name="slurmstepd", uid=1001)
    proc.put(71, 70, job=7, ticks=500, uid=1001)  # and calls its parent so
    proc.put(72, 70, job=9, ticks=500, uid=1001)
    assert ticks(reader_of(proc)) == 15
    assert set(reader_of(proc).read([7, 9])) == {7}


def test_a_step_daemon_is_not_known_by_its_name_alone(proc: Proc) -> None:
    # Its folder is root's, as of each process that is not dumpable: the folders here are of `root`, too
    proc.put(70, 1, name="slurmstepd", uid=1001, title="slurmstepd: [7.0]")
    proc.put(71, 70, job=7, ticks=500, uid=1001)
    # Root's, but another program: what a user has by sudo and a link
    proc.put(80, 1, name="slurmstepd", runs="sudo", title="slurmstepd: [7.0]")
    proc.put(81, 80, job=7, ticks=500, uid=1001)
    assert reader_of(proc).read([7]) == {}


def test_the_first_process_of_a_job_cannot_say_that_it_is_of_another(proc: Proc) -> None:
    proc.put(50, 1, name="slurmstepd", title="slurmstepd: [7.batch]", runs="slurmstepd-wlm (deleted)")
    proc.put(51, 1, name="slurmstepd", title="slurmstepd: [8.batch]", waited=900)
    proc.put(61, 51, job=7, ticks=500, uid=1001)  # after exec env SLURM_JOB_ID=7
    reader = reader_of(proc)
    assert set(reader.read([7, 8])) == {8}
    proc.put(60, 50, job=7, ticks=10, uid=1000)
    assert ticks(reader) == 10


def test_a_job_id_that_is_no_number_hides_no_other_job(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10)
    proc.put(61, 50, environ=b"SLURM_JOB_ID=" + b"9" * 5000 + b"\0")  # int() takes 4300 digits
    proc.put(62, 50, environ=b"SLURM_JOB_ID=\0")
    proc.put(63, 50, environ=b"X=1\0SLURM_JOB_ID=7")  # as it is when it was cut off
    assert ticks(reader_of(proc)) == 15


def test_huge_environments_cost_little(proc: Proc) -> None:
    for pid in range(100, 200):
        proc.put(pid, 50, environ=b"\0" * (1 << 18))
    reader = reader_of(proc)
    began = time.process_time()
    reader.read([7])
    assert time.process_time() - began < 1.0, "splitting them takes ten times as long"


def test_who_has_too_many_processes_slows_looks_and_hides_nobody(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc_use, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(proc_use, "_MAX_PIDS", 3)
    proc.put(60, 50, job=7, ticks=10)
    for pid in range(100, 130):
        proc.put(pid, 1)
    reader = reader_of(proc)
    assert reader.read([7]) == {}
    monkeypatch.setattr(proc_use, "_MOST_SECONDS", 60.0)
    assert any(reader.read([7]) for _ in range(40))
    monkeypatch.setattr(proc_use, "_DEAR", -1.0)
    monkeypatch.setattr(proc_use, "_PAUSE", 1e9)
    reader.read([7])
    assert reader.read([7]) == {}, "the next look is later"


def test_a_prolog_that_the_step_daemon_runs_does_not_make_the_job_roots(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10)
    reader = reader_of(proc)
    reader.read([7])
    proc.put(61, 50, job=7, ticks=30, uid=1000)
    assert ticks(reader) == 35


def test_a_look_is_bounded(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_use, "_MAX_NEW", 10)
    for pid in range(60, 100):
        proc.put(pid, 50, job=7, ticks=1)
    reader = reader_of(proc)
    seen = [ticks(reader) for _ in range(6)]
    assert seen[0] < 5 + 12 and seen[-1] == 5 + 40


def test_malformed_files_are_nobody(proc: Proc) -> None:
    proc.put(60, 50, job=7, ticks=10)
    for pid, stat in ((70, ""), (71, "71 (x"), (72, ") ) )")):
        write(proc.folder / str(pid), stat=stat)
    write(proc.folder / "73")
    proc.put(74, 50)
    (proc.folder / "74" / "environ").write_bytes(b"SLURM_JOB_ID=7x\0\xff=\0=\0")
    assert ticks(reader_of(proc)) == 15


# --- the real /proc ---


@pytest.fixture
def step(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process called slurmstepd, whose child is of job 424242: 0.5 s of CPU time, 64 MiB, then it waits."""
    daemon = tmp_path / "slurmstepd"
    shutil.copy(Path(sys.executable).resolve(), daemon)
    work = (
        "import sys, time\nheld = bytearray(b'x' * (64 << 20))\n"
        "while time.process_time() < 0.5: pass\nprint('ready', flush=True)\nsys.stdin.readline()"
    )
    begin = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'SLURM_JOB_ID': '424242'}\n"
        f"subprocess.run([{sys.executable!r}, '-c', {work!r}], env=env)\nprint('ended', flush=True)\n"
        "sys.stdin.readline()"
    )
    env = {"PYTHONHOME": sys.base_prefix, "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [str(daemon), "-I", "-S", "-c", begin],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    yield process
    process.communicate("\n\n", timeout=PATIENCE)


def test_a_real_job(step: subprocess.Popen[str]) -> None:
    assert step.stdin is not None and step.stdout is not None
    assert step.stdout.readline() == "ready\n"
    reader = HostReader("n1", cgroups=Path("/nonexistent"))
    reader._processes._root = os.getuid()
    (found,) = reader.read([424242]).values()
    assert found.source == "proc" and found.cpu_seconds is not None and 0.4 < found.cpu_seconds < 30
    assert found.memory_bytes is not None and 64 << 20 < found.memory_bytes < 400 << 20
    step.stdin.write("\n")
    step.stdin.flush()
    assert step.stdout.readline() == "ended\n"
    (after,) = reader.read([424242]).values()
    assert after.cpu_seconds is not None and after.cpu_seconds >= found.cpu_seconds
    assert after.memory_bytes == 0


def test_a_look_at_this_machine_is_quick() -> None:
    reader = HostReader("n1")
    reader.read([1])
    started = time.process_time()
    for _ in range(10):
        reader.read([1])
    assert time.process_time() - started < 5.0
