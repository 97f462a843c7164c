"""Settings of the environment service: which environments it hosts, for whom, how many, and for how long."""

from __future__ import annotations

from pydantic import Field, JsonValue, model_validator

from stepwell.config.base import Settings


class EnvServiceConfig(Settings):
    """How `stepwell serve envs` hosts environments."""

    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs keys")
    port: int = Field(8090, ge=0, le=65535, description="port to listen on; 0 takes any free one")
    envs: tuple[str, ...] = Field(
        (),
        description="environments that may be opened; none: all built-in ones, and nothing by import path",
    )

    env_options: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict,
        description="options that the host sets, by environment; callers cannot change them",
    )

    num_threads: int = Field(
        4, ge=1, description="threads that environments run in; an environment stays in its own"
    )
    max_sessions: int = Field(1024, ge=1, description="environments open at once, of all callers")
    max_sessions_per_key: int = Field(1024, ge=1, description="environments open at once, of one caller")
    session_timeout_s: float = Field(
        600.0, gt=0, description="an environment without a call or heartbeat for so long is closed"
    )
    call_timeout_s: float = Field(
        120.0, gt=0, description="an environment that takes longer for one call is given up"
    )
    max_stuck: int = Field(
        8,
        ge=1,
        description="calls of one caller that may hang at once; with more it opens no new environment",
    )

    keys: dict[str, str] = Field(
        default_factory=dict, description="hashes of API keys by name, as `stepwell serve key` prints them"
    )
    keys_file: str | None = Field(None, description="JSON file in which `stepwell serve key` keeps hashes")
    rate_per_s: float = Field(0.0, ge=0, description="calls per second and key; 0: no limit")
    burst: int = Field(100, ge=1, description="calls that a key may make at once before its rate counts")
    max_concurrent: int = Field(1024, ge=1, description="calls of one key that may run at the same time")
    max_batch: int = Field(1024, ge=1, description="environments that one call may speak of")
    max_body_bytes: int = Field(4 * 2**20, ge=1024, description="largest request")
    max_reply_bytes: int = Field(64 * 2**20, ge=1024, description="largest answer; images make it large")
    header_timeout_s: float = Field(
        10.0, gt=0, description="how long a connection may take to send the headers of a request"
    )
    body_timeout_s: float = Field(30.0, gt=0, description="how long a client may take to send a body")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="names that Host and Origin may have besides loopback's, such as that of a proxy"
    )

    access_log: str | None = Field(None, description="file for the access log, one JSON object per line")
    shutdown_timeout_s: float = Field(
        10.0, gt=0, description="how long calls in flight may take to finish after Ctrl-C"
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @model_validator(mode="after")
    def _require_keys(self) -> EnvServiceConfig:
        if not self.is_loopback and not (self.keys or self.keys_file):
            raise ValueError(
                f"host {self.host} can be reached from other machines without a key; make one "
                "with `stepwell serve key NAME --keys FILE` and set keys_file, or listen on 127.0.0.1"
            )
        return self
