"""Workers on other machines: the same frames over HTTP, for machines without Ray.

    WorkerProcess ─► HttpLauncher.launch_worker ─► POST /workers              (services/worker_host.py)
                         └─► HttpLink.call ─► POST /workers/ID/call ─► the process of that host

Bodies are frames with checksums. The host decides which environments and models it loads.

Invariants
* A call is sent once. Whether a lost call was executed is unknown, so the worker is given up and started
  again, and its episodes begin again.
* No call waits for a machine that is gone: its state is requested every `heartbeat_s`, and after `hang_s`
  without an answer the worker is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepwell.core import ConfigError, EncodingError, WorkerError
from stepwell.core.api_keys import read_key
from stepwell.core.frames import Frame, decode, to_bytes
from stepwell.workers.remote_link import LinkLostError, RemoteLink
from stepwell.workers.shared_memory import LARGE_BYTES

DEFAULT_PORT = 8096
KEY_VARIABLE = "STEPWELL_WORKER_KEY"
CONTENT_TYPE = "application/vnd.stepwell.frame"
_CONNECT_S = 5.0


def find_host_url(host: str, hosts: dict[str, str]) -> str:
    """The URL of a host: as `workers.hosts` says, else plain HTTP on the usual port."""
    return hosts.get(host, f"http://{host}:{DEFAULT_PORT}").rstrip("/")


def open_client(url: str, *, transport: Any = None) -> Any:
    """A client with the key of the environment. `transport` is that of httpx, for tests."""
    try:
        import httpx
    except ImportError as error:
        raise ConfigError(
            "workers over HTTP need the extra 'serve': pip install 'stepwell[serve]'"
        ) from error
    key = read_key(KEY_VARIABLE)
    return httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=None),
        transport=transport,
    )


async def read_host(host: str) -> dict[str, Any]:
    """What a machine that serves workers reports about itself. `host` is its name or URL."""
    url = host if "://" in host else find_host_url(host, {})
    async with open_client(url) as client:
        try:
            response = await _request(client, "GET", "/workers", timeout_s=_CONNECT_S)
        except (LinkLostError, ConnectionError) as error:
            raise WorkerError(f"{url} {error}; start it with `stepwell serve worker`") from error
        found: dict[str, Any] = response.json()
        return found


@dataclass(frozen=True, slots=True)
class HttpLauncher:
    """Starts workers on a machine that serves them, on one of its devices."""

    url: str
    device: str
    heartbeat_s: float = 5.0
    transport: Any = None

    async def launch_worker(self, name: str, number: int, on_lost: Callable[[Any], None]) -> HttpLink:
        """A process of that machine that waits for its first frame."""
        client = open_client(self.url, transport=self.transport)
        try:
            response = await _request(client, "POST", "/workers", json={"name": name, "device": self.device})
        except (LinkLostError, ConnectionError) as error:
            await client.aclose()
            raise WorkerError(f"worker {name} cannot be started at {self.url}: {error}") from error
        except ConfigError:
            await client.aclose()
            raise
        return HttpLink(
            name, number, client, response.json()["id"], heartbeat_s=self.heartbeat_s, on_lost=on_lost
        )


class HttpLink(RemoteLink):
    """A worker process of another machine and the calls to it."""

    def __init__(self, name: str, number: int, client: Any, id: str, **more: Any) -> None:
        self._client, self._path = client, f"/workers/{id}"
        self.place = f"at {client.base_url}"
        super().__init__(name, number, **more)

    async def send_frame(self, frame: Frame) -> Frame:
        """The answer to a frame."""
        is_large = sum(array.nbytes for array in frame.arrays) > LARGE_BYTES
        body = await asyncio.to_thread(to_bytes, frame) if is_large else to_bytes(frame)
        response = await _request(
            self._client, "POST", f"{self._path}/call", content=body, headers={"content-type": CONTENT_TYPE}
        )
        try:
            return decode(response.content)
        except EncodingError as error:
            raise LinkLostError(f"sent an answer that is not a frame: {error}") from error

    async def fetch_state(self) -> dict[str, Any]:
        """What the host says of it."""
        found: dict[str, Any] = (await _request(self._client, "GET", self._path, timeout_s=_CONNECT_S)).json()
        return found

    async def destroy(self) -> None:
        """Ask the host to end it. A host that is not reached ends it after its own silence limit."""
        try:
            await _request(self._client, "DELETE", self._path, timeout_s=_CONNECT_S)
        except LinkLostError:  # it has ended already
            return
        finally:
            await self._client.aclose()


async def _request(
    client: Any, method: str, path: str, *, timeout_s: float | None = None, **more: Any
) -> Any:
    """A response with status 200. What the host refuses for good is a `ConfigError`."""
    import httpx

    try:
        async with asyncio.timeout(timeout_s):
            response = await client.request(method, path, **more)
    except (httpx.HTTPError, TimeoutError) as error:
        raise ConnectionError(f"cannot be reached: {str(error) or type(error).__name__}") from error
    if response.status_code == 200:
        return response
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = response.text[:500]
    if response.status_code in (400, 401, 403):
        hint = f" (the key is read from {KEY_VARIABLE})" if response.status_code == 401 else ""
        raise ConfigError(f"the host at {client.base_url} refuses: {detail}{hint}")
    raise LinkLostError(f"was lost: {detail}")
