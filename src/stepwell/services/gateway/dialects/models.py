"""The model list in the format of each vendor: `GET /v1/models` and `GET /v1/models/{name}`.

Every Anthropic client sends a version header. Requests without it get OpenAI's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.dialects.errors import Vendor

_UNKNOWN_DATE = "1970-01-01T00:00:00Z"  # Anthropic's value for a model without a date


def write_model_list(names: Sequence[str], vendor: Vendor) -> dict[str, Any]:
    """All models."""
    data = [_write_entry(name, vendor) for name in names]
    if vendor is Vendor.OPENAI:
        return {"object": "list", "data": data}
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False, **ends}


def write_model(name: str, names: Sequence[str], vendor: Vendor) -> dict[str, Any]:
    """One model. Raises `ServiceError` if it is unknown."""
    if name not in names:
        known = ", ".join(names) or "none"
        raise ServiceError(
            ErrorKind.NOT_FOUND, f"there is no model {name!r}; available: {known}", param="model"
        )
    return _write_entry(name, vendor)


def _write_entry(name: str, vendor: Vendor) -> dict[str, Any]:
    if vendor is Vendor.OPENAI:
        return {"id": name, "object": "model", "created": 0, "owned_by": "stepwell"}
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _UNKNOWN_DATE,
        "lifecycle": "active",
    }
