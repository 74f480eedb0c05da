"""What goes wrong is told once, clearly, with the right exit code; and nothing is half-done."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster

pytestmark = pytest.mark.all_releases


@pytest.fixture
def folder(clean: Cluster, user: str | None) -> Path:
    """A folder with a script that runs, one without #!, and site files that cannot be used."""
    home = clean.home(user) / "errors"
    write = (
        "printf '#!/bin/sh\\n:\\n' >good.sh; echo hostname >bare.sh; touch empty.sh\n"
        "printf '#!/bin/sh\\r\\n:\\r\\n' >dos.sh\n"
        "printf 'cluster = \"x\"\\nclutser = 1\\n' >wrong-key.toml\n"
        'printf \'cluster = "x"\\n[topology]\\nfile = "topology.conf"\\n\' >bad-topology.toml\n'
        "printf 'SwitchName=s1 Nodes=n[1-\\n' >topology.conf\n"
        "printf 'cluster = ' >not-toml.toml\n"
    )
    clean.run(["sh", "-ec", f"mkdir -p {home}; cd {home}; {write}"], user=user, check=True)
    return home


WRONG = [
    (["missing.sh"], 2, "cannot read the script missing.sh"),
    (["-N2", "dir/missing.sh", "--watch"], 2, "cannot read the script"),
    (["bare.sh"], 2, "does not begin with #!"),
    (["empty.sh"], 2, "empty"),
    (["dos.sh"], 2, "DOS line ends"),
    (["--frobnicate", "good.sh"], 2, "no such option: --frobnicate"),
    (["--time=soon", "good.sh"], 2, "the value of an option"),
    (["--partition=nowhere", "good.sh"], 1, "no such partition"),
    (["--watch", "--wait", "good.sh"], 2, "--watch and --wait"),
    (["--watch", "--json", "good.sh"], 2, "--json"),
    (["--dry-run", "--partition=nowhere", "good.sh"], 1, "no such partition"),
    (["--dry-run", "missing.sh"], 2, "cannot read the script missing.sh"),
    (["explain", "missing.sh"], 2, "cannot read the script missing.sh"),
    (["explain", "-G1", "-t", "soon", "good.sh"], 2, "cannot be explained"),
    (["explain", "--json", "--mem=5X", "good.sh"], 2, "cannot be explained"),
    (["explain", "-M", "other", "good.sh"], 2, "only jobs of this cluster"),
]


def test_one_clear_error_each(clean: Cluster, user: str | None, folder: Path) -> None:
    for words, code, what in WRONG:
        for extra in ([], ["--json"]) if "--json" not in words else ([],):
            # ours stand anywhere ahead of SCRIPT, but behind the name of a command
            told = [words[0], *extra, *words[1:]] if words[0] == "explain" else [*extra, *words]
            done = clean.run(["gsub", *told], user=user, cwd=folder)
            said = f"{words}: {done}"
            assert done.returncode == code, said
            lines = done.stderr.splitlines()
            assert 1 < len(lines) <= 3, said
            assert lines[0].startswith("gsub: ") and what in lines[0], said
            if extra:
                facts = json.loads(done.stdout)
                assert what in facts["error"]["what"] and facts["exit_code"] == code, said
            elif "--json" not in words:
                assert not done.stdout, said
    assert not clean.run(["squeue", "-h"], check=True).stdout


@pytest.mark.case("users 16", "site_files 1", "site_files 2")
def test_a_site_that_cannot_be_used_stops_no_submission(
    clean: Cluster, user: str | None, folder: Path
) -> None:
    write = (
        'printf \'cluster = "x"\\n[topology]\\nfile = "nowhere.conf"\\n\' >gone.toml\n'
        "printf 'cluster = \"x\"\\n' >unreadable.toml; chmod 0 unreadable.toml\n"
    )
    clean.run(["sh", "-ec", f"cd {folder}; {write}"], user=user, check=True)
    broken = ["wrong-key.toml", "not-toml.toml", "no-such.toml"]
    broken += ["unreadable.toml"] if user is not None else []
    for site in ["bad-topology.toml", "gone.toml", *broken]:
        env = {"GSUB_SITE": site}
        for words in (["-H"], ["-H", "--json"], ["-H", "--parsable"], ["--dry-run"]):
            done = clean.run(["gsub", *words, "good.sh"], user=user, cwd=folder, env=env)
            said = f"{words} {site}: {done}"
            assert done.returncode == 0, said
            assert ("going on without it" in done.stderr) is (site in broken), said
            if site in broken:
                assert done.stderr.startswith("gsub: warning: the site file") and site in done.stderr, said
            if words == ["-H", "--json"]:
                assert json.loads(done.stdout)["job_id"], said
            elif words == ["-H", "--parsable"]:
                assert done.stdout.strip().isdecimal(), said
        for words in (["check", "good.sh"], ["explain", "good.sh"]):
            done = clean.run(["gsub", *words], user=user, cwd=folder, env=env)
            assert done.returncode == 0 and done.stdout, f"{words} {site}: {done}"


def test_no_slurm_on_this_machine(clean: Cluster, user: str | None, folder: Path) -> None:
    shell = 'gsub=$(command -v gsub); PATH=/nonexistent; export PATH; "$gsub" "$@"'
    done = clean.run(["sh", "-c", shell, "sh", "good.sh"], user=user, cwd=folder)
    assert done.returncode == 2 and "cannot run sbatch" in done.stderr
    status = clean.run(["sh", "-c", shell, "sh", "status"], user=user, cwd=folder)
    assert status.returncode == 2 and len(status.stderr.splitlines()) <= 3


def test_controller_down(clean: Cluster, user: str | None, folder: Path) -> None:
    clean.stop("slurmctld")
    try:
        # side by side: each waits as long as Slurm's commands do before they give up
        with ThreadPoolExecutor() as pool:
            asked = [["gsub", "good.sh"], ["gsub", "status"], ["gsub", "watch", "1"]]
            asked.append(["gsub", "explain", "-G1", "good.sh"])
            submit, status, watch, explain = pool.map(
                lambda argv: clean.run(argv, user=user, cwd=folder, timeout=120), asked
            )
    finally:
        clean.start("slurmctld")
    for done in (submit, status, watch, explain):
        assert done.returncode == 1, done
        assert not done.stdout
        lines = done.stderr.splitlines()
        assert lines[0].startswith("gsub: ") and len(lines) <= 3, done
        assert "Traceback" not in done.stderr
    assert "out of reach" in submit.stderr
    assert not clean.run(["squeue", "-h"], check=True).stdout
    assert clean.run(["gsub", "-H", "good.sh"], user=user, cwd=folder).returncode == 0
