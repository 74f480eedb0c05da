"""A decision service that only listens: what the shim asks about each of many command lines.

The command lines run one after the other as a user of the cluster. Each is given a reservation of its own that does not
exist: the question about it is told by that name, and Slurm refuses the job after it was asked about.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from site_configs.devcluster import Cluster, gsubd
from slurm_plugins.decide.request import Request, parse_request
from tests.slurm.cli.drive import Case, Done, drive
from tests.waiting import wait_until

TAG = "SBATCH_RESERVATION"


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    lines: list[bytes]


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        for line in self.rfile:
            self.server.lines.append(line)
            answer = {"v": 1, "id": json.loads(line)["id"], "decision": "d-0000000000000000", "mode": "observe",
                      "edits": {}, "env": {}, "say": [], "reject": None}  # fmt: skip
            self.wfile.write(json.dumps(answer).encode() + b"\n")


@contextmanager
def listening(cluster: Cluster) -> Iterator[list[bytes]]:
    """The lines that the cluster's shim sends, while they come; gsubd is not asked meanwhile."""
    decision_socket = cluster.paths.decision_socket
    path = decision_socket.with_name("listening.sock")
    path.unlink(missing_ok=True)
    server = _Listener(str(path), _Handler)
    server.lines = []
    before = (cluster.paths.etc / "job_submit.lua").read_text()
    # On a busy machine an answer may be late: no question is to be left out for that.
    told = gsubd.job_submit_lua(cluster.paths, deadline=1)
    setup = f'socket = "{decision_socket}"'
    ours = f'socket = "{path}", failures = 1000'
    assert setup in told
    try:
        path.chmod(0o660)
        if os.geteuid() == 0:
            os.chown(path, 0, decision_socket.stat().st_gid)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _job_submit(cluster, told.replace(setup, ours))
        yield server.lines
    finally:
        _job_submit(cluster, before)
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def _job_submit(cluster: Cluster, text: str) -> None:
    """Give slurmctld another job_submit.lua, which it takes at the next submission."""
    # It loads a script whose mtime, in whole seconds, is later than when it loaded the last one.
    last = int(time.time())
    wait_until(lambda: int(time.time()) > last, message="the next second")
    (cluster.paths.etc / "job_submit.lua").write_text(text)


def asked_about(
    cluster: Cluster, cases: Sequence[Case], *, cwd: Path, user: str | None
) -> list[tuple[Done, list[Request]]]:
    """What sbatch said to each command line, and the questions about it: none where sbatch or the shim had none."""
    tagged = [replace(case, env=(*case.env, (TAG, f"case{i}"))) for i, case in enumerate(cases)]
    with listening(cluster) as lines:
        done = drive(cluster, ["sbatch"], tagged, cwd=cwd, user=user, timeout=600)
    found: dict[str, list[Request]] = {}
    for line in lines:
        request = parse_request(line)
        found.setdefault(request.job.reservation or "", []).append(request)
    return [(one, found.get(f"case{i}", [])) for i, one in enumerate(done)]


# Fields that do not follow from the command line alone, or that nothing reads.
LEFT_OUT = ("reservation", "begin_time", "bitflags", "work_dir", "default_account")


def essence(request: Request) -> dict[str, Any]:
    """What is compared of a question."""
    job = request.job
    return {
        "job": {
            name: value
            for name in job.__struct_fields__
            if name not in LEFT_OUT and (value := getattr(job, name)) is not None
        },
        "env": request.env,
        "batch": request.batch,
        "script_bytes": request.script_bytes,
        "script_head": request.script_head,
    }
