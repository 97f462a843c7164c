"""Merged streams: nothing is lost, and nothing runs after the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.services.gateway.streams import merge_streams

closed: list[str] = []


async def counting(name: str, numbers: list[int], *, fails: bool = False) -> AsyncGenerator[int, None]:
    try:
        for number in numbers:
            await asyncio.sleep(0)
            yield number
        if fails:
            raise RuntimeError(f"{name} is broken")
    finally:
        closed.append(name)


@given(st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=4))
def test_every_item_comes_once_and_in_the_order_of_its_stream(given_items: list[list[int]]) -> None:
    async def collect() -> list[tuple[int, int]]:
        return [pair async for pair in merge_streams([counting("one", items) for items in given_items])]

    found = asyncio.run(collect())
    for index, items in enumerate(given_items):
        assert [item for stream, item in found if stream == index] == items
    assert len(found) == sum(map(len, given_items))


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_a_failure_is_raised_and_the_others_are_closed(num_streams: int) -> None:
    closed.clear()
    others = [counting(f"other {n}", list(range(10**6))) for n in range(num_streams - 1)]
    with pytest.raises(RuntimeError, match="first is broken"):
        async for _ in merge_streams([counting("first", [1, 2], fails=True), *others]):
            pass
    assert sorted(closed) == ["first", *(f"other {n}" for n in range(num_streams - 1))]


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_stopping_early_closes_all_streams(num_streams: int) -> None:
    closed.clear()
    streams = [counting(str(n), list(range(10**6))) for n in range(num_streams)]
    async with aclosing(merge_streams(streams)) as items:
        async for _ in items:
            break
    assert "0" in closed
    started = [name for name in map(str, range(num_streams)) if name in closed]
    assert closed == started and len(closed) == num_streams
