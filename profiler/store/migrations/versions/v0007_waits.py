"""What attempts waited for before they started, in seconds by cause. Not known of what started before."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_CAUSES: Final = ("priority", "resources", "locality", "limits", "user", "other")


def upgrade() -> None:
    """Add the columns."""
    for cause in _CAUSES:
        op.add_column("job", sa.Column(f"waited_{cause}", sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    for cause in reversed(_CAUSES):
        op.drop_column("job", f"waited_{cause}")
