"""The process that reads users' logs, looked at from inside: what it kept of root's, and what it may take."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from profiler.findings import Finding
from prolog_epilog.agent.log_child import LogChild
from prolog_epilog.failures import privileges
from prolog_epilog.failures.question import Question
from tests.unit.prolog_epilog.failures.rig import ADA, ROOT, command, home, inside, question, written

pytestmark = pytest.mark.root

SHADOW = "/etc/shadow"


def told(code: str, *, before: str = "", asked: Question | None = None) -> list[str]:
    """What code says that runs in the place of reading; `before` runs as root, ahead of all."""
    needed = "import ctypes, json, os, pwd, resource, stat\n"  # where the user may find none of it
    finding = LogChild(inside(code, needed + before)).ask(asked or question("/nowhere/17.out"))
    assert finding.unseen == (), finding.unseen
    return list(finding.remarks)


def facts(code: str, *, before: str = "", asked: Question | None = None) -> dict[str, object]:
    """The same, as a dictionary `found` that the code fills."""
    packed = f"found = {{}}\n{code}\ntext = json.dumps(found)\n"
    packed += "said += [text[i:i + 500] for i in range(0, len(text), 500)]"
    return dict(json.loads("".join(told(packed, before=before, asked=asked))))


STATUS = """
for line in open('/proc/self/status'):
    key, _, value = line.partition(':')
    found[key] = value.split()
"""


def test_it_is_the_user_and_nobody_else() -> None:
    # The agent's own groups, as root's login may have them, and what a name service says of the user
    before = """
import os, pwd
os.setgroups([0, 4, 27])
pwd.getpwuid = lambda uid: pwd.struct_passwd(('ada', 'x', uid, 700, '', '/', ''))
os.getgrouplist = lambda name, gid: [gid, 60001, 60002] if name == 'ada' else []
"""
    found = facts(STATUS, before=before)
    assert found["Uid"] == found["Gid"] == [str(ADA)] * 4
    assert found["Groups"] == [str(ADA), "60001", "60002"]
    by_default = facts(STATUS, before=before, asked=question(gid=None))
    assert by_default["Gid"] == ["700"] * 4 and by_default["Groups"] == ["700", "60001", "60002"]


def test_a_user_whom_no_name_service_knows_has_the_groups_that_slurm_told() -> None:
    found = facts(STATUS)
    assert found["Uid"] == found["Gid"] == [str(ADA)] * 4 and found["Groups"] == [str(ADA)]
    finding = LogChild().ask(question(SHADOW, gid=None))
    assert finding.unseen == (f"the logs were not read: no name service knows uid {ADA}, and so its groups",)


def test_it_has_no_capability_and_no_way_to_one() -> None:
    found = facts(
        STATUS
        + """
import os
for name, call in {
    'uid': lambda: os.setresuid(0, 0, 0), 'gid': lambda: os.setresgid(0, 0, 0), 'groups': lambda: os.setgroups([0]),
    'nice': lambda: os.nice(-1), 'chroot': lambda: os.chroot('/'), 'kill': lambda: os.kill(os.getppid(), 0),
    'shadow': lambda: open('/etc/shadow'), 'limit': lambda: __import__('resource').setrlimit(7, (99, 99)),
}.items():
    try:
        call()
    except (OSError, ValueError):
        found['no_' + name] = True
"""
    )
    empty = ["0" * 16]
    assert [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [empty] * 5
    assert found["NoNewPrivs"] == ["1"] and found["Threads"] == ["1"]
    denied = {name for name in found if name.startswith("no_")}
    assert denied == {
        f"no_{name}" for name in ("uid", "gid", "groups", "nice", "chroot", "kill", "shadow", "limit")
    }


def test_roots_own_jobs_are_read_without_roots_power() -> None:
    found = facts(STATUS, asked=question(uid=0, gid=0))
    assert found["Uid"] == ["0"] * 4 and found["CapEff"] == found["CapPrm"] == found["CapBnd"] == ["0" * 16]


def test_it_inherits_two_pipes_and_nothing_else(tmp_path: Path) -> None:
    with ExitStack() as held:
        for number in range(
            200
        ):  # as the agent holds spool, driver, service, and what a library left inheritable
            file = held.enter_context((tmp_path / f"{number}").open("w"))
            os.set_inheritable(file.fileno(), number % 2 == 0)
        before = (
            "import os\nfor _ in range(9): os.set_inheritable(os.open('/etc/shadow', os.O_RDONLY), True)\n"
        )
        found = facts(
            "import os, stat\nfor f in range(4096):\n"
            "    try: mode = os.fstat(f).st_mode\n"
            "    except OSError: continue\n"
            "    found[f] = 'pipe' if stat.S_ISFIFO(mode) else os.readlink(f'/proc/self/fd/{f}')\n",
            before=before,
        )
    assert found == {"0": "pipe", "1": "pipe", "2": "/dev/null"}


def test_it_may_take_little(tmp_path: Path) -> None:
    place = home(tmp_path)
    found = facts(
        f"""
import os, resource
for name in ('CPU', 'AS', 'NOFILE', 'FSIZE', 'NPROC', 'CORE', 'MEMLOCK'):
    found[name] = resource.getrlimit(getattr(resource, 'RLIMIT_' + name))
try: os.fork()
except OSError as error: found['fork'] = error.strerror
try:
    with open({os.fspath(place / "x")!r}, 'wb', buffering=0) as file: file.write(b'x')
except OSError as error: found['write'] = error.strerror
try: bytes(1 << 30)
except MemoryError: found['memory'] = 'none'
kept = []
try:
    for _ in range(100): kept.append(os.open('/', os.O_RDONLY))
except OSError as error: found['open'] = error.strerror
while kept: os.close(kept.pop())
"""
    )
    limits = {"CPU": privileges.CPU_SECONDS, "AS": privileges.ADDRESS_SPACE, "NOFILE": privileges.OPEN_FILES}
    limits |= {"FSIZE": 0, "NPROC": 0, "CORE": 0, "MEMLOCK": 0}
    assert {name: found[name] for name in limits} == {name: [value, value] for name, value in limits.items()}
    assert (found["fork"], found["memory"]) == ("Resource temporarily unavailable", "none")
    assert (found["write"], found["open"]) == ("File too large", "Too many open files")


def test_it_begins_with_a_clean_slate() -> None:
    found = facts(
        "import os, ctypes\nfound.update(env=dict(os.environ), cwd=os.getcwd(), umask=os.umask(0), "
        "leads=os.getsid(0) == os.getpid(), nice=os.nice(0), path=__import__('sys').path[0],\n"
        "    oom=open('/proc/self/oom_score_adj').read().strip(), dump=ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "death = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)\n"
        "found['death'] = death.value\n"
    )
    environment = found.pop("env")
    assert isinstance(environment, dict) and set(environment) <= {"LC_ALL", "LC_CTYPE"}
    assert found == {
        "cwd": "/",
        "umask": 0o077,
        "leads": True,
        "nice": min(os.nice(0) + 5, 19),
        "path": str(ROOT),
        "oom": "1000",
        "dump": 0,
        "death": signal.SIGKILL,
    }


def test_it_imports_nothing_with_the_users_rights(tmp_path: Path) -> None:
    """Where gsub lies may be closed to users; and what they own is never imported."""
    place = home(tmp_path)
    logs = [written(place / f"17.{codec}", ("\ufeff" + TRACEBACK).encode(codec)) for codec in CODECS]
    logs.append(written(place / "17.out", b"\xe9\xff\n" + TRACEBACK.encode()))
    code = command(
        "from prolog_epilog.failures import child\n"
        "import sys, msgspec\n"
        "look = child.investigate\n"
        "def looked(question, classify):\n"
        "    before = set(sys.modules)\n"
        "    finding = look(question, classify)\n"
        "    more = tuple(sorted(set(sys.modules) - before))\n"
        "    return msgspec.structs.replace(finding, remarks=more)\n"
        "child.investigate = looked\nchild.main()\n"
    )
    finding = LogChild(code).ask(question(*logs))
    assert (finding.reason, finding.remarks, finding.unseen) == ("import_error", (), ())


CODECS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in <module>
    import nonesuch
ModuleNotFoundError: No module named 'nonesuch'
"""


def test_a_log_is_read_and_its_evidence_told(tmp_path: Path) -> None:
    place = home(tmp_path, mode=0o700)
    finding = LogChild().ask(question(written(place / "slurm-17.out", TRACEBACK)))
    assert (finding.reason, finding.tier, finding.unseen) == ("import_error", "explicit", ())
    assert finding.evidence[0].text == "ModuleNotFoundError: No module named 'nonesuch'"
    assert (finding.evidence[0].file, finding.evidence[0].line) == (str(place / "slurm-17.out"), 4)
    assert all(each.source == "user" for each in finding.evidence)


KEPT = {
    "capabilities": "privileges._libc = Keeping(privileges._libc)",
    "groups": "os.setgroups([0, 4]); os.setgroups = lambda groups: None",
    "a uid": "os.setresuid = lambda *ids: None",
    "a gid": "os.setresgid = lambda *ids: None",
}


@pytest.mark.parametrize("kept", KEPT)
def test_who_kept_anything_reads_nothing(kept: str, tmp_path: Path) -> None:
    code = command(
        "import os\nfrom prolog_epilog.failures import child, privileges\n"
        "class Keeping:\n"
        "    def __init__(self, libc): self.libc = libc\n"
        "    def __getattr__(self, name): return (lambda *a: 0) if name == 'capset' else getattr(self.libc, name)\n"
        f"{KEPT[kept]}\nchild.investigate = lambda *a: os._exit(3)\nchild.main()\n"
    )
    uid = 0 if kept == "capabilities" else ADA  # who leaves uid 0 loses these in any case
    finding = LogChild(code).ask(question(SHADOW, uid=uid))
    assert finding.reason == "no_signature" and finding.evidence == ()
    (why,) = finding.unseen
    assert why.startswith("the logs were not read: ") and kept in why


def test_a_name_service_that_hangs_costs_the_deadline() -> None:
    code = command(
        "import pwd, time\nfrom prolog_epilog.failures import child\n"
        "pwd.getpwuid = lambda uid: time.sleep(600)\nchild.main()\n"
    )
    began = time.monotonic()
    with pytest.raises(Exception, match=r"^were not read within 0\.5 s$"):
        LogChild(code, deadline=0.5).ask(question(SHADOW))
    assert time.monotonic() - began < 60


@pytest.fixture
def asleep() -> Iterator[subprocess.Popen[bytes]]:
    """A child that has become the user, and sleeps."""
    child = subprocess.Popen(
        inside(
            "print('here', flush=True)\nimport time\ntime.sleep(600)", "import sys; sys.stderr = sys.stdout"
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(msgspec.json.encode(question()) + b"\n")
    child.stdin.flush()
    while b"here" not in child.stdout.readline():
        assert child.poll() is None
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize("secret", ["environ", "mem", "maps", "fd/0", "root"])
def test_other_processes_of_the_user_do_not_get_into_it(asleep: subprocess.Popen[bytes], secret: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"head -c 1 /proc/{asleep.pid}/{secret}"],
        user=ADA,
        group=ADA,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "Permission denied" in done.stderr


def test_it_ends_with_who_asked() -> None:
    """The agent is killed: nothing goes on to read."""
    asker = subprocess.Popen(
        command(
            "import threading, time\n"
            "from prolog_epilog.agent.log_child import LogChild\n"
            "from tests.unit.prolog_epilog.failures.rig import inside, question\n"
            "class Telling(LogChild):\n"
            "    def _hear(self, child, asked):\n"
            "        print(child.pid, flush=True)\n"
            "        return super()._hear(child, asked)\n"
            "Telling(inside('import time; time.sleep(600)')).ask(question())\n"
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asker.stdout is not None
    pid = int(asker.stdout.readline())
    watched = os.pidfd_open(pid)
    asker.kill()
    asker.wait()
    asker.stdout.close()
    import select

    assert select.select([watched], [], [], 20)[0], "it has ended"
    os.close(watched)


def test_a_sites_signatures_are_roots_to_read_and_a_wrong_file_of_them_costs_only_itself(
    tmp_path: Path,
) -> None:
    place = home(tmp_path)
    log = written(place / "slurm-17.out", "epoch 1\nour scratch is on fire: zone 7\n")
    site = tmp_path / "signatures.toml"
    site.write_text(
        '[[signature]]\nname = "site-fire"\nreason = "filesystem_error"\ntier = "explicit"\n'
        "pattern = '''our scratch is on fire'''\nadvice = \"Run.\"\ntool = \"site\"\nsource = \"site\"\n"
        'test = ["our scratch is on fire: zone 7"]\n'
    )
    site.chmod(0o600)
    finding = LogChild().ask(question(log, signatures=(str(site),)))
    assert (finding.reason, finding.signature) == ("filesystem_error", "site-fire")
    site.write_text("[[signature]]\nname = 3\n")
    written(log, TRACEBACK)
    finding = LogChild().ask(question(log, signatures=(str(site),)))
    assert finding.reason == "import_error"
    (said,) = finding.unseen
    assert said.startswith("the site's own signatures were not used: ") and "signatures.toml" in said


def test_who_is_not_root_reads_their_own_and_no_others() -> None:
    ada = f"import os; os.setgroups([]); os.setresgid(*[{ADA}] * 3); os.setresuid(*[{ADA}] * 3)"

    def asked(of: int) -> Finding:
        # What is imported lies where ada may not go: it is imported before
        code = "from prolog_epilog.failures import child\nchild._classifier(child.Question(0, 0, (), (), 0.0, 0.0), [])"
        code += f"\n{ada}\nchild.main()"
        return LogChild(command(code)).ask(question(SHADOW, uid=of, gid=of))

    own = asked(ADA)
    assert own.unseen == ("/etc/shadow may not be read",)
    other = asked(ADA + 1)
    assert other.unseen[0].startswith("the logs were not read: ")


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{}\n", b"[1]\n", b"x" * 3_000_000, b'{"uid":-1}\n', b"\xff\n"]
)
def test_a_question_that_is_none_is_answered_by_nothing(line: bytes) -> None:
    done = subprocess.run(
        command("from prolog_epilog.failures.child import main; main()"), input=line, capture_output=True
    )
    (answer,) = [each for each in done.stdout.split(b"\n") if each]
    assert msgspec.json.decode(answer, type=Finding).unseen[0].startswith("the logs were not ")


def test_it_starts_fast(tmp_path: Path) -> None:
    """Once for each job that ends; generous here, the figure is in the docs."""
    log = written(home(tmp_path) / "17.out", "epoch 1\ndone\n")
    child = LogChild()
    child.ask(question(log))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child.ask(question(log))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0


UNIT = ROOT / "site_configs" / "systemd" / "gsub-noded.service"


def confined(capabilities: Sequence[str]) -> LogChild:
    """A child of an agent that has these capabilities only, as the unit gives them."""
    bounding = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)])
    real = command("from prolog_epilog.failures.child import main; main()")
    return LogChild(("/usr/bin/setpriv", "--no-new-privs", "--bounding-set", bounding, *real))


@pytest.mark.slow
@pytest.mark.needs("setpriv")
def test_the_units_capabilities_are_enough_and_none_of_them_is_kept(tmp_path: Path) -> None:
    stated = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    capabilities = " ".join(stated).split()
    log = written(home(tmp_path, mode=0o700) / "17.out", TRACEBACK)
    assert confined(capabilities).ask(question(log)).reason == "import_error"
    for needed in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
        finding = confined([name for name in capabilities if name != needed]).ask(question(log))
        (why,) = finding.unseen
        assert why.startswith("the logs were not read: "), "all is given up, or nothing is read"
