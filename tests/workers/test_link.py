"""The local transport: frames through shared memory, reused, outgrown, and never left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import EncodingError, WorkerError
from stepwell.core.frames import Frame
from stepwell.workers.shared_link import Link
from stepwell.workers.shared_memory import FIRST_BYTES, Inbox, Outbox


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    num_open = len(os.listdir("/proc/self/fd"))
    one, other = (Link(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == num_open


def numbers(size: int, start: int = 0) -> Frame:
    return Frame("numbers", {"size": size}, [np.arange(start, start + size)])


def check(link: Link, *expected: Frame) -> None:
    found: list[tuple[int, Frame]] = []
    while len(found) < len(expected):  # one look ends at a message that brings new memory
        found += link.receive() or []
    assert [call for call, _ in found] == list(range(len(expected)))
    for (_, frame), wanted in zip(found, expected, strict=True):
        assert frame.header == wanted.header
        assert np.array_equal(frame.arrays[0], wanted.arrays[0])


def test_memory_is_reused_and_not_taken_anew_per_message(ends: tuple[Link, Link]) -> None:
    one, other = ends
    for start in range(300):
        one.send(0, numbers(2000, start))
        check(other, numbers(2000, start))
    assert one._outbox.num_bytes == FIRST_BYTES and len(other._inbox._arenas) == 1


def test_messages_that_are_not_read_yet_are_never_overwritten(ends: tuple[Link, Link]) -> None:
    one, other = ends
    frames = [numbers(5000, start) for start in range(20)]  # far more than the first arena holds
    for call, frame in enumerate(frames):
        one.send(call, frame)
    check(other, *frames)


def test_a_large_message_gets_a_larger_arena_and_the_small_one_is_dropped(ends: tuple[Link, Link]) -> None:
    one, other = ends
    for size in (2000, 1_000_000, 2000):
        one.send(0, numbers(size))
        check(other, numbers(size))
    assert len(one._outbox._arenas) == len(other._inbox._arenas) == 1
    assert 8_000_000 < one._outbox.num_bytes < 9_000_000


def test_threads_that_send_at_once_do_not_mix_their_messages(ends: tuple[Link, Link]) -> None:
    one, other = ends

    def send(first: int) -> None:
        for call in range(first, 80, 4):
            one.send(call, numbers(1 << (call % 18), call))

    threads = [threading.Thread(target=send, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    seen: dict[int, np.ndarray] = {}
    while len(seen) < 80:
        for call, frame in other.receive() or ():
            seen[call] = frame.arrays[0]
    for thread in threads:
        thread.join()
    for call, array in seen.items():
        assert np.array_equal(array, np.arange(call, call + (1 << (call % 18))))


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=40), st.randoms())
def test_frames_read_in_any_order_are_whole(sizes: list[tuple[int, bool]], random: object) -> None:
    """Answers are taken out of order: whatever lies in memory meanwhile stays as it was written."""
    outbox, inbox = Outbox(first_bytes=4096), Inbox()
    waiting: list[tuple[int, int, bytes, int]] = []
    try:
        for place, (size, reads) in enumerate(sizes):
            data = bytes([place % 251]) * size
            arena, start = outbox.put_frame([data], size)
            oldest, descriptors = outbox.prepare_handover(arena)
            for descriptor in descriptors:
                inbox.add_arena(os.dup(descriptor))
            outbox.finish_handover(descriptors)
            waiting.append((arena, start, data, oldest))
            if reads:
                number = random.randrange(len(waiting))  # type: ignore[attr-defined]
                arena, start, data, oldest = waiting.pop(number)
                assert bytes(inbox.take_frame(arena, start, len(data), oldest)) == data
        for arena, start, data, oldest in waiting:
            assert bytes(inbox.take_frame(arena, start, len(data), oldest)) == data
    finally:
        outbox.close()
        inbox.close()


def test_small_messages_need_no_shared_memory_and_any_number_of_them_comes_whole(
    ends: tuple[Link, Link],
) -> None:
    one, other = ends
    frames = [numbers(size % 900, size) for size in range(100)]
    sending = threading.Thread(target=lambda: [one.send(call, frame) for call, frame in enumerate(frames)])
    sending.start()
    check(other, *frames)
    sending.join()
    assert one._outbox.num_bytes == 0


def test_what_is_not_a_ticket_is_refused(ends: tuple[Link, Link]) -> None:
    one, other = ends
    one.socket.sendall(b"x" * 40)
    with pytest.raises(EncodingError, match="not a ticket"):
        other.receive()


def test_a_ticket_for_memory_that_is_not_there_is_refused(ends: tuple[Link, Link]) -> None:
    from stepwell.workers.shared_link import _MAGIC, _TICKET

    one, other = ends
    one.send(0, numbers(2000))
    other.receive()
    for arena, start, size in ((7, 0, 10), (0, 1 << 40, 10), (0, 0, 1 << 40)):
        one.socket.sendall(_TICKET.pack(_MAGIC, 0, 0, arena, 0, start, size))
        with pytest.raises(EncodingError, match="not there"):
            other.receive()
        other._unread = b""


def test_the_end_of_the_other_side_is_seen(ends: tuple[Link, Link]) -> None:
    one, other = ends
    one.close()
    assert other.receive() is None
    with pytest.raises(ConnectionError):
        other.send(0, numbers(3))


def test_without_memfd_a_file_without_a_name_does_the_same(
    ends: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    one, other = ends
    one.send(0, numbers(100_000))
    check(other, numbers(100_000))


NO_MEMORY = """
import resource, socket, numpy as np
from stepwell.core import WorkerError
from stepwell.core.frames import Frame
from stepwell.workers.shared_link import Link
one, other = (Link(end) for end in socket.socketpair())
one.send(0, Frame("medium", {}, [np.zeros(2000)]))
assert other.receive()[0][1].op == "medium"
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    one.send(1, Frame("large", {}, [np.zeros(1 << 20)]))
except WorkerError as error:
    print(error)
one.send(2, Frame("medium", {}, [np.zeros(2000)]))
assert other.receive()[0][0] == 2
"""


def test_memory_that_cannot_be_had_is_one_clear_error_and_the_link_goes_on() -> None:
    ran = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(
        "8 MiB of shared memory are not available (File too large); free some memory"
    )


def test_no_descriptors_left_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(WorkerError, match=r"shared memory are not available \(Too many open files\)"):
        Outbox().put_frame([b"x"], 1)
