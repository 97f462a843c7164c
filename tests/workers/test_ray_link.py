"""The link to an actor, without a cluster: what is left to Ray."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from stepwell.core.frames import Frame

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stepwell[ray]'")

from stepwell.workers.ray_link import RayLink


class Reference:
    """An object reference of Ray's client: it gives out a future and sets it later."""

    def __init__(self, later: Future[Any]) -> None:
        self._later = later

    def future(self) -> Future[Any]:
        return self._later


class SilentActor:
    """An actor that has not answered yet."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def __getattr__(self, method: str) -> Any:
        later = self.answer if method == "answer_call" else Future[Any]()
        return type("Method", (), {"remote": staticmethod(lambda *_: Reference(later))})


async def test_ray_can_answer_a_call_that_nobody_waits_for() -> None:
    actor = SilentActor()
    link = RayLink("generator 0", 0, actor, heartbeat_s=60, on_lost=lambda _: None)
    call = asyncio.create_task(link.call(Frame("generate", {})))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    actor.answer.set_result((b"", []))
