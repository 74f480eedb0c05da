"""The site file: found, read, checked. What is in it: `site_configs.site_model` and docs/site-file.md.

>>> site = load_site("site_configs/examples/small-lab.toml")
>>> site.cluster, site.mode_for(partition="gpu", account="", uid=1000)
('lab', 'observe')

It is read at every submission: standard library only, and nothing imported that the way to success does not
need.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from site_configs.alerts_table import BUILT_IN, Alerts
from site_configs.kinds import did_you_mean, quoted
from site_configs.resubmit_table import LONGEST_BACKOFF, Resubmit
from site_configs.site_model import (
    MODES,
    Account,
    Agent,
    Check,
    Failures,
    GpuType,
    Health,
    Locality,
    Mode,
    Partition,
    Policy,
    Receipt,
    Resources,
    Service,
    Site,
    Slurm,
    Smoke,
    Store,
    TopologySource,
)
from site_configs.textfile import read_text
from site_configs.toml_table import Problem, Reader
from site_configs.units import format_duration, format_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "DEFAULT_PATH",
    "MODES",
    "Account",
    "Agent",
    "Check",
    "Failures",
    "GpuType",
    "Health",
    "Locality",
    "Mode",
    "Partition",
    "Policy",
    "Receipt",
    "Resources",
    "Resubmit",
    "Service",
    "Site",
    "SiteError",
    "Slurm",
    "Smoke",
    "Store",
    "TopologySource",
    "find_site",
    "load_site",
    "parse_site",
]

DEFAULT_PATH = Path("/etc/gsub/site.toml")
_MAX_BYTES = 1 << 20


class SiteError(Exception):
    """A site file that cannot be used.

    The message is at most three lines: file, key, value and what is wrong; the remedy; how many more errors
    there are. All of these are attributes too; `key` and `value` are empty when the whole file is meant.
    """

    def __init__(self, file: str, problem: Problem, more: int = 0) -> None:
        self.file = file
        self.key = problem.key
        self.value = problem.value
        self.problem = problem.problem
        self.remedy = problem.remedy
        self.more = more
        said = " = ".join(filter(None, (problem.key, problem.value)))
        lines = [": ".join(filter(None, (file, said, problem.problem))), problem.remedy]
        if more:
            lines.append(f"{more} more {'error' if more == 1 else 'errors'} in this file.")
        super().__init__("\n".join(lines))


def find_site(env: Mapping[str, str] | None = None) -> Path | None:
    """The site file: ``$GSUB_SITE``, else /etc/gsub/site.toml if there is one, else None.

    What GSUB_SITE names is not looked at: a wrong path there is `load_site`'s error, not a reason to go on
    without. So is a folder that may not be entered, or a link to nowhere.
    """
    named = (os.environ if env is None else env).get("GSUB_SITE", "")
    if named:
        return Path(named)
    try:
        DEFAULT_PATH.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # a folder that we may not enter: there is a site file, for all that we know
    return DEFAULT_PATH


def load_site(path: str | os.PathLike[str]) -> Site:
    """Read a site file. Relative paths in it start at its folder. Raises SiteError."""
    file = os.fspath(path)
    try:
        text = read_text(path, _MAX_BYTES)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        remedy = "Check the path (GSUB_SITE, else /etc/gsub/site.toml) and its permissions."
        raise SiteError(file, Problem("", "", why, remedy)) from None
    except ValueError as error:
        raise SiteError(file, Problem("", "", f"is {error}", "A site file is a short TOML text.")) from None
    return parse_site(text, file)


def parse_site(text: str, file: str = "site.toml") -> Site:
    """Read the text of a site file; `file` is its path, for errors and relative paths. Raises SiteError.

    An editor's byte order mark is passed over.
    """
    text = text.removeprefix("\ufeff")
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SiteError(file, _syntax(str(error), text)) from None
    except ValueError:  # Python's own limit of a number's digits
        raise SiteError(
            file, Problem("", "", "a number in it is too long", "No key of a site file needs that.")
        ) from None
    except RecursionError:
        raise SiteError(
            file, Problem("", "", "nested too deeply", "No key of a site file needs that.")
        ) from None
    reader = Reader(os.path.dirname(os.path.abspath(file)), Site)  # noqa: PTH100, PTH120 - text in, text out
    site: Site | None = reader.read(Site, raw)
    problems = reader.problems if site is None else [*_contradictions(site), *_retention(site.store, raw)]
    if problems:
        raise SiteError(file, problems[0], len(problems) - 1)
    assert site is not None  # noqa: S101 - None comes with problems
    return site


_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)

# What tomllib says -> what to do; the first that fits.
_SYNTAX = (
    ("overwrite a value", "This key stands twice in its table: remove one."),
    ("twice", "This table stands twice: put its keys together."),
    ("Invalid value", 'Texts need quotes ("30 min"); true, false and numbers have none.'),
    ("Expected '=' after a key", "Write key = value; a table is a line like [partitions.gpu]."),
    ("Illegal character", 'Close the text on its line with the quote that opened it ("...").'),
    ("", "Check quotes, brackets and equals signs there."),
)


def _syntax(said: str, text: str) -> Problem:
    """A syntax error with its place and a remedy."""
    match = _AT.fullmatch(said)
    what = match[1] if match else said
    if match and match[2]:
        line = text.splitlines()[int(match[2]) - 1].strip() if int(match[2]) <= len(text.splitlines()) else ""
        place, shown = f"line {match[2]}, column {match[3]}", quoted(line)[1:-1]
    else:
        place, shown = "end of file", ""
    remedy = next(remedy for word, remedy in _SYNTAX if word in what)
    return Problem(place, "", f"not TOML: {what}", f"{remedy} The line is: {shown}" if shown else remedy)


def _contradictions(site: Site) -> Iterator[Problem]:
    """Keys that are fine alone and not together."""
    if site.topology.file and site.topology.feature_prefix:
        yield Problem(
            "topology.feature_prefix",
            quoted(site.topology.feature_prefix),
            "topology.file is set too",
            "Keep one: the file where Slurm has a topology plugin, else the prefix.",
        )
    yield from _rollouts("policy", site.policy.mode, site.policy.rollout)
    spelt: dict[str, str] = {}
    for account in site.accounts.values():
        other = spelt.setdefault(account.name.casefold(), account.name)
        if other != account.name:
            yield Problem(
                f"accounts.{account.name}",
                "",
                f"accounts.{other} is the same account: Slurm does not tell them apart by case",
                "Put their keys into one table.",
            )
        yield from _rollouts(f"accounts.{account.name}", account.mode, account.rollout)
    yield from _resubmit(site.resubmit)
    yield from _alerts(site.alerts)
    yield from _caps("resources", site.resources, None)
    for partition in site.partitions.values():
        yield from _partition(site, partition, f"partitions.{partition.name}")


def _retention(given: Store, raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Series that are to outlive their records; not where their time is the default, which ends with the records."""
    if "series_retention" in raw.get("store", {}) and given.series_retention > given.retention:
        yield Problem(
            "store.series_retention",
            quoted(format_duration(given.series_retention)),
            f"longer than retention, which is {quoted(format_duration(given.retention))}",
            "Raise retention or lower series_retention: a job's course goes with its record.",
        )


def _resubmit(given: Resubmit) -> Iterator[Problem]:
    if given.budget > given.budget_most:
        yield Problem(
            "resubmit.budget",
            str(given.budget),
            f"more than budget_most, which is {given.budget_most}",
            "Raise budget_most or lower the budget.",
        )
    if given.backoff_most > LONGEST_BACKOFF:
        yield Problem(
            "resubmit.backoff_most",
            quoted(format_duration(given.backoff_most)),
            "longer than an hour",
            'Lower it to "1 h" at most: gsub-act sets no start that is further ahead.',
        )
    elif given.backoff > given.backoff_most:
        yield Problem(
            "resubmit.backoff",
            quoted(format_duration(given.backoff)),
            f"longer than backoff_most, which is {quoted(format_duration(given.backoff_most))}",
            "Raise backoff_most or lower the backoff.",
        )


def _alerts(given: Alerts) -> Iterator[Problem]:
    if given.cancel and not given.mail:
        yield Problem(
            "alerts.cancel",
            "true",
            "users are not told by mail before",
            "Set alerts.mail = true too, and receipt.mail_server where it is not localhost:25.",
        )
    for name, rule in given.rules.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name):
            yield Problem(
                f"alerts.rules.{quoted(name)}",
                "",
                "no name of a rule",
                "Write 1 to 40 small letters, digits, _ and -, a letter first.",
            )
        if rule.when is None and name not in BUILT_IN:
            hint = did_you_mean(name, BUILT_IN)
            yield Problem(
                f"alerts.rules.{name}.when",
                "",
                f"this key is missing, and gsub has no rule of this name{hint}{'?' if hint else ''}",
                f"Add it, or name one of gsub's rules: {', '.join(BUILT_IN)}.",
            )
        elif rule.do == "cancel" and not rule.spares_work:
            yield Problem(
                f"alerts.rules.{name}.do",
                quoted(rule.do),
                "a job that computes at the time may meet this rule",
                'Write "notify", or have the condition ask for idleness too, like "... and idle_s >= 1h".',
            )


def _rollouts(where: str, mode: Mode | None, rollout: int) -> Iterator[Problem]:
    if rollout != 100 and mode in (None, "observe"):
        why = "there is nothing to roll out: its mode is observe" if mode else "there is no mode beside it"
        yield Problem(
            f"{where}.rollout",
            str(rollout),
            why,
            f'Set {where}.mode to "advise" or "enforce", or remove the rollout.',
        )


def _partition(site: Site, partition: Partition, where: str) -> Iterator[Problem]:
    yield from _rollouts(where, partition.mode, partition.rollout)
    if partition.gpu_type and partition.gpu_type not in site.gpu_types:
        hint = did_you_mean(partition.gpu_type, site.gpu_types)
        remedy = f"Declare it as [gpu_types.{partition.gpu_type}]{hint}{'?' if hint else '.'}"
        yield Problem(f"{where}.gpu_type", quoted(partition.gpu_type), "this type is not declared", remedy)
    if partition.gpu_type and partition.gpus_per_node == 0:
        yield Problem(
            f"{where}.gpu_type", quoted(partition.gpu_type), "gpus_per_node is 0", "Remove one of the two."
        )
    if partition.topology and not site.topology.file.endswith((".yaml", ".yml")):
        yield Problem(
            f"{where}.topology",
            quoted(partition.topology),
            "only topology.yaml has named topologies",
            "Set topology.file to the path of topology.yaml (Slurm 25.05 and newer), or remove this key.",
        )
    yield from _caps(f"{where}.resources", partition.resources, partition)


def _caps(where: str, given: Resources, partition: Partition | None) -> Iterator[Problem]:
    """A cap below the floor, or below what one GPU gets of a node when its GPUs share alike."""
    gpus = partition.gpus_per_node if partition else None
    for noun, cap, keep, node, show in (
        ("cpus", given.max_cpus_per_gpu, given.keep_cpus_per_gpu, partition and partition.cpus_per_node, str),
        (
            "memory",
            given.max_memory_per_gpu,
            given.keep_memory_per_gpu,
            partition and partition.memory_per_node,
            lambda mib: quoted(format_size(mib)),
        ),
    ):
        if cap is not None and cap < keep:
            yield Problem(
                f"{where}.max_{noun}_per_gpu",
                show(cap),
                f"less than keep_{noun}_per_gpu, which is {show(keep)}",
                "Raise the cap or lower what is kept.",
            )
        if not (gpus and node):
            continue
        share = node // gpus
        if cap is not None and cap < share:
            yield Problem(
                f"{where}.max_{noun}_per_gpu",
                show(cap),
                f"less than a GPU's share of a node, {show(node)} / {gpus} GPUs = {show(share)}",
                f"Raise it to {show(share)} at least: jobs never get less than their share.",
            )
        if keep > share:
            yield Problem(
                f"{where}.keep_{noun}_per_gpu",
                show(keep),
                f"more than a GPU's share of a node, {show(node)} / {gpus} GPUs = {show(share)}",
                f"Lower it to {show(share)} at most: more cannot be kept for each.",
            )
