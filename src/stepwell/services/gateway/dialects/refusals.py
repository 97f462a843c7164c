"""Refusals in each vendor's own form, so that its client raises the error its users know.

    Refused ─► error_body ─► status, body and headers          (before a reply has begun)
                         └─► an event of the stream            (afterwards)

Clients choose the exception by status; type and code inside the body are for people and for
programs that look closer. A session that is over will not open again by itself, so a
conflict tells clients not to try again.

Every JSON text of the dialects is written by `dumps`: in ASCII, because a policy may sample
half of a surrogate pair, which has no UTF-8.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import JSONResponse

from stepwell.core.errors import ContextLengthError
from stepwell.services.gateway.exchange import STATUS, Kind, Refused

_ESCAPED_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class Vendor(StrEnum):
    """Whose words are spoken."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class OpenAIErrorInside(BaseModel):
    """What went wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """A refusal in OpenAI's form."""

    error: OpenAIErrorInside


class AnthropicErrorInside(BaseModel):
    """What went wrong, as Anthropic's clients read it."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """A refusal in Anthropic's form."""

    type: str
    error: AnthropicErrorInside


_OPENAI_WORDS: dict[Kind, tuple[str, str | None]] = {
    Kind.INVALID: ("invalid_request_error", None),
    Kind.UNAUTHENTICATED: ("invalid_request_error", "invalid_api_key"),
    Kind.FORBIDDEN: ("invalid_request_error", "permission_denied"),
    Kind.NOT_FOUND: ("invalid_request_error", "not_found"),
    Kind.CONFLICT: ("invalid_request_error", "conflict"),
    Kind.TOO_LARGE: ("invalid_request_error", "request_too_large"),
    Kind.LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    Kind.UNAVAILABLE: ("server_error", "service_unavailable"),
    Kind.INTERNAL: ("server_error", None),
}
_ANTHROPIC_WORDS: dict[Kind, str] = {
    Kind.INVALID: "invalid_request_error",
    Kind.UNAUTHENTICATED: "authentication_error",
    Kind.FORBIDDEN: "permission_error",
    Kind.NOT_FOUND: "not_found_error",
    Kind.CONFLICT: "conflict_error",
    Kind.TOO_LARGE: "request_too_large",
    Kind.LIMITED: "rate_limit_error",
    Kind.UNAVAILABLE: "overloaded_error",
    Kind.INTERNAL: "api_error",
}


class Json(JSONResponse):
    """A JSON reply written by `dumps`."""

    def render(self, content: Any) -> bytes:
        return dumps(content).encode("ascii")


def dumps(value: Any) -> str:
    """JSON text in ASCII, without spaces."""
    return json.dumps(value, separators=(",", ":"))


def vendor_of(path: str, headers: Mapping[str, str] | None = None) -> Vendor:
    """Who is spoken to: by path, or by the version header that every Anthropic client sends."""
    if path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        return Vendor.ANTHROPIC
    return Vendor.ANTHROPIC if headers and "anthropic-version" in headers else Vendor.OPENAI


def error_body(vendor: Vendor, refused: Refused) -> dict[str, Any]:
    """The refusal as the vendor writes it. Too long a prompt is known by the error that caused it."""
    if vendor is Vendor.ANTHROPIC:
        message = refused.message  # this form has no field for the parameter
        if refused.param and not message.startswith(refused.param):
            message = f"{refused.param}: {message}"
        return {"type": "error", "error": {"type": _ANTHROPIC_WORDS[refused.kind], "message": message}}
    type_, code = _OPENAI_WORDS[refused.kind]
    if isinstance(refused.__cause__, ContextLengthError):
        code = "context_length_exceeded"
    elif refused.kind is Kind.NOT_FOUND and refused.param == "model":
        code = "model_not_found"
    return {"error": {"message": refused.message, "type": type_, "param": refused.param, "code": code}}


def refusal_response(path: str, refused: Refused, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The whole reply for a call to `path` that is not served; `headers` are those of the call."""
    extra: dict[str, str] = {}
    if refused.retry_after_s is not None:
        extra["retry-after"] = str(math.ceil(refused.retry_after_s))
    if refused.kind is Kind.CONFLICT:
        extra["x-should-retry"] = "false"
    return Json(error_body(vendor_of(path, headers), refused), STATUS[refused.kind], extra)


def refused_body(error: RequestValidationError) -> Refused:
    """A body that is no such request: the most precise of its faults, with the field's name."""
    faults = [(_field(fault["loc"], error.body), fault) for fault in error.errors()]
    name, fault = max(faults, key=lambda pair: pair[0].count(".") + pair[0].count("["))
    if fault["type"] == "json_invalid":
        return Refused(Kind.INVALID, f"the body is not valid JSON: {fault['ctx']['error']}")
    if not name:
        return Refused(Kind.INVALID, "the body must be a JSON object, sent as application/json")
    return Refused(Kind.INVALID, f"{name}: {fault['msg']}", param=name)


def refuse_half_pairs(body: bytes) -> None:
    """Refuse JSON whose strings hold half of a surrogate pair: parsers take it, but it is no text."""
    if not _ESCAPED_PAIR.search(body):
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused(
            Kind.INVALID, "the body holds half of a surrogate pair, which is not text; escape whole pairs"
        ) from error
    except (ValueError, RecursionError):
        return  # the request's own parser will say what is wrong


def _field(place: Sequence[Any], body: Any) -> str:
    """Where a fault is, in the client's own words: names of union branches are left out."""
    name = ""
    for part in place[1:] if place and place[0] == "body" else place:
        if isinstance(body, list) and isinstance(part, int) and part < len(body):
            name, body = f"{name}[{part}]", body[part]
        elif isinstance(body, dict) and part in body:
            name, body = f"{name}.{part}", body[part]
        elif isinstance(body, dict) and part == place[-1]:
            name = f"{name}.{part}"
    return name.removeprefix(".")
