"""Errors in each vendor's format, so that its client raises the exception its users know.

    ServiceError ─► write_error_body ─► status, body and headers     (before a reply has started)
                                    └─► an event of the stream       (afterwards)

Clients choose the exception by status. Type and code in the body are for people and for programs that look
closer. A session that is over does not open again, so a conflict tells clients not to retry.

All JSON of the dialects is written by `dump_json`: in ASCII, because a policy may sample half of a surrogate
pair, which has no UTF-8.
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
from stepwell.services.errors import ErrorKind, ServiceError

_ESCAPED_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class Vendor(StrEnum):
    """Whose format is written."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class OpenAIErrorDetail(BaseModel):
    """The error as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(BaseModel):
    """The error as Anthropic's clients read it."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """An error in Anthropic's format."""

    type: str
    error: AnthropicErrorDetail


_OPENAI_ERRORS: dict[ErrorKind, tuple[str, str | None]] = {
    ErrorKind.INVALID: ("invalid_request_error", None),
    ErrorKind.UNAUTHENTICATED: ("invalid_request_error", "invalid_api_key"),
    ErrorKind.FORBIDDEN: ("invalid_request_error", "permission_denied"),
    ErrorKind.NOT_FOUND: ("invalid_request_error", "not_found"),
    ErrorKind.CONFLICT: ("invalid_request_error", "conflict"),
    ErrorKind.TOO_LARGE: ("invalid_request_error", "request_too_large"),
    ErrorKind.LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.UNAVAILABLE: ("server_error", "service_unavailable"),
    ErrorKind.INTERNAL: ("server_error", None),
}
_ANTHROPIC_ERRORS: dict[ErrorKind, str] = {
    ErrorKind.INVALID: "invalid_request_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.CONFLICT: "conflict_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.LIMITED: "rate_limit_error",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.INTERNAL: "api_error",
}


class AsciiJSONResponse(JSONResponse):
    """A JSON response written by `dump_json`."""

    def render(self, content: Any) -> bytes:
        return dump_json(content).encode("ascii")


def dump_json(value: Any) -> str:
    """JSON text in ASCII, without spaces."""
    return json.dumps(value, separators=(",", ":"))


def find_vendor(path: str, headers: Mapping[str, str] | None = None) -> Vendor:
    """Whose client calls: by path, or by the version header that every Anthropic client sends."""
    if path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        return Vendor.ANTHROPIC
    return Vendor.ANTHROPIC if headers and "anthropic-version" in headers else Vendor.OPENAI


def write_error_body(vendor: Vendor, error: ServiceError) -> dict[str, Any]:
    """The error as the vendor writes it. A prompt that is too long is recognised by the error's cause."""
    if vendor is Vendor.ANTHROPIC:
        message = error.message  # this format has no field for the parameter
        if error.param and not message.startswith(error.param):
            message = f"{error.param}: {message}"
        return {"type": "error", "error": {"type": _ANTHROPIC_ERRORS[error.kind], "message": message}}
    type_, code = _OPENAI_ERRORS[error.kind]
    if isinstance(error.__cause__, ContextLengthError):
        code = "context_length_exceeded"
    elif error.kind is ErrorKind.NOT_FOUND and error.param == "model":
        code = "model_not_found"
    return {"error": {"message": error.message, "type": type_, "param": error.param, "code": code}}


def make_error_response(
    path: str, error: ServiceError, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The response for a refused call to `path`. `headers` are those of the call."""
    extra: dict[str, str] = {}
    if error.retry_after_s is not None:
        extra["retry-after"] = str(math.ceil(error.retry_after_s))
    if error.kind is ErrorKind.CONFLICT:
        extra["x-should-retry"] = "false"
    return AsciiJSONResponse(write_error_body(find_vendor(path, headers), error), error.kind.value, extra)


def explain_invalid_body(error: RequestValidationError) -> ServiceError:
    """The error for a body that fails validation: its most precise fault, with the field's name."""
    faults = [(_name_field(fault["loc"], error.body), fault) for fault in error.errors()]
    name, fault = max(faults, key=lambda pair: pair[0].count(".") + pair[0].count("["))
    if fault["type"] == "json_invalid":
        return ServiceError(ErrorKind.INVALID, f"the body is not valid JSON: {fault['ctx']['error']}")
    if not name:
        return ServiceError(ErrorKind.INVALID, "the body must be a JSON object, sent as application/json")
    return ServiceError(ErrorKind.INVALID, f"{name}: {fault['msg']}", param=name)


def check_surrogates(body: bytes) -> None:
    """Refuse JSON with half of a surrogate pair: parsers accept it, but it is not valid text."""
    if not _ESCAPED_PAIR.search(body):
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ServiceError(
            ErrorKind.INVALID,
            "the body holds half of a surrogate pair, which is not valid text; escape whole pairs",
        ) from error
    except (ValueError, RecursionError):
        return  # the request parser reports what is wrong


def _name_field(place: Sequence[Any], body: Any) -> str:
    """The field at fault, in the client's terms. Names of union branches are left out."""
    name = ""
    for part in place[1:] if place and place[0] == "body" else place:
        if isinstance(body, list) and isinstance(part, int) and part < len(body):
            name, body = f"{name}[{part}]", body[part]
        elif isinstance(body, dict) and part in body:
            name, body = f"{name}.{part}", body[part]
        elif isinstance(body, dict) and part == place[-1]:
            name = f"{name}.{part}"
    return name.removeprefix(".")
