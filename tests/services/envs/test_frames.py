"""Frames on a bare connection: replies in order, and the same limits as for calls over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvicorn
from tests.services.envs.misbehaving_envs import Stubborn

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core.frames import Frame, decode, measure_frame, to_bytes
from stepwell.envs import make_env
from stepwell.envs.remote.connections import FrameStream
from stepwell.services.envs.app import create_env_app
from stepwell.services.keys import create_key, hash_key, write_keys

Service = Callable[..., str]
ASK = "GET /frames HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: stepwell-frames\r\n\r\n"
LOAD = to_bytes(Frame("load"))


def connect(url: str, host: str = "127.0.0.1") -> tuple[socket.socket, bytes]:
    """A connection that has asked for frames, and the head of the reply."""
    address, _, port = url.removeprefix("http://").rpartition(":")
    opened = socket.create_connection((address, int(port)), 20)
    opened.sendall(ASK.format(host=host).encode())
    return opened, opened.recv(4096)


def read_replies(opened: socket.socket, count: int) -> list[Frame]:
    data, found = b"", []
    while len(found) < count:
        size = measure_frame(data)
        if size is None or len(data) < size:
            part = opened.recv(65_536)
            assert part, "the server closed the connection"
            data += part
        else:
            found.append(decode(data[:size]))
            data = data[size:]
    return found


def wait(is_there: Callable[[float], bool]) -> None:
    assert is_there(20.0)


def is_closed(opened: socket.socket) -> bool:
    """Whether the server closes the connection without a further reply."""
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True
    finally:
        opened.close()


def test_frames_sent_at_once_are_answered_in_order(url: str) -> None:
    opened, head = connect(url)
    assert head.startswith(b"HTTP/1.1 101")
    asked = [to_bytes(Frame("tasks", {"env": "frozenlake", "seeds": list(range(n))})) for n in (3, 1, 2)]
    opened.sendall(b"".join([*asked, LOAD])[:-5])
    opened.sendall(LOAD[-5:])
    replies = read_replies(opened, 4)
    assert [len(reply.header["tasks"]) for reply in replies[:3]] == [3, 1, 2] and replies[3].op == "load"
    opened.close()


def test_a_mistake_in_a_frame_leaves_the_connection_open(url: str) -> None:
    opened, _ = connect(url)
    opened.sendall(to_bytes(Frame("dance")) + LOAD)
    wrong, right = read_replies(opened, 2)
    assert wrong.op == "error" and wrong.header["status"] == 400 and right.op == "load"
    opened.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 400),
        (to_bytes(Frame("load", {"filler": "x" * 4000})), 413),
    ],
)
def test_foreign_and_large_frames_end_the_connection(service: Service, sent: bytes, status: int) -> None:
    opened, _ = connect(service(max_body_bytes=2048))
    opened.sendall(sent)
    (reply,) = read_replies(opened, 1)
    assert reply.op == "error" and reply.header["status"] == status
    assert is_closed(opened)


def test_a_frame_that_does_not_arrive_ends_its_connection_and_no_other(service: Service) -> None:
    url = service(body_timeout_s=0.2)
    (slow, _), (fine, _) = connect(url), connect(url)
    slow.sendall(LOAD[:-1])
    begun = time.monotonic()
    assert is_closed(slow)
    assert time.monotonic() - begun >= 0.2
    fine.sendall(LOAD)
    assert read_replies(fine, 1)[0].op == "load"
    fine.close()


def test_another_host_gets_no_frames(url: str) -> None:
    opened, head = connect(url, host="evil.example")
    assert head.startswith(b"HTTP/1.1 403")
    opened.close()


def test_a_revoked_key_ends_its_connection(service: Service, tmp_path: Path) -> None:
    keys, alice, bob = tmp_path / "keys.json", create_key("alice"), create_key("bob")
    write_keys(keys, {"alice": hash_key(alice), "bob": hash_key(bob)})
    url = service(keys_file=str(keys))
    assert FrameStream.open(url, {}, 5.0, 5.0) is None  # no key
    stream = FrameStream.open(url, {"authorization": f"Bearer {alice}"}, 5.0, 20.0)
    assert stream is not None
    assert decode(stream.send(LOAD, wait)[1]).op == "load"
    write_keys(keys, {"bob": hash_key(bob)})
    until = time.monotonic() + 20  # the file is read again after a second
    while (reply := decode(stream.send(LOAD, wait)[1])).op == "load":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert reply.op == "error" and reply.header["status"] == 401
    stream.close()


def test_frames_count_against_the_limits_and_are_logged(service: Service, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    opened, _ = connect(service(rate_per_s=0.001, burst=3, access_log=str(log)))
    opened.sendall(LOAD * 3)
    replies = read_replies(opened, 3)  # the upgrade was the first of three calls
    assert [reply.op for reply in replies] == ["load", "load", "error"]
    assert replies[2].header["status"] == 429
    assert log.read_text().count('"method":"FRAME"') == 3
    opened.close()


def test_a_reply_that_comes_in_parts_is_read_whole() -> None:
    near, far = socket.socketpair()
    stream, frame = FrameStream(near, 20.0), to_bytes(Frame("load", {"num_sessions": 7}))

    def send_in_parts() -> None:
        for part in (frame[:10], frame[10:40], frame[40:]):
            far.sendall(part)
            time.sleep(0.02)

    sending = threading.Thread(target=send_in_parts)
    sending.start()
    assert decode(stream.send(LOAD, wait)[1]).header == {"num_sessions": 7}
    sending.join()
    stream.close()
    far.close()


def test_silence_and_the_end_of_a_connection_are_told_apart() -> None:
    near, far = socket.socketpair()
    stream = FrameStream(near, 20.0)

    def wait_twice(is_there: Callable[[float], bool]) -> None:
        assert not is_there(0.01)
        far.close()
        is_there(20.0)

    with pytest.raises(ConnectionResetError):
        stream.send(LOAD, wait_twice)
    stream.close()


def test_frames_of_one_connection_that_wait_do_not_hold_up_another(service: Service) -> None:
    name = "tests.services.envs.misbehaving_envs:Stubborn"
    Stubborn.may_go_on.clear()
    url = service(envs=(name,), call_timeout_s=60)
    (slow, _), (fine, _) = connect(url), connect(url)
    slow.sendall(to_bytes(Frame("create", {"env": name})))
    ids = read_replies(slow, 1)[0].header["sessions"]
    slow.sendall(to_bytes(Frame("reset", {"sessions": ids, "seeds": [0]})))
    assert read_replies(slow, 1)[0].op == "turns"
    slow.sendall(to_bytes(Frame("step", {"sessions": ids, "names": [["Up"]]})) + LOAD)
    for _ in range(3):
        fine.sendall(LOAD)
        assert read_replies(fine, 1)[0].header == {"num_sessions": 1}
    Stubborn.may_go_on.set()
    assert [reply.op for reply in read_replies(slow, 2)] == ["turns", "load"]
    Stubborn.may_go_on.clear()
    slow.close()
    fine.close()


def test_a_server_that_refuses_the_upgrade_is_called_over_http() -> None:
    config = uvicorn.Config(create_env_app(EnvServiceConfig()), http="h11", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    env, local = make_env(f"remote:http://127.0.0.1:{port}#frozenlake"), make_env("frozenlake")
    assert env.reset(seed=1) == local.reset(seed=1)
    assert env.step(("Up",)) == local.step(("Up",))
    env.close()
    server.should_exit = True
    thread.join()
