"""gsub in the place of `sbatch`: the next program of that name is found, and nothing starts itself without end."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gsub import __version__
from gsub.nesting import runs_gsub
from tests.paths import REPOSITORY

pytestmark = pytest.mark.case("F4")

SLURM = """\
#!/bin/sh
case "$*" in
*--version*|-V) echo slurm 24.11.5 ;;
*--test-only*) exit 0 ;;
*) echo "$0 $*" >>{log}; env >{log}.env; echo Submitted batch job 7 ;;
esac
"""
PROCESSES = 400
"""More than one submission needs and far less than one without end starts."""


@dataclass(frozen=True)
class Machine:
    """Folders with programs named `sbatch`; their order is that of PATH."""

    root: Path

    @property
    def log(self) -> Path:
        return self.root / "log"

    def put(self, folder: str, text: str, name: str = "sbatch") -> Path:
        path = self.root / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(
        self, command: str, *path: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command under limits: a fork bomb ends by itself, and by its session."""
        places = [str(self.root / name) for name in path]
        tools = self.root / "tools"
        tools.mkdir()
        for name in ("awk", "bash", "cat", "env", "sh", "wc"):  # not where a machine's own sbatch may lie
            (tools / name).symlink_to(shutil.which(name) or name)
        started = self.root / "started"
        self.put(
            "gsub",
            f"#!/bin/sh\necho >>{started}\n[ $(wc -l <{started}) -lt 20 ] || exit 99\n"
            f"exec {sys.executable} -c 'import sys; from gsub.cli import main; sys.exit(main())' \"$@\"\n",
            "gsub",
        )
        return subprocess.run(
            ["sh", "-c", command],
            env={
                "PATH": ":".join([*places, str(self.root / "gsub"), str(self.root / "tools")]),
                "PYTHONPATH": str(REPOSITORY),
                "HOME": str(self.root),
                "GSUB_SITE": "",
                **(env or {}),
            },
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES)),
            check=False,
        )

    @property
    def starts(self) -> int:
        return len((self.root / "started").read_text().splitlines())

    @property
    def submitted(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


WRAPPERS = {
    "exec": '#!/bin/sh\nexec gsub "$@"\n',
    "child": '#!/bin/bash\n# ours\ngsub "${@}"\n',
    "options": '#!/bin/sh\nexec gsub --no-smoke "$@"\n',
    # Its text does not say what it runs
    "opaque": '#!/bin/sh\nprogram=gs; exec "${program}ub" "$@"\n',
    "opaque child": '#!/bin/sh\nprogram=gs; "${program}ub" "$@"; exit $?\n',
    "python": f"#!{sys.executable}\nimport os, sys\nos.execvp('gsu' + 'b', ['gsub', *sys.argv[1:]])\n",
    "no environment": (
        '#!/bin/sh\nprogram=gs; exec env -i PATH="$PATH" PYTHONPATH="$PYTHONPATH" "${program}ub" "$@"\n'
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("command", ["sbatch", "gsub"])
def test_the_next_sbatch_is_found(machine: Machine, wrapper: str, command: str) -> None:
    machine.put("wrapper", WRAPPERS[wrapper])
    machine.put("slurm", SLURM.format(log=machine.log))
    done = machine.run(f"{command} -N1 --no-preflight --wrap 'echo a  b'", "wrapper", "slurm")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")
    assert machine.submitted == [f"{machine.root}/slurm/sbatch -N1 --wrap echo a  b"]
    assert machine.starts <= 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("command", ["sbatch", "gsub", "gsub --json"])
def test_without_another_sbatch_it_ends_in_three_lines(machine: Machine, wrapper: str, command: str) -> None:
    machine.put("wrapper", WRAPPERS[wrapper])
    done = machine.run(f"{command} --no-preflight --wrap true", "wrapper")
    said = done.stdout if "--json" in command else done.stderr
    assert done.returncode != 0
    assert len(said.splitlines()) <= 3
    assert "runs gsub again" in said and "nothing was submitted" in said and "slurm.bin" in said
    assert machine.starts <= 3


def test_two_wrappers_of_which_neither_says_so_are_one_too_many(machine: Machine) -> None:
    machine.put("wrapper", WRAPPERS["opaque"])
    machine.put("other", WRAPPERS["opaque child"])
    machine.put("slurm", SLURM.format(log=machine.log))
    done = machine.run("sbatch --no-preflight --wrap true", "wrapper", "other", "slurm")
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 3 and "slurm.bin" in done.stderr
    assert machine.submitted == []


def test_two_wrappers_that_say_so_are_both_left_out(machine: Machine) -> None:
    machine.put("wrapper", WRAPPERS["exec"])
    machine.put("other", WRAPPERS["child"])
    machine.put("slurm", SLURM.format(log=machine.log))
    assert machine.run("sbatch --wrap true", "wrapper", "other", "slurm").returncode == 0
    assert machine.submitted == [f"{machine.root}/slurm/sbatch --wrap true"]


@pytest.mark.parametrize("wrapper", ["exec", "opaque"])
def test_a_wrapper_where_the_site_file_says_slurm_is(machine: Machine, wrapper: str) -> None:
    machine.put("wrapper", WRAPPERS[wrapper])
    machine.put("slurm", SLURM.format(log=machine.log))
    site = machine.put("site", f'cluster = "lab"\n[slurm]\nbin = "{machine.root}/wrapper"\n', "site.toml")
    done = machine.run("gsub --no-preflight --wrap true", "slurm", env={"GSUB_SITE": str(site)})
    assert done.returncode != 0 and len(done.stderr.splitlines()) <= 3 and "slurm.bin" in done.stderr
    assert machine.submitted == []


def test_a_site_wrapper_that_does_not_run_gsub_is_used(machine: Machine) -> None:
    text = '#!/bin/sh\n# gsub "$@" is another way\nawk \'BEGIN { x = "a"; gsub (/a/, "b", x) }\'\n'
    machine.put("wrapper", f'{text}exec {machine.root}/slurm/sbatch --comment=site "$@"\n')
    machine.put("slurm", SLURM.format(log=machine.log))
    assert machine.run("gsub --wrap true", "wrapper", "slurm").returncode == 0
    assert machine.submitted == [f"{machine.root}/slurm/sbatch --comment=site --wrap true"]


def test_the_environment_of_the_job_is_the_users(machine: Machine) -> None:
    machine.put("wrapper", WRAPPERS["opaque"])
    machine.put("slurm", SLURM.format(log=machine.log))
    machine.run("sbatch --wrap true", "wrapper", "slurm", env={"MINE": "1"})
    names = {line.partition("=")[0] for line in Path(f"{machine.log}.env").read_text().splitlines()}
    assert names - {"_", "SHLVL", "OLDPWD"} == {"PATH", "PYTHONPATH", "HOME", "GSUB_SITE", "MINE", "PWD"}


@pytest.mark.parametrize("wrapper", ["exec", "child"])
@pytest.mark.case("F9")
def test_the_version_through_a_wrapper_is_slurms(machine: Machine, wrapper: str) -> None:
    machine.put("wrapper", WRAPPERS[wrapper])
    machine.put("slurm", SLURM.format(log=machine.log))
    done = machine.run("sbatch --version; sbatch -V", "wrapper", "slurm")
    assert (done.returncode, done.stdout, done.stderr) == (0, "slurm 24.11.5\n" * 2, "")


@pytest.mark.case("F9")
def test_without_a_wrapper_the_version_is_ours(machine: Machine) -> None:
    machine.put("slurm", SLURM.format(log=machine.log))
    done = machine.run("gsub --version; PATH=${PATH#*:}; gsub --version", "slurm")
    assert done.stdout == f"gsub {__version__}\n" * 2


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        *((text, True) for name, text in WRAPPERS.items() if name in ("exec", "child", "options")),
        ('#!/bin/sh\nexec -a sbatch /opt/gsub/bin/gsub "$@"\n', True),
        ('#!/bin/sh\n"/opt/gsub/bin/gsub" --smoke=gate $*\n', True),
        ("#!/opt/gsub/bin/python\nimport sys\nfrom gsub.cli import main\nsys.exit(main())\n", True),
        ('#!/bin/sh\necho "gsub is better"; exec /usr/bin/sbatch "$@"\n', False),
        ('#!/bin/sh\n# exec gsub "$@"\nexec /usr/bin/sbatch "$@"\n', False),
        ("#!/usr/bin/awk -f\n{ gsub(/a/, $@) }\n", False),
        ('exec gsub "$@"\n', False),
        ("\x7fELF gsub $@\n", False),
    ],
)
def test_what_runs_gsub(tmp_path: Path, text: str, runs: bool) -> None:
    path = tmp_path / "sbatch"
    path.write_text(text)
    assert runs_gsub(os.fspath(path)) is runs


def test_a_program_that_cannot_be_read_is_not_gsub(tmp_path: Path) -> None:
    assert not runs_gsub(os.fspath(tmp_path / "nothing"))
