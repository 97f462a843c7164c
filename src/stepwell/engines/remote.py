"""A remote engine: an OpenAI-compatible server that takes token ids, such as vLLM.

    engine = RemoteEngine("http://127.0.0.1:8000", "my-model", tokenizer=tokenizer)
    samples = await engine.generate([Request(TokenState(prompt_ids))])

Exact ids are sent, and exact ids and logprobs come back (`completions.py` describes the format,
and which logprobs). The server must run the weights that are trained. This module does not
update them: publish and load weights with the server's own tools, and give the version as
`version` (a number) or `version_path` (an endpoint that is read before and after every call, so
that a change in between becomes a span).

Every request is a separate call: the server batches, and its prefix cache serves siblings and
later turns. Cancelling a task, or closing a stream, closes the connection, which ends the request
at the server.

A request is retried only where that counts nothing twice and selects nothing: no connection,
"try later" (429, 503), or a connection lost before the first byte of the answer. A request has
no side effect at the server, and its seed is fixed before the first attempt. After a silence
longer than `timeout_s` there is no retry: it would favour short actions.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import numpy as np

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines import completions
from stepwell.engines.completions import PROBE_TEMPERATURE, CompletionReply, Mode
from stepwell.engines.token_stream import SampledToken

try:
    import httpx
except ImportError as error:  # pragma: no cover - the test environment has it
    raise ConfigError("a remote engine needs httpx: pip install 'stepwell[serve]'") from error

T = TypeVar("T")
_COMPLETIONS = "/v1/completions"
_MODELS = "/v1/models"
_TRY_LATER = (429, 503)
_LOST = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.RemoteProtocolError,
    httpx.ReadError,
    httpx.WriteError,
)


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
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must start with http:// or https://, got {base_url!r}")
        self.model = model
        self.tokenizer = tokenizer
        self._headers = _build_headers(api_key, self.config.api_key_env)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._max_length = self.config.max_length
        self._mode: Mode | None = None if self.config.logprobs_mode == "auto" else self.config.logprobs_mode
        self._seeds = np.random.default_rng(self.config.seed)
        self._version = self.config.version

    @property
    def version(self) -> int:
        """Version of the server's weights, as far as known."""
        return self._version

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and action. The first read asks the server and blocks."""
        if self._max_length is None:
            try:
                response = httpx.get(
                    self.base_url + _MODELS, headers=self._headers, timeout=self.config.connect_timeout_s
                )
            except httpx.HTTPError as error:
                raise self._explain_unreachable(error) from error
            self._max_length = self._read_models(response)
        return self._max_length

    async def check_ready(self, num_retries: int | None = None) -> None:
        """Raise `EngineError` unless the server responds and serves the model."""
        length = self._read_models(await self._send_request("GET", _MODELS, num_retries=num_retries))
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
        await _gather_all([self._complete_reply(reply) for reply in replies])
        span = VersionSpan(first, await self._read_version())
        return [reply.build_sample(span) for reply in replies]

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Yield each token as the server sends it, then the sample. Closing it cancels the request."""
        reply = await self._begin_reply(request)
        first = await self._read_version()
        async with (
            self._open_response("POST", _COMPLETIONS, self._build_body(reply, stream=True)) as response,
            aclosing(_iterate_chunks(response)) as chunks,
        ):
            async for chunk in chunks:
                for token in reply.add_chunk(chunk):
                    yield token
        yield reply.build_sample(VersionSpan(first, await self._read_version()))

    async def aclose(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    async def __aenter__(self) -> RemoteEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _begin_reply(self, request: Request) -> CompletionReply:
        """Refuse a request that cannot be served as asked; otherwise fix its seed and length."""
        state, params = request.state, request.params
        if not isinstance(state, TokenState):
            raise InputError("state: a remote engine samples from TokenState, not from arrays")
        if state.images:
            raise InputError(
                "state.images: this engine sends token ids only; use another engine for prompts with images"
            )
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
        await self._check_mode(request)
        seed = int(self._seeds.integers(2**63)) if params.seed is None else params.seed
        return CompletionReply(request, seed, min(params.max_tokens, room), self.tokenizer)

    async def _check_mode(self, request: Request) -> None:
        params = request.params
        needed = completions.required_logprobs_mode(params.temperature, params.top_p)
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
        return _parse_json(await self._send_request("POST", _COMPLETIONS, body))

    async def _read_version(self) -> int:
        path = self.config.version_path
        if path:
            data = _parse_json(await self._send_request("GET", "/" + path.lstrip("/")))
            value = data.get("weight_version", data.get("version")) if isinstance(data, dict) else None
            if isinstance(value, bool) or not str(value).isdecimal():
                raise EngineError(
                    f"version_path {path} returned the version {value!r}; it must be a whole number"
                )
            self._version = max(self._version, int(str(value)))  # versions only increase
        return self._version

    async def _send_request(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> httpx.Response:
        async with self._open_response(method, path, body, num_retries) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def _open_response(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Open a response with status 200; its body is not read yet."""
        retries = self.config.num_retries if num_retries is None else num_retries
        response = await self._attempt_request(method, path, body, retries)
        try:
            if response.status_code != 200:
                await response.aread()
                raise self._explain_refusal(response)
            yield response
        except httpx.HTTPError as error:
            raise EngineError(
                f"the connection to {self.base_url} broke mid-answer ({error!r}); is the server running?"
            ) from error
        finally:
            await response.aclose()

    async def _attempt_request(
        self, method: str, path: str, body: dict[str, Any] | None, num_retries: int
    ) -> httpx.Response:
        """Return the server's first response that is not "try later", within the allowed attempts."""
        client = self._get_client()
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(num_retries + 1):
            last = attempt == num_retries
            try:
                response = await client.send(client.build_request(method, path, content=content), stream=True)
                if last or response.status_code not in _TRY_LATER:
                    return response
                await response.aclose()
            except _LOST as error:
                if last:
                    raise self._explain_unreachable(error) from error
            except httpx.HTTPError as error:
                raise self._explain_unreachable(error) from error
            await asyncio.sleep(self.config.backoff_s * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _get_client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop; a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            config = self.config
            limits = httpx.Limits(
                max_connections=config.max_connections, max_keepalive_connections=config.max_connections
            )
            timeout = httpx.Timeout(config.timeout_s, connect=config.connect_timeout_s, pool=None)
            headers = {"Content-Type": "application/json", **self._headers}
            client = httpx.AsyncClient(
                base_url=self.base_url, headers=headers, limits=limits, timeout=timeout
            )
            self._client = (loop, client)
        return self._client[1]

    def _read_models(self, response: httpx.Response) -> int:
        """Read the context length of our model from the server's list."""
        if response.status_code != 200:
            raise self._explain_refusal(response)
        data = _parse_json(response)
        cards = {card["id"]: card for card in data["data"]} if _is_model_list(data) else {}
        if self.model not in cards:
            raise EngineError(
                f"{self.base_url} does not serve {self.model!r}; it serves {', '.join(cards) or 'nothing'}"
            )
        length = self.config.max_length or cards[self.model].get("max_model_len")
        if not isinstance(length, int) or length < 2:
            raise EngineError(f"{self.base_url} does not report its context length; set max_length")
        return length

    def _explain_refusal(self, response: httpx.Response) -> Exception:
        """Turn a status other than 200 into an error for our caller."""
        try:
            words = completions.find_error_text(response.json())
        except ValueError:
            words = response.text[:300]
        status, where = response.status_code, f"{self.base_url} answered {response.status_code}"
        if status in (400, 413, 422):
            return InputError(f"{where}: it refuses the request: {words}")
        if status in (401, 403):
            return EngineError(f"{where}: set api_key_env to a variable that contains its key ({words})")
        if status == 404:
            return EngineError(f"{where}: does it serve {self.model!r} at {_COMPLETIONS}? ({words})")
        return EngineError(f"{where}: {words or 'no reason given'}; look at the server's log")

    def _explain_unreachable(self, error: Exception) -> EngineError:
        if isinstance(error, httpx.ReadTimeout):
            return EngineError(
                f"{self.base_url} did not respond within timeout_s={self.config.timeout_s}; raise it, or "
                "check whether the server is overloaded"
            )
        return EngineError(
            f"no answer from {self.base_url} ({error!r}); start the server or correct base_url"
        )


def _build_headers(api_key: str | None, variable: str) -> dict[str, str]:
    if api_key is None and variable:
        api_key = os.environ.get(variable)
        if not api_key:
            raise ConfigError(f"api_key_env names {variable}, which is not set")
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def _gather_all(coroutines: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order; the first failure cancels the rest and is raised unchanged."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _iterate_chunks(response: httpx.Response) -> AsyncGenerator[Any, None]:
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


def _parse_json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise EngineError(f"the server's reply is not JSON: {response.text[:200]!r}") from None


def _is_model_list(data: Any) -> bool:
    """Return whether this is a list of models in the format of OpenAI's API."""
    cards = data.get("data") if isinstance(data, dict) else None
    return isinstance(cards, list) and all(isinstance(card, dict) and "id" in card for card in cards)
