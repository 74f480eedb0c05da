"""`gsub fix`: each fixer offers the one exact change where it is sure, and nothing where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from site_configs.devcluster import Cluster
from tests.slurm.cli.test_resubmit import failed, folder, run, submitted, wait, write

__all__ = ["folder", "run", "write"]  # fixtures

Run = Callable[..., CompletedProcess[str]]


def test_memory_is_raised_and_the_job_runs_with_it(run: Run, write) -> None:
    write("m.sh", "#!/bin/bash\n#SBATCH --mem=1000\necho MemoryError >&2; python3 -c 'raise MemoryError'\n")
    job = failed(run, "m.sh")
    shown = run("gsub", "fix", job)
    assert shown.returncode == 0, shown.stderr
    assert "fix        Ask for 1536M for each node." in shown.stdout and "it had 1000M" in shown.stdout
    assert "+sbatch --mem=1536M m.sh" in shown.stdout and "Nothing was submitted" in shown.stdout
    new = submitted(run("gsub", "fix", "--yes", job))
    assert "MinMemoryNode=1.50G" in run("scontrol", "show", "job", new).stdout


def test_a_folder_is_made_by_a_changed_copy_and_the_file_stays(run: Run, write) -> None:
    script = "#!/bin/bash\n#SBATCH -J folders\n# copy\ncp input 'out/it'\"'\"'s/new/x'\n"
    write("f.sh", script)
    write("input", "1\n")
    job = failed(run, "f.sh")
    shown = run("gsub", "fix", job)
    assert "+mkdir -p -- 'out/it'\"'\"'s/new'" in shown.stdout, shown.stdout + shown.stderr
    assert run("gsub", "fix", "--write", "--json", f"{job}").returncode == 0
    written = run("cat", "f.sh").stdout
    assert written == script.replace("# copy\n", "# copy\nmkdir -p -- 'out/it'\"'\"'s/new'\n")
    write("f.sh", script)
    new = submitted(run("gsub", "fix", "--yes", job))
    wait(run, new)
    assert run("cat", "f.sh").stdout == script
    assert "COMPLETED" in run("scontrol", "show", "job", new).stdout
    assert run("cat", "out/it's/new/x").stdout == "1\n"
    assert "-J folders" in run("scontrol", "write", "batch_script", new, "-").stdout
    # changed by hand since: what was changed would be lost
    run("rm", "-r", "out")
    write("f.sh", script + "# mine\n")
    refused = run("gsub", "fix", "--write", job)
    assert refused.returncode == 1 and "cannot be written into a file" in refused.stderr
    assert run("cat", "f.sh").stdout.endswith("# mine\n")


def test_the_folder_of_the_output_is_made(run: Run, write) -> None:
    write("o.sh", "#!/bin/bash\necho well\n")
    job = failed(run, "-o", "logs/new/%x.out", "o.sh")
    if "COMPLETED" in run("scontrol", "show", "job", job).stdout:
        # from 24.11 on slurmd makes the folder itself
        refused = run("gsub", "fix", job)
        assert refused.returncode == 1 and "ended well" in refused.stderr
        return
    shown = json.loads(run("gsub", "fix", "--json", job).stdout)
    assert shown["fixes"][0]["folders"][0].endswith("again here/logs/new"), shown
    assert run("ls", "logs").returncode != 0, "only shown"
    new = submitted(run("gsub", "fix", "--yes", job))
    wait(run, new)
    assert run("cat", "logs/new/o.sh.out").stdout == "well\n"


@pytest.mark.all_releases
def test_a_node_is_kept_off_besides_those_that_were(run: Run) -> None:
    job = failed(
        run,
        "-x",
        "n1",
        "--wrap",
        "echo 'RuntimeError: CUDA error: no CUDA-capable device is detected'; exit 1",
    )
    where = run("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").stdout.strip()
    shown = run("gsub", "fix", job)
    assert f"Keep off {where}." in shown.stdout, shown.stdout + shown.stderr
    new = submitted(run("gsub", "fix", "--yes", job))
    excluded = run(
        "scontrol",
        "show",
        "hostnames",
        run("squeue", "-h", "-t", "all", "-j", new, "-o", "%x").stdout.strip(),
    )
    assert excluded.stdout.split() == ["n1", where]


def test_what_is_only_typed_is_never_run(run: Run, write) -> None:
    write("i.sh", "#!/bin/bash\npython3 -c 'import einops'\n")
    job = failed(run, "i.sh")
    shown = run("gsub", "fix", job)
    assert "  type       python3 -m pip install einops\n" in shown.stdout
    refused = run("gsub", "fix", "--yes", job)
    assert refused.returncode == 1 and "there is nothing to submit with this fix" in refused.stderr
    assert f"gsub resubmit {job} --anyway" in refused.stderr


def test_a_wrong_path_is_mended_in_the_command_of_wrap(run: Run, write) -> None:
    run("mkdir", "-p", "data")
    write("data/train.csv", "1,2\n")
    job = failed(run, "-o", "cat.out", "--wrap", "cat data/trian.csv")
    new = submitted(run("gsub", "fix", "--yes", job))
    wait(run, new)
    assert run("cat", "cat.out").stdout == "1,2\n"


def test_where_no_fix_is_known_it_says_so_and_why(run: Run) -> None:
    job = failed(run, "--wrap", "printf '\\033]0;evil\\007 $(reboot)\\n'; exit 9")
    done = run("gsub", "fix", job)
    assert done.returncode == 1 and done.stdout == ""
    assert (
        f"no fix is known for job {job}" in done.stderr
        and f"gsub why {job} says: nothing that is known" in done.stderr
    )
    assert "\x1b" not in done.stderr


def test_a_hostile_script_and_log_stay_text(run: Run, write, cluster: Cluster) -> None:
    marker = f"/tmp/gsub-fix-{cluster.spec.name}"
    evil = f"out/$(touch {marker})/`touch {marker}`;touch {marker}"
    said = f"cp: cannot create regular file '{evil}/x': No such file or directory"
    write("h.sh", f"#!/bin/bash\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    job = failed(run, "h.sh")
    shown = run("gsub", "fix", job)
    assert "mkdir -p -- '" in shown.stdout, shown.stdout + shown.stderr
    new = submitted(run("gsub", "fix", "--yes", job))
    wait(run, new)
    assert not Path(marker).exists() and run("ls", marker).returncode != 0
    assert run("ls", "out").stdout.startswith("$(touch ")
