"""Return values and exceptions of agents: what is a reward, and whose fault an exception is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import AgentError
from stepwell.core.user_code import format_own_lines
from stepwell.rollout.agent_outcome import describe_failure, is_infra_failure, read_return
from stepwell.rollout.agent_target import inspect_agent

ELSEWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (None, {"reward": None}),
        (True, {"reward": 1.0, "success": True}),
        (np.bool_(False), {"reward": 0.0, "success": False}),
        (np.float32(0.5), {"reward": 0.5}),
        (3, {"reward": 3.0}),
        ({}, {"reward": None, "info": {}}),
        ({"reward": 2, "note": "x"}, {"reward": 2.0, "info": {"note": "x"}}),
        (
            {"success": False, "step_rewards": [0, np.float64(0.25)]},
            {"reward": None, "success": False, "step_rewards": [0.0, 0.25], "info": {}},
        ),
    ],
)
def test_what_an_agent_may_return(value: Any, fields: dict[str, Any]) -> None:
    assert read_return(value) == fields


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
named = st.dictionaries(st.sampled_from(["reward", "success", "step_rewards", "note"]), plain, max_size=4)


@given(plain | named)
def test_any_value_is_read_as_finite_rewards_or_is_the_agents_error(value: Any) -> None:
    try:
        fields = read_return(value)
    except AgentError as error:
        assert str(error)
        return
    numbers = [fields["reward"], *fields.get("step_rewards", [])]
    assert all(number is None or np.isfinite(number) for number in numbers)
    assert fields.get("success") in (None, True, False)


@contextlib.contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that refuses every call with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"error": {"message": "refused", "type": "x"}}'
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def _openai(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])


async def _anthropic(base_url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="x", max_retries=0) as client:
        await client.messages.create(max_tokens=1, model="m", messages=[{"role": "user", "content": "?"}])


async def _httpx(base_url: str) -> None:
    async with httpx.AsyncClient() as client:
        (await client.post(f"{base_url}/v1/chat/completions")).raise_for_status()


def raised(call: Any, base_url: str) -> Exception:
    try:
        asyncio.run(call(base_url))
    except Exception as error:
        return error
    raise AssertionError("the call went through")


@pytest.mark.parametrize("call", [_openai, _anthropic, _httpx])
def test_a_gateway_that_is_not_there_is_the_systems_fault_also_when_wrapped(call: Any) -> None:
    error = raised(call, ELSEWHERE)
    assert is_infra_failure(error, ELSEWHERE)
    wrapped = RuntimeError("the framework failed")
    wrapped.__cause__ = ExceptionGroup("tasks", [ValueError("x"), error])
    assert is_infra_failure(wrapped, f"{ELSEWHERE}/s/one")
    assert not is_infra_failure(error, "http://127.0.0.1:10")  # a tool's own server was meant


@pytest.mark.parametrize("call", [_openai, _anthropic, _httpx])
@pytest.mark.parametrize(("status", "expected"), [(503, True), (500, True), (400, False), (404, False)])
def test_an_answer_of_the_gateway_is_the_systems_fault_from_500_on(
    call: Any, status: int, expected: bool
) -> None:
    with answering(status) as base_url:
        error = raised(call, base_url)
    assert is_infra_failure(error, base_url) is expected
    assert describe_failure(error, base_url)["status"] == ("infra_error" if expected else "agent_error")


def test_what_an_agent_raises_by_itself_is_its_own_fault() -> None:
    for error in (KeyError("x"), ConnectionRefusedError("its database"), TimeoutError(), SystemExit(1)):
        assert not is_infra_failure(error, ELSEWHERE)


def test_of_a_long_traceback_the_end_is_kept() -> None:
    def deeper(depth: int) -> None:
        if depth == 0:
            raise ValueError("the bottom")
        deeper(depth - 1)

    try:
        deeper(40)
    except ValueError as error:
        told = format_own_lines(error)
    assert told.endswith("ValueError: the bottom") and len(told.splitlines()) <= 12


def test_a_callable_object_is_an_agent() -> None:
    class Async:
        async def __call__(self, task: Any, base_url: str) -> float:
            return 1.0

    assert inspect_agent("m:agent", Async()).is_async
    assert not inspect_agent("m:agent", lambda task: 1.0).is_async
    assert inspect_agent("m:agent", lambda task: 1.0).needs_environment
