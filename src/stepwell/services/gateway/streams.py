"""Merges the streams of several choices into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

Item = TypeVar("Item")
_END = object()


async def merge_streams(
    streams: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[tuple[int, Item], None]:
    """Yield the items of all streams as they come, each with the number of its stream.

    The first failure of a stream is raised. However it ends, all streams are stopped afterwards.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as items:
            async for item in items:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

    async def forward_items(index: int, stream: AsyncGenerator[Item, None]) -> None:
        end: object = _END
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    queue.put_nowait((index, item))
        except Exception as error:
            end = error
        queue.put_nowait((index, end))

    tasks = [asyncio.create_task(forward_items(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_left = len(tasks)
        while num_left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is _END:
                num_left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
