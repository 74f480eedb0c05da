"""Numbers of examples of property tests."""

from __future__ import annotations

from hypothesis import settings

QUICK = 20


def examples(full: int) -> int:
    """Return how many examples a property test gets: QUICK in `make test`, all of them in `make test-rest`.

    Args:
        full: examples under any other profile of hypothesis than ``quick``.
    """
    return min(full, QUICK) if settings.get_current_profile_name() == "quick" else full
