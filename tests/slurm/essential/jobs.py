"""The jobs of the essential tests: all submitted at once, so that they run while the first tests look at them."""

from __future__ import annotations

from dataclasses import dataclass, field
from subprocess import CompletedProcess

from site_configs.devcluster import Cluster
from tests.slurm.actions.rig import Stage
from tests.slurm.actions.scenarios import FIRST, python
from tests.slurm.cli.test_commands import job_of
from tests.slurm.decide.bare import SCRIPT
from tests.slurm.record.recorded import Recorded
from tests.slurm.smoke.running import Site
from tests.slurm.smoke.test_on_slurm import gsub, smoke_of

OPEN = ("--gpus=8", "--mem=500", "--time=5")
"""An open shape: how many GPUs, and not on how many nodes."""
LOAD_S = 6
"""Seconds of load on the GPUs: three looks of an agent."""
MODULE = "surely_not_installed"
# preflight must not find it: the smoke run is to
SMOKED = """\
#!/bin/bash
#SBATCH -N2 --gpus-per-node=4 --mem=500 -t5
python3 -c '__import__("einops_" + "of_nobody")'
"""


@dataclass
class EssentialJobs:
    """The jobs by name, what was printed when they were submitted, and those who know of them.

    `open`: 8 GPUs, by `gsub train.sh`; `plain`: the same by sbatch, and held; `broken`: cannot import a module;
    `flaky`: fails once; `smoked`: broken too, and tried before by `smoke`.
    """

    cluster: Cluster
    output: dict[str, CompletedProcess[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.record = Recorded(self.cluster)
        self.stage = Stage(self.cluster)
        self.site = Site(self.cluster, self.stage.user)
        self.ids = self.stage.jobs

    def submit(self) -> None:
        """Submit all, first the one that takes longest."""
        self.stage.submit("flaky", "--gpus=1", script=f"{FIRST} && kill -ABRT $$\necho done")
        self.stage.submit("broken", "--gpus=1", "-t5", script=python(f"import {MODULE}\n"))
        options = "".join(f"#SBATCH {option}\n" for option in OPEN)
        script = SCRIPT.replace("\n", f"\n{options}", 1)
        script += f'echo "decision $GSUB_DECISION"\nsrun {self.record.load(LOAD_S)}\n'
        self.stage.put("train.sh", script)
        self.output["open"] = self.run("gsub", "--output=%j.out", "train.sh")
        self.output["plain"] = self.run("sbatch", "--hold", "--job-name=plain", "train.sh")
        for name, done in self.output.items():
            self.ids[name] = job_of(done.stdout)
        real, text = gsub(self.site, SMOKED, "--smoke=gate")
        self.ids |= {"smoked": str(real), "smoke": str(smoke_of(text))}

    def run(self, *words: str, **env: str) -> CompletedProcess[str]:
        """Run a command as the user."""
        return self.cluster.run(words, user=self.stage.user, env=env)

    def is_submitted(self, name: str) -> bool:
        """Check whether Slurm has a job of that name, or gsubd has decided about one."""
        queue = self.run("squeue", "-h", "-t", "all", "-n", name, "-o", "%i").stdout.split()
        decided = [one for one in self.cluster.decisions() if one.get("asked", {}).get("name") == name]
        return bool(queue or decided)
