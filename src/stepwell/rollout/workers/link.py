"""The local transport: frames lie in shared memory, and a short ticket over a socket says where.

    send:     frame ─► Outbox.put ─► ticket (with the descriptor of a new arena) ─► socket
    receive:  socket ─► ticket ─► Inbox.take (copies, gives the place back) ─► frame

Both ends use the same class, the worker on a blocking socket and the parent on one that never blocks.
A ticket carries the number of the call, so that answers may come in any order.
"""

from __future__ import annotations

import os
import socket
import struct
import threading

from stepwell.core import EncodingError
from stepwell.rollout.workers.frames import Frame, decode, encode
from stepwell.rollout.workers.shared import Inbox, Outbox

_TICKET = struct.Struct("<4sIQIIQQ")
_MAGIC = b"SWTK"
_MAX_TICKETS, _MAX_DESCRIPTORS = 64, 64


class Link:
    """One end of the way between a parent and its worker."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._outbox, self._inbox = Outbox(), Inbox()
        self._unread, self._descriptors = bytearray(), list[int]()
        self._lock = threading.Lock()

    def send(self, call: int, frame: Frame) -> None:
        """Send one frame. Safe in several threads at once.

        Raises `WorkerError` where there is no memory for it, `ConnectionError` if the other end is gone.
        """
        parts, size = encode(frame)
        arena, start = self._outbox.put(parts, size)
        with self._lock:
            oldest, descriptors = self._outbox.handing_over(arena)
            ticket = _TICKET.pack(_MAGIC, len(descriptors), call, arena, oldest, start, size)
            try:
                if descriptors:
                    sent = socket.send_fds(self.socket, [ticket], descriptors)
                else:
                    sent = self.socket.send(ticket)
            except BlockingIOError:
                raise ConnectionError("has thousands of messages waiting and reads none of them") from None
            except OSError as error:  # the other end is gone
                raise ConnectionError("") from error
            assert sent == len(ticket), "a kernel that splits a message of 40 bytes"
            self._outbox.handed_over(descriptors)

    def receive(self) -> list[tuple[int, Frame]] | None:
        """The frames that have come, with the numbers of their calls; None when no more will come.

        Waits for one where the socket waits. Raises `EncodingError` for what is not ours.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self.socket, _TICKET.size * _MAX_TICKETS, _MAX_DESCRIPTORS
            )
        except BlockingIOError:
            return []
        except OSError:  # such as a reset by an end that was killed
            return None
        if not data:
            return None
        self._unread += data
        self._descriptors += descriptors
        frames = []
        while len(self._unread) >= _TICKET.size:
            frames.append(self._open(_TICKET.unpack_from(self._unread)))
            del self._unread[: _TICKET.size]
        return frames

    def close(self) -> None:
        """Let go of the socket and all shared memory. Calling it twice is fine."""
        self.socket.close()
        self._outbox.close()
        self._inbox.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, ticket: tuple[bytes, int, int, int, int, int, int]) -> tuple[int, Frame]:
        magic, num_descriptors, call, arena, oldest, start, size = ticket
        if magic != _MAGIC or num_descriptors > len(self._descriptors):
            raise EncodingError("something else than a ticket came over the socket")
        for _ in range(num_descriptors):
            self._inbox.add(self._descriptors.pop(0))
        return call, decode(self._inbox.take(arena, start, size, oldest))
