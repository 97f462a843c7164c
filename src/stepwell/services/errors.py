"""The error that a service replies with: its kind, its HTTP status and a message for the client.

The gateway, the environment service and the guard in front of them raise `ServiceError`. Each API writes it
in its own format.
"""

from __future__ import annotations

from enum import StrEnum

from stepwell.core.errors import StepwellError


class ErrorKind(StrEnum):
    """Why a request is refused. Every API has its own name for each kind."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"  # the session is over, or its state rules this request out
    TOO_LARGE = "too_large"
    LIMITED = "limited"  # with retry_after_s
    UNAVAILABLE = "unavailable"  # there is no engine, or it is overloaded
    INTERNAL = "internal"


HTTP_STATUS: dict[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.LIMITED: 429,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.INTERNAL: 500,
}


class ServiceError(StepwellError):
    """A request that is refused. `message` is for the client; `param` names the field at fault."""

    def __init__(
        self, kind: ErrorKind, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
