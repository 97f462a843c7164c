"""Client of an OpenAI-compatible chat API: calls are paced, retried and counted.

    complete(body, read) ─► gate ─► ┌ pace ─► post ──► read ──┐ ─► the result of `read`
                                    └── wait ◄─ NoAnswerError ┘ ─► raised after the last retry

* `NoAnswerError`: a retry may help (429, 5xx, timeout, no connection, an answer that `read` refuses).
  The wait doubles each time and is never shorter than the server asks for, up to a minute.
* `ChatRefusedError`: a retry would not help: a wrong key, model, path or body.

The judge and evaluations of outside models share it. The key is sent in a header and nowhere else.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from stepwell.config.base import check_url
from stepwell.core.api_keys import read_key
from stepwell.core.errors import ConfigError, StepwellError

LONGEST_WAIT_S = 60.0
_PASSING = {408, 409, 425, 429}
_SPENT = "insufficient_quota"  # arrives as a 429, but waiting does not help
T = TypeVar("T")


class CallSettings(Protocol):
    """The settings of a client; `EndpointConfig` and `ChatApiConfig` have them."""

    @property
    def url(self) -> str | None: ...
    @property
    def key_variable(self) -> str: ...
    @property
    def max_concurrent(self) -> int: ...
    @property
    def rate_per_s(self) -> float: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def max_retries(self) -> int: ...
    @property
    def backoff_s(self) -> float: ...


@dataclass(slots=True)
class CallCounts:
    """Calls and tokens so far."""

    num_calls: int = 0
    num_retries: int = 0
    num_unreadable: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class NoAnswerError(StepwellError):
    """A call got no usable answer, but a retry may; `wait_s` is the wait that the server asked for."""

    def __init__(self, reason: str, wait_s: float = 0.0, *, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.wait_s, self.is_unreachable = wait_s, is_unreachable


class ChatRefusedError(StepwellError):
    """The server refused a call: its status and message."""

    def __init__(self, status: int, words: str, code: str = "") -> None:
        super().__init__(f"refused with {status}: {words!r}")
        self.status, self.words, self.code = status, words, code


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The first choice of a completion, and its tokens."""

    message: dict[str, Any]
    finish: str
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def text(self) -> str | None:
        """The text of the message; None if it has none."""
        content = self.message.get("content")
        if isinstance(content, list):
            pieces = [part.get("text") for part in content if isinstance(part, dict)]
            return "".join(piece for piece in pieces if isinstance(piece, str))
        return content if isinstance(content, str) else None


class ChatClient:
    """A connection to one API; open it with `async with`."""

    def __init__(self, config: CallSettings, counts: CallCounts) -> None:
        try:
            check_url(config.url)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.config, self.counts = config, counts
        self._next_call_s = 0.0

    async def __aenter__(self) -> Self:
        try:
            import httpx
        except ImportError as error:  # pragma: no cover - the test environment has it
            raise ConfigError("chat APIs need httpx: pip install 'stepwell[serve]'") from error

        key = read_key(self.config.key_variable)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=min(self.config.timeout_s, 10.0)),
            headers={"authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.config.max_concurrent),
        )
        self._gate = asyncio.Semaphore(self.config.max_concurrent)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self,
        body: dict[str, Any],
        read: Callable[[ChatReply], T],
        *,
        may_ask: Callable[[], None] = lambda: None,
        must_be_there: bool = False,
    ) -> T:
        """The result of `read` for the answer. `may_ask` is called before every try, and may raise.

        With `must_be_there`, an unreachable address is not tried again.
        """
        wait_s, most = self.config.backoff_s, self.config.max_retries
        async with self._gate:
            for tried in range(most + 1):
                may_ask()
                try:
                    await self._wait_for_turn()
                    return read(await self._post_request(body))
                except NoAnswerError as failure:
                    if tried == most or (must_be_there and failure.is_unreachable):
                        raise
                    self.counts.num_retries += 1
                    await asyncio.sleep(max(wait_s, min(failure.wait_s, LONGEST_WAIT_S)))
                    wait_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _wait_for_turn(self) -> None:
        """Wait until the rate limit allows this call."""
        if not self.config.rate_per_s:
            return
        now = time.monotonic()
        turn = max(now, self._next_call_s)
        self._next_call_s = turn + 1 / self.config.rate_per_s
        await asyncio.sleep(turn - now)

    async def _post_request(self, body: dict[str, Any]) -> ChatReply:
        import httpx

        self.counts.num_calls += 1
        url = f"{str(self.config.url).rstrip('/')}/chat/completions"
        try:
            async with asyncio.timeout(self.config.timeout_s):  # for the whole call, even if data trickles in
                response = await self._http.post(url, json=body)
        except TimeoutError as error:
            raise NoAnswerError(f"silent for timeout_s={self.config.timeout_s:g}") from error
        except httpx.InvalidURL as error:
            raise ConfigError(f"url: {self.config.url!r} is not an address ({error})") from error
        except httpx.HTTPError as error:
            lost = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
            raise NoAnswerError(f"{type(error).__name__} {error}".strip(), is_unreachable=lost) from error
        if response.status_code != 200:
            raise _make_error(response.status_code, response.text, response.headers.get("retry-after"))
        return self._parse_response(response)

    def _parse_response(self, response: Any) -> ChatReply:
        try:
            parsed = response.json()
            choice = parsed["choices"][0]
            message = dict(choice["message"])
            usage = parsed.get("usage") or {}
            spent = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            self.counts.num_unreadable += 1
            raise NoAnswerError("the reply is not a chat completion") from error
        self.counts.prompt_tokens += spent[0]
        self.counts.completion_tokens += spent[1]
        return ChatReply(message, str(choice.get("finish_reason") or ""), *spent)


async def gather_calls(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls that run at once, in order. The first failure stops the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


def run_to_end(batch: Coroutine[Any, Any, T]) -> T:
    """The result of `batch`. A caller inside an event loop, such as a notebook, waits as well."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(batch)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, batch).result()


def _make_error(status: int, text: str, retry_after: str | None) -> NoAnswerError | ChatRefusedError:
    words, code = _parse_error_body(text)
    if (status in _PASSING or status >= 500) and code != _SPENT:
        return NoAnswerError(
            f"status {status}" + (f", {words}" if words else ""), parse_retry_after(retry_after)
        )
    return ChatRefusedError(status, words, code)


def _parse_error_body(text: str) -> tuple[str, str]:
    """Message and code of an error body, in any of the usual forms."""
    try:
        error = json.loads(text)
    except ValueError:
        return text[:300].strip(), ""
    error = error.get("error", error) if isinstance(error, dict) else error
    if not isinstance(error, dict):
        return str(error)[:300], ""
    said = error.get("message") or error.get("detail") or error
    return str(said)[:300], str(error.get("code") or "")


def parse_retry_after(text: str | None) -> float:
    """Seconds from a `Retry-After` header (seconds or a date); 0 if it is neither."""
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return _count_seconds_until(text or "")


def _count_seconds_until(date: str) -> float:
    try:
        return max(email.utils.parsedate_to_datetime(date).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return 0.0
