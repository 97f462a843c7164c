"""Servers that worlds start for themselves: one process for all worlds of this process with equal options.

A server listens on a free port of this machine. It ends with the last world that is closed, or with this
process, however that ends: its standard input is a pipe from here. One that died is replaced when the next
episode begins. A forked process starts servers of its own.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import select
import sys
import threading
import time
import weakref
from typing import Any

from stepwell.core import ConfigError, EnvError
from stepwell.core.child_process import ChildProcess
from stepwell.envs.shop.client import RemoteShop
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.shop import open_shop

_STARTING_S = 60.0
_ENDING_S, _EXIT_S = 5.0, 1.0


class HostedShop(RemoteShop):
    """A shop whose server this process has started, and the worlds that use it."""

    def __init__(self, url: str, timeout_s: float, process: ChildProcess) -> None:
        super().__init__(url, timeout_s)
        self.process = process
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_up(self) -> bool:
        """Whether the server's process is there."""
        return not self.process.has_died()

    def stop(self) -> None:
        """End the server."""
        self.close()
        self.process.stop(_ENDING_S)


_HOSTED: dict[tuple[int, str], HostedShop] = {}
_LOCK = threading.Lock()


def hosted_shop(options: ShopOptions, holder: object) -> HostedShop:
    """The server for these options, started if there is none; `holder` uses it until it lets go."""
    key = (os.getpid(), options.model_dump_json())
    with _LOCK:
        shop = _HOSTED.get(key)
        if shop is not None and not shop.is_up:
            shop.stop()
            shop = None
        if shop is None:
            shop = _HOSTED[key] = _started(options)
        shop.holders.add(holder)
        return shop


def let_go(options: ShopOptions, holder: object) -> None:
    """`holder` needs the server no longer; with the last one it ends."""
    key = (os.getpid(), options.model_dump_json())
    with _LOCK:
        shop = _HOSTED.get(key)
        if shop is None or holder not in shop.holders:
            return
        shop.holders.discard(holder)
        if not shop.holders:
            _HOSTED.pop(key).stop()


@atexit.register
def _stop_all() -> None:
    for (pid, _), shop in _HOSTED.items():
        if pid == os.getpid():
            shop.stop()


def _started(options: ShopOptions) -> HostedShop:
    if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
        raise ConfigError("transport = 'http' needs the extra 'serve': pip install 'stepwell[serve]'")
    open_shop(options)  # a catalogue that must be built is built here, where its errors are told
    command = [sys.executable, "-m", "stepwell.envs.shop.server", options.model_dump_json()]
    process = ChildProcess(command, pipe_output=True)
    assert process.stdout is not None
    line, until = b"", time.monotonic() + _STARTING_S
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        part = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not part:
            process.wait(_EXIT_S)
            process.kill()
            raise EnvError(
                f"the shop's server did not start within {_STARTING_S:.0f} s: it {process.describe_end()}"
            )
        line += part
    return HostedShop(line.decode().strip(), options.timeout_s, process)
