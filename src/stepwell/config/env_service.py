"""Settings of the environment service: which environments it hosts, for whom, how many, and for how long."""

from __future__ import annotations

from pydantic import Field, JsonValue

from stepwell.config.service import ServiceConfig


class EnvServiceConfig(ServiceConfig):
    """How `stepwell serve envs` hosts environments."""

    port: int = Field(8090, ge=0, le=65535, description="port to listen on; 0 takes any free one")
    envs: tuple[str, ...] = Field(
        (), description="environments that may be opened; none: all built-in ones, and nothing by import path"
    )

    env_options: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict,
        description="options that the host sets, by environment; callers cannot change them",
    )

    num_threads: int = Field(
        4, ge=1, le=1024, description="threads that environments run in; an environment stays in its own"
    )
    max_sessions: int = Field(1024, ge=1, description="environments open at once, of all callers")
    max_sessions_per_key: int = Field(1024, ge=1, description="environments open at once, of one caller")
    session_timeout_s: float = Field(
        600.0, gt=0, description="an environment is closed after this long without a call or heartbeat"
    )
    call_timeout_s: float = Field(
        120.0, gt=0, description="an environment that takes longer for one call is given up"
    )
    max_stuck: int = Field(
        8,
        ge=1,
        description="calls of one caller that may hang at once; with more it opens no new environment",
    )

    rate_per_s: float = Field(0.0, ge=0, description="calls per second and key; 0: no limit")
    burst: int = Field(100, ge=1, description="calls that a key may make at once before its rate counts")
    max_batch: int = Field(1024, ge=1, description="environments that one call may name")
    max_body_bytes: int = Field(4 * 2**20, ge=1024, description="largest request")
    max_reply_bytes: int = Field(64 * 2**20, ge=1024, description="largest answer; images make it large")
