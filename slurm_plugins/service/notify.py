"""sd_notify(3) for gsubd: as in `profiler.notify`, which the agent has too."""

from __future__ import annotations

from profiler.notify import Notifier

__all__ = ["Notifier"]
