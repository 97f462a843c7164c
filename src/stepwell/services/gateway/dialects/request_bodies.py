"""What the request bodies of all dialects share: strict types, JSON values, tools.

Unknown fields are ignored, since clients send many that mean nothing to a policy. A field that would change
the reply and is not supported is refused by name: an agent must not rely on a constraint that nobody applies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.errors import InputError
from stepwell.services.errors import ErrorKind, ServiceError

MAX_DEPTH = 64
"""How deep a JSON value in a request may be nested. Templates write it recursively."""

MAX_CHOICES = 128

GREEDY_BELOW = 0.01
"""Lower temperatures mean the most likely token: logits divided by less than this overflow."""

MaxTokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Field(min_length=1)]


class RequestBody(BaseModel):
    """A JSON object in a request: strict types, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def resolve_temperature(value: float | None) -> float:
    """The temperature to sample at: 1 by default, 0 for the most likely token."""
    if value is None:
        return 1.0
    return value if value >= GREEDY_BELOW else 0.0


def refuse_field(param: str, why: str) -> NoReturn:
    """Refuse a field, with the fix in the message."""
    raise ServiceError(ErrorKind.INVALID, f"{param}: {why}", param=param)


def refuse_unsupported(unsupported: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse the first field that is set: {name: (value, why it is not supported)}."""
    for name, (value, why) in unsupported.items():
        if value:
            refuse_field(name, why)


def refuse_media(param: str) -> NoReturn:
    """Refuse what a text-only policy cannot read."""
    refuse_field(param, "this policy reads text only; describe the image, sound or file in text")


def make_tool_schema(name: str, description: str | None, parameters: Any, param: str) -> ToolSchema:
    """A tool with a checked schema. No schema means no parameters."""
    if parameters:
        check_json(parameters, param)
    try:
        return ToolSchema.from_openai({"name": name, "description": description, "parameters": parameters})
    except InputError as error:
        raise ServiceError(ErrorKind.INVALID, f"{param}: {error}", param=param) from error


def make_tool_call(name: str, arguments: str | Mapping[str, Any], call_id: str, param: str) -> ToolCall:
    """A call that an assistant made earlier. Arguments may be JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            refuse_field(
                param, f"the arguments of {name!r} are not valid JSON ({error}); send back what was sampled"
            )
    if not isinstance(arguments, dict):
        refuse_field(param, f"the arguments of {name!r} must be a JSON object")
    check_json(arguments, param)
    return ToolCall(name, arguments, call_id)


def check_json(value: Any, param: str, depth: int = MAX_DEPTH) -> None:
    """Refuse values that JSON parsers accept but tokenizers or other parsers do not."""
    if depth == 0:
        refuse_field(param, f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            refuse_field(param, "holds half of a surrogate pair, which is not valid text")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            refuse_field(param, "NaN and infinities are not valid JSON")
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_json(key, param, depth)
            check_json(inner, param, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            check_json(inner, param, depth - 1)


def join_texts(texts: Sequence[str]) -> str:
    """Join texts that a client sent as one message, one per line."""
    return "\n".join(texts)
