"""Signals that let what is at hand finish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@contextmanager
def first_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """While inside, the first Ctrl-C calls `ask`; the next one is an ordinary one."""

    def handle(number: int, frame: Any) -> None:
        ask()
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not in the main thread: whoever runs us handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(slots=True)
class Asked:
    """What signals have asked for: 1 is to stop in order, 2 is to stop now."""

    times: int = 0


@contextmanager
def counted_signals() -> Iterator[Asked]:
    """Ctrl-C and SIGTERM as a count: the work ends in order, whatever it was doing."""
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        asked.times += 1

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
