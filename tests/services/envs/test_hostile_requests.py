"""Whatever is sent, the service replies with a reason and never fails itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from tests.properties import examples
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from stepwell.envs.remote.wire import Frame, decode, pack_actions, to_bytes

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HTTP = httpx.Client(timeout=60)  # one for all: opening one takes longer than the calls
OPS = (
    "describe",
    "tasks",
    "create",
    "reset",
    "step",
    "turn",
    "state",
    "oracle",
    "render",
    "heartbeat",
    "close",
)
FIELDS = (
    "env",
    "options",
    "seeds",
    "count",
    "sessions",
    "tasks",
    "names",
    "chunks",
    "turns",
    "turn",
    "images",
)


def post(url: str, frame: Frame) -> httpx.Response:
    return HTTP.post(f"{url}/call", content=to_bytes(frame))


@pytest.fixture(scope="module")
def session(url: str) -> str:
    made = HTTP.post(f"{url}/sessions", json={"env": "frozenlake"}).json()
    return str(made["sessions"][0])


def test_bodies_beyond_the_limit_are_refused_stated_or_not(service: Callable[..., str]) -> None:
    url = service(max_body_bytes=2000)
    large = b"x" * 3000
    assert HTTP.post(f"{url}/call", content=large).status_code == 413
    assert HTTP.post(f"{url}/call", content=iter([large[:1500], large[1500:]])).status_code == 413
    assert HTTP.post(f"{url}/sessions", content=large).status_code == 413
    with (
        connect(f"{url.replace('http', 'ws')}/ws", proxy=None) as socket,
        pytest.raises(ConnectionClosedError, match="1009"),
    ):
        socket.send(large)
        socket.recv()
    assert HTTP.get(f"{url}/ready").status_code == 200


def test_a_body_of_very_many_values_and_a_very_long_name_are_refused_at_once(url: str) -> None:
    began = time.process_time()
    many = HTTP.post(f"{url}/sessions/reset", json={"sessions": [1] * 500_000})
    assert many.status_code == 413 and "more than 131072 values of JSON" in many.text
    for options in ({"x" * 2**19: 1}, {"size": "x" * 2**19}):
        assert HTTP.post(f"{url}/sessions", json={"env": "frozenlake", "options": options}).status_code == 400
        assert post(url, Frame("create", {"env": "frozenlake", "options": options})).status_code == 400
    assert HTTP.post(f"{url}/sessions", json={"env": "x" * 2**19}).status_code == 400
    assert time.process_time() - began < 5


def test_replies_beyond_the_limit_are_refused(service: Callable[..., str]) -> None:
    url = service(max_reply_bytes=100_000)
    options = {"observation": "image", "size": 32, "tile_size": 8, "max_turns": 99}
    made = post(url, Frame("create", {"env": "frozenlake", "options": options}))
    ids = decode(made.content).header["sessions"]
    refused = post(url, Frame("reset", {"sessions": ids, "seeds": [0]}))
    assert refused.status_code == 413 and "max_reply_bytes" in refused.json()["detail"]
    assert post(url, Frame("reset", {"sessions": ids, "seeds": [0], "images": "png"})).status_code == 200


@pytest.mark.parametrize(
    ("frame", "status", "words"),
    [
        (Frame("explode"), 400, "op 'explode' is unknown; use one of describe"),
        (Frame("create", {"env": "os:system"}), 404, "'os:system' is not hosted here"),
        (Frame("create", {"env": "../../etc/passwd"}), 404, "is not hosted here"),
        (Frame("create", {"env": "remote:http://127.0.0.1:1#frozenlake"}), 404, "is not hosted here"),
        (Frame("create", {"env": "frozenlake", "count": 10**9}), 400, "count must be 1 to 1024"),
        (Frame("create", {"env": "frozenlake", "options": {"size": 10**9}}), 400, "env.options.size"),
        (Frame("create", {"env": "frozenlake", "options": []}), 400, "options must be an object"),
        (Frame("step", {"sessions": ["../x"], "names": [[]]}), 404, "there is no session '../x'"),
        (Frame("reset", {"sessions": ["nobody"], "seeds": [0]}), 404, "there is no session"),
        (Frame("reset", {"sessions": [], "seeds": []}), 400, "at least one"),
        (Frame("tasks", {"env": "frozenlake", "seeds": [-1]}), 400, "seeds must be whole numbers"),
        (Frame("tasks", {"env": "frozenlake", "seeds": [2**80]}), 400, "seeds must be whole numbers"),
        (Frame("tasks", {"env": "frozenlake", "seeds": [0] * 5000}), 400, "max_batch is 1024"),
        (Frame("step", {"sessions": ["a"], "names": [[1]]}), 400, "should be a str"),
        (Frame("step", {"sessions": ["a"]}), 400, "does not hold the actions"),
        (Frame("turn", {"turn": ["../x", 1, ["Up"], False]}), 404, "there is no session '../x'"),
        (Frame("turn", {"turn": ["a", -1, ["Up"], False]}), 400, "is not a turn's session"),
        (Frame("turn", {"turn": ["a", True, ["Up"], False]}), 400, "is not a turn's session"),
        (Frame("turn", {"turn": ["a", 1, [1], False]}), 400, "1 should be a name"),
        (Frame("turn", {"turn": "aaaa"}), 400, "is not a turn's session"),
        (Frame("turn"), 400, "is not a turn's session"),
    ],
)
def test_senseless_calls_are_refused_with_the_reason(url: str, frame: Frame, status: int, words: str) -> None:
    reply = post(url, frame)
    assert (reply.status_code, words in reply.json()["detail"]) == (status, True), reply.text


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/sessions/../../x", "/call/x", "/envs/%2e%2e/%2e%2e", "/ws"]
)
def test_paths_that_lead_elsewhere_are_not_found(url: str, path: str) -> None:
    with httpx.Client() as http:
        request = http.build_request("GET", url)
        request.url = request.url.copy_with(raw_path=path.encode())
        assert http.send(request).status_code in (404, 405)


@settings(max_examples=examples(150))
@given(st.binary(max_size=300))
def test_bytes_that_are_not_a_frame_are_refused(url: str, body: bytes) -> None:
    reply = HTTP.post(f"{url}/call", content=body)
    assert reply.status_code == 400 and "not a Stepwell frame" in reply.json()["detail"]


@settings(max_examples=examples(60))
@given(st.integers(0, 400), st.integers(1, 255))
def test_a_frame_with_one_byte_changed_is_refused(url: str, place: int, change: int) -> None:
    header, arrays = pack_actions([("Up",)])
    body = bytearray(to_bytes(Frame("step", {**header, "sessions": ["none"]}, arrays)))
    body[place % len(body)] ^= change
    assert HTTP.post(f"{url}/call", content=bytes(body)).status_code == 400


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(st.sampled_from(OPS), st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES), st.booleans())
def test_no_frame_of_whatever_content_breaks_the_service(
    url: str, session: str, op: str, header: dict[str, Any], is_known: bool
) -> None:
    if is_known and op != "close":
        header = {"env": "frozenlake", **header, "sessions": [session]}
    reply = post(url, Frame(op, header))
    assert reply.status_code < 500, f"{reply.text} for {op} {header}"


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.hypothesis  # its properties are made inside
def test_no_endpoint_breaks_under_what_its_schema_makes(url: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 8
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue  # nothing in a GET of ours can be of a wrong type

        @settings(
            max_examples=examples(20),
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            reply = case.call(timeout=60)
            assert reply.status_code < 500, f"{reply.text[:500]} for {case.as_curl_command()}"

        send()


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["/sessions/reset", "/sessions/step"]),
    st.dictionaries(st.sampled_from(["seeds", "tasks", "actions", "with_state", "images"]), JSON_VALUES),
    JSON_VALUES,
)
def test_no_body_for_a_real_session_breaks_the_service(
    url: str, session: str, path: str, more: dict[str, Any], content: Any
) -> None:
    task = {"env": "frozenlake", "content": {"board": content}}
    body = {"sessions": [session], **({"tasks": [task]} if path.endswith("reset") else {}), **more}
    reply = HTTP.post(url + path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert reply.status_code < 500, reply.text


@settings(max_examples=examples(40))
@given(st.binary(max_size=100) | st.text(max_size=20))
def test_a_websocket_reports_errors_and_stays_open(url: str, message: bytes | str) -> None:
    with connect(f"{url.replace('http', 'ws')}/ws", proxy=None) as socket:
        socket.send(message)
        answer = decode(socket.recv())
        assert answer.op == "error" and answer.header["status"] == 400
        socket.send(to_bytes(Frame("tasks", {"env": "frozenlake", "seeds": [0]})))
        assert decode(socket.recv()).op == "tasks"
