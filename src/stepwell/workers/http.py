"""Workers on other machines: the same frames over HTTP.

    client: frame ─► POST /call ─► create_worker_app: WorkerProcess.call ─► frame

The app hosts a worker process, with its heartbeat and its restarts, and passes frames on. The machine that
runs the app decides what it hosts; a caller cannot. The client is a `WorkerChannel`: simulators and
generators behind it are those of `clients.py`. Bodies are frames with checksums.

    GET  /worker   what is hosted, and its state
    POST /call     a frame in, a frame out

Invariants
* A body larger than `max_body_bytes` is never kept, whether it states its length or not.
* Errors keep their kind: what the worker raises is an `error` frame with status 200. Errors of the HTTP call
  itself have their own status and one sentence as JSON.
* A call is sent once. Whether a lost call was executed is unknown, so it is a `WorkerError`, and the episode
  begins again.
* No call waits for a machine that is gone. Its state is requested every `heartbeat_s`; after `hang_s` without
  an answer, all pending calls raise `WorkerError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from stepwell.core import JSON, ConfigError, EncodingError, StepwellError, WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame, decode, to_bytes
from stepwell.envs.codecs import pack_error, unpack_error
from stepwell.workers.clients import GeneratorClient, SimulatorClient
from stepwell.workers.contracts import WorkerHealth
from stepwell.workers.worker_process import WorkerProcess

MAX_BODY_BYTES = 1 << 34
_TYPE = "application/vnd.stepwell.frame"


def create_worker_app(
    worker: WorkerProcess,
    *,
    describes: dict[str, JSON] | None = None,
    key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Any:
    """An ASGI app that passes calls on to a worker. With `key`, callers must send it as a bearer token.

    `describes` is what callers can read about it: `num_batches` and `batch_size` of a simulator.
    """
    try:
        from fastapi import FastAPI, HTTPException
        from fastapi.responses import JSONResponse, Response
    except ImportError as error:
        raise ConfigError(
            "workers over HTTP need the extra 'serve': pip install 'stepwell[serve]'"
        ) from error

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await worker.close()

    app = FastAPI(title="Stepwell worker", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def check_key(request: Any) -> None:
        given = request.headers.get("authorization", "")
        if key is not None and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise HTTPException(401, "this worker needs its key as 'Authorization: Bearer KEY'")

    async def read_body(request: Any) -> bytes:
        body, stated = bytearray(), request.headers.get("content-length", "0")
        is_too_large = stated.isdigit() and int(stated) > max_body_bytes
        parts = request.stream()
        while not is_too_large:
            try:
                body += await anext(parts)
            except StopAsyncIteration:
                return bytes(body)
            is_too_large = len(body) > max_body_bytes
        raise HTTPException(413, f"the body is larger than {max_body_bytes} bytes; send less at once")

    async def show_worker(request: Any) -> Response:
        check_key(request)
        health = worker.read_health()
        state = {name: getattr(health, name) for name in WorkerHealth.__slots__}
        return JSONResponse({"worker": describes or {}, "health": state})

    async def call(request: Any) -> Response:
        check_key(request)
        try:
            frame = decode(await read_body(request))
        except EncodingError as error:
            raise HTTPException(400, str(error)) from error
        try:
            answer = await worker.call(frame.op, frame.header, frame.arrays)
        except StepwellError as error:
            answer = Frame("error", {"error": pack_error(error)})
        return Response(to_bytes(answer), media_type=_TYPE)

    app.router.add_route("/worker", show_worker, methods=["GET"])
    app.router.add_route("/call", call, methods=["POST"])
    return app


class HttpChannel:
    """Carries calls to a worker behind `create_worker_app`. `transport` is that of httpx, for tests."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key: str | None = None,
        connect_timeout_s: float = 5.0,
        heartbeat_s: float = 5.0,
        hang_s: float = 60.0,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigError(
                "workers over HTTP need the extra 'serve': pip install 'stepwell[serve]'"
            ) from error
        self.name, self.url = name, url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._http_error = httpx.HTTPError
        self._heartbeat_s, self._hang_s = heartbeat_s, hang_s
        self._pending: set[asyncio.Task[Any]] = set()
        self._last: dict[str, Any] = {}
        self._last_s = time.monotonic()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and read what the worker hosts."""
        await self.describe_worker()

    async def describe_worker(self) -> dict[str, Any]:
        """The worker's description of itself."""
        response = await self._request("GET", "/worker")
        found: dict[str, Any] = response.json()
        self._note_health(found["health"])
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_health(), name=f"health of {self.name}")
        return dict(found["worker"])

    async def call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[AnyArray] = (),
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """The worker's answer."""
        if self._watching is None:
            await self.describe_worker()
        body = to_bytes(Frame(op, header, arrays))
        request = asyncio.create_task(
            self._request("POST", "/call", content=body, headers={"content-type": _TYPE})
        )
        self._pending.add(request)
        try:
            async with asyncio.timeout(timeout_s):
                response = await request
        except TimeoutError:
            raise WorkerError(f"worker {self.name} took longer than {timeout_s:g} s for {op}") from None
        except asyncio.CancelledError:
            if request in self._pending:  # the caller of this call was cancelled
                raise
            raise WorkerError(
                f"worker {self.name} at {self.url} gave no sign of life for {self._hang_s:g} s"
            ) from None
        finally:
            self._pending.discard(request)
        try:
            answer = decode(response.content)
        except EncodingError as error:
            raise WorkerError(
                f"worker {self.name} at {self.url} sent an answer that is not a frame: {error}"
            ) from error
        if answer.op == "error":
            raise unpack_error(answer.header.get("error"), WorkerError)
        return answer

    def read_health(self) -> WorkerHealth:
        """The state that the worker reported last."""
        last, silent_s = self._last, time.monotonic() - self._last_s
        return WorkerHealth(
            self.name,
            last.get("pid"),
            float(last.get("memory_mb", 0.0)),
            int(last.get("num_restarts", 0)),
            bool(last) and silent_s < 3 * self._heartbeat_s,
            silent_s if last else 0.0,
        )

    async def close(self) -> None:
        """Close the connections. The worker itself keeps running."""
        if self._watching is not None and not self._watching.done():
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._client.aclose()

    async def _request(self, method: str, path: str, **more: Any) -> Any:
        try:
            response = await self._client.request(method, path, **more)
        except self._http_error as error:
            why = str(error) or type(error).__name__
            raise WorkerError(f"worker {self.name} at {self.url} cannot be reached: {why}") from error
        if response.status_code == 401:
            raise ConfigError(f"worker {self.name} at {self.url}: {response.json()['detail']}")
        if response.status_code != 200:
            text = response.text[:500]
            raise WorkerError(f"worker {self.name} at {self.url} answered {response.status_code}: {text}")
        return response

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            with contextlib.suppress(WorkerError):  # `read_health` shows its silence
                response = await self._request("GET", "/worker", timeout=self._heartbeat_s)
                self._note_health(response.json()["health"])
            if time.monotonic() - self._last_s > self._hang_s:
                while self._pending:
                    self._pending.pop().cancel()

    def _note_health(self, health: dict[str, Any]) -> None:
        self._last, self._last_s = health, time.monotonic()


async def connect_simulator(
    name: str, url: str, *, timeout_s: float | None = None, **connection: Any
) -> SimulatorClient:
    """A `Simulator` behind HTTP. `connection` takes the options of `HttpChannel`."""
    channel = HttpChannel(name, url, **connection)
    try:
        found = await channel.describe_worker()
        if "num_batches" not in found or "batch_size" not in found:
            raise ConfigError(f"the worker at {url} is not a simulator; it describes itself as {found}")
    except StepwellError:
        await channel.close()
        raise
    return SimulatorClient(channel, int(found["num_batches"]), int(found["batch_size"]), timeout_s=timeout_s)


def connect_generator(
    name: str, url: str, *, timeout_s: float | None = None, **connection: Any
) -> GeneratorClient:
    """A `Generator` behind HTTP. `connection` takes the options of `HttpChannel`."""
    return GeneratorClient(HttpChannel(name, url, **connection), timeout_s)
