"""Who starts ranks: child processes of the trainer, one per device.

A launcher gives the trainer one connected `RankPeer` per rank. Ranks on other machines are accepted by
`rank_join.py`.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.training.rank_link import receive_message


@dataclass(eq=False)
class RankPeer:
    """A rank, seen from the trainer. One on another machine has no process here."""

    rank: int
    device: str
    link: socket.socket
    process: ChildProcess | None = None
    pid: int = 0
    place: str = ""
    is_bereft: bool = False
    """It has said that another rank left it alone."""

    def __str__(self) -> str:
        where = f"{self.place}, {self.device}" if self.place else self.device
        return f"rank {self.rank} of the trainer ({where}, pid {self.pid})"

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or if nobody here can know."""
        return None if self.process is None else self.process.exit_code

    def has_died(self) -> bool:
        """Whether it has ended."""
        return self.exit_code is not None

    def is_silent(self) -> bool:
        """Whether nothing came from it that was not read: it is stopped, or it is waiting for others."""
        readable, _, _ = select.select([self.link], [], [], 0.0)
        return not readable

    def has_closed(self, timeout_s: float) -> bool:
        """Whether a rank of another process has closed its connection without a word: it has died."""
        if self.process is not None or self.is_bereft:
            return False
        self.link.settimeout(timeout_s)
        try:
            while (message := receive_message(self.link)) is not None:
                if message[0]["is"] == "bereft":
                    return False
        except OSError as error:
            return not isinstance(error, TimeoutError)
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait for its end at most this long."""
        if self.process is not None:
            self.process.wait(timeout_s)

    def describe_end(self) -> str:
        """How it ended, and the last lines of its log."""
        return "closed its connection" if self.process is None else self.process.describe_end()

    def end(self, grace_s: float) -> None:
        """Give it time to end by itself, then kill it."""
        if self.process is not None:
            self.process.wait(grace_s)
            self.process.kill()


class RankLauncher(Protocol):
    """Starts the ranks of one trainer."""

    host: str
    """Under which ranks reach this machine."""
    bind_host: str

    def launch_ranks(self, peers: list[RankPeer], timeout_s: float) -> None:
        """Append one peer per rank, in the order of ranks, as soon as each has connected."""

    def send_files(self, peer: RankPeer, words: dict[str, Any]) -> dict[str, Any]:
        """Make the files that `words` name readable for a rank; returns its words."""

    def count_threads(self, size: int) -> int:
        """Threads of each rank."""

    def drop_ranks(self, lost: Sequence[int]) -> None:
        """Launch these ranks no more; at least one is left."""


class ChildLauncher:
    """Starts ranks as child processes."""

    host = bind_host = "127.0.0.1"

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = list(devices)

    def launch_ranks(self, peers: list[RankPeer], timeout_s: float) -> None:
        """Start one process per device."""
        for rank, device in enumerate(self.devices):
            peers.append(spawn_rank(rank, device, self.count_threads(len(self.devices)), timeout_s))

    def send_files(self, peer: RankPeer, words: dict[str, Any]) -> dict[str, Any]:
        """Children read the trainer's files."""
        return words

    def drop_ranks(self, lost: Sequence[int]) -> None:
        """Go on without the devices of these ranks."""
        kept = [device for rank, device in enumerate(self.devices) if rank not in lost]
        self.devices = kept or self.devices[:1]

    def count_threads(self, size: int) -> int:
        """The trainer's threads, divided."""
        import torch  # here: a joining process needs it in its child only

        return max(1, torch.get_num_threads() // size)


def spawn_rank(rank: int, device: str, num_threads: int, timeout_s: float) -> RankPeer:
    """Start a rank as a child of this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = start_process(theirs, num_threads)
    ours.settimeout(timeout_s)
    return RankPeer(rank, device, ours, process, process.pid)


def start_process(link: socket.socket, num_threads: int) -> ChildProcess:
    """Start the process of a rank, which reads the trainer's commands from `link`."""
    return ChildProcess(
        [sys.executable, "-P", "-m", "stepwell.training.rank_main", str(link.fileno())],
        environment=os.environ | limit_threads(num_threads),
        pass_fds=(link.fileno(),),
        imports=MODEL_MODULES,  # the server of generators and runs serves ranks too
    )
