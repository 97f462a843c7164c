"""Slow, large and forged requests from real sockets, against both services."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.services.connection_counter import ConnectionCounter
from tests.services.gateways import Served, serve_gateway, user
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stepwell.config.env_service import EnvServiceConfig
from stepwell.config.worker_service import WorkerServiceConfig
from stepwell.services.envs.app import create_env_app
from stepwell.services.http_server import serve_in_thread
from stepwell.services.worker_host import create_worker_host_app

SHORT = {"header_timeout_s": 0.5, "body_timeout_s": 0.5, "max_concurrent": 16, "max_body_bytes": 2**20}
SLOW_HEADERS = b"POST /sessions HTTP/1.1\r\nhost: localhost\r\n"
SLOW_BODY = SLOW_HEADERS + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
CALL = {"model": "m", "messages": [user("hello")], "max_tokens": 2}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_gateway(tmp_path_factory.mktemp("pool"), **SHORT) as served:
        yield served


@pytest.fixture(scope="module")
def patient_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that waits: on a busy machine a large body needs more than half a second."""
    settings = {"max_body_bytes": 2**20, "header_timeout_s": 300}
    with serve_gateway(tmp_path_factory.mktemp("patient"), **settings) as served:
        yield served


@pytest.fixture(scope="module")
def envs() -> Iterator[str]:
    url, stop = serve_in_thread(create_env_app(EnvServiceConfig(num_threads=1, **SHORT)))  # type: ignore[arg-type]
    yield url
    stop()


@pytest.fixture(params=["gateway", "envs"])
def url(request: pytest.FixtureRequest) -> str:
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else found.url


def dial(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ends the connection; waits for it."""
    try:
        while connection.recv(65_536):
            continue
    except ConnectionResetError:
        return True
    return True


def receives(connection: socket.socket, wanted: bytes) -> bool:
    """Whether a text arrives before the connection ends; head and body of a reply may come apart."""
    reply = b""
    while wanted not in reply and (more := connection.recv(65_536)):
        reply += more
    return wanted in reply


@pytest.mark.parametrize("sent", [b"", SLOW_HEADERS, SLOW_BODY, SLOW_BODY + b'{"id":'])
def test_slow_connections_block_nobody_and_are_closed(url: str, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(dial(url)) for _ in range(20)]
        for connection in slow:
            connection.sendall(sent)
        began = time.monotonic()
        assert httpx.get(f"{url}/openapi.json", timeout=30).status_code == 200
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        if sent.startswith(SLOW_BODY):
            assert all(receives(connection, b"did not arrive within 0.5 s") for connection in slow)
        else:
            assert all(is_closed(connection) for connection in slow)
        assert time.monotonic() - began < 20


def test_headers_sent_byte_by_byte_get_no_extra_time(url: str) -> None:
    with dial(url) as connection:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 20:
                connection.sendall(b"x")
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert time.monotonic() - began < 20


def test_endless_headers_are_cut_off_before_their_time_is_up(patient_gateway: Served) -> None:
    with dial(patient_gateway.url) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(SLOW_HEADERS)
            for _ in range(100):
                connection.sendall(b"x-more: " + b"x" * 4000 + b"\r\n")
        assert is_closed(connection)


def test_the_rest_of_a_refused_body_gets_no_extra_time(url: str) -> None:
    with dial(url) as connection:
        connection.sendall(SLOW_HEADERS + b"content-length: 99999999\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 20:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - began < 20


def test_a_large_body_is_refused_by_its_stated_length(url: str) -> None:
    with dial(url) as connection:
        connection.sendall(SLOW_HEADERS + b"content-length: 1073741824\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8080"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:80"}, 200),
    ],
)
def test_on_loopback_other_hosts_and_sites_are_refused(
    url: str, headers: dict[str, str], status: int
) -> None:
    for path in ("/health", "/openapi.json", "/"):
        reply = httpx.get(url + path, headers=headers)
        assert reply.status_code == status
        assert status == 200 or "is not allowed" in reply.text


def test_a_web_page_of_another_site_opens_no_websocket(envs: str) -> None:
    address = f"{envs.replace('http', 'ws')}/ws"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, origin="http://evil.example", proxy=None)  # type: ignore[arg-type]
    with connect(address, proxy=None):
        pass


def test_a_host_that_is_allowed_by_name_is_served() -> None:
    url, stop = serve_in_thread(create_env_app(EnvServiceConfig(allowed_hosts=("rl.example",))))
    assert httpx.get(f"{url}/health", headers={"host": "rl.example"}).status_code == 200
    stop()


def test_the_two_pages_load_nothing_from_elsewhere(url: str) -> None:
    for path in ("/", "/docs"):
        reply = httpx.get(url + path, headers={"accept": "text/html,*/*"})
        assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/html")
        words = reply.text.replace(url, "")  # the address of the service itself may stand there
        assert "Stepwell" in words and "http://" not in words and "https://" not in words
        assert "src=" not in words and "default-src 'none'" in reply.headers["content-security-policy"]
    assert "/sessions" in httpx.get(f"{url}/docs").text


def test_the_first_page_has_calls_that_work_as_they_stand(url: str) -> None:
    page = httpx.get(url)
    assert page.headers["content-type"].startswith("text/plain") and "<" not in page.text
    calls = re.findall(r"^curl (\S+)(?: -H '[^']*' -d '([^']*)')?$", page.text, re.MULTILINE)
    assert len(calls) == 2
    for address, body in calls:
        reply = httpx.post(address, json=json.loads(body)) if body else httpx.get(address)
        assert reply.status_code in (200, 201) and reply.json()


def test_an_image_url_is_never_fetched(gateway: Served) -> None:
    with ConnectionCounter() as listener:
        image = {"type": "image_url", "image_url": {"url": f"{listener.url}/secret.png"}}
        body = {**CALL, "messages": [{"role": "user", "content": [image]}]}
        reply = gateway.post("/s/fetch/v1/chat/completions", body)
        assert reply.status_code == 400 and listener.num_connections == 0


@contextlib.contextmanager
def hold_long_prompts(gateway: Served) -> Iterator[threading.Event]:
    """Inside the block tokenizing a long prompt goes on for ever; the event says that one has begun."""
    template = gateway.gateway.renderer.template
    encode, began, may_end = template.encode, threading.Event(), threading.Event()

    def encode_slowly(text: str) -> list[int]:
        if len(text) > 20_000:
            began.set()
            assert may_end.wait(30)
        return encode(text)

    template.encode = encode_slowly  # type: ignore[method-assign]
    try:
        yield began
    finally:
        may_end.set()
        del template.encode  # type: ignore[attr-defined]


def test_a_prompt_that_cannot_fit_is_refused_by_its_bytes_before_it_is_tokenized(
    patient_gateway: Served,
) -> None:
    gateway = patient_gateway
    body = {**CALL, "messages": [user("many words " * 80_000)]}
    for path in ("/s/big/v1/chat/completions", "/s/big/v1/messages", "/s/big/v1/messages/count_tokens"):
        reply = gateway.post(path, body, timeout=60)
        assert reply.status_code == 400 and "bytes, but the context holds at most" in reply.text, reply.text
    reply = gateway.post("/s/big/v1/completions", {"model": "m", "prompt": "x" * 900_000}, timeout=60)
    assert reply.status_code == 400 and "bytes, but the context holds at most" in reply.text


def test_tools_and_their_calls_count_as_bytes_of_the_prompt(patient_gateway: Served) -> None:
    text = "many words " * 80_000
    tool = {"type": "function", "function": {"name": "look", "description": text}}
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "look", "arguments": json.dumps({"at": text})},
    }
    called = [user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("y")]
    for more in ({"tools": [tool]}, {"messages": called}):
        reply = patient_gateway.post("/s/tools/v1/chat/completions", {**CALL, **more}, timeout=60)
        assert reply.status_code == 400 and "bytes, but the context holds at most" in reply.text, reply.text


@pytest.mark.parametrize("messages", [[1] * 300_000, [{}] * 200_000, [user("")] * 10_000 + [[]] * 110_000])
def test_a_body_of_very_many_values_is_refused_before_they_are_checked(
    patient_gateway: Served, messages: list[object]
) -> None:
    body = json.dumps({**CALL, "messages": messages}, separators=(",", ":"))
    headers = {"content-type": "application/json"}
    began = time.process_time()
    reply = httpx.post(
        f"{patient_gateway.url}/s/many/v1/chat/completions", content=body, headers=headers, timeout=60
    )
    assert reply.status_code == 413 and "more than 131072 values of JSON" in reply.text, reply.text
    assert time.process_time() - began < 2


def test_while_a_long_prompt_is_tokenized_others_are_answered(patient_gateway: Served) -> None:
    gateway = patient_gateway
    vocabulary = gateway.gateway.renderer.template.tokenizer.get_vocab()
    largest = gateway.gateway.renderer.context_length * max(len(piece.encode()) for piece in vocabulary)
    text = ("Where is it? " * largest)[: largest - 100]
    replies: list[httpx.Response] = []

    def send_long_prompt() -> None:
        body = {**CALL, "messages": [user(text)]}
        replies.append(gateway.post("/s/long/v1/messages/count_tokens", body, timeout=60))

    with hold_long_prompts(gateway) as began:
        thread = threading.Thread(target=send_long_prompt)
        thread.start()
        assert began.wait(30)
        assert gateway.get("/health", timeout=30).status_code == 200
        assert gateway.post("/s/short/v1/chat/completions", CALL, timeout=30).status_code == 200
        assert not replies
    thread.join()
    assert json.loads(replies[0].text)


def test_more_prompts_than_may_wait_are_refused_with_a_time_to_try_again(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, max_waiting_prompts=1) as gateway:
        long = {**CALL, "messages": [user("Where is it? " * 2000)]}
        ask = partial(gateway.post, "/s/long/v1/messages/count_tokens", long, timeout=60)
        with ThreadPoolExecutor(1) as threads, hold_long_prompts(gateway) as began:
            first = threads.submit(ask)
            assert began.wait(30)
            reply = gateway.post("/s/other/v1/chat/completions", CALL, timeout=30)
            assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
            assert "1 prompts are waiting to be tokenized (max_waiting_prompts)" in reply.text
            assert not first.done()
        assert gateway.post("/s/other/v1/chat/completions", CALL, timeout=60).status_code == 200


def test_unfinished_bodies_of_one_caller_hold_no_more_than_their_share() -> None:
    config = WorkerServiceConfig(max_body_bytes=2**20)
    url, stop = serve_in_thread(create_worker_host_app(config))
    head = b"POST /workers HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n\r\n"
    with contextlib.ExitStack() as stack:
        stack.callback(stop)
        slow = [stack.enter_context(dial(url)) for _ in range(3)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):  # one is refused before it has sent all
                connection.sendall(head + b"x" * 1_000_000)
        refused = select.select(slow, [], [], 30)[0]
        assert refused and receives(refused[0], b"too many large bodies are being sent at once")
