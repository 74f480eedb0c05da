"""Time `make` targets on a fresh machine: a minimal Debian in a chroot, two CPUs, empty caches, a fresh clone.

    python -m benchmarks.fresh_machine [--suite bookworm] [--rounds 1] [--then TURN]... [TARGET ...]    # as root

The chroot has git, make and Python and nothing else that gsub needs; apt's and pip's caches are empty. The clone is of
HEAD and its parent directory holds nothing else. Each round starts from a new copy; `--then` runs the targets more
often in the same one: `again` as before, `odd` as a careless service manager would start them (no terminal, signals
ignored, cron's environment, another time zone, locale and umask), `user` in an ordinary user's own clone.
Processes and mounts are in namespaces, and end with the round. Exit 1 when a target fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.paths import REPOSITORY

INCLUDED = ("ca-certificates", "git", "make", "procps", "python3")
PASSED_ON = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
TURNS = {
    "first": "cd /home/new/gsub && exec make {target}",
    "again": "cd /home/new/gsub && exec make {target}",
    "odd": """
        umask 077
        trap '' HUP INT TERM
        unset TERM
        export PATH=/usr/bin:/bin SHELL=/bin/sh LOGNAME=root TZ=Asia/Kathmandu LC_ALL=C
        cd /home/new/gsub && exec nohup make {target}""",
    "user": """
        id tester >/dev/null 2>&1 || useradd --create-home tester
        unset TERM
        export HOME=/home/tester
        cd && exec setpriv --reuid=tester --regid=tester --clear-groups sh -c \
            'test -d gsub || git clone --quiet /home/new/gsub gsub; cd gsub && exec make {target}'""",
}
"""Shell commands that run a target of make, by turn."""
ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot "$root" "$@"
"""


def build_root(suite: str, root: Path) -> None:
    """Make the minimal Debian, with empty caches and a clone of HEAD in /home/new/gsub."""
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(INCLUDED)}"]
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', suite, str(root)]
    subprocess.run(command, check=True)
    for path in (AUTHORITIES, Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf")):
        if path.exists():
            shutil.copy(path, root / path.relative_to("/"))
    (root / "home/new").mkdir(parents=True)
    clone = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(root / "home/new/gsub")]
    subprocess.run(clone, check=True)
    # for the clone of another user
    subprocess.run(
        ["git", "config", "--file", str(root / "etc/gitconfig"), "safe.directory", "*"], check=True
    )


def run_target(root: Path, target: str, turn: str) -> tuple[int, float]:
    """Run one `make` target in the chroot, as a turn of TURNS does. Returns its exit code and seconds."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    given = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "TERM": "dumb",
    }
    bare = ["env", "-i", *(f"{name}={value}" for name, value in (environment | given).items())]
    inside = [*bare, "sh", "-c", TURNS[turn].format(target=target)]
    spaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    start = time.monotonic()
    done = subprocess.run(
        ["taskset", "--cpu-list", "0,1", *spaces, "sh", "-c", ENTER, "enter", str(root), *inside],
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, time.monotonic() - start


def main() -> int:
    """Run the targets on fresh machines, and print a line for each."""
    parser = argparse.ArgumentParser(description="Time make targets on a fresh machine.")
    parser.add_argument("--suite", default="bookworm", help="of Debian")
    parser.add_argument("--rounds", type=int, default=1, help="fresh machines, one after the other")
    parser.add_argument("--then", action="append", default=[], choices=TURNS, help="run the targets so, too")
    parser.add_argument("--keep", action="store_true", help="keep the last machine's directory")
    parser.add_argument("targets", nargs="*", default=["test"], metavar="TARGET")
    asked = parser.parse_args()
    worst = 0
    lines = []
    with tempfile.TemporaryDirectory(prefix="gsub-fresh-", dir="/var/tmp") as folder:
        pristine = Path(folder) / "pristine"
        build_root(asked.suite, pristine)
        for round_ in range(1, asked.rounds + 1):
            root = Path(folder) / f"machine{round_}"
            subprocess.run(["cp", "-a", str(pristine), str(root)], check=True)
            for turn in ("first", *asked.then):
                for target in asked.targets:
                    code, seconds = run_target(root, target, turn)
                    worst = max(worst, code)
                    lines.append(
                        f"{asked.suite}, machine {round_}, {turn}: make {target}: exit {code}, {seconds / 60:.1f} min"
                    )
                    print(f"== {lines[-1]}", flush=True)
            if asked.keep and round_ == asked.rounds:
                root.rename(Path("/var/tmp") / f"gsub-fresh-kept-{os.getpid()}")
            else:
                shutil.rmtree(root)
    print(*lines, sep="\n")
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
