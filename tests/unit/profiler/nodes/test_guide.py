"""docs/bad-nodes.md says what is so."""

from __future__ import annotations

import pytest

from profiler.bad_nodes import DAY, REASONS, RULES, Vote, assess
from tests.paths import REPOSITORY
from tests.unit.profiler.nodes.guide import NOW, with_table

GUIDE = REPOSITORY / "docs/bad-nodes.md"
TEXT = GUIDE.read_text()


@pytest.mark.slow
def test_the_table_is_what_is_so() -> None:
    assert with_table(TEXT) == TEXT, "python -m tests.unit.profiler.nodes.guide docs/bad-nodes.md"


def test_the_rules_are_those() -> None:
    for words in (
        f"in {RULES.half_life:.0f} days, and are forgotten after {RULES.window}",
        f"Beta({RULES.strength:.0f} p, {RULES.strength:.0f} (1 - p))",
        f"at least {100 * RULES.least_rate:.1f} %",
        f"more than {RULES.ratio:.0f} p",
        f"from {100 * RULES.sure:.0f} % on",
        f"at least {RULES.users} users",
    ):
        assert words in TEXT, words
    assert (RULES.part, RULES.workloads) == (10, 3)
    for reason in REASONS:
        assert f"`{reason}`" in TEXT


@pytest.mark.parametrize(("votes", "low", "high"), [(2, 2, 3), (10, 10, 12)])
def test_how_long_votes_last(votes: int, low: float, high: float) -> None:
    """On a node where nothing else runs."""
    against = [Vote("n1", "gpu_hardware", "root", NOW - 200 * uid, uid) for uid in range(votes)]
    others = {"gpu": [f"n{i}" for i in range(1, 21)]}
    lasts = [days for days in range(21) if assess(against, {}, others, now=NOW + days * DAY)[0].by]
    assert low <= max(lasts) <= high
