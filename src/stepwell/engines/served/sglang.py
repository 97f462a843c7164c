"""SGLang: its own form of requests (`/generate`), and its words for an update of weights.

    pause         /pause_generation, mode "retract"      requests under way wait and compute their keys again
    load_folder   /update_weights_from_disk              with the label as `weight_version`
    drop_cache    /flush_cache      waits for requests under way, also in a pause; an update flushes by itself
    read_label    /model_info

SGLang returns logprobs of the temperature-scaled distribution before truncation, which is what a step needs
(unless SGLANG_RETURN_ORIGINAL_LOGPROB is set). A stop string ends an action with the token that completes it.
It samples from the seeds that it gets only with --enable-deterministic-inference.

Its limits are below the context that it lists: `count_room`. Its name in /v1/models becomes the folder of
the weights after an update, so it is asked for no name. A request gets its id from the server: one whose
connection broke is known there until the server notices, and a second one with its id would be refused.

SGLang also offers weights by collective (/init_weights_update_group, NCCL); not used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.engine import SGLANG_RESERVED_TOKENS, RemoteEngineConfig
from stepwell.core.errors import ConfigError, EngineError, ServerLostError, WeightsError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenState
from stepwell.engines.completions import CompletionReply
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.dialect import choose_model_name, read_numbers
from stepwell.engines.server_client import ServerClient
from stepwell.engines.token_stream import SampledToken

if TYPE_CHECKING:
    import torch

    from stepwell.engines.served.weight_group import WeightGroup

_GENERATE = "/generate"
_LABEL = "/model_info"


def build_generate_body(reply: CompletionReply) -> dict[str, Any]:
    """The body of `/generate` for one action. Every setting that changes the distribution is sent."""
    params, state = reply.request.params, reply.request.state
    assert isinstance(state, TokenState)
    return {
        "input_ids": state.prompt_ids.tolist(),
        "return_logprob": True,
        "logprob_start_len": -1,  # none of the prompt: that would bypass the cache
        "sampling_params": {
            "max_new_tokens": reply.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "min_new_tokens": 0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": reply.seed % 2**31,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_ids),
            "ignore_eos": params.ignore_end,
            "no_stop_trim": True,
            "skip_special_tokens": not params.stop,
        },
    }


def read_generate_reply(data: Any, prompt_ids: list[int]) -> dict[str, Any]:
    """A reply of `/generate` in the form of a completion, which `CompletionReply` checks."""
    try:
        told = data["meta_info"]
        ended = told["finish_reason"]
        if ended["type"] == "abort":
            raise EngineError(f"the server aborted the request: {ended.get('message') or 'no reason given'}")
        rows = told["output_token_logprobs"] or []
        sampled = [int(row[1]) for row in rows]
        choice = {
            "token_ids": list(data.get("output_ids", sampled)),
            "logprobs": {"token_logprobs": [row[0] for row in rows]},
            "text": data.get("text"),
            "finish_reason": ended["type"],
            "stop_reason": ended.get("matched"),
            # the prompt itself does not come back, only its length
            "prompt_token_ids": prompt_ids if told["prompt_tokens"] == len(prompt_ids) else [],
        }
        cached = {"prompt_tokens_details": {"cached_tokens": told.get("cached_tokens", 0)}}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EngineError(f"the server's reply does not have the form of /generate: {error!r}") from None
    if choice["token_ids"] != sampled:
        raise EngineError("the server's output_ids are not those of its logprobs")
    return {"choices": [choice], "usage": cached}


def count_room(context: int, server_info: Any) -> int:
    """The most tokens of prompt and action: SGLang refuses longer prompts and cuts longer actions."""
    room = context - SGLANG_RESERVED_TOKENS
    limit = server_info.get("max_req_input_len") if isinstance(server_info, dict) else None
    return min(room, limit) if isinstance(limit, int) and limit > 1 else room


class SglangSampler(RemoteEngine):
    """Samples actions at an SGLang server."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.client.sampling_path = _GENERATE

    async def check_ready(self, num_retries: int | None = None) -> None:
        models = await self.client.send_json("GET", "/v1/models", num_retries=num_retries)
        self.model = choose_model_name(models, None, self.base_url)
        is_first = self._max_length is None
        await super().check_ready(num_retries)
        if is_first:
            assert self._max_length is not None
            self._max_length = count_room(self._max_length, await self._read_info(num_retries))

    async def _read_info(self, num_retries: int | None) -> Any:
        """What the server says of itself; None in versions that call it otherwise."""
        try:
            return await self.client.send_json("GET", "/server_info", num_retries=num_retries)
        except ServerLostError:
            raise
        except EngineError:
            return None

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield the tokens of the whole action, then the sample."""
        async for item in self.stream_whole(request):
            yield item

    async def check_logprobs(self, request: Request) -> None:
        """Its logprobs are right for every temperature and top_p."""

    async def _complete_reply(self, reply: CompletionReply) -> None:
        state = reply.request.state
        assert isinstance(state, TokenState)
        data = await self.client.send_json("POST", _GENERATE, build_generate_body(reply))
        for _ in reply.add_chunk(read_generate_reply(data, state.prompt_ids.tolist())):
            pass


class SglangDialect:
    """Commands of SGLang 0.5."""

    name = "SGLang"
    has_fixed_name = False
    drops_when_idle = True

    def make_sampler(self, url: str, model: str, config: RemoteEngineConfig, tokenizer: Any) -> RemoteEngine:
        return SglangSampler(url, model, config, tokenizer=tokenizer)

    async def check_control(self, client: ServerClient) -> None:
        if await client.read_status(_LABEL) == 404:
            raise ConfigError(f"{client.base_url} has no {_LABEL}: is it an SGLang server (0.5 or later)?")

    async def read_label(self, client: ServerClient) -> str:
        data = await client.send_json("GET", _LABEL)
        return str(data.get("weight_version")) if isinstance(data, dict) else ""

    async def pause(self, client: ServerClient) -> None:
        await client.send_request("POST", "/pause_generation", {"mode": "retract"})

    async def resume(self, client: ServerClient) -> None:
        await client.send_request("POST", "/continue_generation", {})

    async def load_folder(self, client: ServerClient, folder: Path, label: str) -> None:
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
        data = await client.send_json("POST", "/update_weights_from_disk", body)
        if not isinstance(data, dict) or data.get("success") is not True:
            raise WeightsError(f"{client.base_url} did not load {folder}: {data!r:.300}")

    async def load_group(
        self, client: ServerClient, group: WeightGroup, weights: Mapping[str, torch.Tensor], label: str
    ) -> None:
        raise ConfigError("engine.server.weight_transfer: collective works with vLLM only; set folder")

    async def drop_cache(self, client: ServerClient) -> None:
        await client.send_request("POST", "/flush_cache?timeout=30", {})

    async def score_tokens(self, sampler: RemoteEngine, state: TokenState) -> list[float]:
        client, ids = sampler.client, state.prompt_ids.tolist()
        body = {
            "input_ids": ids,
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        }
        data = await client.send_json("POST", _GENERATE, body)
        try:
            values = [row[0] for row in data["meta_info"]["input_token_logprobs"][1:]]
        except (KeyError, TypeError, IndexError) as error:
            raise EngineError(
                f"{client.base_url}: no input_token_logprobs in its reply ({error!r})"
            ) from None
        return read_numbers(values, len(ids) - 1, client.base_url)
