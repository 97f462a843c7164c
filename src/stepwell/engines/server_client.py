"""HTTP to one inference server: attempts, time limits, and errors that say what to do.

A request is repeated only where that counts nothing twice and selects nothing: no connection, "try later"
(429, 503), or a connection lost before the first byte of the answer. After a silence longer than `timeout_s`
there is no new attempt: it would favour short actions. A server that is gone raises `ServerLostError`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.api_keys import read_key
from stepwell.core.errors import ConfigError, EngineError, InputError, ServerLostError
from stepwell.engines.completions import find_error_text

try:
    import httpx
except ImportError as error:  # pragma: no cover - the test environment has it
    raise ConfigError("a remote engine needs httpx: pip install 'stepwell[serve]'") from error

Response = httpx.Response
T = TypeVar("T")

_TRY_LATER = (429, 503)
_LOST = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.RemoteProtocolError,
    httpx.ReadError,
    httpx.WriteError,
)


class ServerClient:
    """Sends requests to one server. `model` is only used in messages."""

    def __init__(
        self, base_url: str, config: RemoteEngineConfig, *, api_key: str | None = None, model: str = ""
    ) -> None:
        self.config, self.model = config, model
        self.sampling_path = "/v1/completions"
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must start with http:// or https://, got {base_url!r}")
        self.headers = _build_headers(api_key, config.api_key_env)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def send_request(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> Response:
        """The whole response; a status other than 200 is an error."""
        async with self.open_response(method, path, body, num_retries) as response:
            await response.aread()
            return response

    async def send_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> Any:
        """The content of a response that must be JSON."""
        return parse_json(await self.send_request(method, path, body, num_retries))

    async def read_status(self, path: str, body: dict[str, Any] | None = None) -> int:
        """The status of a GET request, or of a POST request with this body."""
        method = "GET" if body is None else "POST"
        response = await self._attempt_request(method, path, body, self.config.max_retries)
        await response.aclose()
        return response.status_code

    def get_blocking(self, path: str) -> Response:
        """A response, whatever its status, for callers without an event loop."""
        try:
            return httpx.get(
                self.base_url + path, headers=self.headers, timeout=self.config.connect_timeout_s
            )
        except httpx.HTTPError as error:
            raise self._explain_unreachable(error) from error

    async def aclose(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client[1].aclose()
            self._client = None

    @asynccontextmanager
    async def open_response(
        self, method: str, path: str, body: dict[str, Any] | None = None, num_retries: int | None = None
    ) -> AsyncIterator[Response]:
        """Open a response with status 200; its body is not read yet."""
        retries = self.config.max_retries if num_retries is None else num_retries
        response = await self._attempt_request(method, path, body, retries)
        try:
            if response.status_code != 200:
                await response.aread()
                raise self.explain_refusal(response)
            yield response
        except httpx.HTTPError as error:
            raise ServerLostError(
                f"the connection to {self.base_url} broke mid-answer ({error!r}); is the server running?"
            ) from error
        finally:
            await response.aclose()

    async def _attempt_request(
        self, method: str, path: str, body: dict[str, Any] | None, num_retries: int
    ) -> Response:
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
            headers = {"Content-Type": "application/json", **self.headers}
            client = httpx.AsyncClient(
                base_url=self.base_url,
                headers=headers,
                limits=limits,
                timeout=timeout,
                verify=self.base_url.startswith("https"),  # reading certificates takes long
            )
            self._client = (loop, client)
        return self._client[1]

    def explain_refusal(self, response: Response) -> Exception:
        """Turn a status other than 200 into an error for our caller."""
        try:
            words = find_error_text(response.json())
        except ValueError:
            words = response.text[:300]
        status, where = response.status_code, f"{self.base_url} answered {response.status_code}"
        if status in (400, 413, 422):
            return InputError(f"{where}: it refuses the request: {words}")
        if status in (401, 403):
            return EngineError(f"{where}: set api_key_env to a variable that contains its key ({words})")
        if status == 404:
            return EngineError(f"{where}: does it serve {self.model!r} at {self.sampling_path}? ({words})")
        return EngineError(f"{where}: {words or 'no reason given'}; look at the server's log")

    def _explain_unreachable(self, error: Exception) -> EngineError:
        if isinstance(error, httpx.ReadTimeout):
            return EngineError(
                f"{self.base_url} did not respond within timeout_s={self.config.timeout_s}; raise it, or "
                "check whether the server is overloaded"
            )
        return ServerLostError(
            f"no answer from {self.base_url} ({error!r}); start the server or correct base_url"
        )


def _build_headers(api_key: str | None, variable: str) -> dict[str, str]:
    if api_key is None and variable:
        api_key = read_key(variable)
        if not api_key:
            raise ConfigError(f"api_key_env names {variable}, which is not set")
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def parse_json(response: Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise EngineError(f"the server's reply is not JSON: {response.text[:200]!r}") from None


async def gather_all(coroutines: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order; the first failure cancels the rest and is raised unchanged."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
