"""vLLM's words for an update of weights. They are served in development mode (`VLLM_SERVER_DEV_MODE=1`).

    pause         /pause?mode=keep       requests under way are frozen, new ones wait
    load_folder   /collective_rpc        `reload_weights` on every worker, then /update_weight_version
    drop_cache    /reset_prefix_cache    with `reset_running_requests`: frozen requests compute theirs again
    read_label    /weight_info

    load_group    /collective_rpc        methods of our extension (`vllm_worker.py`): weights over TCP (Gloo)

vLLM's own weights by collective (/init_weight_transfer_engine) need NCCL or CUDA on both sides; not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, EngineError
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.dialect import read_numbers
from stepwell.engines.server_client import ServerClient

if TYPE_CHECKING:
    import torch

    from stepwell.engines.served.weight_group import WeightGroup

_LABEL = "/weight_info"
_NEW_LABEL = "/update_weight_version"


class VllmDialect:
    """Commands of vLLM 0.32 and later."""

    name = "vLLM"
    has_fixed_name = True

    def make_sampler(self, url: str, model: str, config: RemoteEngineConfig, tokenizer: Any) -> RemoteEngine:
        return RemoteEngine(url, model, config, tokenizer=tokenizer)

    async def check_control(self, client: ServerClient) -> None:
        if await client.read_status(_LABEL) == 404:
            raise ConfigError(
                f"{client.base_url} takes no new weights: start vLLM (0.32 or later) with "
                "VLLM_SERVER_DEV_MODE=1 in its environment"
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
        await group.send_weights(weights)
        await client.send_request("POST", _NEW_LABEL, {"new_version": label})

    async def drop_cache(self, client: ServerClient) -> None:
        data = await client.send_json("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if isinstance(data, dict) and data.get("success") is False:
            raise EngineError(f"{client.base_url} could not reset its prefix cache; look at the server's log")

    async def score_tokens(self, client: ServerClient, model: str, ids: Sequence[int]) -> list[float]:
        body = {
            "model": model,
            "prompt": list(ids),
            "add_special_tokens": False,
            "max_tokens": 1,
            "temperature": 1.0,
            "top_p": 1.0,
            "prompt_logprobs": 0,
        }
        data = await client.send_json("POST", "/v1/completions", body)
        try:
            rows = data["choices"][0]["prompt_logprobs"][1:]
            values = [row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{client.base_url}: no prompt_logprobs in its reply ({error!r})") from None
        return read_numbers(values, len(ids) - 1, client.base_url)
