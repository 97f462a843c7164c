"""Simulators and generators inside this process, each in a thread of its own.

They implement the same protocols (`contracts.py`) without processes: for machines with one core, for small
models, and for tests. They cannot die alone, and code that holds Python's lock does not run in parallel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from stepwell.core import Request, Sampled, Task
from stepwell.core.frames import Frame
from stepwell.envs.async_batch import AsyncEnvBatch
from stepwell.envs.batch import EnvBatch
from stepwell.envs.turns import Turn
from stepwell.workers.contracts import SyncAnswer, WeightVersion, WorkerHealth
from stepwell.workers.generator import send_snapshot
from stepwell.workers.hosts import GeneratorHost
from stepwell.workers.weight_bytes import pack_weights

T = TypeVar("T")


class LocalEngine(Protocol):
    """The engine of a local generator, such as `EmbeddedEngine` or `ArrayEngine`."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]: ...

    def load_weights(self, version: int, source: Any) -> None: ...

    def fingerprint(self) -> str: ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


class _LocalWorker:
    """A name and one thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"stepwell-{name}")

    def read_health(self) -> WorkerHealth:
        return WorkerHealth(self.name, None, 0.0, 0, is_alive=True, silent_s=0.0)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class LocalSimulator(_LocalWorker):
    """Environment batches, stepped by one thread. Environments that wait are stepped at once."""

    def __init__(
        self,
        name: str,
        env_name: str,
        options: Mapping[str, Any] | None = None,
        num_batches: int = 1,
        batch_size: int = 1,
        *,
        with_state: bool = False,
    ) -> None:
        super().__init__(name)
        self.num_batches, self.batch_size, self._with_state = num_batches, batch_size, with_state
        self._batches = [
            AsyncEnvBatch(EnvBatch(env_name, options, batch_size), self._thread) for _ in range(num_batches)
        ]

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        return await self._batches[batch].reset(tasks, places, seeds, with_state=self._with_state)

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        return await self._batches[batch].step(places, actions, with_state=self._with_state)

    async def close(self) -> None:
        for envs in self._batches:
            await self._run_in_thread(envs.batch.close)
        self._batches = []
        self._thread.shutdown()


class LocalGenerator(_LocalWorker):
    """An engine of this process."""

    def __init__(self, name: str, engine: LocalEngine) -> None:
        super().__init__(name)
        self.engine = engine
        self._host = GeneratorHost(engine, lambda: None)

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return await self.engine.generate(requests)

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        header, arrays = pack_weights(weights)
        answer = await self._host.answer_call(Frame("load_weights", {"version": version, **header}, arrays))
        return str(answer.header["fingerprint"])

    async def check_weights(self, frequencies: Mapping[str, Any]) -> None:
        await self._host.answer_call(Frame("check_weights", *pack_weights(frequencies)))

    async def sync_weights(self, snapshot: WeightVersion) -> SyncAnswer:
        """Fetch the missing parts of a snapshot while sampling continues."""
        return await send_snapshot(self._host.answer_call, snapshot)

    async def forget(self) -> None:
        await self._run_in_thread(self.engine.forget)

    async def close(self) -> None:
        self.engine.close()
        self._thread.shutdown()
