"""Weights on their way from the trainer to the generators, beside the work of both.

    trainer's thread   publish ─► take_snapshot ─► goes on                     finish (waits)
    workers' thread               └─► _send_all: marks ─► every generator: missing parts ─► on_version

Invariants
* At most one version is on its way. A trainer that publishes the next one first waits for it: so the two
  buffers of the snapshots suffice, and generators fall behind by no more than that.
* `version` is that of the last weights that every generator has and has been checked for. A generator may
  have the next one a moment earlier; its samples say so, and `await_version` keeps the trainer from learning
  from them before they are checked.
* Weights that were damaged on their way, or whose generator died, are sent again. A generator that reports
  another fingerprint than the trainer's ends the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import torch

from stepwell.core import EncodingError, WorkerError
from stepwell.runs.build.runner import WeightSource, check_fingerprint
from stepwell.workers.contracts import Generator, SyncAnswer
from stepwell.workers.weight_bytes import PackedWeights
from stepwell.workers.weight_snapshots import SnapshotBuffers, WeightSnapshot

TRIES = 3


@dataclass(slots=True)
class SentVersion:
    """What it cost to send one version to all generators."""

    version: int
    fingerprint: str
    transfer_s: float
    answers: list[SyncAnswer]
    weights_mb: float  # of one copy
    num_retries: int


class WeightPublisher:
    """Gives every generator the newest weights. `submit` runs a coroutine in the workers' thread."""

    def __init__(
        self,
        generators: Sequence[Generator],
        dtype: torch.dtype,
        submit: Callable[[Coroutine[Any, Any, None]], Future[None]],
        *,
        bucket_mb: float = 32.0,
        on_version: Callable[[int], None] = lambda version: None,
        watch_task: Callable[[asyncio.Task[None]], None] = lambda task: None,
    ) -> None:
        self._generators, self._submit = generators, submit
        self._on_version, self._watch_task = on_version, watch_task
        self._buffers = SnapshotBuffers(dtype, max(1, int(bucket_mb * 1e6)))
        self._sending: Future[None] | None = None
        self._wait_s = self._snapshot_s = 0.0
        self._num_retries = 0
        self._sent, self._versions = list[SentVersion](), list[tuple[int, str]]()
        self.version = -1
        self.newest = -1  # that was published

    # --- the trainer's thread ---------------------------------------------------------------

    def publish(self, version: int, policy: WeightSource) -> None:
        """Copy the weights, and let the generators take the copy while the trainer goes on."""
        self.finish()
        began = time.perf_counter()
        snapshot = self._buffers.take_snapshot(version, policy.weight_parts())
        took_s = time.perf_counter() - began
        self._snapshot_s, self._wait_s = took_s, self._wait_s + took_s
        self.newest = version
        self._sending = self._submit(self._send_all(snapshot))

    def finish(self) -> None:
        """Wait until every generator has the version that was published last."""
        sending, began = self._sending, time.perf_counter()
        if sending is None:
            return
        while True:
            try:
                sending.result(timeout=0.2)  # so that Ctrl-C is heard
                break
            except FutureTimeout:
                if sending.done():
                    sending.result()
                    break
        self._sending = None
        self._wait_s += time.perf_counter() - began

    def await_version(self, version: int) -> None:
        """Wait until samples of this version may be learnt from."""
        if version > self.version:
            self.finish()

    def take_metrics(self) -> dict[str, float]:
        """How long the trainer has waited since the last call, and what the last version cost."""
        metrics, self._wait_s = {"sync/trainer_wait_s": self._wait_s}, 0.0
        sent, self._sent = self._sent, []
        if not sent:
            return metrics
        last = sent[-1]
        pauses = [answer.paused_s for answer in last.answers]
        return metrics | {
            "sync/snapshot_s": self._snapshot_s,
            "sync/transfer_s": last.transfer_s,
            "sync/pause_mean_s": sum(pauses) / len(pauses),
            "sync/pause_max_s": max(pauses),
            "sync/sent_mb": sum(answer.num_bytes for answer in last.answers) / 1e6,
            "sync/weights_mb": last.weights_mb,
            "sync/retries": float(sum(one.num_retries for one in sent)),
        }

    def take_versions(self) -> list[tuple[int, str]]:
        """Versions that all generators have, with their fingerprints, since the last call."""
        found, self._versions = self._versions, []
        return found

    # --- the workers' thread ----------------------------------------------------------------

    async def _send_all(self, snapshot: WeightSnapshot) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._watch_task(task)
        began = time.perf_counter()
        await asyncio.to_thread(snapshot.compute_marks)
        answers = await asyncio.gather(*(self._send_one(one, snapshot) for one in self._generators))
        snapshot.drop_copies()
        took_s, mb = time.perf_counter() - began, snapshot.num_bytes / 1e6
        retries, self._num_retries = self._num_retries, 0
        self._sent.append(
            SentVersion(snapshot.version, snapshot.fingerprint, took_s, list(answers), mb, retries)
        )
        self.version = snapshot.version
        self._versions.append((snapshot.version, snapshot.fingerprint))
        self._on_version(snapshot.version)

    async def _send_one(self, generator: Generator, snapshot: WeightSnapshot) -> SyncAnswer:
        """Until it has them: it may die (its successor is started), and bytes may be damaged on their way."""
        for attempt in range(TRIES):
            try:
                answer = await sync_generator(generator, snapshot)
                break
            except (WorkerError, EncodingError):
                if attempt == TRIES - 1:
                    raise
                self._num_retries += 1
        published = snapshot.fingerprint
        if answer.is_merged:
            published = await asyncio.to_thread(snapshot.fingerprint_merged)
        check_fingerprint(snapshot.version, published, answer.fingerprint, generator.name)
        return answer


async def sync_generator(generator: Generator, snapshot: WeightSnapshot) -> SyncAnswer:
    """Give one generator a snapshot: the missing parts, or whole weights if it takes nothing else."""
    if hasattr(generator, "sync_weights"):
        found: SyncAnswer = await generator.sync_weights(snapshot)
        return found
    weights, began = await asyncio.to_thread(snapshot.merge_weights), time.perf_counter()
    fingerprint = await generator.load_weights(snapshot.version, PackedWeights(weights))
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    return SyncAnswer(fingerprint, time.perf_counter() - began, num_bytes, is_merged=True)
