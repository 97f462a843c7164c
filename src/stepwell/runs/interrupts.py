"""Ctrl-C and SIGTERM as requests to stop in order.

Both ask for the same. They differ in the exit code of a command: 130 after Ctrl-C, 143 after SIGTERM.
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
    """Raised by SIGTERM, as `KeyboardInterrupt` by Ctrl-C."""


@contextmanager
def raise_on_stop() -> Iterator[None]:
    """Inside the block SIGTERM raises `Terminated`, and Ctrl-C, if it is not ignored, `KeyboardInterrupt`."""

    def handle(number: int, frame: Any) -> None:
        raise Terminated

    is_heard = signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None)
    interrupt = {signal.SIGINT: signal.default_int_handler} if is_heard else {}
    with _handle_signals({signal.SIGTERM: handle, **interrupt}):
        yield


@contextmanager
def handle_first_stop(ask: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Inside the block the first Ctrl-C or SIGTERM calls `ask`; the next one stops at once."""

    def stop_at_once(number: int, frame: Any) -> None:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def handle(number: int, frame: Any) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, stop_at_once)
        ask(signal.Signals(number))

    with _handle_signals(dict.fromkeys(STOP_SIGNALS, handle)):
        yield


def describe_stop(signum: signal.Signals, present: str) -> str:
    """What a run does after its first signal, in words; `present` is the work that it finishes."""
    by, again = ("", "Ctrl-C") if signum == signal.SIGINT else (f" by {signum.name}", signum.name)
    return f"interrupted{by}: finishing {present}, then saving ({again} again stops at once)"


@dataclass(slots=True)
class StopRequests:
    """How often a stop was requested: once means in order, twice means now."""

    times: int = 0


@contextmanager
def count_signals() -> Iterator[StopRequests]:
    """Count Ctrl-C and SIGTERM inside the block instead of raising."""
    requests = StopRequests()

    def ask(number: int, frame: Any) -> None:
        requests.times += 1

    with _handle_signals(dict.fromkeys(STOP_SIGNALS, ask)):
        yield requests


@contextmanager
def _handle_signals(handlers: dict[signal.Signals, Callable[[int, Any], None]]) -> Iterator[None]:
    """Install handlers inside the block. Outside the main thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
