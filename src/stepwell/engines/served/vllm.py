"""vLLM's words for an update of weights. They are served in development mode (`VLLM_SERVER_DEV_MODE=1`).

    pause         /pause?mode=keep       requests under way are frozen, new ones wait
    load_folder   /collective_rpc        `reload_weights` on every worker, then /update_weight_version
    drop_cache    /reset_prefix_cache    with `reset_running_requests`: frozen requests compute theirs again
                  /reset_encoder_cache   for a policy that sees (`vllm_images.py`)
    read_label    /weight_info

    load_group    /collective_rpc        methods of our extension (`vllm_worker.py`): weights over TCP (Gloo)

vLLM's own weights by collective (/init_weight_transfer_engine) need NCCL or CUDA on both sides; not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, EngineError
from stepwell.core.step import TokenState
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.dialect import read_numbers
from stepwell.engines.served.images import ServedImages, rename_weights
from stepwell.engines.served.vllm_images import GENERATE, VllmImageSampler, build_score_body
from stepwell.engines.server_client import ServerClient

if TYPE_CHECKING:
    import torch

    from stepwell.engines.served.weight_group import WeightGroup

_LABEL = "/weight_info"
_NEW_LABEL = "/update_weight_version"


class VllmDialect:
    """Commands of vLLM 0.32 and later. `images` are those of a policy that sees."""

    name = "vLLM"
    has_fixed_name = True
    drops_when_idle = False

    def __init__(self, images: ServedImages | None = None) -> None:
        self._images = images

    def make_sampler(self, url: str, model: str, config: RemoteEngineConfig, tokenizer: Any) -> RemoteEngine:
        if self._images is not None:
            return VllmImageSampler(url, model, config, tokenizer=tokenizer, images=self._images)
        return RemoteEngine(url, model, config, tokenizer=tokenizer)

    async def check_control(self, client: ServerClient) -> None:
        if await client.read_status(_LABEL) == 404:
            raise ConfigError(
                f"{client.base_url} takes no new weights: start vLLM (0.32 or later) with "
                "VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        if self._images is not None and await client.read_status(GENERATE, {}) in (403, 404, 405):
            raise ConfigError(
                f"{client.base_url} takes no prompts with images: start vLLM (0.32 or later) with "
                "--enable-scale-out"
            )

    async def read_label(self, client: ServerClient) -> str:
        data = await client.send_json("GET", _LABEL)
        return str(data.get("weight_version")) if isinstance(data, dict) else ""

    async def pause(self, client: ServerClient) -> None:
        await client.send_request("POST", "/pause?mode=keep", {})

    async def resume(self, client: ServerClient) -> None:
        await client.send_request("POST", "/resume", {})

    async def load_folder(self, client: ServerClient, folder: Path, label: str) -> None:
        command = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await client.send_request("POST", "/collective_rpc", command)
        await client.send_request("POST", _NEW_LABEL, {"new_version": label})

    async def load_group(
        self, client: ServerClient, group: WeightGroup, weights: Mapping[str, torch.Tensor], label: str
    ) -> None:
        await group.send_weights(weights if self._images is None else rename_weights(weights))
        await client.send_request("POST", _NEW_LABEL, {"new_version": label})

    async def drop_cache(self, client: ServerClient) -> None:
        data = await client.send_json("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if isinstance(data, dict) and data.get("success") is False:
            raise EngineError(f"{client.base_url} could not reset its prefix cache; look at the server's log")
        if self._images is not None:  # after the other: requests that run hold their features
            await client.send_request("POST", "/reset_encoder_cache", {})

    async def score_tokens(self, sampler: RemoteEngine, state: TokenState) -> list[float]:
        client, ids = sampler.client, state.prompt_ids.tolist()
        if state.images and self._images is not None:
            body = build_score_body(state, sampler.model, self._images)
            told = await client.send_json("POST", GENERATE, body)
        else:
            told = await self._score_text(sampler, ids)
        try:
            rows = told["prompt_logprobs"][1:]
            values = [row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{client.base_url}: no prompt_logprobs in its reply ({error!r})") from None
        return read_numbers(values, len(ids) - 1, client.base_url)

    async def _score_text(self, sampler: RemoteEngine, ids: list[int]) -> Any:
        body = {
            "model": sampler.model,
            "prompt": ids,
            "add_special_tokens": False,
            "max_tokens": 1,
            "temperature": 1.0,
            "top_p": 1.0,
            "prompt_logprobs": 0,
        }
        data = await sampler.client.send_json("POST", "/v1/completions", body)
        choices = data.get("choices") if isinstance(data, dict) else None
        return choices[0] if isinstance(choices, list) and choices else None
