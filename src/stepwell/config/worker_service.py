"""Settings of the worker service: what a machine loads and runs for training runs elsewhere."""

from __future__ import annotations

from pydantic import Field, JsonValue, model_validator

from stepwell.config.base import Settings


class WorkerServiceConfig(Settings):
    """How `stepwell serve worker` hosts simulators and generators."""

    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs keys")
    port: int = Field(8096, ge=0, le=65535, description="port to listen on; 0 takes any free one")
    envs: tuple[str, ...] = Field(
        (), description="environments that may be loaded; none: all built-in ones, nothing by import path"
    )
    env_options: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict,
        description="options that the host sets, by environment; callers cannot change them",
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="directories of models by the names under which runs ask for them, besides built-in ones",
    )
    devices: tuple[str, ...] = Field((), description="devices that may be named; none: all of this machine")
    num_threads: int | None = Field(None, ge=1, description="of each generator; None: torch's choice")
    max_workers: int = Field(16, ge=1, description="processes at once, of all callers")
    max_envs: int = Field(4096, ge=1, description="environments of one simulator")
    lease_s: float = Field(120.0, gt=0, description="a worker whose run is silent for so long is ended")

    keys: dict[str, str] = Field(
        default_factory=dict, description="hashes of API keys by name, as `stepwell serve key` prints them"
    )
    keys_file: str | None = Field(None, description="JSON file in which `stepwell serve key` keeps hashes")
    max_concurrent: int = Field(1024, ge=1, description="calls of one key that may run at the same time")
    max_body_bytes: int = Field(16 * 2**30, ge=1024, description="largest request; weights make it large")
    body_timeout_s: float = Field(600.0, gt=0, description="how long a client may take to send a body")
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
    def _require_keys(self) -> WorkerServiceConfig:
        if not self.is_loopback and not (self.keys or self.keys_file):
            raise ValueError(
                f"host {self.host} can be reached from other machines without a key; make one "
                "with `stepwell serve key NAME --keys FILE` and set keys_file, or listen on 127.0.0.1"
            )
        return self
