"""A remote engine: an OpenAI-compatible server that takes token ids, such as vLLM.

    engine = RemoteEngine("http://127.0.0.1:8000", "my-model", tokenizer=tokenizer)
    samples = await engine.generate([Request(TokenState(prompt_ids))])

Exact ids are sent, and exact ids and logprobs come back (`completions.py` describes the format,
and which logprobs). The server must run the weights that are trained. This class does not
update them: publish and load weights with the server's own tools, and give the version as
`version` (a number) or `version_path` (an endpoint that is read before and after every call, so
that a change in between becomes a span). The engine of a run whose servers take the trainer's
weights is `served/engine.py`.

Every request is a separate call: the server batches, and its prefix cache serves siblings and
later turns. Cancelling a task, or closing a stream, closes the connection, which ends the request
at the server.

`server_client.py` says when a request is repeated. A request has no side effect at the server, and
its seed is fixed before the first attempt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines import completions
from stepwell.engines.completions import PROBE_TEMPERATURE, CompletionReply, Mode
from stepwell.engines.server_client import Response, ServerClient, gather_all, parse_json
from stepwell.engines.token_stream import SampledToken

_COMPLETIONS = "/v1/completions"
_MODELS = "/v1/models"


class RemoteEngine:
    """Samples actions at a server. A `Sampler` and a `Streamer`.

    `tokenizer` is needed for stop strings and produces `TokenAction.text`; without one the
    server's text is used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        config: RemoteEngineConfig | None = None,
        *,
        tokenizer: Any = None,
        api_key: str | None = None,
    ) -> None:
        self.config = config or RemoteEngineConfig()
        self.client = ServerClient(base_url, self.config, api_key=api_key, model=model)
        self.model = model
        self.tokenizer = tokenizer
        self._max_length = self.config.max_length
        self._mode: Mode | None = None if self.config.logprobs_mode == "auto" else self.config.logprobs_mode
        self._seeds = np.random.default_rng(self.config.seed)
        self._version = self.config.version

    @property
    def base_url(self) -> str:
        """Address of the server."""
        return self.client.base_url

    @property
    def version(self) -> int:
        """Version of the server's weights, as far as known."""
        return self._version

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and action. The first read asks the server and blocks."""
        if self._max_length is None:
            self._max_length = self._read_models(self.client.get_blocking(_MODELS))
        return self._max_length

    async def check_ready(self, num_retries: int | None = None) -> None:
        """Raise `EngineError` unless the server responds and serves the model."""
        length = self._read_models(await self.client.send_request("GET", _MODELS, num_retries=num_retries))
        if self._max_length is None:
            self._max_length = length

    async def is_ready(self) -> bool:
        """Return whether the server can sample an action now."""
        try:
            await self.check_ready(num_retries=0)
        except EngineError:
            return False
        return True

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """Sample one action per request, in order. Cancelling the task cancels the requests."""
        if not requests:
            return []
        replies = [await self._begin_reply(request) for request in requests]
        first = await self._read_version()
        await gather_all([self._complete_reply(reply) for reply in replies])
        span = VersionSpan(first, await self._read_version())
        return [reply.build_sample(span) for reply in replies]

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield each token as the server sends it, then the sample. Closing it cancels the request."""
        reply = await self._begin_reply(request)
        first = await self._read_version()
        async with (
            self.client.open_response("POST", _COMPLETIONS, self._build_body(reply, stream=True)) as response,
            aclosing(_iterate_chunks(response)) as chunks,
        ):
            async for chunk in chunks:
                for token in reply.add_chunk(chunk):
                    yield token
        yield reply.build_sample(VersionSpan(first, await self._read_version()))

    async def stream_whole(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield the tokens of the whole action, then the sample."""
        (sample,) = await self.generate([request])
        assert isinstance(sample.action, TokenAction)
        for token, logprob in zip(sample.action.action_ids, sample.logprobs, strict=True):
            yield SampledToken(int(token), float(logprob))
        yield sample

    async def aclose(self) -> None:
        """Close every connection."""
        await self.client.aclose()

    async def __aenter__(self) -> RemoteEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _begin_reply(self, request: Request) -> CompletionReply:
        """Refuse a request that cannot be served as asked; otherwise fix its seed and length."""
        state, params = request.state, request.params
        if not isinstance(state, TokenState):
            raise InputError("state: a remote engine samples from TokenState, not from arrays")
        self._check_images(state)
        if params.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer; give the engine one, or use stop_ids")
        if self._max_length is None:
            await self.check_ready()
            assert self._max_length is not None
        room = self._max_length - len(state.prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"prompt_ids has {len(state.prompt_ids)} tokens and the context holds {self._max_length}, "
                "which leaves no room for an action; shorten the history or serve with a longer context"
            )
        await self.check_logprobs(request)
        seed = int(self._seeds.integers(2**63)) if params.seed is None else params.seed
        return CompletionReply(request, seed, min(params.max_tokens, room), self.tokenizer)

    def _check_images(self, state: TokenState) -> None:
        if state.images:
            raise InputError(
                "state.images: this engine sends token ids only; use another engine for prompts with images"
            )

    async def check_logprobs(self, request: Request) -> None:
        """Refuse parameters for which the server returns other logprobs than a step needs."""
        params = request.params
        needed = completions.choose_logprobs_mode(params.temperature, params.top_p)
        if needed is None:
            return
        if self._mode is None:
            asked = [completions.build_probe(request, self.model, t) for t in (0.0, PROBE_TEMPERATURE)]
            cold, hot = [await self._post_command(body) for body in asked]
            self._mode = completions.detect_logprobs_mode(cold, hot)
        if needed != self._mode:
            raise InputError(
                f"temperature {params.temperature} with top_p {params.top_p} needs {needed} logprobs, but "
                f"the server returns {self._mode} ones; start it with --logprobs-mode {needed}_logprobs, or "
                "sample at temperature=1 and top_p=1"
            )

    def _build_body(self, reply: CompletionReply, stream: bool) -> dict[str, Any]:
        return completions.build_payload(reply.request, self.model, reply.seed, reply.max_tokens, stream)

    async def _complete_reply(self, reply: CompletionReply) -> None:
        for _ in reply.add_chunk(await self._post_command(self._build_body(reply, stream=False))):
            pass

    async def _post_command(self, body: dict[str, Any]) -> Any:
        return await self.client.send_json("POST", _COMPLETIONS, body)

    async def _read_version(self) -> int:
        path = self.config.version_path
        if path:
            data = await self.client.send_json("GET", "/" + path.lstrip("/"))
            value = data.get("weight_version", data.get("version")) if isinstance(data, dict) else None
            if isinstance(value, bool) or not str(value).isdecimal():
                raise EngineError(
                    f"version_path {path} returned the version {value!r}; it must be a whole number"
                )
            self._version = max(self._version, int(str(value)))  # versions only increase
        return self._version

    def _read_models(self, response: Response) -> int:
        """Read the context length of our model from the server's list."""
        if response.status_code != 200:
            raise self.client.explain_refusal(response)
        data = parse_json(response)
        cards = {card["id"]: card for card in data["data"]} if _is_model_list(data) else {}
        if self.model not in cards:
            raise EngineError(
                f"{self.base_url} does not serve {self.model!r}; it serves {', '.join(cards) or 'nothing'}: "
                "ask for one of them (model, --backend-model)"
            )
        length = self.config.max_length or cards[self.model].get("max_model_len")
        if not isinstance(length, int) or length < 2:
            raise EngineError(f"{self.base_url} does not report its context length; set max_length")
        return length


async def _iterate_chunks(response: Response) -> AsyncGenerator[Any, None]:
    """Yield the JSON of every server-sent event up to the one that says done."""
    async with aclosing(response.aiter_lines()) as lines:  # type: ignore[type-var]
        async for line in lines:
            if not line.startswith("data:"):
                continue
            data = line[len("data:") :].strip()
            if data == "[DONE]":
                return
            try:
                chunk = json.loads(data)
            except ValueError:
                raise EngineError(f"the server's stream contains invalid JSON: {data[:200]!r}") from None
            yield chunk
    raise EngineError("the server's stream ended early; is the server running?")


def _is_model_list(data: Any) -> bool:
    """Return whether this is a list of models in the format of OpenAI's API."""
    cards = data.get("data") if isinstance(data, dict) else None
    return isinstance(cards, list) and all(isinstance(card, dict) and "id" in card for card in cards)
