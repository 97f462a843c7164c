"""The field types of exported files, checked strictly on import.

A file may come from another program, or be damaged. A wrong value is refused here with its place
(`steps.0.action_ids.3`), so that later code meets only expected values: no float among ids, no number
too large for its column, no NaN. Unknown fields are refused as well.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from stepwell.core.errors import InputError

_MAX_INT32, _MAX_INT64, _MAX_FLOAT32 = 2**31 - 1, 2**63 - 1, 3.4028235e38


def _check_float32(value: float) -> float:
    """Infinities are kept (Parquet has them); a finite number must not become one."""
    if math.isfinite(value) and abs(value) > _MAX_FLOAT32:
        raise ValueError("number is beyond float32")
    return value


Count = Annotated[int, Field(ge=0, le=_MAX_INT32)]
PublishedVersion = Annotated[int, Field(ge=0, le=_MAX_INT64)]
Seed = Annotated[int, Field(ge=-_MAX_INT64 - 1, le=_MAX_INT64)]
Number = Annotated[float, Field(allow_inf_nan=False)]
LogProb = Annotated[float, AfterValidator(_check_float32)] | Literal["-inf", "inf"]
Objects = dict[str, JsonValue]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _TaskModel(_Model):
    id: str
    env: str
    content: Objects
    instruction: str
    seed: Seed
    tags: list[str]


class _ImageModel(_Model):
    image: str
    start: Count
    length: Count


class _StateModel(_Model):
    prompt_ids: list[Count]
    images: list[_ImageModel]
    record: None = None


class _StepModel(_StateModel):
    number: Count
    action_ids: list[Count]
    text: str
    behavior_logprobs: list[LogProb]
    reward: Number | None
    reward_parts: dict[str, Number]
    temperature: Number
    top_p: Number
    seed: Seed | None
    finish_reason: str
    first_version: PublishedVersion
    last_version: PublishedVersion
    anchor: str | None
    info: Objects


class _RecordModel(_Model):
    """A step or state of a robot policy. Parquet has the other columns too, empty."""

    record: bytes | str


class _RecordStepModel(_RecordModel):
    number: Count
    reward: Number | None
    reward_parts: dict[str, Number]
    first_version: PublishedVersion | None = None  # of both, the record has its own
    last_version: PublishedVersion | None = None


class _RewardModel(_Model):
    step: Count | None
    part: str
    value: Number
    source: str
    created_s: Number


class _OutcomeModel(_Model):
    success_probability: Annotated[float, Field(ge=0, le=1)]
    source: str
    judge: str
    created_s: Number


class _ReportModel(_Model):
    body: JsonValue
    created_s: Number


class _TrajectoryModel(_Model):
    stepwell: int
    id: str
    channel: str
    group: str
    group_size: Annotated[int, Field(ge=1, le=_MAX_INT32)]
    is_served: bool
    task: _TaskModel
    status: str
    error: str
    reward: Number | None
    first_version: PublishedVersion | None
    last_version: PublishedVersion | None
    created_s: Number
    finished_s: Number
    timings: dict[str, Number]
    info: Objects
    source: Objects
    tags: list[str]
    path: list[Count] | None
    final_state: Any
    steps: list[Any]
    rewards: list[_RewardModel]
    reports: list[_ReportModel]
    outcomes: list[_OutcomeModel] = Field(default_factory=list)  # none in older files


def check_types(document: Any) -> None:
    """Refuse a document with a missing, unknown or wrongly typed field, and name the field."""
    _check_model(_TrajectoryModel, document)
    for index, step in enumerate(document["steps"]):
        _check_state(_StepModel, _RecordStepModel, step, "steps", index)
    if document["final_state"] is not None:
        _check_state(_StateModel, _RecordModel, document["final_state"], "final_state")


def _check_state(model: type[_Model], record: type[_Model], document: Any, *place: str | int) -> None:
    if isinstance(document, dict) and document.get("record") is not None:
        filled = {name: x for name, x in document.items() if x is not None or name in record.model_fields}
        _check_model(record, filled, *place)
    else:
        _check_model(model, document, *place)


def _check_model(model: type[BaseModel], document: Any, *place: str | int) -> None:
    try:
        model.model_validate(document)
    except ValidationError as error:
        raise InputError(_describe_error(error.errors(include_url=False)[0], place)) from None


def _describe_error(error: ErrorDetails, place: tuple[str | int, ...]) -> str:
    field = ".".join(str(part) for part in (*place, *error["loc"]))
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    if error["type"] == "extra_forbidden":
        return f"field {field!r} is unknown"
    found = repr(error["input"])
    shown = found if len(found) <= 60 else f"{found[:60]}…"
    return f"{field or 'the line'}: {error['msg'][0].lower()}{error['msg'][1:]}, got {shown}"
