"""Records what the shim asks: `python -m tests.slurm.cli.record_requests CLUSTER` writes tests/data/requests.

CLUSTER is a development cluster that is up. One line a command line of `request_lines`: the questions that slurmctld
asked about it, [] where it asked none, null where sbatch itself refused it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gsub.decide import WISHES
from site_configs.devcluster import Cluster
from slurm_plugins.decide.steps import ENV_NAMES
from tests.paths import DATA
from tests.slurm.cli.listening import asked_about, essence
from tests.unit.gsub.cli.request_lines import cases

FOLDER = DATA / "requests"
PLAIN = "#!/bin/bash\nhostname\n"


class Recording:
    """What was recorded from a release: the answers in the order of `cases`, and the variables that the shim read."""

    def __init__(self, release: str) -> None:
        found = json.loads((FOLDER / f"{release}.json").read_text())
        self.answers: list[list[dict[str, Any]] | None] = found["answers"]
        self.env_names: list[str] = found["env_names"]


def main() -> None:
    cluster = Cluster.find(sys.argv[1])
    user = cluster.users[0] if cluster.users else None
    folder = cluster.home(user) / "recording"
    cluster.run(
        ["sh", "-ec", f"mkdir -p {folder}; cat > {folder}/plain.sh"], input=PLAIN, user=user, check=True
    )
    answers = []
    for done, requests in asked_about(cluster, cases(), cwd=folder, user=user):
        # Refused as the reservation is: it was submitted
        submitted = done.code == 0 or "reservation" in done.err.lower()
        found = [essence(request) for request in requests]
        for one in found:
            del one["script_head"]
        answers.append(found if submitted else None)
    release = ".".join(cluster.version.split(".")[:2])
    lines = ",\n".join(json.dumps(answer, sort_keys=True) for answer in answers)
    FOLDER.mkdir(exist_ok=True)
    head = json.dumps({"slurm": cluster.version, "env_names": sorted(ENV_NAMES | WISHES)})[:-1]
    (FOLDER / f"{release}.json").write_text(f'{head}, "answers": [\n{lines}\n]}}\n')
    print(f"{release}: {len(answers)} command lines, {sum(map(bool, answers))} asked about")


if __name__ == "__main__":
    main()
