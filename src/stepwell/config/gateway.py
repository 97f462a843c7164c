"""Settings of the gateway: where it listens, who may call, how much, and when a session is over."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.service import ServiceConfig


class GatewayConfig(ServiceConfig):
    """How `stepwell serve gateway` serves agents."""

    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes any free one")
    model_name: str = Field("stepwell", min_length=1, description="the name under which the policy is served")
    any_model: bool = Field(
        True, description="serve the policy under whatever model name an agent asks for, or refuse others"
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="longest answer where a client sets no limit; default: what the context leaves",
    )
    max_choices: int = Field(64, ge=1, description="largest `n` of one call")
    seed: int | None = Field(
        None,
        ge=0,
        description="calls without a seed get one from this seed, their session and their place in "
        "it; none: random",
    )

    env: str = Field("gateway", min_length=1, description="environment of a session whose task names none")
    channel: Literal["train", "eval", "user"] = Field(
        "train", description="channel of sessions that name none"
    )
    silent_timeout_s: float = Field(900.0, gt=0, description="a session ends after this long without calls")
    on_silence: Literal["truncated", "agent_error"] = Field(
        "truncated", description="status of a session that ends so"
    )
    max_sessions: int = Field(100_000, ge=1, description="sessions that may be open at once")

    rate_per_s: float = Field(0.0, ge=0, description="calls per second and key; 0: no limit")
    burst: int = Field(20, ge=1, description="calls that a key may make at once before its rate counts")
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="largest request body")
    max_pixels: int = Field(
        4 * 2**20, ge=1, description="largest image that a policy that sees is shown: width x height"
    )

    max_waiting_prompts: int = Field(
        1024, ge=1, description="prompts that may wait to be tokenized; further calls are asked to try again"
    )
    num_pool_threads: int = Field(
        8, ge=1, description="threads that write to the pool; calls that wait together share a commit"
    )
    shutdown_timeout_s: float = Field(
        60.0, gt=0, description="how long calls in flight may take to finish after Ctrl-C"
    )
