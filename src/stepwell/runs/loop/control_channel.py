"""The loop's side of the control socket: a thread takes requests, the loop obeys them between two updates.

    accept ─► check the peer ─► ControlChannel.take ─► flags ─► TrainingLoop._obey_controls

Invariants
* Control never breaks a run: a socket that cannot be made is reported once, and the run goes on.
* The thread only sets flags. Everything that touches weights or files happens in the loop's own thread.
* The socket is gone when the run ends; one that a killed run left behind is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.runs.control import COMMANDS, SOCKET_FILE, is_too_long, read_line, shorten_path

_PEER = struct.Struct("3i")


class ControlChannel:
    """Requests to one run. `describe` gives what a status reply contains."""

    def __init__(
        self, folder: Path, describe: Callable[[], dict[str, Any]], note: Callable[[str], None]
    ) -> None:
        self._path, self._describe, self._note = folder / SOCKET_FILE, describe, note
        self._changed = threading.Condition()
        self._asked: set[str] = set()
        self.is_paused = False
        self._listener: socket.socket | None = None
        self._private: str | None = None

    def open(self) -> None:
        """Start to listen, in a thread of its own."""
        try:
            self._remove_files()
            target = self._path
            if is_too_long(target):
                self._private = tempfile.mkdtemp(prefix="stepwell-")  # for its owner only
                target = Path(self._private) / SOCKET_FILE
                self._path.symlink_to(target)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(shorten_path(target))
            target.chmod(0o600)
            listener.listen(8)
        except OSError as error:
            self._note(f"this run has no control socket ({error}); it cannot be paused from outside")
            return
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="stepwell-control", daemon=True).start()

    def close(self) -> None:
        """Stop to listen; asked twice does nothing."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            self._remove_files()

    def take_requests(self) -> set[str]:
        """What was asked since the last call: any of `checkpoint`, `evaluate`, `stop`."""
        with self._changed:
            asked, self._asked = self._asked, set()
            return asked

    def wait(self, seconds: float) -> None:
        """Wait for the next request, at most this long."""
        with self._changed:
            if self.is_paused and not self._asked:
                self._changed.wait(seconds)

    def _remove_files(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            with connection, suppress(OSError):
                connection.settimeout(1.0)
                reply = self._answer(connection)
                connection.sendall(json.dumps(reply).encode() + b"\n")

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        if _read_peer_user(connection) not in (None, os.getuid()):
            return {"ok": False, "error": "this run belongs to another user"}
        try:
            command = str(json.loads(read_line(connection))["do"])
        except (ValueError, KeyError, TypeError):
            return {"ok": False, "error": 'send one line of JSON, such as {"do": "status"}'}
        if command not in COMMANDS:
            return {"ok": False, "error": f"unknown command; choose among {', '.join(COMMANDS)}"}
        self._accept(command)
        return {"ok": True, "is_paused": self.is_paused, **self._describe()}

    def _accept(self, command: str) -> None:
        with self._changed:
            if command in ("pause", "resume"):
                self.is_paused = command == "pause"
            elif command != "status":
                self._asked.add(command)
                self.is_paused = self.is_paused and command != "stop"
            self._changed.notify_all()


def obey_requests(
    channel: ControlChannel,
    act: Callable[[str], None],
    is_stopping: Callable[[], bool],
    note: Callable[[str], None],
) -> tuple[set[str], float]:
    """Wait while the run is paused, and `act` on requests meanwhile.

    Gives what was asked and not yet done, and the seconds of the pause.
    """
    asked, start = channel.take_requests(), time.perf_counter()
    if not channel.is_paused:
        return asked, 0.0
    note("paused; `stepwell top` or `stepwell view` resumes it")
    while channel.is_paused and not is_stopping():
        channel.wait(0.2)
        for request in sorted(channel.take_requests()):
            if request == "stop":
                asked.add(request)
            else:
                act(request)
    note("resumed")
    return asked, time.perf_counter() - start


def _read_peer_user(connection: socket.socket) -> int | None:
    """The user id at the other end; None where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(data)[1])
