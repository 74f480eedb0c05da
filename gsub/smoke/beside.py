"""A submission with its smoke run beside it: what happens before, at the moment when there is a job, and after."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gsub.smoke import view
from gsub.smoke.options import may_be_wanted
from gsub.smoke.plan import PlanError
from gsub.smoke.prepare import Ready, prepare
from gsub.smoke.submission import Refused, Smoked, order, shielded, with_dependency, withdraw
from gsub.term import is_terminal

if TYPE_CHECKING:
    from gsub.argv import CommandLine
    from site_configs.site_model import Site

__all__ = ["Beside", "InterruptedSubmission", "beside"]


_LIMIT: Final = re.compile(
    r"violates accounting/QOS policy|MaxSubmitJob|job submit limit|[Mm]ax.*[Jj]ob.*[Cc]ount"
)


class InterruptedSubmission(Exception):  # noqa: N818 - a signal came, and nothing is half done
    """A signal came before the real job was submitted; what there was is withdrawn."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def beside(
    line: CommandLine,
    given: bytes | None,
    site: Site | None,
    environ: Mapping[str, str],
    folder: str,
) -> tuple[Beside | None, bytes | None]:
    """The smoke run of a submission, None where there is none; and the script, where standard input was read for it.

    `given`: the script, where it was read from standard input already. Raises UserError for words that clash.
    """
    from gsub.script_text import is_typed, text_of
    from site_configs.site_model import Site as Unstated

    site = site or Unstated(cluster="")
    if not may_be_wanted(line, site.smoke, environ):
        return None, given
    typed = line.script is None and line.wrap is None
    if typed and given is None:
        if is_typed(line):
            text = b""  # a script that is being typed is sbatch's to read
        else:
            text = given = text_of(line)
    else:
        text = given if typed and given is not None else text_of(line)
    ready = prepare(line, text, site, environ, folder)
    return (Beside(line, ready) if ready is not None else None), given


class Beside:
    """The smoke run of one submission."""

    def __init__(self, line: CommandLine, ready: Ready) -> None:
        self.line = line
        self.ready = ready
        self.smoked: Smoked | None = None
        self.why = ""
        self._withdrawn = False
        silent = "--json" in line.ours or line.given("quiet")
        plain = line.given("parsable") or not ready.asked
        self._told = not silent and (not plain or is_terminal(sys.stderr))

    @property
    def alone(self) -> bool:
        """Whether the real job is not submitted."""
        return self.ready.way == "only"

    @property
    def followed(self) -> tuple[int, str] | None:
        """The smoke job and the folder where its result comes; None without one."""
        if self.smoked is None or self.ready.order is None:
            return None
        return self.smoked.job_id, self.ready.order.plan.state

    def before(self) -> None:
        """Tell the price."""
        if self.ready.order is not None or not self.alone:
            self._tell(view.before(self.ready))

    def gated(self, words: Sequence[str]) -> Sequence[str]:
        """Where it is a gate: submit the smoke job, and have the user's words wait for it.

        Raises InterruptedSubmission when a signal came meanwhile: the smoke job is withdrawn then.
        """
        if self.ready.way != "gate" or self.ready.order is None:
            return words
        with shielded() as came:
            self._order(real=0)
            if came and self.smoked is not None:
                withdraw(self.smoked, self.ready.order)
        if came:
            raise InterruptedSubmission(came[0])
        if self.smoked is None:
            return words
        return with_dependency(words, self.line, self.ready.own, self.smoked.job_id)

    def begun(self, real: int) -> None:
        """The real job is there: in a race the smoke job follows."""
        if self.ready.order is None:
            return
        if self.ready.way == "race":
            self._order(real=real)
        if self.smoked is not None:
            self._tell(view.submitted(self.ready, self.smoked, real))

    def refused(self) -> None:
        """The real job is not there: its gate goes, too."""
        if self.smoked is not None and self.ready.order is not None and self.ready.way == "gate":
            gone = withdraw(self.smoked, self.ready.order)
            number = self.smoked.job_id
            self._tell(
                [f"smoke: job {number} withdrawn" if gone else f"smoke: job {number} may still be there"]
            )
            self.smoked = None
            self._withdrawn = gone

    def took_its_place(self, errors: str) -> bool:
        """Whether the real job may have been refused because its gate was one job too many; once.

        The gate is withdrawn then: the user's words, as they are, are worth another try.
        """
        again, self._withdrawn = self._withdrawn and _LIMIT.search(errors) is not None, False
        if again:
            self.why = "with it you would have more jobs than you may submit"
            self._tell(view.not_submitted(self.ready, self.why))
        return again

    def only(self, more: Sequence[str] = ()) -> Smoked:
        """Submit the smoke job alone. Raises Refused, PlanError."""
        if self.ready.order is None:
            raise Refused(self.ready.why)
        self.smoked = order(self.ready.order, more=more)
        self._tell(view.submitted(self.ready, self.smoked, None))
        return self.smoked

    def facts(self) -> dict[str, object]:
        """For `--json`."""
        return view.facts(self.ready, self.smoked, self.why)

    def _order(self, *, real: int) -> None:
        assert self.ready.order is not None  # noqa: S101 - who calls has looked
        try:
            self.smoked = order(self.ready.order, real=real)
        except (Refused, PlanError) as error:
            self.why = str(error)
            self._tell(view.not_submitted(self.ready, self.why))

    def _tell(self, lines: Sequence[str]) -> None:
        if self._told:
            for text in lines:
                print(text, file=sys.stderr, flush=True)
