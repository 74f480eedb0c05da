"""What `gsub fix` can mend, a module an idea: each looks at a failed job and offers one exact change, or none.

A fixer is a function from `Case` to `Fix` or None beside the reasons that it is asked about. It offers nothing where it
is not sure: what it proposes is submitted with the user's name on it. `FIXERS` is the registry.

>>> from gsub.fixes.values import Case, Fix
>>> def more_swap(case: Case) -> Fix | None:
...     return None  # not sure
"""

from __future__ import annotations

from typing import Final

from gsub.fixes import folder, memory, module, nodes, path, script, space, time
from gsub.fixes.values import Case, Fix, Fixer

__all__ = ["FIXERS", "fixes_for"]

FIXERS: Final[tuple[Fixer, ...]] = (
    memory.FIXER,
    time.FIXER,
    nodes.FIXER,
    path.FIXER,
    folder.FIXER,
    script.FIXER,
    module.FIXER,
    space.FIXER,
)
"""In the order in which they are asked; the first that is sure is taken."""


def fixes_for(case: Case) -> Fix | None:
    """The fix for a failed job; None: none is known."""
    for fixer in FIXERS:
        if case.finding.reason in fixer.reasons:
            found = fixer.fix(case)
            if found is not None:
                return found
    return None
