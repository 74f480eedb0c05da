"""Record anew what doctor asks: ``python -m tests.slurm.install.record_doctor [RELEASE ...]``, as root.

Starts a development cluster of each release, small and with agents, and keeps what Slurm's commands and the service
answer to doctor in ``tests/data/slurm/RELEASE/doctor.json``. The cluster's folder stands there as /srv/lab.
"""

from __future__ import annotations

import http.client
import json
import sys

from site_configs.devcluster import Cluster, ClusterSpec
from site_configs.devcluster.spec import RELEASES
from tests.unit.slurm_plugins.client.recording import DATA
from tests.unit.slurm_plugins.install.doctor_site import NAME, ROOT
from tests.waiting import wait_until

COMMANDS = (
    "scontrol ping",
    "scontrol --version",
    "scontrol show config",
    "scontrol --oneliner --all show node",
    "sdiag",
    "sacctmgr --noheader --parsable2 show cluster format=cluster",
    "sacctmgr --noheader --parsable2 show user gsub format=adminlevel",
)
_PLAIN = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
_ASK = """
import sys
from profiler.munge import Munge
from profiler.sealed import Service, believed
for target in ("/v1/nodes", "/v1/jobs?limit=100"):
    print(Service(sys.argv[1], Munge(sys.argv[2]), believed("gsub")).ask("GET", target).body.decode())
"""


def main(asked: list[str]) -> None:
    for release in RELEASES:
        if asked and release not in asked:
            continue
        cluster = Cluster.up(ClusterSpec(name=NAME, nodes=2, gpus=2, slurm=release))
        try:
            record(cluster)
        finally:
            Cluster.down(NAME)


def record(cluster: Cluster) -> None:
    def general(text: str) -> str:
        return text.replace(str(cluster.paths.root), ROOT)

    calls = []
    for command in COMMANDS:
        done = cluster.run(command.split(), env=_PLAIN)
        calls.append((command, done.returncode, general(done.stdout), done.stderr))
    python = [f"{cluster.paths.venv}/bin/python", "-c", _ASK, f"http://127.0.0.1:{cluster.ports.api}"]

    def ask() -> list[str] | None:
        told = cluster.run([*python, str(cluster.paths.munge_socket)], check=True).stdout.splitlines()
        return told if len(json.loads(told[0])["nodes"]) == cluster.spec.nodes else None

    told = wait_until(ask, message="a sign of life of both agents")
    calls += [
        (f"ask {target}", 200, body, "") for target, body in zip(("/v1/nodes", "/v1/jobs"), told, strict=True)
    ]
    for port, path in (
        (cluster.ports.gsubd, "/healthz"),
        (cluster.ports.gsubd, "/metrics"),
        (cluster.ports.api, "/healthz"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        calls.append(
            (
                f"page {'gsubd' if port == cluster.ports.gsubd else 'keeper'}{path}",
                answer.status,
                answer.read().decode(),
                "",
            )
        )
    kept = {
        "port": cluster.ports.base,
        "host": cluster.run(["hostname", "-s"]).stdout.strip(),
        "calls": [{"asked": asked, "code": code, "out": out, "err": err} for asked, code, out, err in calls],
    }
    folder = DATA / cluster.version.rpartition(".")[0]
    (folder / "doctor.json").write_text(
        json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{cluster.version}: recorded")


if __name__ == "__main__":
    main(sys.argv[1:])
