"""A batch of environments for callers on an event loop.

Environments that wait are awaited beside all else that the loop does. Others are stepped in one thread, which
the caller names: they may belong to it, and several batches may share it.

A cancelled call is still played to its end, so that the environment stays in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from stepwell.core import Task
from stepwell.envs.batch import EnvBatch
from stepwell.envs.turns import Turn


def _ignore_progress() -> None:
    return


class AsyncEnvBatch:
    """`reset` and `step` of an `EnvBatch` as coroutines. `thread` is for environments that do not wait."""

    def __init__(self, batch: EnvBatch, thread: Executor | None = None) -> None:
        self.batch, self._thread = batch, thread

    async def reset(
        self,
        tasks: Sequence[Task],
        indices: Sequence[int],
        seeds: Sequence[int] | None = None,
        *,
        with_state: bool = False,
        progress: Callable[[], None] = _ignore_progress,
    ) -> list[Turn]:
        """Start one episode per task, in the environments of `indices`."""
        if self.batch.waits:
            return await _collect_turns(
                self.batch.start_reset(tasks, indices, seeds, with_state=with_state), progress
            )
        return await self._run_in_thread(
            partial(self.batch.reset, tasks, indices, seeds, with_state=with_state, progress=progress)
        )

    async def step(
        self,
        indices: Sequence[int],
        actions: Sequence[Any],
        *,
        with_state: bool = False,
        progress: Callable[[], None] = _ignore_progress,
    ) -> list[Turn]:
        """One turn in each of the environments of `indices`."""
        if self.batch.waits:
            return await _collect_turns(
                self.batch.start_step(indices, actions, with_state=with_state), progress
            )
        return await self._run_in_thread(
            partial(self.batch.step, indices, actions, with_state=with_state, progress=progress)
        )

    async def _run_in_thread(self, work: Callable[[], list[Turn]]) -> list[Turn]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def _collect_turns(futures: Sequence[Future[Turn]], progress: Callable[[], None]) -> list[Turn]:
    async def await_turn(future: Future[Turn]) -> Turn:
        turn = await asyncio.shield(asyncio.wrap_future(future))
        progress()
        return turn

    return await asyncio.gather(*map(await_turn, futures))
