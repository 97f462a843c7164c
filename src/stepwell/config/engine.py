"""Settings of engines: the embedded one, and servers such as vLLM and SGLang."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings

SGLANG_RESERVED_TOKENS = 6
"""Tokens of its context that SGLang fills with neither prompt nor action."""


class ServerConfig(Settings):
    """The servers of `engine.backend`: how to reach them, and how they get weights."""

    table_name = "engine.server"
    model: str | None = Field(
        None,
        description="name under which vLLM serves the policy; None: the only one that it serves (SGLang has "
        "one model, whose name changes with its weights)",
    )
    weights_folder: str | None = Field(
        None,
        description="folder that trainer and servers see under the same path: new weights are written there; "
        "None: in the run's folder (servers on this machine)",
    )
    weight_transfer: Literal["folder", "collective"] = Field(
        "folder",
        description="how new weights reach the servers: written to weights_folder, or broadcast over TCP to "
        "the workers of vLLM (started with the extension of docs/servers.md), without a shared folder",
    )
    api_key_env: str = Field("", description="environment variable that holds the servers' API key")
    max_connections: int = Field(256, ge=1, description="concurrent requests to one server; the rest wait")
    connect_timeout_s: float = Field(5.0, gt=0, description="how long making a connection may take")
    timeout_s: float = Field(600.0, gt=0, description="how long a server may need for an action or an update")
    max_retries: int = Field(
        4, ge=0, description="new attempts at a server that is unreachable before it counts as lost"
    )
    backoff_s: float = Field(
        0.25, ge=0, description="pause before the first new attempt; it doubles each time"
    )
    logprobs_mode: Literal["auto", "raw", "processed"] = Field(
        "auto", description="which logprobs vLLM returns (its --logprobs-mode); auto: asks when it matters"
    )
    num_probes: int = Field(
        4, ge=1, description="prompts that check, after every update, whether a server has the new weights"
    )
    probe_tokens: int = Field(
        32, ge=8, description="tokens that each of them samples; the trainer's model scores them again"
    )


class EngineConfig(Settings):
    """Who samples: the embedded engine (how it batches, caches and computes), or servers."""

    backend: Literal["embedded", "vllm", "sglang"] = Field(
        "embedded",
        description="embedded: inside the run; vllm, sglang: servers that run already, at `urls`. They get "
        "the new weights after every update. Of the settings below they use max_length, seed and those of "
        "`engine.server`",
    )
    urls: tuple[str, ...] = Field(
        (), description="addresses of the servers (replicas), such as http://gpu1:8000; for vllm and sglang"
    )
    server: ServerConfig = Field(default_factory=ServerConfig)
    max_batch_size: int = Field(64, ge=1, description="requests that decode together")
    max_wait_ms: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="how long a request may wait for others before it starts"
    )
    max_queue: int = Field(4096, ge=1, description="samples that may wait; further callers wait for room")
    num_slots: int | None = Field(
        None,
        ge=1,
        description="sequences whose cache is kept: running ones and earlier turns of conversations. "
        "Give at least as many as there are live conversations; default twice max_batch_size",
    )
    max_length: int | None = Field(
        None, ge=2, description="longest prompt and action together; default the model's own context"
    )
    prefill_tokens: int = Field(
        2048,
        ge=16,
        description="prompt tokens computed between two decoding steps, so that decoding does not stall",
    )
    on_new_weights: Literal["continue", "recompute"] = Field(
        "continue", description="requests in flight keep their older keys and values, or compute them again"
    )
    seed: int = Field(0, ge=0, le=10**18, description="requests without a seed get theirs from this one")
    forward: Literal["auto", "lean", "transformers"] = Field(
        "auto", description="our own decoder for the Llama family, or the model's own code for any model"
    )
    attention_kernel: Literal["auto", "triton", "torch"] = Field(
        "auto", description="Triton kernels on CUDA, or plain torch everywhere"
    )
    cuda_graphs: bool = Field(True, description="on CUDA, replay decoding steps as captured graphs")
    self_check: bool = Field(
        True, description="at the start, compare the engine's logits with the model's own on a few tokens"
    )

    @property
    def slots(self) -> int:
        """`num_slots`, or its default."""
        return self.num_slots if self.num_slots is not None else 2 * self.max_batch_size

    @model_validator(mode="after")
    def _check_consistency(self) -> EngineConfig:
        if self.slots < self.max_batch_size:
            raise ValueError(
                f"num_slots ({self.slots}) must be at least max_batch_size ({self.max_batch_size})"
            )
        if self.max_queue < self.max_batch_size:
            raise ValueError(
                f"max_queue ({self.max_queue}) must be at least max_batch_size ({self.max_batch_size})"
            )
        return self

    @model_validator(mode="after")
    def _check_urls(self) -> EngineConfig:
        if self.backend == "embedded" and self.urls:
            raise ValueError('urls name servers; set backend to "vllm" or "sglang", or remove them')
        if self.backend != "embedded" and not self.urls:
            raise ValueError(f'backend {self.backend} needs urls, such as urls=["http://127.0.0.1:8000"]')
        if self.server.weight_transfer == "collective" and self.backend != "vllm":
            raise ValueError(
                f"server.weight_transfer: {self.backend} takes no weights by collective here; only vllm does"
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls: {url!r} must start with http:// or https://")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError("urls names a server twice; name each once")
        return self


class RemoteEngineConfig(Settings):
    """An engine behind an OpenAI-compatible token-in server (such as vLLM)."""

    table_name = "engine.server"  # whose old names it had
    max_connections: int = Field(256, ge=1, description="concurrent requests to the server; the rest wait")
    connect_timeout_s: float = Field(5.0, gt=0, description="how long making a connection may take")
    timeout_s: float = Field(
        600.0, gt=0, description="how long the server may be silent; without streaming that is a whole action"
    )
    max_retries: int = Field(
        4,
        ge=0,
        description="new attempts when the server is unreachable, overloaded or lost before it answers",
    )
    backoff_s: float = Field(
        0.25, ge=0, description="pause before the first new attempt; it doubles each time"
    )
    logprobs_mode: Literal["auto", "raw", "processed"] = Field(
        "auto",
        description="which logprobs the server returns (vLLM: --logprobs-mode); auto: asks when it matters",
    )
    max_length: int | None = Field(
        None,
        ge=2,
        description="longest prompt and action together; default what the server's model list says",
    )
    version: int = Field(0, ge=0, description="policy version of the weights that the server runs")
    version_path: str = Field(
        "",
        description="path on the server that gives the version instead, as JSON with `weight_version` or "
        "`version` (vLLM in development mode: /weight_info)",
    )
    api_key_env: str = Field("", description="environment variable that holds the server's API key")
    seed: int = Field(0, ge=0, le=10**18, description="requests without a seed get theirs from this one")
