"""Virtual time: an event loop whose clock jumps to the next event, so that hours take seconds."""

from __future__ import annotations

import asyncio
import gc
import selectors
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_EVERY = 64
"""Only a signal comes from outside: looking for one costs more than most events, so not every time."""


class _WaitingSignals:
    """Ctrl-C and SIGTERM wait until no task runs: an exception amid the work of a loop leaves it broken."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._waiting: list[tuple[int, Any]] = []

    def __enter__(self) -> _WaitingSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, lambda number, frame: self._waiting.append((number, frame)))
        return self

    def deliver(self) -> None:
        """Call the handler of the first one that waits; most raise."""
        if self._waiting:
            number, frame = self._waiting.pop(0)
            self._handlers[number](number, frame)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()


class _JumpingSelector(selectors.DefaultSelector):
    """Lets the clock jump instead of waiting."""

    jump: Callable[[float], None]
    signals: _WaitingSignals | None = None
    num_calls = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.signals is not None:
            self.signals.deliver()
        self.num_calls += 1
        is_due = timeout is None or self.num_calls % _LOOK_EVERY == 0
        found = super().select(0) if is_due else []
        if not found:
            assert timeout is not None, "deadlock: every task waits, and no timer is set"
            self.jump(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to do."""

    def __init__(self, signals: _WaitingSignals | None = None) -> None:
        selector = _JumpingSelector()
        selector.signals = signals
        super().__init__(selector)
        self._now_s = 0.0
        selector.jump = self._jump_clock

    def _jump_clock(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)

    def time(self) -> float:
        return self._now_s


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine in virtual time. Tasks that are left, as after Ctrl-C, are cancelled."""
    is_collecting = gc.isenabled()
    gc.disable()  # a fifth of the time; a run leaves few cycles, and they are collected after it
    try:
        with (
            _WaitingSignals() as signals,
            asyncio.Runner(loop_factory=lambda: VirtualLoop(signals)) as runner,
        ):
            return runner.run(work())
    finally:
        if is_collecting:
            gc.enable()
