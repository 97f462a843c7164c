"""An engine in another process or on another machine: an OpenAI-compatible token-in server such as vLLM.

    engine = RemoteEngine("http://127.0.0.1:8000", "my-model", tokenizer=tokenizer)
    samples = await engine.generate([Request(TokenState(prompt_ids))])

Exact ids go out and exact ids and logprobs come back (`completions.py` says in which form, and
which logprobs). The server must run the weights that are trained; a weight update is not part of
this module: publish and load weights with the server's own means, and tell the version by
`version` (a number) or `version_path` (an endpoint, read before and after every call, so that a
change in between shows as a span).

Every request is a call of its own: the server batches, and its prefix cache serves siblings and
later turns. Cancelling a task, or closing a stream, closes the connection, which ends the request
at the server.

New attempts are made only where nothing can be counted twice and nothing gets selected: no
connection, "try later" (429, 503), or a connection lost before the first byte of the answer. A
request has no effect at the server, and its seed is fixed before the first attempt. A silence
longer than `timeout_s` is not tried again: it would favour short actions.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import numpy as np

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines import completions
from stepwell.engines.completions import PROBE_TEMPERATURE, Mode, Reply
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

    `tokenizer` is needed for stop strings and gives `TokenAction.text`; without one the text
    is the server's.
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
            raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
        self.model = model
        self.tokenizer = tokenizer
        self._headers = _authorization(api_key, self.config.api_key_env)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._max_length = self.config.max_length
        self._mode: Mode | None = None if self.config.logprobs_mode == "auto" else self.config.logprobs_mode
        self._seeds = np.random.default_rng(self.config.seed)
        self._version = self.config.version

    @property
    def version(self) -> int:
        """Version of the server's weights, as far as is known."""
        return self._version

    @property
    def max_length(self) -> int:
        """Tokens that prompt and action may have together. Asks the server once, and blocks for it."""
        if self._max_length is None:
            try:
                response = httpx.get(
                    self.base_url + _MODELS, headers=self._headers, timeout=self.config.connect_timeout_s
                )
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            self._max_length = self._read_models(response)
        return self._max_length

    async def ready(self, num_retries: int | None = None) -> None:
        """Raise `EngineError` unless the server answers and serves the model."""
        length = self._read_models(await self._send("GET", _MODELS, num_retries=num_retries))
        if self._max_length is None:
            self._max_length = length

    async def is_ready(self) -> bool:
        """Whether the server could be asked for an action now."""
        try:
            await self.ready(num_retries=0)
        except EngineError:
            return False
        return True

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order. Cancelling the task cancels the requests."""
        if not requests:
            return []
        replies = [await self._begin(request) for request in requests]
        first = await self._read_version()
        await _all([self._complete(reply) for reply in replies])
        span = VersionSpan(first, await self._read_version())
        return [reply.sampled(span) for reply in replies]

    async def stream(self, request: Request) -> AsyncIterator[SampledToken | Sampled]:
        """Each token as the server sends it, then the sample. Closing the iterator cancels the request."""
        reply = await self._begin(request)
        first = await self._read_version()
        async with (
            self._open("POST", _COMPLETIONS, self._body(reply, stream=True)) as response,
            aclosing(_chunks(response)) as chunks,
        ):
            async for chunk in chunks:
                for token in reply.add(chunk):
                    yield token
        yield reply.sampled(VersionSpan(first, await self._read_version()))

    async def aclose(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    async def __aenter__(self) -> RemoteEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _begin(self, request: Request) -> Reply:
        """Refuse what cannot be served as asked; otherwise everything about the request is settled here."""
        state, params = request.state, request.params
        if not isinstance(state, TokenState):
            raise InputError("state: a remote engine samples from TokenState, not from arrays")
        if state.images:
            raise InputError(
                "state.images: this engine sends token ids only; serve images with another engine"
            )
        if params.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer; give the engine one, or use stop_ids")
        if self._max_length is None:
            await self.ready()
            assert self._max_length is not None
        room = self._max_length - len(state.prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"prompt_ids has {len(state.prompt_ids)} tokens and the context holds {self._max_length}, "
                "which leaves no room for an action; shorten the history or serve with a longer context"
            )
        await self._check_mode(request)
        seed = int(self._seeds.integers(2**63)) if params.seed is None else params.seed
        return Reply(request, seed, min(params.max_tokens, room), self.tokenizer)

    async def _check_mode(self, request: Request) -> None:
        params = request.params
        needed = completions.logprobs_needed(params.temperature, params.top_p)
        if needed is None:
            return
        if self._mode is None:
            asked = [completions.probe(request, self.model, t) for t in (0.0, PROBE_TEMPERATURE)]
            cold, hot = [await self._post(body) for body in asked]
            self._mode = completions.mode_of(cold, hot)
        if needed != self._mode:
            raise InputError(
                f"temperature {params.temperature} with top_p {params.top_p} needs {needed} logprobs, and "
                f"the server returns {self._mode} ones; start it with --logprobs-mode {needed}_logprobs, or "
                "sample at temperature=1 and top_p=1"
            )

    def _body(self, reply: Reply, stream: bool) -> dict[str, Any]:
        return completions.payload(reply.request, self.model, reply.seed, reply.max_tokens, stream)

    async def _complete(self, reply: Reply) -> None:
        for _ in reply.add(await self._post(self._body(reply, stream=False))):
            pass

    async def _post(self, body: dict[str, Any]) -> Any:
        return _json(await self._send("POST", _COMPLETIONS, body))

    async def _read_version(self) -> int:
        path = self.config.version_path
        if path:
            data = _json(await self._send("GET", "/" + path.lstrip("/")))
            value = data.get("weight_version", data.get("version")) if isinstance(data, dict) else None
            if isinstance(value, bool) or not str(value).isdecimal():
                raise EngineError(
                    f"version_path {path} tells the version {value!r}; it must be a whole number"
                )
            self._version = max(self._version, int(str(value)))  # versions only go up
        return self._version

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> httpx.Response:
        async with self._open(method, path, body, num_retries) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A response whose status is good; its body is still to be read."""
        retries = self.config.num_retries if num_retries is None else num_retries
        response = await self._attempt(method, path, body, retries)
        try:
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            yield response
        except httpx.HTTPError as error:
            raise EngineError(
                f"the connection to {self.base_url} broke while it answered ({error!r}); is the server alive?"
            ) from error
        finally:
            await response.aclose()

    async def _attempt(
        self, method: str, path: str, body: dict[str, Any] | None, num_retries: int
    ) -> httpx.Response:
        """The server's first answer that is not "try later", after as many attempts as allowed."""
        client = self._client_here()
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
                    raise self._unreachable(error) from error
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            await asyncio.sleep(self.config.backoff_s * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _client_here(self) -> httpx.AsyncClient:
        """The client of the running event loop; a new loop gets a new one."""
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
        """The context length of our model, from the server's list."""
        if response.status_code != 200:
            raise self._refusal(response)
        data = _json(response)
        cards = {card["id"]: card for card in data["data"]} if _is_list(data) else {}
        if self.model not in cards:
            raise EngineError(
                f"{self.base_url} does not serve {self.model!r}; it serves {', '.join(cards) or 'nothing'}"
            )
        length = self.config.max_length or cards[self.model].get("max_model_len")
        if not isinstance(length, int) or length < 2:
            raise EngineError(f"{self.base_url} does not tell its context length; set max_length")
        return length

    def _refusal(self, response: httpx.Response) -> Exception:
        """What a status other than 200 means to our caller."""
        try:
            words = completions.error_text(response.json())
        except ValueError:
            words = response.text[:300]
        status, where = response.status_code, f"{self.base_url} answered {response.status_code}"
        if status in (400, 413, 422):
            return InputError(f"{where}, it refuses the request: {words}")
        if status in (401, 403):
            return EngineError(f"{where}: set api_key_env to a variable that holds its key ({words})")
        if status == 404:
            return EngineError(f"{where}: does it serve {self.model!r} at {_COMPLETIONS}? ({words})")
        return EngineError(f"{where}: {words or 'no reason given'}; look at the server's log")

    def _unreachable(self, error: Exception) -> EngineError:
        if isinstance(error, httpx.ReadTimeout):
            return EngineError(
                f"{self.base_url} was silent for timeout_s={self.config.timeout_s}; raise it, or look "
                "whether the server is overloaded"
            )
        return EngineError(
            f"no answer from {self.base_url} ({error!r}); start the server or correct base_url"
        )


def _authorization(api_key: str | None, variable: str) -> dict[str, str]:
    if api_key is None and variable:
        api_key = os.environ.get(variable)
        if not api_key:
            raise ConfigError(f"api_key_env names {variable}, which is not set")
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


async def _all(coroutines: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _chunks(response: httpx.Response) -> AsyncIterator[Any]:
    """The JSON of every server-sent event until the one that says done."""
    async with aclosing(response.aiter_lines()) as lines:
        async for line in lines:
            if not line.startswith("data:"):
                continue
            data = line[len("data:") :].strip()
            if data == "[DONE]":
                return
            try:
                chunk = json.loads(data)
            except ValueError:
                raise EngineError(f"the server streams something that is no JSON: {data[:200]!r}") from None
            yield chunk
    raise EngineError("the server's stream ended before it was done; is the server alive?")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise EngineError(f"the server's reply is no JSON: {response.text[:200]!r}") from None


def _is_list(data: Any) -> bool:
    """Whether this is a list of models as OpenAI's API has it."""
    cards = data.get("data") if isinstance(data, dict) else None
    return isinstance(cards, list) and all(isinstance(card, dict) and "id" in card for card in cards)
