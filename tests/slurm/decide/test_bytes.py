"""Unusual bytes in scripts, names and comments pass the shim and the service unharmed, in enforce mode too."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, gsubd
from tests.slurm.decide.conftest import without_plugin
from tests.waiting import wait_until

# Slurm's own limit for a script is 4 MiB (max_script_size).
BIG = 4 * 1024 * 1024 - 4096

SCRIPTS: dict[str, bytes] = {
    "utf-8": "#!/bin/sh\n: 'größer, 更多, 🚀'\n".encode(),
    "no utf-8": b"#!/bin/sh\n: \xff\xfe \xc3\x28 \xe2\x82 \xf0\x9f\x92 \x80\n",
    "control characters": b"#!/bin/sh\n: \x01\x02\x07\x08\x0b\x0c\x1b[31m\x7f\n",
    "quotes and backslashes": b'#!/bin/sh\n: \'"\\\' "\\"" \'{"v":1}\' \\\\\n',
    "a line of 300 kB": b"#!/bin/sh\n: " + b"x" * 300_000 + b"\n",
    "half a character at 64 KiB": b"#!/bin/sh\n: " + b"x" * (64 * 1024 - 13) + "é".encode() * 10 + b"\n",
    "all backslashes": b"#!/bin/sh\nexit 0\n" + b"\\" * 200_000 + b"\n",
    "all control characters": b"#!/bin/sh\nexit 0\n" + b"\x01" * 200_000 + b"\n",
    "no newline at the end": b"#!/bin/sh\n: the end",
    "4 MB": b"#!/bin/sh\nexit 0\n" + b"# 0123456789 \xc3\xa9\n" * (BIG // 16),
}

WORDS: dict[str, bytes] = {
    "a newline": b"two\nlines",
    "a newline at the end": b"line\n",
    "quotes": b'it\'s "quoted" \\n \\',
    "json": b'","edits":{"priority":1}}\n{"v":1',
    "utf-8": "größer 更多 🚀".encode(),
    "no utf-8": b"\xff\xfe \xc3( \xe2\x82",
    "an escape sequence": b"\x1b[31mred\x1b[0m\x07",
    "a percent sign": b"%s%n%99999d",
    "long": b"x" * 900,
    "long, no utf-8": b"\xff" * 900,
    "blanks": b"   ",
}


@pytest.fixture(scope="module")
def folder(cluster: Cluster, user: str | None) -> Path:
    """The scripts, each as NUMBER.sh; each, when run, copies itself as Slurm stored it."""
    folder = cluster.home(user) / "bytes"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(SCRIPTS.values()):
        head, _, rest = text.partition(b"\n")
        copy = f'cat "$0" > {folder}/{number}.$SLURM_JOB_ID'.encode()
        (folder / f"{number}.sh").write_bytes(head + b"\n" + copy + b"\n" + rest)
    if user:
        os.chown(folder, cluster._user(user).uid, cluster._user(user).gid)
    return folder


def test_a_script_is_stored_and_run_as_it_was_sent(clean, enforcing, folder, user):
    asked = len(enforcing.decisions())
    unread = unreadable(enforcing)
    jobs = {}
    for number, name in enumerate(SCRIPTS):
        done = enforcing.run(
            ["sbatch", "--parsable", "-G1", "-t5", "--output=/dev/null", f"{number}.sh"],
            user=user,
            cwd=folder,
        )
        assert done.returncode == 0, (name, done.stderr)
        jobs[number] = int(done.stdout)
    for number, name in enumerate(SCRIPTS):
        sent = (folder / f"{number}.sh").read_bytes()
        ran = folder / f"{number}.{jobs[number]}"
        wait_until(partial(_whole, ran, len(sent)))
        assert ran.read_bytes() == sent, name
        out = folder / f"{number}.stored"
        enforcing.run(
            ["scontrol", "write", "batch_script", str(jobs[number]), str(out)], user=user, check=True
        )
        assert out.read_bytes() == sent, name
    # Each was a question that the service could read.
    assert unreadable(enforcing) == unread
    wait_until(lambda: len(enforcing.decisions()) - asked > len(SCRIPTS) / 2)


def test_a_script_that_slurm_refuses_is_refused_as_before(enforcing, folder, user):
    """NUL in it, or longer than Slurm takes: sbatch says the same with and without the plugin."""
    (folder / "nul.sh").write_bytes(b"#!/bin/sh\n: \0 :\n")
    (folder / "big.sh").write_bytes(b"#!/bin/sh\n" + b"#" * (5 * 1024 * 1024))

    def said() -> list[tuple[int, str]]:
        lines = [["sbatch", "-G1", "--hold", f"{name}.sh"] for name in ("nul", "big")]
        answers = [enforcing.run(line, user=user, cwd=folder) for line in lines]
        # gsub's words come before Slurm's own, which the script's length earns it later
        return [(answer.returncode, answer.stderr.splitlines()[-1]) for answer in answers]

    now = said()
    with without_plugin(enforcing):
        assert said() == now
    assert all(code for code, _ in now)


def test_names_and_comments_are_those_without_the_plugin(closed, enforcing, folder, user):
    def submitted() -> list[str]:
        """What each job's name, comment and folder became, in hexadecimal; or what sbatch said against it."""
        found = []
        for word in WORDS.values():
            text = os.fsdecode(word)
            for options in (["-J", text], ["--comment", text], ["-J", text, "--comment", text, "-D", "/tmp"]):
                line = ["sbatch", "--parsable", "-G2", "--output=/dev/null", *options, "--wrap=:"]
                done = enforcing.run(line, user=user)
                assert "ERROR" not in done.stderr
                look = f"squeue -h -j {done.stdout.strip()} -o '%j|%k|%Z' | od -An -v -tx1"
                found.append(done.stderr if done.returncode else enforcing.run(["sh", "-c", look]).stdout)
        return found

    with without_plugin(enforcing):
        bare = submitted()
    asked = len(enforcing.decisions())
    unread = unreadable(enforcing)
    assert submitted() == bare
    assert unreadable(enforcing) == unread
    wait_until(lambda: len(enforcing.decisions()) - asked > len(bare) / 2)


def unreadable(cluster: Cluster) -> float | None:
    """How many questions gsubd could not read so far."""
    return gsubd.metric(cluster.ports, "gsub_malformed_total")


def _whole(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size >= size
