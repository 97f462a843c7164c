"""Virtual time: an event loop whose clock jumps to the next event, so that hours take seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Lets the clock jump instead of waiting."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "deadlock: every task waits, and no timer is set"
            self.jump(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to do."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        super().__init__(selector)
        self._now_s = 0.0
        selector.jump = self._jump_clock

    def _jump_clock(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)

    def time(self) -> float:
        return self._now_s


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine in virtual time. Tasks that are left, as after Ctrl-C, are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())
