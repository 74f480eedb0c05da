"""The result file: what one may send to gsub's makers, without a name of the site in it."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_plugins.install.finding import Finding
from slurm_plugins.install.selftest.outcome import Result

__all__ = ["Facts", "Pseudonyms", "document"]

_KEPT: Final = frozenset(
    {"", "root", "slurm", "munge", "gsub", "gsub-act", "nobody", "localhost", "127.0.0.1"}
)
"""Names that every site has."""

_SHAPES: Final = (
    (re.compile(r"\b[a-z][a-z+]*://\S+"), "<url>"),
    (re.compile(r"\S+@\S+\.\S+"), "<address>"),
    (re.compile(r"(?<![\w<>/.])~?/[^\s:;,()'\"<>=]+"), "<path>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"\b[\w.-]+\[[\d,-]+\][\w.-]*"), "<nodes>"),
    (re.compile(r"\b(?:[\w-]+\.){2,}[A-Za-z]{2,}\b"), "<host>"),
    (re.compile(r"\b([ug]id)[ =]\d+"), r"\1 <number>"),
)
"""What is a site's by its shape, whatever its name."""


class Pseudonyms:
    """Texts with the names of a site replaced: each name by its kind and a number.

    >>> Pseudonyms({"node": ["gpu07"], "user": ["ada"]}).clean("ada's job on gpu07: /home/ada/x is full")
    "<user 1>'s job on <node 1>: <path> is full"
    """

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._names: dict[str, str] = {}
        for kind, several in names.items():
            for number, name in enumerate(dict.fromkeys(several), start=1):
                if name not in _KEPT:
                    self._names.setdefault(name, f"<{kind} {number}>")
        longest_first = sorted(self._names, key=len, reverse=True)
        every = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(rf"(?<![\w-])(?:{every})(?![\w-])") if every else None

    def clean(self, text: str) -> str:
        """The text, of which nothing tells whose it is."""
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        return self._pattern.sub(lambda match: self._names[match[0]], text) if self._pattern else text


@dataclass(frozen=True, slots=True)
class Facts:
    """What the run was on: releases, mode, sizes. `left_before`: jobs of an earlier run that were found."""

    gsub: str
    slurm: str
    mode: str
    nodes: int
    gpus: int
    cpu_jobs: bool
    jobs: int
    left_before: int
    interrupted: bool


def document(
    facts: Facts, results: Sequence[Result], findings: Sequence[Finding] | None, names: Pseudonyms
) -> dict[str, Any]:
    """The result file's content. `findings` are doctor's; None: doctor was not asked."""
    return {
        "v": 1,
        "gsub": facts.gsub,
        "slurm": facts.slurm,
        "python": platform.python_version(),
        "mode": facts.mode,
        "nodes_in_partition": facts.nodes,
        "gpus_of_a_job": facts.gpus,
        "jobs_without_gpus": facts.cpu_jobs,
        "jobs_made": facts.jobs,
        "jobs_of_an_earlier_run": facts.left_before,
        "interrupted": facts.interrupted,
        "scenarios": [
            {
                "name": one.name,
                "outcome": one.outcome.level,
                "seen": names.clean(one.outcome.seen),
                "seconds": one.seconds,
                "facts": dict(one.outcome.facts),
            }
            for one in results
        ],
        "doctor": None
        if findings is None
        else [{"check": one.check, "level": one.level, "seen": names.clean(one.seen)} for one in findings],
    }


def as_text(content: Mapping[str, Any]) -> str:
    """JSON, for people and programs."""
    return json.dumps(content, indent=1) + "\n"
