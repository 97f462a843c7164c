"""Indexes of ready groups only and of leased groups only.

The two before held every group by its state, so that each fitted either question of `take`; a planner
without statistics took the one that made it go through all ready groups, or through all leased ones.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.drop_index("groups_by_state", "groups")
    op.drop_index("groups_by_lease", "groups")
    for name, column, state in (
        ("groups_ready", "seq", "ready"),
        ("groups_leased", "lease_until_s", "leased"),
    ):
        only = sa.text(f"state = '{state}'")
        op.create_index(name, "groups", ["channel", column], postgresql_where=only, sqlite_where=only)
