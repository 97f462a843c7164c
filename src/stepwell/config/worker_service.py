"""Settings of the worker service: what a machine loads and runs for training runs elsewhere."""

from __future__ import annotations

from pydantic import Field, JsonValue

from stepwell.config.service import ServiceConfig


class WorkerServiceConfig(ServiceConfig):
    """How `stepwell serve worker` hosts simulators and generators."""

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
    num_threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of each generator; None: torch's choice"
    )
    max_workers: int = Field(16, ge=1, description="processes at once, of all callers")
    max_envs: int = Field(4096, ge=1, description="largest number of environments of one simulator")
    lease_s: float = Field(120.0, gt=0, description="a worker is ended when its run is silent for this long")

    max_body_bytes: int = Field(16 * 2**30, ge=1024, description="largest request; weights make it large")
    body_timeout_s: float = Field(600.0, gt=0, description="how long a client may take to send a body")
