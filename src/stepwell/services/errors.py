"""The error that a service replies with: its kind and a message for the client.

The gateway, the environment service and the guard in front of them raise `ServiceError`. Each API writes it
in its own format.
"""

from __future__ import annotations

from enum import IntEnum

from stepwell.core.errors import StepwellError


class ErrorKind(IntEnum):
    """Why a request is refused. The value is the HTTP status; every API has its own name for each kind."""

    INVALID = 400
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    CONFLICT = 409  # the session is over, or its state rules this request out
    TOO_LARGE = 413
    LIMITED = 429  # with retry_after_s
    INTERNAL = 500
    UNAVAILABLE = 503  # there is no engine, or it is overloaded


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
