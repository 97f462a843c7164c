"""No request to any endpoint gives a 500; 503 only while an engine is down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from tests.properties import examples
from tests.services.dialects.test_requests import JSON_VALUES, WHOLE, spoil_value
from tests.variants import keep_quick

from stepwell.config.engine import EngineConfig
from stepwell.config.gateway import GatewayConfig
from stepwell.engines import EmbeddedEngine
from stepwell.policies.tiny_models import build_tiny
from stepwell.pool import open_pool
from stepwell.rendering import Renderer
from stepwell.services.gateway.app import create_app
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve_in_thread

CONTEXT = 256  # short, so that an answer without a limit is short too
FAILED_INSIDE = re.compile(r'"(server_error|api_error)"')  # a 500 that comes as an event of a stream
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
SAMPLING = {"model": "policy", "max_tokens": 8, "max_output_tokens": 8}
STREAMED = {
    "stream": True,
    "n": 2,
    "stop": ["e"],
    "logprobs": True,
    "stream_options": {"include_usage": True},
}
TASK = {"env": "fuzz", "content": {"board": [1, "x", None]}, "instruction": "go", "seed": 3, "tags": ["a"]}
GOOD: list[tuple[str, dict[str, Any]]] = [
    *((path, {**SAMPLING, **fields}) for path, (_, fields) in zip(PATHS, WHOLE, strict=True)),
    *((path, {**SAMPLING, **fields, "stream": True}) for path, (_, fields) in zip(PATHS, WHOLE, strict=True)),
    ("/v1/chat/completions", {**SAMPLING, **WHOLE[0][1], **STREAMED}),
    ("/s/fuzzed/v1/messages", {**SAMPLING, **WHOLE[3][1]}),
    ("/sessions", {"id": "s", "task": TASK, "group": "g", "group_size": 2, "channel": "eval", "tags": ["b"]}),
    ("/sessions/fuzzed/reward", {"value": 0.5, "step": 0, "part": "task"}),
    ("/sessions/fuzzed/reward", {"value": 0.5, "call": "msg-0", "choice": 0}),
    ("/sessions/fuzzed/complete", {"status": "success", "reward": 1.0, "error": "none"}),
]


@dataclass
class Served:
    """A real gateway: tiny model, pool, HTTP."""

    url: str
    engine: EmbeddedEngine
    http: httpx.Client


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("fuzz"))


def serve(folder: Path) -> Iterator[Served]:
    model, tokenizer = build_tiny("tiny-0.3m")
    engine = EmbeddedEngine(model, tokenizer, EngineConfig(max_length=CONTEXT), copy=False)
    pool = open_pool(folder / "pool.db")
    renderer = Renderer(tokenizer, context_length=CONTEXT)
    url, stop = serve_in_thread(create_app(Gateway(engine, renderer, pool, GatewayConfig(max_choices=2))))
    with httpx.Client(base_url=url, timeout=60) as http:
        yield Served(url, engine, http)
    stop()
    engine.close()
    pool.close()


def check(status: int, text: str, sent: str) -> None:
    assert status < 500 and not FAILED_INSIDE.search(text), f"{status} {text[:500]} for {sent[:2000]}"


# Those mounted once more under a session's path are the same code: fewer examples.
@pytest.mark.parametrize(
    ("only", "num_examples"), [("/v1/", 6), ("/s/{session}/", 2), ("/sessions", 20), ("/", 5)]
)
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.hypothesis  # its properties are made inside
def test_no_endpoint_breaks_under_what_its_schema_makes(
    served: Served, only: str, num_examples: int, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    prefixes = ("/v1/", "/s/{session}/", "/sessions", "/")
    operations = [found.ok() for found in schema.get_all_operations()]
    chosen = [op for op in operations if next(p for p in prefixes if op.path.startswith(p)) == only]
    assert chosen
    for operation in chosen:
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue  # nothing in a GET of ours can be of a wrong type

        @settings(
            max_examples=examples(num_examples, 1),
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            reply = case.call(timeout=60)  # a busy machine is not a broken gateway
            check(reply.status_code, reply.text, case.as_curl_command())

        send()


def test_every_valid_body_is_served(served: Served) -> None:
    for path, body in GOOD[:10]:
        reply = served.http.post(path, json=body)
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("top_p", keep_quick([5e-324, 1e-300, 1e-38, 0.5], (5e-324, 0.5).__contains__))
@pytest.mark.parametrize("temperature", [5e-324, 0.01, 2])
def test_extreme_options_are_served(served: Served, top_p: float, temperature: float) -> None:
    options = {"top_p": top_p, "temperature": temperature, "seed": -(2**63), "max_tokens": 2**31 - 1}
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi " * 60}], **options}
    reply = served.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text


@settings(max_examples=examples(400))
@given(st.sampled_from(GOOD), st.lists(st.integers(0, 9), min_size=1, max_size=6), JSON_VALUES)
def test_no_body_with_one_invalid_value_breaks_anything(
    served: Served, good: tuple[str, dict[str, Any]], place: list[int], new: Any
) -> None:
    path, body = good
    content = json.dumps(spoil_value(body, place, new))
    reply = served.http.post(path, content=content, headers={"content-type": "application/json"})
    check(reply.status_code, reply.text, f"{path} {content}")


@given(
    st.sampled_from(PATHS), st.binary(max_size=40), st.sampled_from(("application/json", "text/plain", ""))
)
def test_bytes_that_are_not_a_request_are_refused(served: Served, path: str, body: bytes, kind: str) -> None:
    reply = served.http.post(path, content=body, headers={"content-type": kind} if kind else {})
    assert reply.status_code == 400, reply.text


def test_an_engine_that_is_down_is_503_in_every_dialect(tmp_path: Path) -> None:
    for down in serve(tmp_path):
        down.engine.close()
        for which, path in enumerate(PATHS):
            for stream in (False, True):
                body = {"model": "policy", "max_tokens": 8, **WHOLE[which][1], "stream": stream}
                reply = down.http.post(path, json=body)
                assert reply.status_code == 503, reply.text
                assert reply.headers["retry-after"] == "1"
