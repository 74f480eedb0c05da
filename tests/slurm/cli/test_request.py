"""The question about a submission that is made here is the one that the shim asks: against recordings of each release,
and against the running ones."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gsub.decide import WISHES
from gsub.errors import UserError
from site_configs.devcluster import Cluster
from slurm_plugins.decide.steps import ENV_NAMES
from tests.slurm.cli import test_parity
from tests.slurm.cli.listening import asked_about, essence
from tests.slurm.cli.record_requests import PLAIN
from tests.unit.gsub.cli.request_lines import cases
from tests.unit.gsub.cli.test_request import differences, made

pytestmark = pytest.mark.all_releases


@pytest.fixture(scope="module")
def user(cluster: Cluster) -> str | None:
    return cluster.users[0] if cluster.users else None


@pytest.fixture(scope="module")
def here(cluster: Cluster, user: str | None) -> Path:
    """A folder with the scripts."""
    folder = cluster.home(user) / "requests"
    scripts = test_parity.SCRIPTS | {"plain.sh": PLAIN}
    text = "".join(
        f"cat > {shlex.quote(f'./{name}')} <<'END_OF_SCRIPT'\n{script}END_OF_SCRIPT\n"
        for name, script in scripts.items()
    )
    cluster.run(["sh", "-ec", f"mkdir -p {folder}; cd {folder}\n{text}"], user=user, check=True)
    return folder


def test_questions_are_those_that_the_shim_asks(cluster, here, user):
    """All command lines of the parity test too, each as a job with GPUs."""
    parity = [
        replace(case, env=(*case.env, ("SBATCH_GPUS", "2")))
        for case in test_parity.cases(here, held=1)
        if "SBATCH_GPUS" not in dict(case.env)
    ]
    table = cases() + parity
    answers = asked_about(cluster, table, cwd=here, user=user)
    scripts = test_parity.SCRIPTS | {"plain.sh": PLAIN}
    release = ".".join(cluster.version.split(".")[:2])
    uid = int(cluster.run(["id", "-u"], user=user, check=True).stdout)
    wrong, compared = [], 0
    for case, (done, asked) in zip(table, answers, strict=True):
        try:
            ours = made(case, release, scripts, uid)
        except UserError as error:
            assert not asked, f"{case.words}: {error.why}"
            continue
        if not asked and done.code and "reservation" not in done.err.lower():
            continue  # sbatch itself refused
        if differ := differences(ours, [essence(one) for one in asked], ENV_NAMES | WISHES):
            wrong.append((case.env, case.words, differ, done))
        assert all(one.uid == uid == one.submit_uid for one in asked)
        compared += bool(asked)
    assert not wrong
    assert compared > 220
