"""Errors: every kind is the exception that the vendor's users catch; invalid bodies are refused."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest
from tests.services.dialects.echo_gateway import Served

from stepwell.core import ContextLengthError
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.dialects import make_error_response

RAISED: dict[ErrorKind, tuple[type[Exception], type[Exception]]] = {
    ErrorKind.INVALID: (openai.BadRequestError, anthropic.BadRequestError),
    ErrorKind.UNAUTHENTICATED: (openai.AuthenticationError, anthropic.AuthenticationError),
    ErrorKind.FORBIDDEN: (openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    ErrorKind.NOT_FOUND: (openai.NotFoundError, anthropic.NotFoundError),
    ErrorKind.CONFLICT: (openai.ConflictError, anthropic.ConflictError),
    ErrorKind.TOO_LARGE: (openai.APIStatusError, anthropic.APIStatusError),
    ErrorKind.LIMITED: (openai.RateLimitError, anthropic.RateLimitError),
    ErrorKind.UNAVAILABLE: (openai.InternalServerError, anthropic.APIStatusError),
    ErrorKind.INTERNAL: (openai.InternalServerError, anthropic.InternalServerError),
}

HALF_A_PAIR = (
    rb'{"model": "\ud800", "prompt": "a", "input": "a", "max_tokens": 5, '
    rb'"messages": [{"role": "user", "content": "a"}]}'
)


def replay_response(path: str, refused: ServiceError) -> httpx.MockTransport:
    """A wire on which every call gets the refusal."""
    import httpx2

    reply = make_error_response(path, refused)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(reply.status_code, headers=dict(reply.headers), content=bytes(reply.body))

    return httpx2.MockTransport(answer)


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_clients_raise_the_exception_their_users_catch(kind: ErrorKind) -> None:
    import httpx2

    refused = ServiceError(kind, "so it is", param="model")
    wire = httpx2.Client(transport=replay_response("/v1/chat/completions", refused))
    with pytest.raises(RAISED[kind][0]) as seen:
        openai.OpenAI(base_url="http://x/v1", api_key="x", http_client=wire, max_retries=0).models.list()
    assert isinstance(seen.value, openai.APIStatusError) and "so it is" in seen.value.message
    assert seen.value.param == "model"
    wire = httpx2.Client(transport=replay_response("/s/7/v1/messages", refused))
    with pytest.raises(RAISED[kind][1]) as other:
        anthropic.Anthropic(base_url="http://x", api_key="x", http_client=wire, max_retries=0).models.list()
    assert isinstance(other.value, anthropic.APIStatusError) and other.value.api_message == "model: so it is"


def test_limits_say_when_to_retry_and_finished_sessions_say_not_to() -> None:
    limited = make_error_response(
        "/v1/messages", ServiceError(ErrorKind.LIMITED, "slowly", retry_after_s=1.2)
    )
    assert limited.headers["retry-after"] == "2"
    over = make_error_response("/v1/messages", ServiceError(ErrorKind.CONFLICT, "the session is over"))
    assert over.headers["x-should-retry"] == "false" and "retry-after" not in over.headers


def test_a_prompt_that_is_too_long_has_its_own_code() -> None:
    refused = ServiceError(ErrorKind.INVALID, "5000 tokens in 4096")
    refused.__cause__ = ContextLengthError("5000 tokens in 4096")
    body = json.loads(bytes(make_error_response("/v1/responses", refused).body))
    assert body["error"]["code"] == "context_length_exceeded"
    assert body["error"]["type"] == "invalid_request_error"


def test_half_a_surrogate_pair_in_a_message_can_be_sent() -> None:
    reply = make_error_response("/v1/messages", ServiceError(ErrorKind.INVALID, "no \ud800"))
    assert json.loads(bytes(reply.body))["error"]["message"] == "no \ud800"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"", "application/json", "JSON object"),
        (b"[1]", "application/json", "JSON object"),
        (b"\xff\xfe", "application/json", "the body"),
        (b"[" * 100_000, "application/json", "the body"),
        (b'{"model": "echo"}', "text/plain", "application/json"),
        (HALF_A_PAIR, "application/json", "surrogate"),
    ],
)
def test_invalid_bodies_are_refused_in_the_vendors_format(
    served: Served, path: str, content: bytes, kind: str, reason: str
) -> None:
    reply = httpx.post(f"{served.url}/v1/{path}", content=content, headers={"content-type": kind})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and reason in error["message"]
    assert (reply.json().get("type") == "error") == (path == "messages")
