"""Launchers of many processes, and their options: torchrun, accelerate, deepspeed, mpirun.

A row of the table a launcher. Of an option that is not in the row it is assumed that it takes a value, as most do;
where that reading is wrong, the program behind it is not found, and nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LAUNCHERS", "MODULES", "Launch", "Launcher", "launched"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a launcher's command line is read.

    Parameters
    ----------
    flags: options without a value.
    values: options with one; empty: all that are no flags.
    module: options that make the word behind all options a module's name, as `python -m` does.
    opaque: options with which what follows is not known to be a Python program of the user's.
    python: it starts Python itself, and what follows is a file of it.
    """

    name: str
    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    module: frozenset[str] = frozenset({"m", "module"})
    opaque: frozenset[str] = frozenset({"no-python"})
    python: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher as it was called: its options, names with "-" for "_"; None for a value that is not known."""

    name: str
    options: dict[str, str | None] = field(default_factory=dict)

    def number(self, *names: str) -> int | None:
        """The value of the first of these options that is a number."""
        for name in names:
            value = self.options.get(name)
            if value and re.fullmatch(r"\d{1,6}", value):
                return int(value)
        return None

    def given(self, *names: str) -> bool:
        """Whether one of these options stands there, known or not."""
        return any(name in self.options for name in names)


_TORCH: Final = Launcher("torchrun", frozenset({"standalone", "run-path", "use-env", "h", "help"}))
_ACCELERATE: Final = Launcher(
    "accelerate",
    frozenset({
        "cpu", "multi-gpu", "tpu", "ipex", "q", "quiet", "use-xpu", "use-deepspeed", "use-fsdp", "use-megatron-lm",
        "use-parallelism-config", "debug", "same-network", "downcast-bf16", "tpu-use-cluster", "no-tpu-cluster",
        "tpu-use-sudo", "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic",
        "dynamo-use-regional-compilation", "use-cpu", "fp16", "h", "help",
    }),
)  # fmt: skip
_DEEPSPEED: Final = Launcher(
    "deepspeed",
    frozenset({
        "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid", "elastic-training", "bind-cores-to-rank",
        "enable-each-rank-log", "h", "help",
    }),
)  # fmt: skip
# mpirun's and mpiexec's of Open MPI, MPICH, Intel MPI: only what is known is read over.
_MPI_VALUES: Final = frozenset({
    "n", "np", "c", "N", "npernode", "ppn", "perhost", "map-by", "bind-to", "rank-by", "host", "hosts", "H", "hostfile",
    "machinefile", "f", "x", "wdir", "mca", "gmca", "genv", "env", "envlist", "genvlist", "launcher", "bootstrap",
    "iface",    "rankfile", "rf", "prefix", "output-filename", "timeout", "path", "npersocket", "mapby", "bindto",
})  # fmt: skip
_MPI: Final = Launcher(
    "mpirun",
    frozenset({
        "oversubscribe", "nooversubscribe", "allow-run-as-root", "v", "verbose", "q", "quiet", "report-bindings",
        "display-map", "display-allocation", "tag-output", "bynode", "byslot", "pernode", "l", "prepend-rank",
        "bind-to-core", "bind-to-none", "use-hwthread-cpus", "nolocal", "genvall", "genvnone", "print-rank-map",
    }),
    _MPI_VALUES,
    module=frozenset(),
    opaque=frozenset({"app", "configfile", "gpu-bind"}),
    python=False,
)  # fmt: skip
_PAIRS: Final = frozenset({"mca", "gmca", "genv", "env"})
"""Options of mpirun with two words behind them (MPICH's -env NAME VALUE, Open MPI's --mca KEY VALUE)."""

LAUNCHERS: Final = {
    "torchrun": _TORCH,
    "deepspeed": _DEEPSPEED,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _ACCELERATE,
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "mpiexec.hydra": _MPI,
    "orterun": _MPI,
}
"""By the name of the program."""
MODULES: Final = {
    "torch.distributed.run": _TORCH,
    "torch.distributed.launch": _TORCH,
    "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
}
"""By the module that `python -m` runs."""


def launched(
    launcher: Launcher, words: Sequence[str | None]
) -> tuple[Launch, tuple[str | None, ...], bool] | None:
    """The launcher as called with these words, the words that it runs, and whether they begin with a module's name.

    None where nobody knows.

    >>> launched(LAUNCHERS["torchrun"], ["--nproc_per_node=8", "--standalone", "-m", "a.b", "--lr", "1"])
    (Launch(name='torchrun', options={'nproc-per-node': '8', 'standalone': '', 'm': ''}), ('a.b', '--lr', '1'), True)
    """
    rest = list(words)
    if launcher is _ACCELERATE and rest[:1] == ["launch"]:
        rest = rest[1:]
    options: dict[str, str | None] = {}
    module = False
    while rest:
        word = rest[0]
        if word is None:
            return None
        if not word.startswith("-") or word == "-":
            return Launch(launcher.name, options), tuple(rest), module
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        kind = _kind(launcher, name)
        if kind is None:
            return None
        module = module or kind == "module"
        if kind in ("flag", "module"):
            options[name] = ""
            rest = rest[1:]
        elif equals:
            options[name] = value
            rest = rest[1:]
        else:
            options[name] = rest[1] if len(rest) > 1 else None
            rest = rest[3 if not launcher.python and name in _PAIRS else 2 :]
    return None


def _kind(launcher: Launcher, name: str) -> str | None:
    """ "flag", "value", "module", or None where what follows cannot be told."""
    if name in launcher.module:
        return "module"
    if name in launcher.opaque:
        return None
    if name in launcher.flags:
        return "flag"
    return "value" if not launcher.values or name in launcher.values else None
