"""Places in the checkout that tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
DATA: Final = REPOSITORY / "tests/data"
"""Recorded outputs, logs and traces."""
