"""A generator in a process of its own, on this machine or, with a `launcher`, elsewhere.

    load_weights(version, weights)   whole weights in one message; the caller waits
    sync_weights(snapshot)           the missing parts of a snapshot, bucket by bucket, while it samples

The parent keeps the weights that were published last: a snapshot, or one copy for all generators of a run. A
restarted worker gets them before its first call, so that a crash never takes the policy back to an earlier
version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from stepwell.core import JSON, StepwellError, WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame
from stepwell.workers.clients import GeneratorClient
from stepwell.workers.contracts import SyncAnswer, WeightVersion, WorkerLink
from stepwell.workers.weight_bytes import copy_arrays, pack_weights
from stepwell.workers.worker_process import WorkerProcess

SendFrame = Callable[[Frame], Awaitable[Frame]]


class ProcessGenerator(GeneratorClient):
    """Samples in one process with the engine that `factory` builds from the settings.

    `factory` is an import path `module:function` (see `engine_builders.py`). Further settings are those of
    `WorkerProcess`: `num_threads`, `environment`, `heartbeat_s`, `hang_s`, `start_timeout_s`, `max_restarts`.
    `hang_s` must be longer than a call of `generate` can take.
    """

    def __init__(
        self,
        name: str,
        factory: str,
        settings: Mapping[str, JSON] | None = None,
        *,
        num_threads: int | None = None,
        timeout_s: float | None = None,
        **process: Any,
    ) -> None:
        self._worker = GeneratorProcess(name, factory, settings, num_threads=num_threads, **process)
        super().__init__(self._worker, timeout_s)

    async def sync_weights(self, snapshot: WeightVersion) -> SyncAnswer:
        """Fetch the missing parts of a snapshot while sampling continues."""
        return await self._worker.sync_weights(snapshot)


class GeneratorProcess(WorkerProcess):
    """The process of a generator, with the weights it must have after a restart."""

    def __init__(
        self, name: str, factory: str, settings: Mapping[str, JSON] | None = None, **process: Any
    ) -> None:
        built_from: dict[str, JSON] = {"factory": factory, "settings": dict(settings or {})}
        super().__init__(name, "generator", built_from, on_start=self._restore_weights, **process)
        self._published: Frame | WeightVersion | None = None
        self._fingerprint: str | None = None  # of the published weights; None while unknown

    async def call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[AnyArray] = (),
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """As for any worker. Weights are kept until the next ones are published."""
        if op != "load_weights":
            return await super().call(op, header, arrays, timeout_s=timeout_s)
        before = self._published, self._fingerprint
        copies = await asyncio.to_thread(copy_arrays, arrays)
        self._published, self._fingerprint = Frame(op, header, copies), None
        try:
            answer = await super().call(op, header, copies, timeout_s=timeout_s)
        except StepwellError as error:
            if isinstance(error, ValueError):  # refused: the engine still has the previous ones
                self._published, self._fingerprint = before
            raise
        self._fingerprint = answer.header["fingerprint"]
        return answer

    async def sync_weights(self, snapshot: WeightVersion) -> SyncAnswer:
        """Send the parts that the worker does not have. After a restart it gets the same snapshot."""
        self._published, self._fingerprint = snapshot, None
        answer = await send_snapshot(self._call_frame, snapshot)
        self._fingerprint = answer.fingerprint
        return answer

    async def _call_frame(self, frame: Frame) -> Frame:
        return await super().call(frame.op, frame.header, frame.arrays)

    async def _restore_weights(self, connection: WorkerLink) -> None:
        published = self._published
        if published is None:
            return
        if isinstance(published, Frame):
            found = (await connection.call(published)).header["fingerprint"]
        else:
            found = (await send_snapshot(connection.call, published)).fingerprint
        if published is self._published and self._fingerprint not in (None, found):
            raise WorkerError(
                f"after a restart its weights have the fingerprint {found}, not {self._fingerprint}"
            )


async def send_snapshot(call: SendFrame, snapshot: WeightVersion) -> SyncAnswer:
    """Send a generator the missing parts of a snapshot, one bucket after the other, or whole weights."""
    adapters = {name: [one.down, one.up, one.scale] for name, one in snapshot.adapters.items()}
    version = {"version": snapshot.version}
    begun = await call(Frame("begin_weights", version | {"marks": snapshot.marks, "adapters": adapters}))
    lacking = begun.header["lacking"]
    if lacking is None:
        weights = await asyncio.to_thread(snapshot.merge_weights)
        header, arrays = await asyncio.to_thread(pack_weights, weights)
        loaded = await call(Frame("load_weights", version | header, arrays))
        num_bytes, is_merged = sum(array.nbytes for array in arrays), True
    else:
        buckets = await asyncio.to_thread(snapshot.list_buckets, lacking)
        for bucket in buckets:
            await call(Frame("add_weights", version | {"pieces": bucket.pieces}, bucket.arrays))
        loaded = await call(Frame("swap_weights", version))
        num_bytes, is_merged = sum(bucket.num_bytes for bucket in buckets), False
    found = loaded.header
    return SyncAnswer(found["fingerprint"], float(found.get("paused_s", 0.0)), num_bytes, is_merged)
