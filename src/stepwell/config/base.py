"""What every group of settings has in common.

Settings are frozen and refuse unknown keys, so that a misspelt name is an error at the
start and never a silent default. Numbers are finite: no setting of ours means anything at
infinity, and a `nan` would pass every comparison unseen. Nothing here imports torch:
`--help` stays instant.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings: immutable, typed, and closed to unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
