"""The local transport: frames lie in shared memory, and a short ticket over a socket says where.

    send:     frame ─► Outbox.put_frame ─► ticket (with the descriptor of a new arena) ─► socket
    receive:  socket ─► ticket ─► Inbox.take_frame (copies, frees the region) ─► frame

A frame of a few kilobytes follows its ticket instead: the kernel copies it faster than two processes can
agree on a region. Both ends use the same class, the worker on a blocking socket and the parent on one that
never blocks. A ticket has the number of its call, so that answers may come in any order.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from array import array
from collections.abc import Sequence

from stepwell.core import EncodingError
from stepwell.core.frames import Frame, decode, encode
from stepwell.workers.shared_memory import Inbox, Outbox

_TICKET = struct.Struct("<4sIQIIQQ")
_MAGIC = b"SWTK"
_INLINE = 0xFFFFFFFF  # instead of an arena: the frame follows its ticket
SMALL_BYTES = 8192
_READ_BYTES, _CONTROL_BYTES = 2 * SMALL_BYTES, socket.CMSG_SPACE(64 * array("i").itemsize)


class Link:
    """One end of the link between a parent and its worker."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._outbox, self._inbox = Outbox(), Inbox()
        self._unread, self._descriptors = b"", list[int]()
        self._lock = threading.Lock()

    def send(self, call: int, frame: Frame) -> None:
        """Send one frame. Safe in several threads at once.

        Raises `WorkerError` if there is no memory for it, `ConnectionError` if the other end is closed.
        """
        parts, size = encode(frame)
        if size <= SMALL_BYTES:
            with self._lock:
                self._write(b"".join([_TICKET.pack(_MAGIC, 0, call, _INLINE, 0, 0, size), *parts]))
            return
        arena, start = self._outbox.put_frame(parts, size)
        with self._lock:
            oldest, descriptors = self._outbox.prepare_handover(arena)
            ticket = _TICKET.pack(_MAGIC, len(descriptors), call, arena, oldest, start, size)
            self._write(ticket, descriptors)
            self._outbox.finish_handover(descriptors)

    def _write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            sent = (
                socket.send_fds(self.socket, [data], descriptors) if descriptors else self.socket.send(data)
            )
        except BlockingIOError:
            raise ConnectionError("does not read: hundreds of messages are waiting") from None
        except OSError as error:  # the other end is closed
            raise ConnectionError("") from error
        assert sent == len(data), "the kernel split a message of a few kilobytes"

    def receive(self) -> list[tuple[int, Frame]] | None:
        """The new frames with the numbers of their calls; None if no more will come.

        Waits for one if the socket is blocking. Raises `EncodingError` for foreign data.
        """
        try:
            data, controls, _, _ = self.socket.recvmsg(_READ_BYTES, _CONTROL_BYTES)
        except BlockingIOError:
            return []
        except OSError:  # such as a reset by a process that was killed
            return None
        if not data:
            return None
        for level, kind, control in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += array("i", control)
        if self._unread:
            data = self._unread + data
        frames, place = [], 0
        while place + _TICKET.size <= len(data):
            ticket = _TICKET.unpack_from(data, place)
            end = place + _TICKET.size + (ticket[-1] if ticket[3] == _INLINE else 0)
            if ticket[3] == _INLINE and ticket[-1] > SMALL_BYTES:
                raise EncodingError("the socket delivered something that is not a ticket")
            if end > len(data):
                break
            frames.append(self._open(ticket, data[place + _TICKET.size : end]))
            place = end
        self._unread = data[place:]
        return frames

    def close(self) -> None:
        """Close the socket and free all shared memory. Calling it twice is fine."""
        self.socket.close()
        self._outbox.close()
        self._inbox.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, ticket: tuple[bytes, int, int, int, int, int, int], inline: bytes) -> tuple[int, Frame]:
        magic, num_descriptors, call, arena, oldest, start, size = ticket
        if magic != _MAGIC or num_descriptors > len(self._descriptors):
            raise EncodingError("the socket delivered something that is not a ticket")
        if arena == _INLINE:
            return call, decode(inline)
        for _ in range(num_descriptors):
            self._inbox.add_arena(self._descriptors.pop(0))
        return call, decode(self._inbox.take_frame(arena, start, size, oldest))
