"""gsubd with its keeper, from the command line."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.prolog_epilog.agent.munged import Munged, munged
from tests.unit.slurm_plugins.keeper.keeping import PATIENCE, write_site
from tests.unit.slurm_plugins.keeper.test_keeping import alive, keeper_of, until


@pytest.fixture(scope="module")
def munge() -> Iterator[Munged]:
    with munged() as one:
        yield one


def gsubd(folder: Path, site: Path, *options: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "slurm_plugins.service", f"--site={site}", f"--state={folder}"]
    argv += [f"--socket={folder / 'decision.sock'}", "--listen=127.0.0.1:0", *options]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The next line of its log that matches. Raises AssertionError at the log's end."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(pattern, line):
            return match
    raise AssertionError(f"never said: {pattern}")


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


@pytest.mark.slow
def test_the_keeper_comes_and_goes_with_gsubd(tmp_path: Path, munge: Munged):
    process = gsubd(tmp_path, write_site(tmp_path, munge.socket), "--api=127.0.0.1:0")
    try:
        metrics = int(said(process, r"metrics on http://127\.0\.0\.1:(\d+)/")[1])
        api = int(said(process, r"gsubd: API on http://127\.0\.0\.1:(\d+)")[1])
        until(lambda: json.loads(get(api, "/healthz"))["ready"], "the store")
        assert b"gsub_keeper_up 1\n" in get(metrics, "/metrics")
        keeper = keeper_of(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, keeper) > os.getpriority(os.PRIO_PROCESS, process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert not alive(keeper)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.slow
def test_a_keeper_that_cannot_start_ends_no_decisions(tmp_path: Path, munge: Munged):
    site = write_site(tmp_path, munge.socket)
    (tmp_path / "keeper.lock").mkdir()
    process = gsubd(tmp_path, site, "--api=127.0.0.1:0")
    try:
        metrics = int(said(process, r"metrics on http://127\.0\.0\.1:(\d+)/")[1])
        said(process, f"cannot work in {tmp_path}")
        said(process, "the keeper ended with 1; it is started again")
        assert b"gsub_keeper_up 0\n" in get(metrics, "/metrics")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize("url", ["gsub:secret@db/gsub", "gsub@db/gsub?sslmode=require&password=secret"])
def test_a_password_stands_in_no_list_of_processes(tmp_path: Path, munge: Munged, url: str):
    site = write_site(tmp_path, munge.socket)
    process = gsubd(tmp_path, site, f"--store=postgresql+psycopg://{url}")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and ".pgpass" in err and "secret" not in err


@pytest.mark.parametrize("api", ["6831", "here:", "0.0.0.0:99999", ""])
def test_an_address_that_is_none(tmp_path: Path, munge: Munged, api: str):
    process = gsubd(tmp_path, write_site(tmp_path, munge.socket), f"--api={api}")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and "--api" in err and "HOST:PORT" in err and "0.0.0.0:6831" in err
