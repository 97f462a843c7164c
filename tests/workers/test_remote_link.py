"""What a worker elsewhere does that shows that it lives."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell.core.frames import Frame
from stepwell.workers.remote_link import RemoteLink


class LateState(RemoteLink):
    """Answers calls; its status comes never."""

    async def send_frame(self, frame: Frame) -> Frame:
        return Frame("done", {})

    async def fetch_state(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def destroy(self) -> None:
        pass


async def test_an_answer_is_a_sign_of_life() -> None:
    link = LateState("far", 1, heartbeat_s=60.0, on_lost=lambda _: None)
    await asyncio.sleep(1.0)
    assert "gave no sign of life" in str(link.find_trouble(0.9))
    assert (await link.call(Frame("ask", {}))).op == "done"
    assert link.find_trouble(0.9) is None
    await link.end("was stopped")
