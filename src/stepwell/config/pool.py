"""Settings of the data pool: where it lives, how durable it is, how much it keeps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings


class PoolConfig(Settings):
    """Where trajectories are kept, and for how long."""

    url: str = Field(
        "",
        description="a file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; "
        "empty: pool.db in the run folder",
    )
    blobs: str = Field(
        "",
        description="folder for images by content hash; empty: beside the database "
        "(for PostgreSQL: in the run folder)",
    )
    durable: Literal["process", "power"] = Field(
        "process",
        description="what an accepted step survives: the kill of any process, or also a loss of power",
    )
    lease_s: float = Field(
        600.0,
        gt=0,
        description="how long a consumer may hold a group before others get it; renewed while it works",
    )
    max_bytes: int | None = Field(
        None,
        ge=0,
        description="collect the oldest consumed groups above this many bytes of steps; none: keep all",
    )
    max_age_s: float | None = Field(
        None, gt=0, description="collect consumed groups that finished longer ago than this; none: keep all"
    )
