"""Keys, limits, bodies and the access log, through real HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.services.gateways import Served, chat, serve_gateway, user

from stepwell.cli.main import main
from stepwell.config.gateway import GatewayConfig
from stepwell.core.errors import ConfigError
from stepwell.services.keys import KeyRing, create_key, hash_key, verify_key
from stepwell.services.limits import ServiceLimits

ALICE, BOB = create_key("alice"), create_key("bob")
CALL = {"model": "m", "messages": [user("hello")], "max_tokens": 4}


@pytest.fixture(scope="module")
def locked_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = {"alice": hash_key(ALICE), "bob": hash_key(BOB)}
    with serve_gateway(tmp_path_factory.mktemp("pool"), keys=keys) as served:
        yield served


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_gateway(tmp_path_factory.mktemp("pool"), max_body_bytes=2000) as served:
        yield served


def test_a_call_without_a_known_key_is_refused_in_the_vendors_format(locked_gateway: Served) -> None:
    for key in ("none", "sw_alice_wrong", BOB.replace("bob", "alice"), "sw__", "ключ".encode().hex()):
        with pytest.raises(openai.AuthenticationError) as refused:
            chat(locked_gateway.openai("closed", api_key=key), [user("hello")])
        assert refused.value.code == "invalid_api_key"
    reply = locked_gateway.post("/s/closed/v1/messages", CALL)
    assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
    for path in ("/sessions", "/metrics", "/openapi.json", "/sessions/closed"):
        assert locked_gateway.get(path).status_code == 401
    assert (
        locked_gateway.get("/health").status_code == 200 and locked_gateway.get("/ready").status_code == 200
    )


def test_both_clients_send_their_key_in_their_own_way(locked_gateway: Served) -> None:
    chat(locked_gateway.openai("open", api_key=ALICE), [user("hello")])
    locked_gateway.anthropic("open", api_key=ALICE).messages.create(
        model="m", max_tokens=4, messages=[{"role": "user", "content": "hello"}]
    )
    assert len(locked_gateway.steps("open")) == 2 and locked_gateway.stored("open").source["key"] == "alice"


def test_a_session_belongs_to_the_key_that_started_it(locked_gateway: Served) -> None:
    chat(locked_gateway.openai("mine", api_key=ALICE), [user("hello")])
    with pytest.raises(openai.PermissionDeniedError):
        chat(locked_gateway.openai("mine", api_key=BOB), [user("hello")])
    bob = {"authorization": f"Bearer {BOB}"}
    assert locked_gateway.post("/sessions/mine/reward", {"value": 1.0}, headers=bob).status_code == 403
    assert locked_gateway.get("/sessions/mine", headers=bob).status_code == 403
    assert "mine" not in locked_gateway.get("/sessions", headers=bob).text


def test_each_key_has_its_own_session(locked_gateway: Served) -> None:
    for key, times in ((ALICE, 2), (BOB, 1)):
        client = openai.OpenAI(base_url=f"{locked_gateway.url}/v1", api_key=key)
        for _ in range(times):
            chat(client, [user("hello")])
    entries = {e.id.split("-")[0]: e.num_steps for e in locked_gateway.pool.find() if "automatic" in e.tags}
    assert entries == {"automatic.alice": 2, "automatic.bob": 1}


@given(name=st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True), other=st.text(max_size=60))
def test_a_hash_matches_its_key_and_no_other(name: str, other: str) -> None:
    key = create_key(name)
    stored = hash_key(key)
    assert verify_key(key, stored) and not verify_key(other, stored) and key not in stored
    assert KeyRing({name: stored}).find_name(key) == name
    assert KeyRing({name: stored}).find_name(f"sw_{name}_{other}") is None


def test_a_key_is_shown_once_stored_as_a_hash_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    assert main(["serve", "key", "carol", "--keys", str(file)]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("sw_carol_") and key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing({}, file)
    assert ring.find_name(key) == "carol" and ring.find_name(key[:-1]) is None
    assert main(["serve", "key", "carol", "--keys", str(file)]) == 2  # never overwritten unseen
    assert main(["serve", "key", "dave", "--keys", str(file)]) == 0
    monkeypatch.setattr("stepwell.services.keys._RELOAD_INTERVAL_S", -1.0)
    assert ring.find_name(capsys.readouterr().out.strip().splitlines()[-1]) == "dave"
    assert main(["serve", "key", "carol", "--keys", str(file), "--revoke"]) == 0
    assert ring.find_name(key) is None
    with pytest.raises(ConfigError, match="holds no key"):
        KeyRing({}, tmp_path / "absent.json")


def test_listening_to_other_machines_needs_keys() -> None:
    with pytest.raises(ValidationError, match="stepwell serve key NAME"):
        GatewayConfig(host="0.0.0.0")
    assert GatewayConfig(host="0.0.0.0", keys={"a": hash_key(ALICE)}).host == "0.0.0.0"
    assert GatewayConfig().host == "127.0.0.1"


def test_a_rate_limit_is_a_bucket_that_refills() -> None:
    now = [0.0]
    limits = ServiceLimits(rate_per_s=2.0, burst=3, max_concurrent=100, clock=lambda: now[0])
    assert [limits.start_call("a") is None for _ in range(4)] == [True, True, True, False]
    assert limits.start_call("b") is None  # keys do not share
    refusal = limits.start_call("a")
    assert refusal is not None and refusal[1] == pytest.approx(0.5)
    now[0] = 0.5
    assert [limits.start_call("a") is None for _ in range(2)] == [True, False]


def test_calls_of_a_key_at_once_are_counted_down_again() -> None:
    limits = ServiceLimits(rate_per_s=0.0, burst=1, max_concurrent=2)
    assert [limits.start_call("a") is None for _ in range(3)] == [True, True, False]
    limits.end_call("a")
    assert limits.start_call("a") is None


def test_too_many_calls_are_429_with_the_time_to_wait(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, rate_per_s=0.01, burst=2) as served:
        replies = [served.post("/s/fast/v1/chat/completions", CALL) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert 1 <= int(replies[2].headers["retry-after"]) <= 100
        assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"


def test_a_client_that_is_refused_waits_and_tries_again(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, rate_per_s=1.0, burst=1) as served:
        client = served.openai("fast", max_retries=3)
        for _ in range(2):
            chat(client, [user("again")])


def test_concurrent_calls_beyond_the_limit_are_429(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, max_concurrent=1) as served:
        body = {**CALL, "max_tokens": 100}
        codes: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: codes.append(served.post(f"/s/c{n}/v1/chat/completions", body).status_code)
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(codes) == {200, 429}
        assert served.post("/s/after/v1/chat/completions", CALL).status_code == 200


@pytest.mark.parametrize("path", ["/s/x/v1/chat/completions", "/s/x/v1/messages", "/sessions"])
def test_a_body_beyond_the_limit_is_413_however_it_is_sent(small: Served, path: str) -> None:
    big = json.dumps({**CALL, "padding": "x" * 3000}).encode()

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(big), 500):
            yield big[start : start + 500]

    for content in (big, chunks()):
        reply = httpx.post(small.url + path, content=content, headers={"content-type": "application/json"})
        assert reply.status_code == 413, reply.text
        assert "larger than 2000 bytes" in reply.json()["error"]["message"]


def test_a_body_in_chunks_within_the_limit_is_served(small: Served) -> None:
    reply = httpx.post(
        small.url + "/s/chunks/v1/chat/completions",
        content=iter([json.dumps(CALL).encode()[:20], json.dumps(CALL).encode()[20:]]),
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 200


def test_a_body_that_never_ends_is_refused(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, body_timeout_s=0.1) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            headers = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 100"
            connection.sendall(f'POST /sessions HTTP/1.1\r\n{headers}\r\n\r\n{{"id":'.encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": "m"}', b'{"model": "m", "messages": []}',
        b'{"model": "m", "messages": [{"role": "king", "content": "x"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": 1}]}', b"[" * 1900,
        b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 0}',
        b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    ],
)  # fmt: skip
def test_a_malformed_body_is_400_and_nothing_is_recorded(small: Served, body: bytes) -> None:
    for path in ("/s/bad/v1/chat/completions", "/s/bad/v1/messages"):
        reply = httpx.post(small.url + path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["message"]
    assert small.get("/sessions/bad").status_code == 404


def test_strange_requests_are_refused_and_do_not_fail(small: Served) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404), ("DELETE", "/sessions", 405), ("GET", "/s/x/v1/chat/completions", 405),
        ("POST", "/s//v1/chat/completions", 404), ("GET", "/sessions/%00", 404),
        ("GET", "/sessions/" + "x" * 600, 404),
    ):  # fmt: skip
        host = small.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=5)
        connection.request(method, path)
        assert connection.getresponse().status == status, (method, path)


def test_the_access_log_says_who_did_what_without_keys_or_content(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "access.jsonl"
    with serve_gateway(tmp_path, keys={"alice": hash_key(ALICE)}, access_log=str(log)) as served:
        chat(served.openai("logged", api_key=ALICE), [user("a secret wish")])
        served.post("/s/logged/v1/chat/completions?token=hidden", CALL)
    text = log.read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert [(line["status"], line.get("key"), line.get("session")) for line in lines] == [
        (200, "alice", "logged"), (401, None, None),
    ]  # fmt: skip
    assert lines[0]["path"] == "/s/logged/v1/chat/completions" and lines[0]["ms"] > 0
    assert lines[0]["read"] > 50 and lines[0]["written"] > 100
    assert ALICE not in text and "secret wish" not in text and "hidden" not in text
