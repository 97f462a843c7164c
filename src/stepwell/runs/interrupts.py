"""Signals that let what is at hand finish.

Ctrl-C (SIGINT) and SIGTERM ask for the same thing. They differ in the exit code of a command: 130 and 143.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where Ctrl-C would raise `KeyboardInterrupt`."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """While inside, SIGTERM raises `Terminated`, so that whatever runs can clean up."""

    def handle(number: int, frame: Any) -> None:
        raise Terminated

    with _handling({signal.SIGTERM: handle}):
        yield


@contextmanager
def first_stop_request(ask: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While inside, the first Ctrl-C or SIGTERM calls `ask`; the next one of either kind stops at once."""

    def stop_at_once(number: int, frame: Any) -> None:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def handle(number: int, frame: Any) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, stop_at_once)
        ask(signal.Signals(number))

    with _handling(dict.fromkeys(STOP_SIGNALS, handle)):
        yield


@dataclass(slots=True)
class Asked:
    """What signals have asked for: 1 is to stop in order, 2 is to stop now."""

    times: int = 0


@contextmanager
def counted_signals() -> Iterator[Asked]:
    """Ctrl-C and SIGTERM as a count: the work ends in order, whatever it was doing."""
    asked = Asked()

    def ask(number: int, frame: Any) -> None:
        asked.times += 1

    with _handling(dict.fromkeys(STOP_SIGNALS, ask)):
        yield asked


@contextmanager
def _handling(handlers: dict[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Handle signals so while inside; outside the main thread whoever runs us handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
