"""Logs made to harm who reads them: bounded time and memory, nothing read that their user could not read, and what
was not seen is said."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import pytest

from profiler.findings import Evidence, Finding
from prolog_epilog.agent import log_child
from prolog_epilog.agent.log_child import LogChild, NoAnswerError, checked
from prolog_epilog.failures import privileges
from prolog_epilog.failures.logfiles import ENTRIES, OTHERS
from prolog_epilog.failures.question import Question
from tests.fuzz import words
from tests.unit.prolog_epilog.failures.rig import ADA, BOB, command, home, inside, question, written

pytestmark = pytest.mark.root

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in <module>
    import nonesuch
ModuleNotFoundError: No module named 'nonesuch'
"""
SECONDS = 8.0
"""Of CPU time, of which the child is given 10; the agent's deadline is as long. (By the clock a busy machine fails.)"""
MOST_MEMORY = privileges.ADDRESS_SPACE


@dataclass
class Asked:
    """An answer, and what it cost."""

    finding: Finding
    seconds: float
    bytes: float


Ask = Callable[[Question], Asked]


class Measured(LogChild):
    """The real child, with time enough on a busy machine; it stays after its answer until its cost was read."""

    seconds = peak = 0.0

    def __init__(self) -> None:
        patient = (
            "import time\nfrom prolog_epilog.failures import child\nchild._SECONDS = 100\nchild.main()\n"
        )
        super().__init__(command(patient + "time.sleep(600)"), deadline=120, started_within=120)

    def _end(self, child: subprocess.Popen[bytes], uid: int) -> None:
        process = Path(f"/proc/{child.pid}")
        used = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        self.seconds = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                self.peak = int(line.split()[1]) << 10
        super()._end(child, uid)


@pytest.fixture
def ask() -> Ask:
    """Asks as the agent does."""

    def one(asked: Question) -> Asked:
        child = Measured()
        finding = child.ask(asked)
        assert child.peak > 0 and child.seconds > 0
        return Asked(finding, child.seconds, child.peak)

    return one


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return home(tmp_path)


def test_what_is_no_plain_file_is_not_opened(place: Path, ask: Ask) -> None:
    (place / "link").symlink_to("/etc/shadow")
    (place / "loop").symlink_to("loop")
    (place / "folder").mkdir()
    os.mkfifo(place / "pipe")
    os.chown(place / "pipe", ADA, ADA)
    (place / "zero").symlink_to("/dev/zero")
    (place / "terminal").symlink_to("/dev/tty")
    (place / "kernel").symlink_to("/proc/kmsg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(place / "socket"))
        os.chown(place / "socket", ADA, ADA)
        said = ask(question(*sorted(place.iterdir())))
    assert said.finding.reason == "no_signature" and said.finding.evidence == ()
    words = {Path(each.split(" ")[0]).name: each for each in said.finding.unseen}
    assert "may not be read" in words["link"] and "circle" in words["loop"] and "directory" in words["folder"]
    assert "pipe" in words["pipe"] and "device" in words["zero"] and "socket" in words["socket"]
    assert "may not be read" in words["kernel"]
    assert said.seconds < SECONDS


def test_nothing_is_read_that_its_user_may_not_read(place: Path, tmp_path: Path, ask: Ask) -> None:
    of_bob = written(place / "slurm-17.out", TRACEBACK, BOB, 0o600)
    of_root = written(place / "slurm-17.err", TRACEBACK, 0, 0o600)
    closed = written(place / "closed-17.out", TRACEBACK, mode=0o000)
    behind = home(tmp_path, BOB, 0o700)
    hidden = written(behind / "slurm-17.out", TRACEBACK, ADA, 0o644)
    gone = place / "never-17.out"
    finding = ask(question(of_bob, of_root, closed, hidden, gone)).finding
    assert (finding.reason, finding.evidence) == ("no_signature", ())
    for path in (of_bob, of_root, closed, hidden):
        assert f"{path} may not be read" in finding.unseen
    assert any(each.startswith(f"{gone} is not there") for each in finding.unseen)


def test_what_others_left_beside_it_is_not_taken_for_the_jobs(place: Path, ask: Ask) -> None:
    """In a folder that several write to, anyone can make a file with the job's number."""
    place.chmod(0o777)
    own = written(place / "slurm-17.out", "epoch 1\n")
    written(place / "rank1-17.out", TRACEBACK, BOB, 0o644)
    (place / "rank2-17.out").symlink_to(written(place / "other", TRACEBACK, BOB, 0o644))
    old = written(place / "rank3-17.out", TRACEBACK)
    os.utime(old, (1e9, 1e9))
    written(place / "ckpt-17.bin", TRACEBACK)
    written(place / "slurm-175.out", TRACEBACK)
    assert ask(question(own)).finding.evidence == ()
    written(place / "rank4-17.out", TRACEBACK)
    (first, *_) = ask(question(own)).finding.evidence
    assert first.file == str(place / "rank4-17.out")


@pytest.mark.slow
def test_torchruns_logs_are_found_where_the_output_says_they_are(place: Path, ask: Ask) -> None:
    folder = place / "logs" / "none_x1" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    written(folder / "stderr.log", TRACEBACK)
    own = written(place / "slurm-17.out", "+ torchrun --nproc-per-node=8 --log-dir=logs train.py\nepoch 1\n")
    (first, *_) = ask(question(own)).finding.evidence
    assert first.file == str(folder / "stderr.log")
    (first, *_) = ask(question(own, work_dir=str(place))).finding.evidence
    assert first.file == str(folder / "stderr.log")
    assert ask(question(own, work_dir="/")).finding.evidence == (), "it is relative to where the script began"
    written(own, "+ torchrun --log-dir=/etc train.py\n--log-dir=../../../..\n--log-dir=/proc/1\nepoch 1\n")
    said = ask(question(own))
    assert said.finding.evidence == () and said.seconds < SECONDS


GIB = 1 << 30


@contextmanager
def sparse(path: Path, head: bytes, tail: bytes) -> Iterator[Path]:
    """A GB of which the file system keeps the ends."""
    written(path, head)
    with path.open("r+b") as file:
        file.seek(GIB - len(tail))
        file.write(tail)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    "head,tail,reason",
    {
        "one line": (b"x" * 100, b"x" * 100, "none"),
        "a cause at its end": (b"epoch 1\n", b"\n" + TRACEBACK.encode(), "import_error"),
        "a cause at its start": (b"CUDA out of memory. Tried to allocate 1 GiB\n", b"\n", "gpu_oom"),
    }.values(),
)
def test_a_gigabyte_is_read_at_its_ends(place: Path, ask: Ask, head: bytes, tail: bytes, reason: str) -> None:
    with sparse(place / "slurm-17.out", head, tail) as log:
        said = ask(question(log))
    assert said.finding.reason == reason or (reason == "none" and said.finding.evidence == ())
    assert any("were not read" in each for each in said.finding.unseen)
    assert said.seconds < SECONDS and said.bytes < MOST_MEMORY


DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
FILLS: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: b"\0" * (16 << 20),
    "noise": lambda: os.urandom(16 << 20),
    "one long line": lambda: b"a" * (16 << 20),
    "line feeds": lambda: b"\n" * (16 << 20),
    "carriage returns": lambda: b"\r" * (16 << 20),
    "escapes": lambda: b"\x1b[31m" * ((16 << 20) // 5),
    "half an escape": lambda: b"\x1b]0;" + b"x" * (16 << 20),
    "hits": lambda: b"RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n" * ((16 << 20) // 58),
    "hits in one line": lambda: b"CUDA out of memory. Tried to allocate 1 GiB " * ((16 << 20) // 44),
    "tracebacks": lambda: TRACEBACK.encode() * ((16 << 20) // len(TRACEBACK)),
    "a traceback without end": lambda: (
        b"Traceback (most recent call last):\n" + b'  File "a", line 1, in f\n' * 600_000
    ),
    "chains": lambda: (
        (TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n").encode()
        * 70_000
    ),
    "nested": lambda: b"  + Exception Group Traceback (most recent call last):\n  | " * 250_000,
    "spaces": lambda: b"Traceback" + b" " * (16 << 20),
    "error: error:": lambda: b"error: " * ((16 << 20) // 7),
    "brackets": lambda: b"[" * (16 << 20),
    "ranks": lambda: b"".join(b"[rank%d]: x\n" % n for n in range(1_100_000)),
    "times": lambda: b"2026-08-14 06:19:18,579 " * ((16 << 20) // 24),
    "wide lines": lambda: (b"x" * 79 + b"\n") * ((16 << 20) // 80),
    "json": lambda: b'{"message": ' * ((16 << 20) // 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
def test_sixteen_megabytes_made_to_cost_much_do_not(fill: str, place: Path, ask: Ask) -> None:
    """Each has its answer, in a part of the time and the memory that there are."""
    log = written(place / "slurm-17.out", FILLS[fill]())
    said = ask(question(log))
    assert said.bytes < MOST_MEMORY, f"{said.bytes / 1e6:.0f} MB"
    assert said.seconds < SECONDS


def test_patterns_that_could_blow_up_do_not(place: Path, ask: Ask, tmp_path: Path) -> None:
    """A site's signatures are RE2's, too: linear in the line, whatever they say."""
    site = tmp_path / "signatures.toml"
    site.write_text(
        '[[signature]]\nname = "site-evil"\nreason = "no_space"\ntier = "explicit"\n'
        "pattern = '''evil(a+)+(a|aa)*(a|a?)+b$'''\nadvice = \"x\"\ntool = \"x\"\nsource = \"x\"\n"
        'test = ["evilaab"]\n'
    )
    log = written(place / "slurm-17.out", (b"evil" + b"a" * 4000 + b"!\n") * 2000)
    said = ask(question(log, signatures=(str(site),)))
    assert said.finding.reason != "no_space" and said.finding.unseen == () and said.seconds < SECONDS


@pytest.mark.slow
def test_a_folder_of_100_000_files_is_not_gone_through_to_its_end(place: Path, ask: Ask) -> None:
    own = written(place / "slurm-17.out", TRACEBACK)
    folder = os.open(place, os.O_RDONLY)
    for number in range(100_000):
        os.close(os.open(f"{number:06}-17.log", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
    for number in range(0, 100_000, 500):
        os.chown(f"{number:06}-17.log", ADA, ADA, dir_fd=folder)
    os.close(folder)
    said = ask(question(own))
    assert said.finding.reason == "import_error"
    assert any("holds too much" in each for each in said.finding.unseen), said.finding.unseen
    assert said.seconds < SECONDS and said.bytes < MOST_MEMORY
    assert ENTRIES < 100_000


def test_thousands_of_ranks_are_read_in_part_and_within_memory(place: Path, ask: Ask) -> None:
    own = written(place / "slurm-17.out", TRACEBACK)
    for rank in range(300):
        written(place / f"rank{rank:03}-17.out", b"x" * (1 << 20))
    said = ask(question(own))
    assert said.finding.reason == "import_error"
    assert any(f"has 300 more logs of this job, of which {OTHERS}" in each for each in said.finding.unseen)
    assert said.seconds < SECONDS and said.bytes < MOST_MEMORY


def test_names_made_for_a_terminal_are_only_text(place: Path, ask: Ask) -> None:
    evil = "slurm-17\n\x1b]0;owned\x07\x1b[2J.out"
    log = written(place / evil, TRACEBACK + "\x1b[31mError\x07\n")
    written(place / "rank-17\n\x1b[2J.out", TRACEBACK)
    missing = place / "never\n\x1b[2J-17.out"
    finding = ask(question(log, missing)).finding
    assert finding.reason == "import_error"
    texts = [*finding.unseen, *finding.remarks, *(each.file + each.text for each in finding.evidence)]
    assert any("never" in text for text in texts) and all(text.isprintable() for text in texts)


def test_bytes_that_are_no_text_do_not_stop_it(place: Path, ask: Ask) -> None:
    for name in (b"a-17-\xff.out", b"\xed\xa0\x80-17.out"):
        written(place / os.fsdecode(name), TRACEBACK)
    own = written(place / "slurm-17.out", b"\xff\xfe\xed\xa0\x80 \x00\n" + TRACEBACK.encode())
    assert ask(question(own)).finding.reason in ("import_error", "no_signature", "none")
    named = written(place / os.fsdecode(b"error-\xff.json"), TRACEBACK)
    written(own, b"epoch 1\n  error_file: " + os.fsencode(named) + b"\n")
    assert not any("not classified" in each for each in ask(question(own)).finding.unseen)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Something that goes on and on, as long as the body lasts."""
    stop = threading.Event()

    def go() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_log_that_is_replaced_while_it_is_read_gives_away_nothing(place: Path, ask: Ask) -> None:
    log = written(place / "slurm-17.out", TRACEBACK)
    secret = written(
        place / "secret", "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n", 0, 0o600
    )
    spare = place / "spare"

    def swap() -> None:
        for target in (secret, Path("/dev/zero"), place / "nothing"):
            spare.symlink_to(target)
            spare.replace(log)
        os.mkfifo(spare)
        spare.replace(log)
        written(place / "new", TRACEBACK)
        (place / "new").replace(log)

    with meanwhile(swap):
        for _ in range(6):
            said = ask(question(log))
            assert said.finding.reason in ("import_error", "no_signature")
            assert said.seconds < SECONDS


def test_a_log_that_grows_and_shrinks_while_it_is_read(place: Path, ask: Ask) -> None:
    log = written(place / "slurm-17.out", TRACEBACK)

    def change() -> None:
        with log.open("r+b") as file:
            file.truncate(40 << 20)
            file.seek(0, 2)
            file.write(TRACEBACK.encode())
            file.truncate(100)

    with meanwhile(change):
        for _ in range(4):
            said = ask(question(log))
            assert said.seconds < SECONDS and said.bytes < MOST_MEMORY


def test_a_log_of_a_requeued_jobs_next_attempt_is_marked(place: Path, ask: Ask) -> None:
    log = written(place / "slurm-17.out", TRACEBACK)
    asked = question(log, until=time.time() - 500)
    assert any("later attempt" in each for each in ask(asked).finding.remarks)


# --- children that do not do as they should ---

GOOD = b'{"reason":"gpu_oom","confidence":0.9,"tier":"explicit","evidence":[{"text":"x"}]}\n'
LIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "ended without an answer"),
    "no end": (b"\n" + GOOD[:-1], "ended without an answer"),
    "no JSON": (b"\nhello\n", "gave an answer that is none"),
    "bytes": (b"\n\xff\xfe\x00\n", "gave an answer that is none"),
    "a list": (b"\n[]\n", "gave an answer that is none"),
    "another shape": (b'\n{"reason":7}\n', "gave an answer that is none"),
    "beyond bounds": (b'\n{"reason":"gpu_oom","confidence":7}\n', "gave an answer that is none"),
    "nesting": (b"\n" + b"[" * 200_000 + b"\n", "gave an answer that is none"),
    "too much": (b"\n" + b'{"reason":"' + b"x" * (1 << 20), "said too much"),
    "too long a text": (
        b'\n{"reason":"gpu_oom","advice":"' + b"x" * 9999 + b'"}\n',
        "gave an answer that is none",
    ),
    "no such reason": (b'\n{"reason":"because"}\n', "gave a reason that there is not"),
    "another's log": (
        b'\n{"reason":"gpu_oom","evidence":[{"text":"x","file":"/home/bob/slurm-18.out"}]}\n',
        "told of what it was not asked for",
    ),
    "no line": (b'\n{"reason":"gpu_hardware","tier":"explicit"}\n', "gave a reason without a line for it"),
    "the kernel's word": (
        b'\n{"reason":"gpu_hardware","evidence":[{"text":"Xid 79","what":"xid","source":"root"}]}\n',
        "told of what it was not asked for",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_may_not_be_believed_is_none(lie: str, tmp_path: Path) -> None:
    answer, why = LIES[lie]
    file = tmp_path / "answer"
    file.write_bytes(answer)
    code = (
        f"import sys\nsys.stdin.readline()\nsys.stdout.buffer.write(open({os.fspath(file)!r}, 'rb').read())"
    )
    child = LogChild(command(code))
    with pytest.raises(NoAnswerError, match=why):
        child.ask(question("/home/ada/slurm-17.out"))


def test_what_is_believed_is_the_users_word_and_plain_text() -> None:
    line = (
        b'{"reason":"gpu_oom","confidence":0.9,"tier":"explicit","node":"n1\\n","advice":"a\\u001b[2Jb",'
        b'"unseen":["a\\nb"],"remarks":["\\u202e"],"signature":"\\u0007",'
        b'"evidence":[{"text":"CUDA \\u001b[31mout","file":"/home/ada/slurm-17.out","source":"root","node":"\\r"}]}'
    )
    finding = checked(line, question("/home/ada/slurm-17.out"))
    (evidence,) = finding.evidence
    assert evidence.source == "user" and evidence.text == "CUDA ?[31mout"
    assert (finding.advice, finding.unseen, finding.remarks) == ("a?[2Jb", ("a b",), ("?",))
    assert (finding.node, evidence.node, finding.signature) == ("n1", "", "?")


def test_mangled_answers_are_findings_within_bounds_or_none() -> None:
    asked = question("/home/ada/slurm-17.out")
    line = Evidence("CUDA out of memory", asked.files[0], 3, rank=2, node="n1", at=1.0)
    good = msgspec.json.encode(
        Finding("gpu_oom", 0.9, "explicit", (line,), "a", "s", "f", 1, "n", ("u",), ("r",))
    )
    believed = 0
    for seed in range(3000):
        random = Random(seed)
        answer = words.mangle(random, good)
        if random.random() < 0.7:
            value = msgspec.json.decode(good)
            place = random.choice((value, value["evidence"][0]))
            place[random.choice(sorted(place))] = words.anything(random)
            answer = words.encode(random, value)
        with suppress(NoAnswerError):
            finding = checked(answer, asked)
            believed += 1
            assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
            assert all(each.source == "user" for each in finding.evidence)
            assert all(
                text.isprintable() for each in finding.evidence for text in (each.text, each.file, each.node)
            )
    assert 100 < believed < 2900


STUCK = {
    "sleeps": "import time\ntime.sleep(600)",
    "sleeps with the deaf": "import time, signal, sys\n[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n"
    "sys.stdout.write('\\n')\nsys.stdout.flush()\ntime.sleep(600)",
    "is stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "spins": "while True: pass",
    "dribbles": "import sys, time\nwhile True:\n    sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.01)",
    "does not listen": "import sys, time\nsys.stdin.close()\ntime.sleep(600)",
}


@pytest.mark.parametrize("stuck", STUCK)
def test_a_child_that_does_not_answer_is_ended_in_time(stuck: str) -> None:
    pids: list[int] = []

    class Watched(LogChild):
        def _start(self) -> subprocess.Popen[bytes]:
            child = super()._start()
            pids.append(child.pid)
            return child

    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"^were not read within 1 s$"):
        Watched(command(STUCK[stuck]), deadline=1.0, started_within=1.0).ask(question("/x"))
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.slow
def test_a_user_who_stops_or_kills_it_harms_only_themselves(place: Path) -> None:
    """After it has become the user, the user's other processes may signal it."""
    for signal in ("STOP", "KILL"):
        child = LogChild(inside(f"import os, signal\nos.kill(os.getpid(), signal.SIG{signal})"), deadline=1.0)
        with pytest.raises(NoAnswerError):
            child.ask(question("/x"))
        assert LogChild().ask(question(written(place / "slurm-17.out", TRACEBACK))).reason == "import_error"


def test_children_that_cannot_be_ended_are_left_behind_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does in a file system that does not answer: not even SIGKILL ends it."""
    left: list[subprocess.Popen[bytes]] = []

    class Undead(LogChild):
        def _start(self) -> subprocess.Popen[bytes]:
            left.append(super()._start())
            return left[-1]

    child = Undead(command("import time\ntime.sleep(600)"), deadline=0.1, started_within=0.1)
    monkeypatch.setattr(log_child, "_ENDED_WITHIN", 0.05)
    with monkeypatch.context() as nothing_kills:
        nothing_kills.setattr(os, "killpg", lambda group, number: None)
        for uid in range(ADA, ADA + log_child.MOST_LEFT):
            with pytest.raises(NoAnswerError, match="within"):
                child.ask(question("/x", uid=uid))
            with pytest.raises(NoAnswerError, match="an earlier reader of this user's logs still hangs"):
                child.ask(question("/x", uid=uid))
        with pytest.raises(NoAnswerError, match="4 earlier readers still hang"):
            child.ask(question("/x", uid=BOB + 100))
    assert len(left) == log_child.MOST_LEFT, "none is started that might be left, too"
    left[0].kill()
    left[0].wait()
    with pytest.raises(NoAnswerError, match="within"):
        child.ask(question("/x", uid=ADA))
    for each in left:
        with suppress(ProcessLookupError):
            each.kill()
        each.wait()


def test_a_host_that_cannot_start_a_process_says_so() -> None:
    with pytest.raises(NoAnswerError, match="no process can be started: No such file"):
        LogChild(("/nonexistent/python",)).ask(question("/x"))


@pytest.mark.slow
def test_an_output_that_slurm_could_not_open_is_why_the_job_did_not_begin(ask: Ask) -> None:
    """Slurm makes no folders: it ends the job with signal 53, and nothing is written anywhere."""
    with tempfile.TemporaryDirectory(
        dir="/var/lib"
    ) as folder:  # below /tmp a job may have a folder of its own
        root = Path(folder)
        root.chmod(0o755)
        place = home(root)

        def why(*files: Path, **more: bool) -> Finding:
            return ask(question(*files, **{"not_begun": True, **more})).finding

        missing = why(place / "logs" / "17.out")
        assert (missing.reason, missing.tier) == ("output_error", "explicit")
        assert missing.evidence[0].file == str(place / "logs" / "17.out")
        closed = why(root / "17.out")
        assert closed.reason == "permission_error" and str(root) in closed.evidence[0].text
        hidden = why(home(root, BOB, 0o700) / "logs" / "17.out")
        assert hidden.reason == "permission_error"
        no_trouble = why(place / "17.out")
        assert (no_trouble.reason, no_trouble.evidence) == ("no_signature", ()), "no guess"
        assert why(place / "logs" / "17.out", not_begun=False).reason == "no_signature", "it was there once"
        written(place / "17.out", TRACEBACK)
        assert why(place / "17.out", place / "logs" / "17.err").reason == "import_error"
