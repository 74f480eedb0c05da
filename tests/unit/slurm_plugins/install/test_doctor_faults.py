"""Doctor names each of many planted faults with its remedy, and none on a healthy site; by what three releases answer."""

# ruff: noqa: E501 - the faults are a table: a row each

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_plugins.install.doctor import CHECKS
from slurm_plugins.install.doctor.net import NetError, Page
from slurm_plugins.install.finding import Finding, Level
from slurm_plugins.install.host import Ran, Usage
from slurm_plugins.install.layout import SHIM
from slurm_plugins.install.rehearse import CHILD
from tests.unit.slurm_plugins.install.doctor_site import GSUB, RELEASES, SLURM, Scene, healthy, queue_page


@dataclass(frozen=True)
class Fault:
    """What is wrong, how it is planted, which check names it, how bad, and words of what is seen and of the remedy."""

    what: str
    plant: Callable[[Scene], object]
    check: str
    level: Level
    seen: str
    remedy: str


def _says(command: str, ran: Ran) -> Callable[[Scene], object]:
    return lambda scene: scene.host.answer(command, ran)


def _config(key: str, value: str | None) -> Callable[[Scene], object]:
    return lambda scene: scene.config(key, value)


def _deaf_delay(scene: Scene) -> None:
    scene.config("SLURM_VERSION", "24.11.5")
    scene.config("SchedulerParameters", "bf_interval=2,requeue_delay=5")
    scene.config("AuthInfo", f"socket={scene.paths.munge_socket}")


def _mode(place: Callable[[Scene], Path], mode: int) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        scene.host.entries[place(scene)].mode = mode

    return plant


def _owner(place: Callable[[Scene], Path], uid: int) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        scene.host.entries[place(scene)].uid = uid

    return plant


def _lose(place: Callable[[Scene], Path]) -> Callable[[Scene], object]:
    return lambda scene: scene.host.lose(place(scene))


def _put(place: Callable[[Scene], Path], content: str = "", mode: int = 0o644) -> Callable[[Scene], object]:
    return lambda scene: scene.host.put(place(scene), content, mode=mode)


def _site(old: str, new: str) -> Callable[[Scene], object]:
    return lambda scene: scene.edit(scene.layout.site, old, new)


def _dies(scene: Scene, name: str) -> None:
    """A daemon ends."""
    for path, entry in list(scene.host.entries.items()):
        if path.name == "comm" and entry.content.strip() == name.encode():
            scene.host.lose(path.parent)


def _gsubd_dies(scene: Scene) -> None:
    _dies(scene, "gsubd")
    scene.net.pages.clear()
    scene.net.answers.clear()
    scene.host.lose(scene.paths.decision_socket)


def _older_slurmd(scene: Scene) -> None:
    scene.nodes(r"Version=\S+", "Version=19.05.9")


def _enforce(scene: Scene, more: str = "") -> None:
    scene.edit(scene.layout.site, '^mode = "observe"', f'mode = "enforce"{more}')


def _drains(scene: Scene) -> None:
    _enforce(scene)
    scene.edit(scene.layout.site, r"^\[store\]", "[health]\ndrain = true\n\n[store]")


def _heard(scene: Scene, ago: float) -> None:
    at = scene.question.clock()
    scene.told_nodes([{"name": "n1", "heard": at}, {"name": "n2", "heard": at - ago}])


def _event(name: str, state: str, detail: str) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        rows = [{"name": name, "state": state, "detail": detail}]
        at = scene.question.clock()
        scene.told_nodes([{"name": "n1", "heard": at, "unwell": rows}, {"name": "n2", "heard": at}])

    return plant


def _jobs(scene: Scene) -> None:
    row = {"job_id": 4_000_000, "started": scene.question.clock() - 60}
    scene.net.answers["/v1/jobs"] = Page(200, json.dumps({"jobs": [row]}).encode())


def _later(seconds: float) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        at = scene.question.clock() + seconds
        scene.question = replace(scene.question, clock=lambda: at)
        _heard(scene, 0)

    return plant


def _full(free: int, inodes_free: int = 900_000) -> Usage:
    return Usage(100 << 30, free, 1_000_000, inodes_free)


def _disk(place: Callable[[Scene], Path], usage: Usage) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        scene.host.usages[place(scene)] = usage

    return plant


def _many(place: Callable[[Scene], Path], count: int) -> Callable[[Scene], object]:
    def plant(scene: Scene) -> None:
        for number in range(count):
            scene.host.put(place(scene) / f"{number}.record")

    return plant


def _twice(scene: Scene) -> None:
    line = f'pcall(dofile, "{scene.layout.libexec}/gsub.lua")\n'
    entry = scene.host.entries[scene.layout.job_submit]
    entry.content = line.encode() + entry.content


def _without_gsub(scene: Scene) -> None:
    entry = scene.host.entries[scene.layout.job_submit]
    entry.content = re.sub(rb"(?m)^.*gsub.*\n", b"", entry.content)


def _newer_shim(scene: Scene) -> None:
    scene.host.entries[scene.layout.libexec / "wire.lua"].mtime += 100


def _no_posix(scene: Scene) -> None:
    scene.host.lose("/usr/lib/x86_64-linux-gnu/lua/5.4")
    scene.host.put("/usr/lib/x86_64-linux-gnu/lua/5.1/posix.so")


def _no_plugin(scene: Scene) -> None:
    for path in [path for path in scene.host.entries if path.name == "job_submit_lua.so"]:
        scene.host.lose(path)


def _folder_pattern(scene: Scene) -> None:
    """The site's prolog.d, from which gsub's link is missing."""
    scene.host.put("/etc/slurm/prolog.d/50-site", "#!/bin/sh\n", mode=0o755)
    scene.config("Prolog", "/etc/slurm/prolog.d/*")


def _cli_filter(scene: Scene) -> None:
    scene.config("CliFilterPlugins", "cli_filter/lua")


def _torn(scene: Scene) -> None:
    entry = scene.host.entries[scene.layout.slurm_conf]
    entry.content += b"# >>> gsub: lines\nMessageTimeout=10\n"


def _held(scene: Scene) -> None:
    """gsub-act was stopped when a job was to be released."""
    at = scene.question.clock() - 7200
    lines = [
        {
            "event": event,
            "at": at,
            "id": "a1",
            "job": "41",
            "verb": "requeuehold",
            "why": "out of memory",
            "by": "v-1",
            "until": at + 180,
        }
        for event in ("asked", "done")
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    scene.host.put(scene.layout.act_state / "journal.jsonl", text, mode=0o600)


def _enforces(scene: Scene) -> None:
    _site('^mode = "observe"', 'mode = "enforce"')(scene)


def _act_is_dead(scene: Scene) -> None:
    _enforces(scene)
    scene.metric("gsub_act_up", 0)


def _act_without_slurmdbd(scene: Scene) -> None:
    _act_is_dead(scene)
    scene.config("AccountingStorageType", "accounting_storage/none")


def _a_partition_wants_act(scene: Scene) -> None:
    """gsubd is an earlier one, which does not look; there is no socket."""
    _site(r"^\[partitions.debug\]", '[partitions.debug]\nmode = "enforce"')(scene)


def _rehearsal(**told: object) -> Callable[[Scene], object]:
    """What a slurmctld of its own does with job_submit.lua; this host has no luac."""

    def plant(scene: Scene) -> None:
        scene.host.answers = {argv: said for argv, said in scene.host.answers.items() if argv[0] != "luac5.4"}
        scene.host.programs["slurmctld"] = "/usr/sbin/slurmctld"
        scene.host.answer(CHILD, Ran(0, json.dumps(told)))

    return plant


def _cut_off(scene: Scene) -> None:
    """An installation that was killed."""
    lines = [
        {"at": 1.0, "event": "begun", "what": "install"},
        {"at": 2.0, "event": "doing", "what": "write slurm.conf"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    scene.host.put(scene.layout.keep / "journal.jsonl", text, mode=0o600)


def _other_uid(scene: Scene) -> None:
    scene.net.unbelieved = NetError("unsealed", "The answer's seal is of uid 777.")


def _libexec(name: str) -> Callable[[Scene], Path]:
    return lambda scene: scene.layout.libexec / name


def _spool(name: str = "") -> Callable[[Scene], Path]:
    return lambda scene: scene.layout.spool / name


def _slurm_conf(scene: Scene) -> Path:
    return scene.layout.slurm_conf


def _wants_pyslurm(scene: Scene) -> None:
    scene.edit(scene.layout.site, r"^\[slurm\]$", '[slurm]\nbackend = "pyslurm"')
    scene.host.answer(sys.executable, Ran(1, "", "pyslurm is not installed for gsub's Python"))


# fmt: off
FAULTS = (
    # --- Slurm
    Fault(
        "slurmctld is down",
        _says("scontrol ping", Ran(0, "Slurmctld(primary) at ctl is DOWN\n")),
        "slurmctld", "error", "does not answer", "systemctl status slurmctld",
    ),
    Fault(
        "the backup controller is down",
        _says("scontrol ping", Ran(0, "Slurmctld(primary) at a is UP\nSlurmctld(backup) at b is DOWN\n")),
        "slurmctld", "warning", "not backup at b", "systemctl status slurmctld",
    ),
    Fault("Slurm is too old", _config("SLURM_VERSION", "20.11.9"), "slurm-release", "error", "20.11.9", "upgrade Slurm"),
    Fault("Slurm is too new", _config("SLURM_VERSION", "27.05.1"), "slurm-release", "warning", "27.05.1", "upgrade"),
    Fault(
        "commands are newer than slurmctld",
        _says("scontrol --version", Ran(0, "slurm 27.11.0\n")),
        "slurm-commands", "warning", "newer than slurmctld", "install the commands",
    ),
    Fault("slurmd is too old", _older_slurmd, "slurmd-versions", "warning", "19.05.9", "upgrade slurmdbd first"),
    Fault(
        "slurm.conf here differs from slurmctld's",
        lambda scene: scene.edit(scene.layout.slurm_conf, "^Prolog=.*", "Prolog=/other"),
        "slurm-conf", "warning", "Prolog is /other in the file", "copy the controller's slurm.conf",
    ),
    Fault("gsub's block in slurm.conf is torn", _torn, "slurm-conf", "error", "is torn", "gsub admin install"),
    Fault(
        "a file that slurm.conf includes is missing",
        lambda scene: scene.edit(scene.layout.slurm_conf, r"\A", "Include nodes.conf\n", count=1),
        "slurm-conf", "error", "nodes.conf is not there", "mend that line",
    ),
    Fault(
        "a prolog failed and drained a node",
        lambda scene: scene.nodes(r"(NodeName=n2.*)\n", r"\1 Reason=Prolog error [root@1795236875]\n"),
        "drained-nodes", "error", "n2: drained", "scontrol update NodeName=n2 State=RESUME",
    ),
    Fault("MinJobAge=2", _config("MinJobAge", "2 sec"), "min-job-age", "warning", "MinJobAge is 2 s", "MinJobAge=300"),
    Fault("JobRequeue=0", _config("JobRequeue", "0"), "job-requeue", "warning", "--requeue", "JobRequeue=1"),
    Fault(
        "requeued jobs wait for an hour",
        lambda scene: scene.config("AuthInfo", f"socket={scene.paths.munge_socket},cred_expire=3600"),
        "requeue-delay", "warning", "3600 s", "requeue_delay",
    ),
    Fault(
        "requeue_delay where Slurm takes it without effect", _deaf_delay,
        "requeue-delay", "warning", "waits 120 s before it may start again; requeue_delay", "cred_expire",
    ),
    Fault("PrologFlags without Alloc", _config("PrologFlags", None), "prolog-flags", "warning", "no Alloc", "PrologFlags=Alloc"),
    Fault("PrologFlags with Serial", _config("PrologFlags", "Alloc,Serial"), "prolog-flags", "warning", "Serial", "take Serial out"),
    Fault("hooks have a second", _config("PrologEpilogTimeout", "1"), "hook-timeout", "warning", "PrologEpilogTimeout=1", "=60"),
    Fault("drain without nohold_on_prolog_fail", _drains, "prolog-hold", "warning", "held", "nohold_on_prolog_fail"),
    Fault("MessageTimeout=2", _config("MessageTimeout", "2 sec"), "message-timeout", "warning", "2 s", "MessageTimeout=10"),
    Fault("a million jobs", _config("MaxJobCount", "1000000"), "max-job-count", "warning", "1000000", "docs/shim.md"),
    Fault("Slurm counts jobs anew", _jobs, "job-ids", "error", "4000000 was recorded", "FirstJobId=4000001"),
    Fault("PrivateData=jobs", _config("PrivateData", "jobs"), "private-data", "warning", "hides jobs", "adminlevel=operator"),
    Fault("no GresTypes", _config("GresTypes", None), "gres", "error", "no gpu", "GresTypes=gpu"),
    Fault(
        "gres.conf without File=",
        lambda scene: scene.edit(scene.paths.etc / "gres.conf", r" File=\S+", " Count=2"),
        "gres-conf", "warning", "without File=", "AutoDetect=nvml",
    ),
    Fault(
        "the site file's topology is broken",
        lambda scene: scene.edit(scene.paths.etc / "topology.conf", "Switches=", "Swiches="),
        "topology", "error", "topology.conf", "",
    ),
    Fault(
        "a node is on no leaf",
        lambda scene: scene.edit(scene.paths.etc / "topology.conf", "Nodes=n2", "Nodes=n3"),
        "topology", "warning", "n2: not in", "where they are cabled",
    ),
    Fault("the site file names no topology", _site(r"^file = .*topology.conf.*$", ""), "topology", "warning", "flat", "[topology] file"),
    Fault("Slurm cuts the wait for switches", _enforce, "max-switch-wait", "warning", "at 300 s", "max_switch_wait=1800"),
    Fault(
        "pyslurm is wanted and is not there",
        _wants_pyslurm,
        "slurm-backend", "error", "not installed", 'backend = "commands"',
    ),
    # --- accounting
    Fault("no accounting", _config("AccountingStorageType", "accounting_storage/none"), "slurmdbd", "warning", "no accounting", "slurmdbd"),
    Fault(
        "slurmdbd is down",
        _says("sacctmgr --noheader --parsable2 show cluster format=cluster", Ran(1, "", "sacctmgr: error: Connection refused\n")),
        "slurmdbd", "error", "Connection refused", "systemctl status slurmdbd",
    ),
    Fault(
        "slurmdbd knows another cluster",
        _says("sacctmgr --noheader --parsable2 show cluster format=cluster", Ran(0, "other\n")),
        "slurmdbd", "error", "does not know the cluster", "sacctmgr --immediate add cluster",
    ),
    Fault("GPUs are not counted", _config("AccountingStorageTRES", "cpu,mem,node"), "accounting-gpus", "warning", "gres/gpu", "gres/gpu"),
    Fault("scripts are not kept", _config("AccountingStoreFlags", "job_comment"), "accounting-flags", "warning", "job_script", "job_env"),
    # --- trust
    Fault(
        "munged is down",
        _says("munge", Ran(6, "", "munge: Error: Failed to access \"/run/munge/munge.socket.2\": No such file\n")),
        "munge", "error", "Failed to access", "systemctl status munge",
    ),
    Fault(
        "munged has two keys",
        _says("unmunge", Ran(8, "STATUS:          Invalid credential (8)\n")),
        "munge", "error", "Invalid credential", "systemctl status munge",
    ),
    Fault("Slurm asks another munged", _config("AuthInfo", "socket=/run/other"), "munge-socket", "error", "/run/other", "munge_socket"),
    Fault("clocks differ by a minute", _later(60), "clock", "warning", "differ by", "set the clock"),
    Fault("clocks differ by an hour", _later(-3600), "clock", "error", "MUNGE refuses", "set the clock"),
    Fault("there is no user gsub", lambda scene: scene.host.users.pop("gsub"), "service-user", "error", "no user gsub", "useradd"),
    Fault("gsub runs as SlurmUser", _site('^user = "gsub"', 'user = "slurm"'), "service-user", "warning", "SlurmUser", "service.user"),
    Fault("everybody may write the shim", _mode(_libexec("gsub.lua"), 0o666), "files-owner", "error", "gsub.lua", "chmod go-w"),
    Fault("the hooks' folder is a user's", _owner(lambda scene: scene.layout.libexec, 1000), "files-owner", "error", "uid 1000", "chown root"),
    Fault(
        "a group may write gsub's packages",
        lambda scene: scene.host.folder("/opt/gsub/lib/python3.11/site-packages", mode=0o775, gid=100),
        "programs-owner", "error", "site-packages", "chmod -R go-w /opt/gsub",
    ),
    # --- submission
    Fault("JobSubmitPlugins without lua", _config("JobSubmitPlugins", None), "job-submit-plugin", "error", "no lua", "JobSubmitPlugins=lua"),
    Fault("no job_submit_lua.so", _no_plugin, "job-submit-plugin", "error", "is not in", "Slurm's packages"),
    Fault("lua-posix is of another Lua", _no_posix, "lua-posix", "error", "one for Lua 5.1", "lua-posix"),
    Fault("a file of the shim is missing", _lose(_libexec("wire.lua")), "shim-files", "error", "wire.lua", "gsub admin upgrade"),
    Fault("a file of the shim was cut off", _put(_libexec("json.lua"), "local M = {}\n"), "shim-files", "warning", "json.lua", "upgrade"),
    Fault("the shim is newer than what is loaded", _newer_shim, "shim-files", "warning", "wire.lua is newer", "touch "),
    Fault("job_submit.lua is gone", _lose(lambda s: s.layout.job_submit), "job-submit-lua", "error", "will not start", "install"),
    Fault("job_submit.lua does not call gsub", _without_gsub, "job-submit-lua", "error", "does not call gsub", "install"),
    Fault("job_submit.lua calls gsub twice", _twice, "job-submit-lua", "error", "2 times", "install"),
    Fault(
        "job_submit.lua calls another installation",
        lambda scene: scene.edit(scene.layout.job_submit, str(scene.layout.libexec), "/usr/old"),
        "job-submit-lua", "error", "/usr/old/gsub.lua", "install",
    ),
    Fault(
        "job_submit.lua has no slurm_job_modify",
        lambda scene: scene.edit(scene.layout.job_submit, "slurm_job_modify", "nothing"),
        "job-submit-lua", "error", "slurm_job_modify", "function slurm_job_modify",
    ),
    Fault(
        "job_submit.lua has a syntax error",
        _says("luac5.4 -p", Ran(1, "", "luac5.4: job_submit.lua:7: 'end' expected near <eof>\n")),
        "job-submit-syntax", "error", "'end' expected", "luac5.4 -p",
    ),
    Fault(
        "job_submit.lua has a syntax error, and there is no luac",
        _rehearsal(answered=False, ended=1, log="error: job_submit/lua: /etc/slurm/job_submit.lua: job_submit.lua:7: 'end' expected near <eof>"),
        "job-submit-syntax", "error", "'end' expected", "mend job_submit.lua",
    ),
    Fault(
        "job_submit.lua fails while it is loaded, which no compiler sees",
        _rehearsal(answered=False, ended=1, log="error: job_submit/lua: job_submit.lua: job_submit.lua:3: attempt to call a nil value"),
        "job-submit-syntax", "error", "attempt to call a nil value", "mend job_submit.lua",
    ),
    Fault(
        "job_submit.lua returns no success when it is loaded",
        _rehearsal(answered=False, ended=1, log="job_submit.lua: returned -1 on load"),
        "job-submit-syntax", "error", "returned -1 on load", "return slurm.SUCCESS",
    ),
    Fault(
        "the shim cannot be loaded",
        _rehearsal(answered=True, passed=True, log="gsub is left out: module 'posix' not found"),
        "job-submit-syntax", "error", "jobs pass undecided", "lua-posix",
    ),
    Fault("the socket is open to the world", _mode(lambda s: s.paths.decision_socket, 0o666), "decision-socket", "error", "everybody", "restart gsubd"),
    Fault("slurmctld may not connect", _mode(lambda s: s.paths.decision_socket, 0o600), "decision-socket", "error", "may not connect", "SupplementaryGroups"),
    Fault("the socket's folder is closed", _mode(lambda s: s.layout.run, 0o700), "decision-socket", "error", "may not enter", "chmod a+x"),
    Fault("the socket is a stranger's", _owner(lambda s: s.paths.decision_socket, 1000), "decision-socket", "error", "does not trust", "gsubd"),
    Fault("the service answers elsewhere", _site(r"^socket = .*$", 'socket = "/run/other.sock"'), "decision-socket", "error", "/run/other.sock", "socket ="),
    Fault("cli_filter.lua is missing", _cli_filter, "cli-filter", "error", "sbatch fails", "cli_filter.lua"),
    Fault("EpilogSlurmctld is missing", _config("EpilogSlurmctld", "/etc/slurm/jobstats"), "slurmctld-scripts", "error", "is not there", "put it back"),
    # --- hooks
    Fault("Prolog is not gsub's", _config("Prolog", None), "hooks-called", "error", "Prolog is not set", "gsub admin install"),
    Fault("prolog.d without gsub's link", _folder_pattern, "hooks-called", "error", "prolog.d/* does not run", "install"),
    Fault("the prolog is missing", _lose(_libexec("prolog")), "hooks-run", "error", "drains the node", "--role node"),
    Fault("the epilog is not executable", _mode(_libexec("epilog"), 0o644), "hooks-run", "error", "not executable", "chmod 0755"),
    Fault("the prolog is a user's", _owner(_libexec("prolog"), 1000), "hooks-run", "error", "root runs", "chown root:root"),
    Fault(
        "the prolog is of another gsub",
        lambda scene: scene.edit(scene.layout.libexec / "prolog", "0.5", "5"),
        "hook-files", "warning", "prolog", "gsub admin upgrade",
    ),
    # --- the node
    Fault("the agent is not running", lambda scene: _dies(scene, "gsub-noded"), "agent", "error", "does not run", "systemctl enable --now"),
    Fault("the hooks' folder is missing", _lose(_spool("new")), "agent-folders", "error", "no folder", "systemd-tmpfiles"),
    Fault("the spool is open", _mode(_spool(), 0o777), "agent-folders", "error", "open to others", "chmod 0700"),
    Fault("hooks write elsewhere", lambda scene: scene.edit(scene.layout.libexec / "prolog", r"SPOOL=\S+", "SPOOL=/var/spool/gsub"), "hook-folders", "error", "the agent reads", "--role node"),
    Fault("the spool's disk is full", _disk(_spool(), _full(1 << 20)), "spool-space", "error", "1 MiB free", "make room"),
    Fault("the spool has no inodes", _disk(_spool(), _full(80 << 30, 10)), "spool-space", "error", "10 inodes", "make room"),
    Fault("the spool's disk is nearly full", _disk(_spool(), _full(100 << 20)), "spool-space", "warning", "100 MiB", "agent.spool"),
    Fault("records are not delivered", _many(_spool("out"), 501), "spool-waiting", "warning", "501 records", "service.url"),
    Fault("hooks' files are not taken", _many(_spool("new"), 101), "spool-waiting", "error", "101 files", "restart gsub-noded"),
    Fault("records were lost", _put(_spool("losses"), '{"dropped":{"job_usage":7}}'), "spool-lost", "warning", "7 job_usage", "make room"),
    Fault("a record was set aside", _put(_spool("poison/ab.job_usage"), "x"), "spool-poison", "warning", "1 record was", "rm "),
    Fault("health checks are off", _put(lambda s: s.layout.etc / "health.off"), "health-switch", "warning", "checks are off", "rm "),
    Fault("the node refuses jobs", _put(lambda s: s.layout.run_noded / "drain", "v1 4000000000 gpu 3 is gone\n"), "health-switch", "warning", "gpu 3 is gone", "health.off"),
    Fault("a GPU's device file is missing", _lose(lambda s: s.paths.dev / "nvidia1"), "gpu-files", "error", "nvidia1", "nvidia-smi"),
    Fault("the node is unknown to Slurm", lambda scene: setattr(scene, "question", replace(scene.question, node="m9")), "node-state", "warning", "no node m9", "SLURMD_NODENAME"),
    # --- the service
    Fault("the site file is broken", _site(r"^\[policy\]", "[policy"), "site-file", "error", "not TOML", "line"),
    Fault("the site file has an unknown key", _site('^mode = "observe"', 'mdoe = "observe"'), "site-file", "error", "mdoe", "mode"),
    Fault("the site file is secret", _mode(lambda s: s.layout.site, 0o640), "site-file", "error", "not all may read", "chmod 0644"),
    Fault("the site file's folder is secret", _mode(lambda s: s.layout.etc, 0o700), "site-file", "error", "not all may enter", "chmod 0755"),
    Fault("there is no site file", _lose(lambda s: s.layout.site), "site-file", "error", "no site file", "docs/site-file.md"),
    Fault("the cluster's name is wrong", _site("^cluster = .*", 'cluster = "other"'), "cluster-name", "error", "cluster other", "cluster ="),
    Fault("a partition is misspelt", _site(r"^\[partitions.debug\]", "[partitions.debgu]"), "site-partitions", "warning", "debgu", "[partitions.debgu]"),
    Fault("gsubd is not running", _gsubd_dies, "service", "error", "does not run", "systemctl enable --now gsubd"),
    Fault("gsubd hangs", lambda scene: scene.net.pages.clear(), "service", "error", "gsubd runs, but", "journalctl -u gsubd"),
    Fault("gsubd has not seen Slurm", lambda scene: scene.net.pages.update({f"{scene.gsubd}/healthz": Page(503, b"")}), "service", "warning", "cannot decide", "journalctl"),
    Fault("gsubd goes on with an old site file", lambda scene: scene.metric("gsub_site_file_ok", 0), "service-counts", "error", "not in force", "mend"),
    Fault("gsubd cannot use the topology", lambda scene: scene.metric("gsub_topology_ok", 0), "service-counts", "error", "network as flat", "journalctl"),
    Fault("gsub-act is wanted and dead", _act_is_dead, "gsub-act", "error", "no failed job is tried again", "systemctl enable --now gsub-act"),
    Fault("gsub-act cannot be had without slurmdbd", _act_without_slurmdbd, "gsub-act", "error", "does not answer", "Without slurmdbd"),
    Fault("one partition enforces, without gsub-act", _a_partition_wants_act, "gsub-act", "error", "does not answer", "gsub-act"),
    Fault("what gsubd knows is old", lambda scene: scene.metric("gsub_inventory_age_seconds", 900), "service-counts", "warning", "900 s", "scontrol"),
    Fault("the shim drops answers", lambda scene: scene.metric('gsub_shim_events_total{event="dropped"}', 3), "service-counts", "warning", "dropped 3", "upgrade"),
    Fault("a stage fails", lambda scene: scene.metric('gsub_stage_failures_total{stage="gang"}', 2), "service-counts", "warning", "gang", "journalctl"),
    Fault("the service's folder is root's", _owner(lambda s: s.layout.state, 0), "service-state", "error", "belongs to root", "chown -R gsub:"),
    Fault("the store is root's", _owner(lambda s: s.layout.state / "store.db", 0), "store", "error", "belongs to root", "chown gsub:"),
    Fault("everybody may read the store", _mode(lambda s: s.layout.state / "store.db", 0o644), "store", "error", "everybody's jobs", "chmod o-rwx"),
    Fault("the store's disk is full", _disk(lambda s: s.layout.state, _full(1 << 20)), "store", "error", "1 MiB free", "make room"),
    Fault("there is no store", _lose(lambda s: s.layout.state / "store.db"), "store", "error", "no store", "journalctl"),
    Fault("the keeper is not there", lambda scene: scene.net.pages.pop(f"{scene.keeper}/healthz"), "keeper", "error", "nothing answers", "port"),
    Fault("the store does not work", lambda scene: scene.net.pages.update({f"{scene.keeper}/healthz": Page(503, b"")}), "keeper", "error", "store does not work", "journalctl"),
    Fault("the site file names no service", _site("^url = .http.*", ""), "keeper", "warning", "no service.url", "service.url"),
    Fault("gsub has another uid here", _other_uid, "keeper-trust", "error", "is not believed", "the same number"),
    Fault("MUNGE's key is another one", lambda scene: scene.net.answers.update({"/v1/jobs": Page(401, b"")}), "keeper-trust", "error", "401", "munge.key"),
    Fault("the queue is long", lambda scene: scene.net.pages.update({f"{scene.keeper}/metrics": queue_page(6)}), "queue", "warning", "takes 6 s, of at most 30", "MinJobAge"),
    Fault("the jobs of decisions are read slowly", lambda scene: scene.metric("gsub_queue_seconds", 7), "service-counts", "warning", "takes 7 s", "MinJobAge"),
    Fault("a node was never heard of", lambda scene: scene.told_nodes([{"name": "n1", "heard": 4e9}]), "nodes-heard", "warning", "never heard of: n2", "--role node"),
    Fault("a node is silent", lambda scene: _heard(scene, 7200), "nodes-heard", "warning", "not heard for", "gsub-noded"),
    Fault("a node's clock is off", _event("clock_offset", "error", "off by 40 s"), "nodes-unwell", "warning", "off by 40 s", "docs/health.md"),
    Fault(
        "an agent is of another gsub",
        lambda scene: scene.told_nodes([{"name": name, "heard": 4e9, "version": v} for name, v in (("n1", "1.0"), ("n2", "0.9"))]),
        "releases", "warning", "0.9 on n2", "upgrade those nodes",
    ),
    Fault("a job is held and forgotten", _held, "held-jobs", "warning", "41 (the first: out of memory)", "scontrol release 41"),
    Fault("an installation was killed", _cut_off, "installation", "warning", "write slurm.conf", "gsub admin install"),
)
# fmt: on


def _bad(findings: tuple[Finding, ...]) -> list[Finding]:
    return [one for one in findings if one.level in ("warning", "error")]


@pytest.mark.parametrize("release", RELEASES)
def test_a_healthy_site_has_no_fault(release):
    findings = healthy(release).diagnose()
    assert _bad(findings) == []
    assert {one.check for one in findings if one.level == "unknown"} <= {"munge-key", "releases"}
    assert len({one.check for one in findings}) >= 50


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_planted_fault_is_named_with_its_remedy(release, fault):
    scene = healthy(release)
    fault.plant(scene)
    found = [one for one in scene.diagnose(only=[fault.check]) if one.level == fault.level]
    assert any(fault.seen in one.seen and fault.remedy in one.remedy for one in found), found
    assert all(one.remedy for one in found)


@pytest.mark.case("users 3")
def test_gsub_act_is_missed_only_where_it_is_wanted():
    def seen(*plants: Callable[[Scene], object]) -> list[str]:
        scene = healthy(RELEASES[-1])
        for plant in plants:
            plant(scene)
        return [one.level for one in scene.diagnose(only=["gsub-act"])]

    assert seen() == ["ok"]
    assert seen(lambda scene: scene.metric("gsub_act_up", 0)) == ["ok"]
    assert seen(_enforces, lambda scene: scene.metric("gsub_act_up", 1)) == ["ok"]
    assert seen(_enforces, lambda scene: scene.host.put_socket(scene.layout.act_socket)) == ["ok"]
    assert seen(_act_is_dead, _site(r"^\[policy\]", "[resubmit]\nenabled = false\n[policy]")) == ["ok"]
    assert seen(_act_is_dead) == ["error"]


@pytest.mark.case("users 15")
def test_a_rehearsal_that_works_or_cannot_be_made_is_no_fault():
    def seen(plant: Callable[[Scene], object]) -> list[tuple[str, str]]:
        scene = healthy(RELEASES[-1])
        plant(scene)
        return [(one.level, one.seen) for one in scene.diagnose(only=["job-submit-syntax"])]

    ((level, words),) = seen(_rehearsal(answered=True, passed=True))
    assert level == "ok" and "a job passes" in words
    ((level, words),) = seen(_rehearsal(trouble="no room"))
    assert level == "unknown" and "no luac5.4" in words and "no room" in words


@pytest.mark.case("users 15")
def test_lines_put_in_by_hand_do_not_ask_the_service_that_is_there():
    scene = healthy(RELEASES[-1])
    _rehearsal(answered=True, passed=True)(scene)
    scene.diagnose(only=["job-submit-syntax"])
    (call,) = [call for call in scene.host.calls if call.argv == CHILD]
    assert json.loads(call.stdin)["options"] == ["--comment=gsub:off"]


def test_every_check_can_find_something_or_only_tells():
    told_only = {"configless", "accounting-limits", "munge-key", "time-service"}
    assert {check.name for check in CHECKS} - {fault.check for fault in FAULTS} == told_only


def test_the_table_of_faults_is_long_enough():
    assert len(FAULTS) >= 25 and len({fault.what for fault in FAULTS}) == len(FAULTS)


def test_the_shim_of_a_healthy_site_is_ours():
    scene = healthy(RELEASES[0])
    assert all(scene.host.read(scene.layout.libexec / name) for name in SHIM)
    assert (scene.host.uid("gsub"), scene.host.uid("slurm")) == (GSUB, SLURM)
