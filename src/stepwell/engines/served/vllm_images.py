"""Prompts with images at vLLM: exact ids, and the arrays that the trainer's encoder reads.

    POST /inference/v1/generate     token_ids, features, sampling_params     (--enable-scale-out)

`features` says of each image where its tokens are, its hash and its arrays (`images.py`). vLLM scales no
pixels and writes no tokens then. Its reply repeats ids and places, which must be those that were sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from stepwell.core.errors import EngineError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenState
from stepwell.engines.completions import CompletionReply, build_payload
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.served.images import ServedImages, drop_images
from stepwell.engines.token_stream import SampledToken

GENERATE = "/inference/v1/generate"
_SAMPLING = (
    *("max_tokens", "temperature", "top_p", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "top_k", "min_p", "min_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


class VllmImageSampler(RemoteEngine):
    """Samples actions at a vLLM server, also after prompts with images."""

    def __init__(self, *args: Any, images: ServedImages, **more: Any) -> None:
        super().__init__(*args, **more)
        self._images = images

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield the tokens of the whole action, then the sample."""
        async for item in self.stream_whole(request):
            yield item

    async def check_logprobs(self, request: Request) -> None:
        assert isinstance(request.state, TokenState)
        await super().check_logprobs(Request(drop_images(request.state), request.params))

    def _check_images(self, state: TokenState) -> None:
        """Images are welcome."""

    async def _complete_reply(self, reply: CompletionReply) -> None:
        state = reply.request.state
        assert isinstance(state, TokenState)
        if not state.images:
            return await super()._complete_reply(reply)
        body = build_generate_body(reply, self.model, self._images)
        data = await self.client.send_json("POST", GENERATE, body)
        for _ in reply.add_chunk(read_generate_reply(data, body)):
            pass


def build_generate_body(reply: CompletionReply, model: str, images: ServedImages) -> dict[str, Any]:
    """The request for one action."""
    state = reply.request.state
    assert isinstance(state, TokenState)
    payload = build_payload(reply.request, model, reply.seed, reply.max_tokens, stream=False)
    return {
        "model": model,
        "token_ids": payload["prompt"],
        "features": images.build_features(state),
        "sampling_params": {name: payload[name] for name in _SAMPLING},
        "return_token_ids": True,
    }


def build_score_body(state: TokenState, model: str, images: ServedImages) -> dict[str, Any]:
    """The request for the logprobs of a prompt's own tokens."""
    return {
        "model": model,
        "token_ids": state.prompt_ids.tolist(),
        "features": images.build_features(state),
        "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 0},
    }


def read_generate_reply(data: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """A reply in the form of a completion, which `CompletionReply` checks."""
    try:
        (choice,) = data["choices"]
        rows = choice["logprobs"]["content"] or []
        sampled = [row["token_id"] for row in rows]
        found = {
            "token_ids": choice["token_ids"],
            "logprobs": {"token_logprobs": [row["logprob"] for row in rows]},
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice.get("stop_reason"),
            "prompt_token_ids": data["prompt_token_ids"],
        }
        places = data["mm_placeholders"]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the server's reply does not have the form of {GENERATE}: {error!r}") from None
    if found["token_ids"] != sampled:
        raise EngineError("the server's token_ids are not those of its logprobs")
    if places != body["features"]["mm_placeholders"]:
        raise EngineError("the server did not put the images where they were sent")
    return {"choices": [found], "usage": data.get("usage")}
