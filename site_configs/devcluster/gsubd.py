"""gsub in a cluster, as a sysadmin would install it: the shim beside slurmctld, and gsubd under a user of its own."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster.config import Ports
from site_configs.devcluster.pythonenv import REPOSITORY
from site_configs.devcluster.spec import GSUB_USER, Paths

USER: Final = GSUB_USER
_LUA: Final = REPOSITORY / "slurm_plugins/lua"
_BESIDE_SLURM_CONF: Final = ("job_submit.lua", "cli_filter.lua")


def argv(paths: Paths, ports: Ports) -> list[str]:
    """The service in the foreground."""
    return [
        f"{paths.venv}/bin/gsubd",
        f"--site={paths.site}",
        f"--socket={paths.decision_socket}",
        f"--state={paths.gsub_state}",
        f"--listen=127.0.0.1:{ports.gsubd}",
        f"--api=127.0.0.1:{ports.api}",
        f"--act={paths.act_socket}",
    ]


def act_argv(paths: Paths) -> list[str]:
    """gsub-act in the foreground."""
    return [
        f"{paths.venv}/bin/gsub-act",
        f"--site={paths.site}",
        f"--socket={paths.act_socket}",
        f"--state={paths.act_state}",
    ]


def install_shim(paths: Paths, deadline: float | None = None) -> None:
    """Copy the shim, and write the job_submit.lua that calls it, each at once: slurmctld may read them now."""
    paths.libexec.mkdir(parents=True, exist_ok=True)
    parts = [part for part in sorted(_LUA.glob("*.lua")) if part.name not in _BESIDE_SLURM_CONF]
    fresh = [_put(paths.libexec / part.name, part.read_text()) for part in parts]
    script = paths.etc / "job_submit.lua"
    if not _put(script, job_submit_lua(paths, deadline)) and any(fresh):
        script.touch()  # what makes slurmctld load all of it again


def job_submit_lua(paths: Paths, deadline: float | None = None) -> str:
    """The shipped example, with this cluster's paths for those of an ordinary installation.

    deadline: of the shim, in seconds, at most 1; None: its own.
    """
    text = (_LUA / "job_submit.lua").read_text()
    before, hook, rest = text.partition("function slurm_job_submit")
    settings = f'socket = "{paths.decision_socket}"' + (f", deadline = {deadline}" if deadline else "")
    setup = f"if gsub_ok then gsub_shim.setup({{ {settings} }}) end\n\n"
    return before.replace("/usr/libexec/gsub", str(paths.libexec)) + setup + hook + rest


def _put(path: Path, text: str) -> bool:
    """Write a file at once; whether it was another one before."""
    if path.exists() and path.read_text() == text:
        return False
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(path)
    return True


def act_answers(paths: Paths) -> bool:
    """Whether gsub-act may be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(paths.act_socket)) == 0


def answers(ports: Ports) -> bool:
    """Whether the service decides: it runs, and has seen what the cluster has."""
    try:
        return _get(ports, "/healthz")[0] == 200
    except OSError:
        return False


def keeps(ports: Ports) -> bool:
    """Whether the service takes records and answers for them."""
    try:
        return _get(ports, "/healthz", ports.api)[0] == 200
    except OSError:
        return False


def metric(ports: Ports, name: str) -> float | None:
    """The sum over the samples of a metric of the running service, None when it has none.

    `name` may go on with labels in braces: those samples then. Raises OSError.
    """
    found = [line.rpartition(" ") for line in _get(ports, "/metrics")[1].splitlines()]
    values = [float(value) for series, _, value in found if series == name or series.startswith(name + "{")]
    return sum(values) if values else None


def _get(ports: Ports, path: str, port: int | None = None) -> tuple[int, str]:
    # Not urllib: it would ask a proxy for 127.0.0.1 where one is set.
    connection = http.client.HTTPConnection("127.0.0.1", port or ports.gsubd, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException as error:  # it ended in the middle of a word
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def write_site(paths: Paths, text: str) -> None:
    """Replace the site file, at once."""
    _put(paths.site, text)


def decisions(paths: Paths) -> list[dict[str, Any]]:
    """What gsubd wrote down, oldest first; its last line may still be on its way."""
    records = []
    for file in sorted(paths.gsub_state.glob("decisions.jsonl*"), key=lambda p: p.stat().st_mtime):
        for line in file.read_text().split("\n")[:-1]:
            records.append(json.loads(line))
    return records
