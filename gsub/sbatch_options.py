"""sbatch's own option table, for every release that gsub knows: data, and how an option word is looked up.

The rows were taken from the binaries by asking getopt_long itself: an ambiguous prefix (``sbatch --c``)
makes it name every option that begins so, a missing or a superfluous argument makes it tell the arity. The
test ``tests/slurm/cli/test_sbatch_options.py`` asks the installed releases the same again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Argument = Literal["none", "required", "optional"]
"""Whether a value belongs to the option; an optional one is attached (`--nice=5`), never the next word."""

RELEASES: Final = ("22.05", "24.11", "26.05")
"""The releases whose binaries were asked, oldest first."""


class SbatchOption(NamedTuple):
    """One option of sbatch in the releases `since`..`until` (both inclusive)."""

    name: str
    argument: Argument
    short: str = ""
    since: str = RELEASES[0]
    until: str = RELEASES[-1]


OPTIONS: Final[tuple[SbatchOption, ...]] = (
    SbatchOption("account", "required", short="A"),
    SbatchOption("acctg-freq", "required"),
    SbatchOption("array", "required", short="a"),
    SbatchOption("autocomplete", "required", since="24.11"),
    SbatchOption("batch", "required"),
    SbatchOption("bb", "required"),
    SbatchOption("bbf", "required"),
    SbatchOption("begin", "required", short="b"),
    SbatchOption("chdir", "required", short="D"),
    SbatchOption("cluster", "required"),
    SbatchOption("cluster-constraint", "required"),
    SbatchOption("clusters", "required", short="M"),
    SbatchOption("comment", "required"),
    SbatchOption("consolidate-segments", "none", since="26.05"),
    SbatchOption("constraint", "required", short="C"),
    SbatchOption("container", "required"),
    SbatchOption("container-id", "required", since="24.11"),
    SbatchOption("container-type", "required", since="26.05"),
    SbatchOption("context", "required"),
    SbatchOption("contiguous", "none"),
    SbatchOption("core-spec", "required", short="S"),
    SbatchOption("cores-per-socket", "required"),
    SbatchOption("cpu-freq", "required"),
    SbatchOption("cpus-per-gpu", "required"),
    SbatchOption("cpus-per-task", "required", short="c"),
    SbatchOption("deadline", "required"),
    SbatchOption("delay-boot", "required"),
    SbatchOption("dependency", "required", short="d"),
    SbatchOption("distribution", "required", short="m"),
    SbatchOption("error", "required", short="e"),
    SbatchOption("exclude", "required", short="x"),
    SbatchOption("exclusive", "optional"),
    SbatchOption("export", "required"),
    SbatchOption("export-file", "required"),
    SbatchOption("external", "none", since="26.05"),
    SbatchOption("extra", "required", since="24.11"),
    SbatchOption("extra-node-info", "required", short="B"),
    SbatchOption("get-user-env", "optional", until="24.11"),
    SbatchOption("get-user-env", "none", since="26.05"),
    SbatchOption("gid", "required"),
    SbatchOption("gpu-bind", "required"),
    SbatchOption("gpu-freq", "required"),
    SbatchOption("gpus", "required", short="G"),
    SbatchOption("gpus-per-node", "required"),
    SbatchOption("gpus-per-socket", "required"),
    SbatchOption("gpus-per-task", "required"),
    SbatchOption("gres", "required"),
    SbatchOption("gres-flags", "required"),
    SbatchOption("help", "none", short="h"),
    SbatchOption("hint", "required"),
    SbatchOption("hold", "none", short="H"),
    SbatchOption("ignore-pbs", "none"),
    SbatchOption("input", "required", short="i"),
    SbatchOption("job-name", "required", short="J"),
    SbatchOption("kill-on-invalid-dep", "required"),
    SbatchOption("licenses", "required", short="L"),
    SbatchOption("mail-type", "required"),
    SbatchOption("mail-user", "required"),
    SbatchOption("mcs-label", "required"),
    SbatchOption("mem", "required"),
    SbatchOption("mem-bind", "required"),
    SbatchOption("mem-per-cpu", "required"),
    SbatchOption("mem-per-gpu", "required"),
    SbatchOption("mem-update", "required", since="26.05"),
    SbatchOption("mincpus", "required"),
    SbatchOption("network", "required"),
    SbatchOption("nice", "optional"),
    SbatchOption("no-kill", "optional", short="k"),
    SbatchOption("no-requeue", "none"),
    SbatchOption("nodefile", "required", short="F"),
    SbatchOption("nodelist", "required", short="w"),
    SbatchOption("nodes", "required", short="N"),
    SbatchOption("ntasks", "required", short="n"),
    SbatchOption("ntasks-per-core", "required"),
    SbatchOption("ntasks-per-gpu", "required"),
    SbatchOption("ntasks-per-node", "required"),
    SbatchOption("ntasks-per-socket", "required"),
    SbatchOption("ntasks-per-tres", "required"),
    SbatchOption("oom-kill-step", "optional", since="24.11"),
    SbatchOption("open-mode", "required"),
    SbatchOption("output", "required", short="o"),
    SbatchOption("overcommit", "none", short="O"),
    SbatchOption("oversubscribe", "none", short="s"),
    SbatchOption("parsable", "none"),
    SbatchOption("partition", "required", short="p"),
    SbatchOption("power", "required", until="22.05"),
    SbatchOption("prefer", "required"),
    SbatchOption("priority", "required"),
    SbatchOption("profile", "required"),
    SbatchOption("propagate", "optional"),
    SbatchOption("qos", "required", short="q"),
    SbatchOption("quiet", "none", short="Q"),
    SbatchOption("reboot", "none"),
    SbatchOption("requeue", "none", until="24.11"),
    SbatchOption("requeue", "optional", since="26.05"),
    SbatchOption("reservation", "required"),
    SbatchOption("resources", "required", since="26.05"),
    SbatchOption("resv-ports", "optional", since="24.11"),
    SbatchOption("segment", "required", since="24.11"),
    SbatchOption("signal", "required"),
    SbatchOption("sockets-per-node", "required"),
    SbatchOption("spread-job", "none"),
    SbatchOption("spread-segments", "none", since="26.05"),
    SbatchOption("stepmgr", "none", since="24.11"),
    SbatchOption("switches", "required"),
    SbatchOption("tasks-per-node", "required"),
    SbatchOption("test-only", "none"),
    SbatchOption("thread-spec", "required"),
    SbatchOption("threads-per-core", "required"),
    SbatchOption("time", "required", short="t"),
    SbatchOption("time-min", "required"),
    SbatchOption("tmp", "required"),
    SbatchOption("tres-bind", "required", since="24.11"),
    SbatchOption("tres-per-task", "required", since="24.11"),
    SbatchOption("uid", "required"),
    SbatchOption("usage", "none"),
    SbatchOption("use-min-nodes", "none"),
    SbatchOption("verbose", "none", short="v"),
    SbatchOption("version", "none", short="V"),
    SbatchOption("wait", "none", short="W"),
    SbatchOption("wait-all-nodes", "required"),
    SbatchOption("wckey", "required"),
    SbatchOption("wrap", "required"),
)

ALIASES: Final = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}
"""Second names of one option."""

INPUT_VARIABLES: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ACCTG_FREQ": "acctg-freq",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BATCH": "batch",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CLUSTERS": "clusters",
    "SBATCH_CLUSTER_CONSTRAINT": "cluster-constraint",
    "SBATCH_CONSOLIDATE_SEGMENTS": "consolidate-segments",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CONTAINER": "container",
    "SBATCH_CONTAINER_ID": "container-id",
    "SBATCH_CONTAINER_TYPE": "container-type",
    "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_DELAY_BOOT": "delay-boot",
    "SBATCH_DISTRIBUTION": "distribution",
    "SBATCH_ERROR": "error",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export",
    "SBATCH_GET_USER_ENV": "get-user-env",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_SOCKET": "gpus-per-socket",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GPU_BIND": "gpu-bind",
    "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_GRES": "gres",
    "SBATCH_GRES_FLAGS": "gres-flags",
    "SBATCH_HINT": "hint",
    "SBATCH_IGNORE_PBS": "ignore-pbs",
    "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_BIND": "mem-bind",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NETWORK": "network",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_OVERCOMMIT": "overcommit",
    "SBATCH_PARTITION": "partition",
    "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_SPREAD_SEGMENTS": "spread-segments",
    "SBATCH_THREADS_PER_CORE": "threads-per-core",
    "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_TRES_BIND": "tres-bind",
    "SBATCH_TRES_PER_TASK": "tres-per-task",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
    "SBATCH_WAIT": "wait",
    "SBATCH_WAIT_ALL_NODES": "wait-all-nodes",
    "SBATCH_WCKEY": "wckey",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}
"""The environment variables that sbatch reads as options (sbatch(1), INPUT ENVIRONMENT VARIABLES)."""


_HELP_OPTION: Final = re.compile(r"^ +(?:-\w, )?--([a-z0-9][\w-]*)(\[=|=)?", re.MULTILINE)


class Table:
    """The options of one release, or of all releases at once.

    A table of all releases answers for most command lines, since no option ever changed in whether it
    takes the next word. Where releases disagree on what an abbreviation means, ask the table of the release.
    """

    def __init__(self, options: Iterable[SbatchOption]) -> None:
        self.long: dict[str, Argument] = {}
        self.short: dict[str, SbatchOption] = {}
        for option in options:
            # Where an arity changed, "optional" covers both: neither takes the next word.
            known = self.long.setdefault(option.name, option.argument)
            if known != option.argument:
                self.long[option.name] = "optional"
            if option.short:
                self.short[option.short] = option

    @classmethod
    def of_release(cls, release: str) -> Table:
        """The table of a release such as ``24.11``; a release in between has that of the one before it."""
        known = max((r for r in RELEASES if r <= release), default=RELEASES[0])
        return cls(option for option in OPTIONS if option.since <= known <= option.until)

    @classmethod
    def of_all(cls) -> Table:
        """Every option of every release."""
        return cls(OPTIONS)

    def candidates(self, name: str) -> tuple[str, ...]:
        """The options that a long option word may mean: an exact match wins, else all that begin with it."""
        if name in self.long:
            return (name,)
        return tuple(option for option in self.long if option.startswith(name))

    def with_help(self, text: str) -> Table:
        """This table and the options that a `sbatch --help` lists beyond it: those of the site's SPANK plugins."""
        more = [
            SbatchOption(name, "none" if not value else "optional" if value.startswith("[") else "required")
            for name, value in _HELP_OPTION.findall(text)
            if name not in self.long
        ]
        table = Table(more)
        table.long.update(self.long)
        table.short.update(self.short)
        return table
