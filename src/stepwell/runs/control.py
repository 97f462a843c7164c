"""The control socket of a run: who asks a running loop to pause, save, evaluate or stop, and how.

    stepwell view, stepwell top ─► send_command ─► runs/NAME/control.sock ─► ControlChannel ─► the loop

One connection carries one request and one reply, each a line of JSON: {"do": "pause"} and
{"ok": true, "state": "pausing", "update": 12}. The loop obeys between two updates.

Invariants
* Only the owner of the run may connect: the socket has mode 0600, and the peer's user id is checked.
* A path too long for a socket (107 bytes) is a link in the run folder to a socket in a private folder.
* No torch here: a view imports it.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Literal, get_args

from stepwell.core.errors import InfraError, InputError
from stepwell.core.names import suggest_name

Command = Literal["status", "pause", "resume", "checkpoint", "evaluate", "stop"]
COMMANDS: tuple[Command, ...] = get_args(Command)
SOCKET_FILE = "control.sock"
MAX_LINE = 4096
_MAX_PATH = 100


def send_command(folder: Path, command: str, *, timeout_s: float = 2.0) -> dict[str, Any]:
    """Ask the run in a folder to do something; returns its reply. An `InfraError` if no run listens there."""
    if command not in COMMANDS:
        raise InputError(f"command {command!r} is unknown{suggest_name(command, COMMANDS, 'Commands')}")
    path = folder / SOCKET_FILE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(os.path.realpath(path) if path.is_symlink() else shorten_path(path))
            connection.sendall(json.dumps({"do": command}).encode() + b"\n")
            reply = json.loads(read_line(connection))
        except (OSError, ValueError) as error:
            raise InfraError(f"no run listens in {folder} ({error}); is it still running?") from error
    if not reply.get("ok"):
        raise InfraError(str(reply.get("error", "the run refused the command")))
    return dict(reply)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The status that a running run reports; None if none runs in this folder."""
    if not (folder / SOCKET_FILE).exists():
        return None
    try:
        return send_command(folder, "status", timeout_s=0.5)
    except InfraError:
        return None


def read_line(connection: socket.socket) -> bytes:
    """One line of at most `MAX_LINE` bytes."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= MAX_LINE:
        part = connection.recv(1024)
        if not part:
            break
        line += part
    return line


def shorten_path(path: Path) -> str:
    """The path as it fits into a socket's address: absolute, or relative if that is shorter."""
    choices = (os.path.abspath(path), os.path.relpath(path))
    return min(choices, key=len)


def is_too_long(path: Path) -> bool:
    return len(os.fsencode(shorten_path(path))) > _MAX_PATH
