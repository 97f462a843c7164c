"""Settings that every HTTP service has: where it listens, and for whom."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from stepwell.config.base import Settings


class ServiceConfig(Settings):
    """An HTTP service that is open to other machines only with keys."""

    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs keys")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 takes any free one")
    keys: dict[str, str] = Field(
        default_factory=dict, description="hashes of API keys by name, as `stepwell serve key` prints them"
    )
    keys_file: str | None = Field(None, description="JSON file in which `stepwell serve key` keeps hashes")
    max_concurrent: int = Field(1024, ge=1, description="calls of one key that may run at the same time")
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
    def _require_keys(self) -> Self:
        if not self.is_loopback and not (self.keys or self.keys_file):
            raise ValueError(
                f"host {self.host} can be reached from other machines without a key; make one "
                "with `stepwell serve key NAME --keys FILE` and set keys_file, or listen on 127.0.0.1"
            )
        return self
