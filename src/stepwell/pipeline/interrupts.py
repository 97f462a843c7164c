"""Ctrl-C that lets what is at hand finish."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
