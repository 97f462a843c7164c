"""A web whose browser is really killed, by SIGKILL, just before a chosen sampled action.

It notes what became of every sampled action. Actions of the script (demonstrations) are not counted: the kill
comes while an update is played.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from stepwell.config.base import Settings
from stepwell.core import EnvError, Split
from stepwell.envs.base import Effect
from stepwell.envs.web.actions import ActionError, parse_action
from stepwell.envs.web.browser import find_browser_host
from stepwell.envs.web.env import WebEnv
from stepwell.envs.web.options import WebOptions

MARK = "STEPWELL_TESTS_MARK"  # a variable that every process of the run inherits


class KillingOptions(WebOptions):
    """When to kill, and where to write."""

    kill_at: int = 0
    ledger: str = ""


class KillingWeb(WebEnv):
    """The web, with a browser that dies at the sampled action `kill_at`."""

    Options: ClassVar[type[Settings]] = KillingOptions
    options: KillingOptions
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _num_sampled: ClassVar[int] = 0

    def act(self, action: str) -> Effect:
        """Do the action; if it is its turn, kill the browser first."""
        if action == self._planned or self.task.split() is not Split.TRAIN or not is_action(action):
            return super().act(action)
        with self._lock:
            KillingWeb._num_sampled += 1
            if KillingWeb._num_sampled == self.options.kill_at:
                commands = list_marked(os.environ[MARK])
                self._note("killed", (kill_browsers(), commands))
        try:
            effect = super().act(action)
        except EnvError as error:
            self._note("lost", str(error))
            raise
        self._note("played", effect.reward)
        return effect

    def _note(self, event: str, value: object) -> None:
        with Path(self.options.ledger).open("a") as file:
            file.write(json.dumps([event, self.task.id, value]) + "\n")


def is_action(text: str) -> bool:
    """Whether the browser is asked for anything."""
    try:
        parse_action(text)
    except ActionError:
        return False
    return True


def kill_browsers() -> int:
    """Kill the browsers of this process and wait until they are dead; how many they were."""
    pids = find_browser_host().list_process_ids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while any(is_alive(pid) for pid in pids):
        time.sleep(0.01)
    return len(pids)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def list_marked(mark: str) -> list[str]:
    """The command lines of the processes that inherited the mark, but for this one and its fork server."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            command = (path / "cmdline").read_text().replace("\0", " ")
            if is_ours and is_alive(int(path.name)) and "stepwell.core.fork_server" not in command:
                found.append(command)
    return found
