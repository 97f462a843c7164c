"""A generator in a process of its own, on this machine or, with a `launcher`, elsewhere.

The parent keeps a copy of the weights that were published last, one for all generators of a run. A restarted
worker gets them before its first call, so that a crash never takes the policy back to an earlier version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.core import JSON, StepwellError, WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame
from stepwell.workers.clients import GeneratorClient
from stepwell.workers.contracts import WorkerLink
from stepwell.workers.weight_bytes import copy_arrays
from stepwell.workers.worker_process import WorkerProcess


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
        worker = GeneratorProcess(name, factory, settings, num_threads=num_threads, **process)
        super().__init__(worker, timeout_s)


class GeneratorProcess(WorkerProcess):
    """The process of a generator, with the weights it must have after a restart."""

    def __init__(
        self, name: str, factory: str, settings: Mapping[str, JSON] | None = None, **process: Any
    ) -> None:
        built_from: dict[str, JSON] = {"factory": factory, "settings": dict(settings or {})}
        super().__init__(name, "generator", built_from, on_start=self._restore_weights, **process)
        self._published: Frame | None = None
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

    async def _restore_weights(self, connection: WorkerLink) -> None:
        if self._published is None:
            return
        answer = await connection.call(self._published)
        found = answer.header["fingerprint"]
        if self._fingerprint not in (None, found):
            raise WorkerError(
                f"after a restart its weights have the fingerprint {found}, not {self._fingerprint}"
            )
