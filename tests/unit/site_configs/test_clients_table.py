"""Programs that manage their jobs: who is recognised, by what, and what a site says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_configs.clients_table import CLIENTS, ClientProgram, find_client, is_left_alone
from site_configs.site import SiteError, parse_site
from tests.paths import REPOSITORY

pytestmark = pytest.mark.case("F2")

HEAD = "#!/bin/bash\n#SBATCH --time=10\n"
WORKER = "srun /opt/env/bin/python -m distributed.cli.dask_worker tcp://10.0.0.1:8786 --nthreads 4 --nanny\n"

# program, name, comment, script
JOBS = [
    ("submitit", "train", "", f"{HEAD}export SUBMITIT_EXECUTOR=slurm\nsrun --unbuffered python -u x.py\n"),
    ("submitit", "sweep", "", f"{HEAD}srun -o out python -u -m submitit.core._submit /home/ada/log\n"),
    ("submitit", "submitit", "", ""),
    ("snakemake", "0c5a1f1e-3f3a-4b6e-9d0e", "rule_align_wildcards_s1", f"{HEAD}true\n"),
    ("snakemake", "x", "", f"{HEAD}python -m snakemake --executor slurm-jobstep --jobs 1\n"),
    ("snakemake", "snakejob.align.7.sh", "", ""),
    ("nextflow", "nf-ALIGN_(s1)", "", ""),
    ("nextflow", "x", "", f"{HEAD}# NEXTFLOW TASK: ALIGN (s1)\n"),
    ("cylc", "model.1.flow", "", f"{HEAD}#\n# ++++ THIS IS A CYLC JOB SCRIPT ++++\n"),
    ("toil", "toil_job_4_align", "", ""),
    ("cromwell", "cromwell_1f2e_align", "", ""),
    ("dask-jobqueue", "dask-worker", "", ""),
    ("dask-jobqueue", "mine", "", HEAD + WORKER),
    ("parsl", "parsl.slurm.block-0.1720000000.1", "", ""),
    ("parsl", "mine", "", f"{HEAD}process_worker_pool.py --debug -p 0 --task_url=tcp://10.0.0.1:54321\n"),
    ("psij", "mine", "", f"{HEAD}_psij_update_status ACTIVE\n"),
    (
        "torchx",
        "trainer-0",
        "",
        f"{HEAD}set -e\n\nexport PYTHONUNBUFFERED=1\nexport SLURM_UNBUFFEREDIO=1\n\nsrun x\n",
    ),
    ("executorlib", "f", "", f"{HEAD}srun python /env/executorlib/backend/cache_parallel.py f.h5\n"),
    ("dpdispatcher", "x", "", f"{HEAD}if [ ! -f 1f2e_task_tag_finished ]; then true; fi\n"),
    ("batchspawner", "spawner-jupyterhub", "", ""),
    ("batchspawner", "x", "", f"{HEAD}srun batchspawner-singleuser jupyterhub-singleuser\n"),
]


@pytest.mark.parametrize(("program", "name", "comment", "script"), JOBS)
def test_its_jobs_are_recognised(program: str, name: str, comment: str, script: str) -> None:
    assert find_client({}, name=name, comment=comment, script=script) == program
    assert is_left_alone({}, program)


@pytest.mark.parametrize(
    ("name", "comment", "script"),
    [
        ("train", "", f"{HEAD}export PYTHONUNBUFFERED=1\nsrun python train.py --rule rule_x\n"),
        (
            "wrap",
            "gsub:explain",
            "#!/bin/sh\n# This script was created by sbatch --wrap.\n\ntorchrun train.py\n",
        ),
        ("dask", "workers of ours", f"{HEAD}python train_dask.py\n"),
        ("nf", "my rule_", f"{HEAD}mpirun ./a.out\n"),
        ("parsl", "", f"{HEAD}python driver.py\n"),
        ("", "", ""),
    ],
)
def test_other_jobs_are_nobodys(name: str, comment: str, script: str) -> None:
    assert find_client({}, name=name, comment=comment, script=script) == ""


def test_a_site_adds_rows_adds_to_rows_and_takes_them_out() -> None:
    site = parse_site(
        'cluster = "lab"\n'
        '[clients.labflow]\njob_name = ["labflow-*"]\ncomment = ["of labflow*"]\nscript = ["labflow.worker"]\n'
        '[clients.nextflow]\njob_name = ["lab-nf-*"]\n'
        "[clients.snakemake]\nleave_alone = false\n"
    )
    for job in ({"name": "labflow-1"}, {"comment": "of labflow 7"}, {"script": "python -m labflow.worker"}):
        assert find_client(site.clients, **job) == "labflow"
    assert is_left_alone(site.clients, "labflow")
    assert {find_client(site.clients, name=name) for name in ("nf-A", "lab-nf-A")} == {"nextflow"}
    assert is_left_alone(site.clients, "nextflow")
    assert find_client(site.clients, comment="rule_a_wildcards_b") == "snakemake"
    assert not is_left_alone(site.clients, "snakemake")


@pytest.mark.parametrize(
    "keys",
    [
        'job_name = ["*"]',
        'job_name = ["a*"]',
        'comment = [""]',
        'script = ["x"]',
        "leave = true",
        "job_name = 1",
    ],
)
def test_a_row_that_would_take_everybodys_jobs_is_refused(keys: str) -> None:
    with pytest.raises(SiteError):
        parse_site(f'cluster = "lab"\n[clients.mine]\n{keys}\n')


def test_a_hostile_name_takes_no_time() -> None:
    row = ClientProgram("x", job_name=("ab*ab*ab*ab*c",))
    assert not row.is_of(name="ab" * 2_000_000)


def test_the_guide_has_each_row() -> None:
    page = Path(REPOSITORY, "docs/clients.md").read_text(encoding="utf-8")
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(lines) == set(CLIENTS)
    for name, row in CLIENTS.items():
        for text in (*row.script, *row.job_name, *row.comment):
            assert all(f"`{part}`" in lines[name] for part in text.split("\n")), (name, text)
