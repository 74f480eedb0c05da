"""client.py FOLDER NUMBER: a user who submits one job after the other, and writes down what came of each.

FOLDER/plan.json says what is submitted; `stop` ends it, `pause` holds it before the next command. Standard library
only: it runs wherever the cluster's users run, as one of them.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

# What a client is told when slurmctld goes away under it; it knows nothing of its job then.
CUT_OFF = re.compile(
    "Connection reset by peer|Connection refused|Unable to contact|Socket timed out|Zero Bytes|connect failure"
    "|Transport endpoint|Unexpected message received|Communication connection failure|still running"
)


class Client:
    def __init__(self, folder: Path, number: str) -> None:
        self.folder = folder
        plan = json.loads((folder / "plan.json").read_text())
        self.kinds = plan["kinds"]
        self.mine = plan["clients"][number]
        self.user = self.mine["name"]
        self.parked = folder / f"parked.{number}"
        self.log = (folder / f"log.{number}").open("a")

    def held(self) -> None:
        """Wait while the stream is paused."""
        while (self.folder / "pause").exists():
            self.parked.touch()
            time.sleep(0.1)
        self.parked.unlink(missing_ok=True)

    def run(self, tag: str, kind: str, step: int, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """One command as a user types it; written down."""
        self.held()
        begin = time.time()
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(argv, 124, "", "no answer in 150 s")
        told = {
            "tag": tag,
            "kind": kind,
            "step": step,
            "code": done.returncode,
            "begin": begin,
            "end": time.time(),
        }
        told |= {"out": done.stdout[-2000:], "err": done.stderr[-2000:]}
        told["cut_off"] = done.returncode != 0 and CUT_OFF.search(done.stderr) is not None
        print(json.dumps(told), file=self.log, flush=True)
        return done

    def job(self, tag: str) -> str:
        """The id of the job of that name, empty: Slurm has none."""
        while True:
            done = subprocess.run(["squeue", "-h", "-n", tag, "-o", "%A"], capture_output=True, text=True)
            if done.returncode == 0:
                return done.stdout.split()[0] if done.stdout.split() else ""
            time.sleep(0.5)

    def state(self, job: str) -> str:
        """What the queue says of it, empty: it is not there."""
        done = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True)
        return done.stdout.strip()

    def submit(self, tag: str, kind: str) -> str:
        """Submit, again where the answer was cut off and no job is there; the job's id, empty: refused."""
        argv = [word.replace("@TAG@", tag) for word in self.kinds[kind]["argv"]]
        for _ in range(5):
            done = self.run(tag, kind, 0, argv)
            if done.returncode == 0:
                return done.stdout.split(";")[0].strip()
            if CUT_OFF.search(done.stderr) is None:
                return ""
            if job := self.job(tag):
                return job
        return ""

    def then(self, tag: str, kind: str, job: str) -> None:
        """What the user does with the job afterwards: commands, and states to wait for."""
        for step, (word, *rest) in enumerate(self.kinds[kind].get("then", ()), 1):
            if word == "await":
                deadline = time.monotonic() + 120
                while self.state(job) not in rest and time.monotonic() < deadline:
                    self.held()
                    time.sleep(0.3)
            elif word == "wait":
                time.sleep(float(rest[0]))
            else:
                argv = [part.replace("@JOB@", job) for part in (word, *rest)]
                for _ in range(8):
                    done = self.run(tag, kind, step, argv)
                    if done.returncode == 0 or CUT_OFF.search(done.stderr) is None:
                        break
                    time.sleep(1)

    def go(self) -> None:
        count = 0
        while not (self.folder / "stop").exists():
            kind = self.mine["kinds"][count % len(self.mine["kinds"])]
            tag = f"{self.user}-{count}-{kind}"
            count += 1
            began = time.monotonic()
            job = self.submit(tag, kind)
            if job:
                self.then(tag, kind, job)
            while time.monotonic() < began + self.mine["pace"] and not (self.folder / "stop").exists():
                time.sleep(0.1)
        self.parked.touch()


if __name__ == "__main__":
    Client(Path(sys.argv[1]), sys.argv[2]).go()
