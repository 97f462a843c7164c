"""The worker service: a machine that runs simulators and generators for training runs elsewhere.

GET    /workers          the machine: its devices, what it may load, the caller's workers
POST   /workers          room for a worker on a device; its process starts with its first frame
GET    /workers/ID       its state: the caller's sign of life, too
POST   /workers/ID/call  one frame in, one frame out; the first says what to build (`worker_checks.py`)
DELETE /workers/ID       end it
GET    /health           is the service running

A worker is one process, started once. The caller (`workers/http_link.py`) starts the next one.

Invariants
* A caller sees and calls its own workers only.
* A worker whose caller is silent for `lease_s` is ended: a run that died leaves nothing.
* What a worker raises is an `error` frame with status 200. A worker that is gone is status 404 with how it
  ended. The guard (`guard.py`) checks keys, hosts and sizes as for every service.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stepwell import __version__
from stepwell.config.worker_service import WorkerServiceConfig
from stepwell.core import EncodingError, StepwellError, WorkerError
from stepwell.core.child_process import limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.core.frames import Frame, decode, to_bytes
from stepwell.core.ids import make_id
from stepwell.envs.codecs import pack_error
from stepwell.envs.registry import ENVS
from stepwell.services.access_log import AccessLog
from stepwell.services.envs.app import handle_error, make_json_response, write_error
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.guard import Guard
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import KeyRing
from stepwell.services.limits import ServiceLimits
from stepwell.services.worker_checks import check_first_frame
from stepwell.workers.http_link import CONTENT_TYPE
from stepwell.workers.placement import list_devices
from stepwell.workers.worker_connection import ProcessLauncher, WorkerConnection
from stepwell.workers.worker_process import SIMULATOR_MODULES

_HEARTBEAT_S, _CLOSE_S = 1.0, 2.0


@dataclass(eq=False)
class HostedWorker:
    """A process of this machine that works for a caller."""

    id: str
    owner: str
    name: str
    device: str
    kind: str = ""  # until its first frame, as the link
    link: WorkerConnection | None = None
    num_pending: int = 0
    seen_s: float = field(default_factory=time.monotonic)

    def describe(self) -> dict[str, Any]:
        """What its caller, and `stepwell cluster status`, may read."""
        link = self.link
        pid, memory_mb, silent_s = (None, 0.0, 0.0) if link is None else link.read_state()
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "device": self.device,
            "pid": pid,
            "memory_mb": memory_mb,
            "silent_s": silent_s,
            "stuck_s": 0.0 if link is None else link.heartbeat.stuck_s,
            "num_pending": self.num_pending,
        }


class WorkerHost:
    """The workers of this machine."""

    def __init__(self, config: WorkerServiceConfig) -> None:
        self.config = config
        self.devices = config.devices or tuple(list_devices())
        self._workers: dict[str, HostedWorker] = {}
        self._ended: dict[str, HostedWorker] = {}  # the last that ended by themselves, to say how
        self._reaping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for silent callers from now on."""
        self._reaping = asyncio.create_task(self._end_silent())

    async def stop(self) -> None:
        """End every worker."""
        if self._reaping is not None:
            self._reaping.cancel()
        await asyncio.gather(*(self.end_worker(worker) for worker in list(self._workers.values())))

    def describe(self, owner: str) -> dict[str, Any]:
        """The machine, and the workers of one caller."""
        config = self.config
        return {
            "devices": list(self.devices),
            "envs": list(config.envs or ENVS),
            "models": list(config.models),
            "num_workers": len(self._workers),
            "max_workers": config.max_workers,
            "version": __version__,
            "workers": [worker.describe() for worker in self._workers.values() if worker.owner == owner],
        }

    def create(self, owner: str, name: str, device: str) -> HostedWorker:
        """Keep room for a worker."""
        if device not in self.devices:
            here = ", ".join(self.devices)
            raise ServiceError(ErrorKind.FORBIDDEN, f"there is no {device[:64]!r} here; this host has {here}")
        if len(self._workers) >= self.config.max_workers:
            raise ServiceError(
                ErrorKind.UNAVAILABLE, f"the host runs {len(self._workers)} workers already (max_workers)"
            )
        id = make_id("worker")
        self._workers[id] = HostedWorker(id, owner, name, device)
        return self._workers[id]

    async def _build(self, worker: HostedWorker, frame: Frame) -> Frame:
        """Start its process and build what its first frame says, as far as this host allows."""
        if worker.kind:
            raise ServiceError(ErrorKind.CONFLICT, "the worker is being built; wait for its first answer")
        kind, _, index = worker.device.partition(":")
        checked = await asyncio.to_thread(
            check_first_frame, self.config, "cuda:0" if kind == "cuda" else worker.device, frame
        )
        worker.kind = frame.op
        threads = 1 if worker.kind == "simulator" else self.config.num_threads
        variables = {**os.environ, **(limit_threads(threads) if threads else {})}
        if kind == "cuda":
            variables["CUDA_VISIBLE_DEVICES"] = index or "0"
        imports = SIMULATOR_MODULES if worker.kind == "simulator" else MODEL_MODULES
        launcher = ProcessLauncher(variables, imports, _HEARTBEAT_S)
        worker.link = await launcher.launch_worker(worker.name, 1, lambda _: self._forget(worker.id))
        return await worker.link.call(checked)

    async def find(self, owner: str, id: str) -> HostedWorker:
        """The worker of that id; reading counts as a sign of life."""
        worker = self._workers.get(id) or self._ended.get(id)
        if worker is None or worker.owner != owner:
            raise ServiceError(ErrorKind.NOT_FOUND, f"there is no worker {id[:64]!r}; it may have ended")
        if id in self._ended and worker.link is not None:
            raise ServiceError(ErrorKind.NOT_FOUND, str(await worker.link.end()))
        worker.seen_s = time.monotonic()
        return worker

    async def call(self, worker: HostedWorker, frame: Frame) -> Frame:
        """The answer to a frame."""
        worker.num_pending += 1
        try:
            if worker.link is None:
                return await self._build(worker, frame)
            return await worker.link.call(frame)
        except StepwellError as error:
            if isinstance(error, WorkerError) and (worker.link is None or worker.link.is_over):
                raise ServiceError(ErrorKind.NOT_FOUND, str(error)) from error
            if isinstance(error, ServiceError):  # refused for good: the worker itself runs
                raise ServiceError(ErrorKind.FORBIDDEN, error.message, param=error.param) from error
            return Frame("error", {"error": pack_error(error)})
        finally:
            worker.num_pending -= 1
            worker.seen_s = time.monotonic()

    async def end_worker(self, worker: HostedWorker) -> None:
        """End its process."""
        self._workers.pop(worker.id, None)
        if worker.link is not None:
            await worker.link.end(grace_s=_CLOSE_S)

    def _forget(self, id: str) -> None:
        """Its process has ended by itself."""
        worker = self._workers.pop(id, None)
        if worker is not None:
            while len(self._ended) >= self.config.max_workers:
                del self._ended[next(iter(self._ended))]
            self._ended[id] = worker

    async def _end_silent(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_s / 4)
            now = time.monotonic()
            for worker in list(self._workers.values()):
                if not worker.num_pending and now - worker.seen_s > self.config.lease_s:
                    await self.end_worker(worker)


def create_worker_host_app(config: WorkerServiceConfig | None = None) -> FastAPI:
    """The application. Stopping it ends its workers."""
    config = config or WorkerServiceConfig()
    host = WorkerHost(config)
    log = AccessLog(config.access_log) if config.access_log is not None else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        host.start()
        yield
        await host.stop()
        if log is not None:
            log.close()

    app = FastAPI(
        title="Stepwell workers",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.host, app.state.header_timeout_s = host, config.header_timeout_s
    _add_routes(app, host)
    for error in (ServiceError, HTTPException):
        app.add_exception_handler(error, handle_error)
    app.add_middleware(
        Guard,
        keys=KeyRing(config.keys, config.keys_file),
        limits=ServiceLimits(0.0, 1, config.max_concurrent),
        max_body_bytes=config.max_body_bytes,
        max_unfinished_bytes=2 * config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
        hosts=HostCheck(is_loopback=config.is_loopback, host=config.host, allowed_hosts=config.allowed_hosts),
        write_error=write_error,
        log=log,
    )
    return app


def _add_routes(app: FastAPI, host: WorkerHost) -> None:
    @app.get("/health")
    async def check_health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/workers")
    async def show_host(request: Request) -> Response:
        return make_json_response(host.describe(_read_owner(request)))

    @app.post("/workers")
    async def create_worker(request: Request) -> Response:
        try:
            body = await request.json()
            name, device = body["name"], body["device"]
        except (ValueError, KeyError, TypeError) as error:
            raise ServiceError(ErrorKind.INVALID, "send a JSON object with name and device") from error
        if not isinstance(name, str) or not isinstance(device, str):
            raise ServiceError(ErrorKind.INVALID, "name and device must be texts")
        worker = host.create(_read_owner(request), name[:64], device)
        return make_json_response({"id": worker.id})

    @app.get("/workers/{id}")
    async def show_worker(request: Request, id: str) -> Response:
        return make_json_response((await host.find(_read_owner(request), id)).describe())

    @app.post("/workers/{id}/call")
    async def call_worker(request: Request, id: str) -> Response:
        try:
            frame = decode(await request.body())
        except EncodingError as error:
            raise ServiceError(ErrorKind.INVALID, str(error)) from error
        answer = await host.call(await host.find(_read_owner(request), id), frame)
        return Response(to_bytes(answer), media_type=CONTENT_TYPE)

    @app.delete("/workers/{id}")
    async def end_worker(request: Request, id: str) -> Response:
        await host.end_worker(await host.find(_read_owner(request), id))
        return make_json_response({"ended": id})


def _read_owner(request: Request) -> str:
    return str(request.scope["state"]["key_name"])
