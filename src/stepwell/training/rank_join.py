"""Ranks that other launchers start: torchrun, or any that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    RANK 0      stepwell train …     the run itself, and its rank 0 as a child process
                  JoinLauncher ◄── connections ───┐
    RANK 1 …    stepwell train …     join_ranks ──┘   connects, runs the rank in a child process; again after
                                                      another rank's death, until the run has ended

The run listens at MASTER_PORT + 1. A rank says its number and the run's token (`STEPWELL_RANK_TOKEN`, or what
torchrun calls this run), gets the files of the policy, and then speaks as every rank does (`rank_main.py`).
Any other launcher calls `join_ranks` with an address. Actors of Ray do (`runs/build/ray_ranks.py`); then no
rank is a child of the run's own process.

Invariants
* What comes over a connection is never unpickled, and a connection without the token is closed.
* A joined process joins again when its connection was closed, and ends with 0 once nobody listens any more.
  If its rank fails or is killed, it ends with the rank's exit code.
"""

from __future__ import annotations

import hmac
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core import ConfigError, WorkerError
from stepwell.core.child_process import ChildProcess
from stepwell.training.rank_launch import RankPeer, spawn_rank, start_process
from stepwell.training.rank_link import receive_message, send_message

BEREFT = 3  # exit code of a rank that another one left alone (`rank_main.py`)
_RETRY_S = 0.5
_FEWER_AFTER_S = 60.0
_GONE_AFTER_S = 10.0  # a run that lives listens all the time


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a run meet, as the environment says."""

    rank: int
    size: int
    host: str
    port: int
    token: str
    local_rank: int = 0

    @classmethod
    def read_environment(cls, variables: Mapping[str, str]) -> Rendezvous | None:
        """What torchrun (or a person) has set; None if this process was started without it."""
        if "RANK" not in variables or int(variables.get("WORLD_SIZE", "1")) < 2:
            return None
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in variables]
        if missing:
            raise ConfigError(
                f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}: start all ranks with "
                "torchrun, or set them to the address and a free port of the machine of rank 0"
            )
        token = variables.get("STEPWELL_RANK_TOKEN") or variables.get("TORCHELASTIC_RUN_ID", "")
        return cls(
            int(variables["RANK"]),
            int(variables["WORLD_SIZE"]),
            variables["MASTER_ADDR"],
            int(variables["MASTER_PORT"]) + 1,
            token,
            int(variables.get("LOCAL_RANK", "0")),
        )

    def choose_device(self, device: str) -> str:
        """The device of this rank: the GPU of its number on its machine, or the cores."""
        return device if device.partition(":")[0] != "cuda" else f"cuda:{self.local_rank}"


class JoinLauncher:
    """Accepts the ranks of other processes; rank 0 is a child of this one, unless it has no `device`."""

    def __init__(
        self,
        meeting: Rendezvous,
        device: str | None,
        *,
        wait_s: float = 600.0,
        fewer_after_s: float = _FEWER_AFTER_S,
    ) -> None:
        self.host, self.device, self.wait_s = meeting.host, device, wait_s
        self.size, self._token = meeting.size, meeting.token
        self._fewer_after_s, self._may_be_fewer = fewer_after_s, False
        self.bind_host = "127.0.0.1" if _is_loopback(meeting.host) else "0.0.0.0"
        try:
            self._server = socket.create_server((self.bind_host, meeting.port))
        except OSError as error:
            raise ConfigError(
                f"the run cannot listen at port {meeting.port}, MASTER_PORT + 1 ({error.strerror}); set "
                "MASTER_PORT to a free port whose successor is free too, with torchrun by "
                "--rdzv-endpoint HOST:PORT"
            ) from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.getsockname()[1])

    def launch_ranks(self, peers: list[RankPeer], timeout_s: float) -> None:
        """Start rank 0 and wait for the others; after a death, only as long as those left need to join."""
        if self.device is not None:
            peers.append(spawn_rank(0, self.device, self.count_threads(self.size), timeout_s))
        peers.extend(self._accept_ranks(len(peers), timeout_s))

    def _accept_ranks(self, first: int, timeout_s: float) -> list[RankPeer]:
        """Those that join, numbered from `first`."""
        limit_s = self._fewer_after_s if self._may_be_fewer else self.wait_s
        until = time.monotonic() + limit_s
        joined: list[RankPeer] = []
        while first + len(joined) < self.size:
            self._server.settimeout(min(1.0, max(0.01, until - time.monotonic())))
            try:
                link, address = self._server.accept()
            except TimeoutError:
                self.check_joiners()
                if time.monotonic() < until:
                    continue
                if self._may_be_fewer and first + len(joined):
                    self.size = first + len(joined)
                    break
                raise WorkerError(
                    f"{first + len(joined)} of {self.size} ranks have joined within {limit_s:g} s; start the "
                    f"others with the same MASTER_ADDR and MASTER_PORT (this run listens at {self.host}, "
                    f"port {self.port})"
                ) from None
            peer = self._greet_rank(link, address[0], timeout_s)
            if peer is not None:
                joined.append(peer)
        self._may_be_fewer = False
        joined.sort(key=lambda peer: peer.rank)
        for number, peer in enumerate(joined, start=first):
            peer.rank = number
        return joined

    def check_joiners(self) -> None:
        """Raise an error if one that should join cannot. By default nobody here knows."""

    def _greet_rank(self, link: socket.socket, place: str, timeout_s: float) -> RankPeer | None:
        link.settimeout(10.0)
        try:
            message = receive_message(link)
        except (OSError, ValueError):
            message = None
        words = {} if message is None else message[0]
        if not hmac.compare_digest(str(words.get("token", "")).encode(), self._token.encode()) or not words:
            link.close()
            return None
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(timeout_s)
        return RankPeer(int(words["rank"]), str(words["device"]), link, place=place)

    def send_files(self, peer: RankPeer, words: dict[str, Any]) -> dict[str, Any]:
        """Send the policy's files to a rank on another machine."""
        if peer.process is not None:
            return words
        folder = Path(words["folder"])
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in files]
        send_message(peer.link, {"is": "files", "names": names, "folder": str(folder)})
        for path in files:
            send_message(peer.link, {"is": "file"}, path.read_bytes())
        return words

    def count_threads(self, size: int) -> int:
        """All threads of a machine for its rank."""
        return max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))

    def drop_ranks(self, lost: Sequence[int]) -> None:
        """Go on with the ranks that join again soon: nobody here can see which one has died."""
        self._may_be_fewer = True

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


def join_ranks(
    host: str, port: int, *, rank: int, device: str, token: str = "", wait_s: float = 600.0
) -> int:
    """Work as rank `rank` of the run at this address until it ends; returns an exit code."""
    is_first = True
    while True:
        link = _connect(host, port, wait_s)
        if link is None and is_first:
            raise WorkerError(
                f"no run listens at {host}, port {port}, after {wait_s:g} s; start the one with RANK=0 there"
            )
        if link is None:
            return 0  # the run has ended
        with link:
            try:  # before the child, whose start may be slow
                send_message(link, {"rank": rank, "device": device, "token": token})
            except OSError:  # the run has closed the connection, or has ended: look again
                time.sleep(_RETRY_S)
                continue
            child = start_process(link, max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
        code = _await_child(child)
        if code != BEREFT:
            return code
        wait_s, is_first = _GONE_AFTER_S, False


def _connect(host: str, port: int, wait_s: float) -> socket.socket | None:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        try:
            link = socket.create_connection((host, port), timeout=10.0)
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link
        except OSError:
            time.sleep(_RETRY_S)
    return None


def _await_child(child: ChildProcess) -> int:
    while not child.wait(60.0):
        continue
    code = child.exit_code or 0
    if code not in (0, BEREFT):
        print(f"this rank {child.describe_end()}", flush=True)
    child.kill()
    return code


def receive_files(link: socket.socket, words: dict[str, Any]) -> dict[str, Any]:
    """Take the files of a policy that come over a connection; returns the words that follow."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-rank-"))
    for name in words["names"]:
        path = (folder / name).resolve()
        if folder.resolve() not in path.parents:
            raise ConfigError(f"a file of the policy is named {name!r}; it must lie inside the folder")
        message = receive_message(link)
        if message is None:
            raise ConnectionError("the run has closed the connection")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(message[1])
    message = receive_message(link)
    if message is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConnectionError("the run has closed the connection")
    found, there = message[0], words["folder"]
    for key in ("policy", "reference", "state", "folder"):
        if found[key] is not None:
            found[key] = str(folder) + found[key].removeprefix(there)
    return found


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")
