"""The event loop of this process's environments: one, in a thread of its own, started at its first use.

All environments whose work is coroutines (`async_env.py`) share it, so that they can share a browser or a
connection. A simulator is a process, so a simulator has one such loop.

Invariants
* `run_on_env_loop` may be called by any thread but the loop's own, where it would wait for itself.
* Code that calls `sys.exit` on the loop, or raises `KeyboardInterrupt`, does not end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from stepwell.core import InputError

T = TypeVar("T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def start_on_env_loop(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the loop."""
    return asyncio.run_coroutine_threadsafe(work, get_env_loop())


def run_on_env_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on the loop."""
    with contextlib.suppress(RuntimeError):  # no loop runs in this thread
        if asyncio.get_running_loop() is _loop:
            work.close()
            raise InputError(
                "a blocking call of an environment on the environments' own event loop would wait for "
                "itself; await its coroutine instead (reset_async, step_async)"
            )
    return start_on_env_loop(work).result()


def get_env_loop() -> asyncio.AbstractEventLoop:
    """The loop, running."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name="stepwell-env-loop", daemon=True).start()
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # Ctrl-C comes elsewhere
            loop.run_forever()


def _drop_loop() -> None:
    """A forked child has no such thread."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_drop_loop)
