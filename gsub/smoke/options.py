"""Whether a job is smoked, and how: the user's words first, then the site's.

=========================== ======================================================================================
`--smoke=race|gate|only`    as it says; the later word counts
`--smoke`                   in the site's way (`smoke.way`)
`--no-smoke`                not
`--learn`                   as `--smoke`, and the run finds the CPU curve
nothing                     where the site says so: jobs with more than `smoke.above_gpus` GPUs, unless they opted out
=========================== ======================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from gsub.errors import USAGE, UserError

if TYPE_CHECKING:
    from gsub.argv import CommandLine
    from gsub.smoke.plan import Mode
    from site_configs.site_model import Smoke

__all__ = ["INSIDE", "Wish", "may_be_wanted", "unasked", "wish"]

INSIDE: Final = "GSUB_SMOKE"
"""Set to 1 in a smoke run: what is submitted there is not smoked again."""
_NO_SUBMISSION: Final = ("help", "usage", "version", "test-only", "autocomplete")


@dataclass(frozen=True, slots=True)
class Wish:
    """A smoke run that is wanted: how, whether the user asked for it, and whether it is to find the CPU curve."""

    way: Mode
    asked: bool
    learn: bool


def wish(line: CommandLine, site: Smoke) -> Wish | None:
    """What the user's words come to; what they leave open is for `unasked`. Raises UserError for words that clash."""
    learn = any(setting.name == "--learn" for setting in line.own)
    words = [setting for setting in line.own if setting.name in ("--smoke", "--no-smoke")]
    last = words[-1] if words else None
    if last is not None and last.name == "--no-smoke":
        if learn:
            raise UserError(
                "--learn needs the smoke run that --no-smoke forbids; nothing was submitted",
                fix="leave one of them out",
                exit_code=USAGE,
            )
        return None
    if last is None and not learn:
        return None
    ways = ("race", "gate", "only")
    if last is not None and last.value is not None and last.value not in ways:
        raise UserError(
            f"--smoke={last.value}: there is no such way; nothing was submitted",
            fix="--smoke=race (the job queues meanwhile), =gate (it waits) or =only (it is not submitted)",
            exit_code=USAGE,
        )
    way = last.value if last is not None and last.value is not None else site.way
    if way == "only" and not site.enabled:
        raise UserError(
            "this site has no smoke runs; nothing was submitted",
            why="smoke.enabled is false in its site file",
            fix="submit without --smoke",
            exit_code=USAGE,
        )
    return Wish(cast("Mode", way), asked=True, learn=learn)


def unasked(site: Smoke, gpus: int, *, opted_out: bool) -> Wish | None:
    """What the site wants for a job of so many GPUs, whose user said nothing of it."""
    if not site.enabled or opted_out or site.above_gpus is None or gpus <= site.above_gpus:
        return None
    return Wish(site.way, asked=False, learn=False)


def may_be_wanted(line: CommandLine, site: Smoke | None, environ: Mapping[str, str]) -> bool:
    """Whether it is worth a look: cheap, and asked at every submission."""
    if environ.get(INSIDE) or any(line.given(name) for name in _NO_SUBMISSION):
        return False
    if any(setting.name in ("--smoke", "--learn") for setting in line.own):
        return True
    said_no = any(setting.name == "--no-smoke" for setting in line.own)
    return site is not None and site.enabled and site.above_gpus is not None and not said_no
