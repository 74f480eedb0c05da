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
    (["missing.sh"], {}, 2, "cannot read the script missing.sh"),
    (["-N2", "dir/missing.sh", "--watch"], {}, 2, "cannot read the script"),
    (["bare.sh"], {}, 2, "does not begin with #!"),
    (["empty.sh"], {}, 2, "empty"),
    (["dos.sh"], {}, 2, "DOS line ends"),
    (["--frobnicate", "good.sh"], {}, 2, "no such option: --frobnicate"),
    (["--time=soon", "good.sh"], {}, 2, "the value of an option"),
    (["--partition=nowhere", "good.sh"], {}, 1, "no such partition"),
    (["--watch", "--wait", "good.sh"], {}, 2, "--watch and --wait"),
    (["--watch", "--json", "good.sh"], {}, 2, "--json"),
    (["good.sh"], {"GSUB_SITE": "wrong-key.toml"}, 2, "wrong-key.toml"),
    (["good.sh"], {"GSUB_SITE": "bad-topology.toml"}, 2, "topology.conf"),
    (["good.sh"], {"GSUB_SITE": "not-toml.toml"}, 2, "not-toml.toml"),
    (["good.sh"], {"GSUB_SITE": "no-such.toml"}, 2, "no-such.toml"),
    (["--dry-run", "--partition=nowhere", "good.sh"], {}, 1, "no such partition"),
    (["--dry-run", "missing.sh"], {}, 2, "cannot read the script missing.sh"),
    (["explain", "missing.sh"], {}, 2, "cannot read the script missing.sh"),
    (["explain", "-G1", "-t", "soon", "good.sh"], {}, 2, "cannot be explained"),
    (["explain", "--json", "--mem=5X", "good.sh"], {}, 2, "cannot be explained"),
    (["explain", "-M", "other", "good.sh"], {}, 2, "only jobs of this cluster"),
    (["explain", "good.sh"], {"GSUB_SITE": "wrong-key.toml"}, 2, "wrong-key.toml"),
]


def test_one_clear_error_each(clean: Cluster, user: str | None, folder: Path) -> None:
    for words, env, code, what in WRONG:
        for extra in ([], ["--json"]) if "--json" not in words else ([],):
            # ours stand anywhere ahead of SCRIPT, but behind the name of a command
            told = [words[0], *extra, *words[1:]] if words[0] == "explain" else [*extra, *words]
            done = clean.run(["gsub", *told], user=user, cwd=folder, env=env)
            said = f"{words} {env}: {done}"
            assert done.returncode == code, said
            lines = done.stderr.splitlines()
            assert 1 < len(lines) <= 3, said
            assert lines[0].startswith("gsub: ") and what in lines[0], said
            if extra:
                facts = json.loads(done.stdout)
                assert what in facts["error"]["what"] and facts["exit_code"] == code, said
            elif "--json" not in words:
                assert not done.stdout, said
            if "GSUB_SITE" in env:
                assert "plain 'sbatch' works" in lines[2], said
    assert not clean.run(["squeue", "-h"], check=True).stdout


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
