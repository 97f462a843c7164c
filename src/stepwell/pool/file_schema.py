"""The types of a form's fields, checked strictly before anything is made of them.

A file may come from another program, or damaged. Whatever a field holds is refused here with its place
(`steps.0.action_ids.3`), so that nothing behind meets a value that it does not expect: no float among
ids, no number beyond what a column holds, no NaN. Fields that a form does not have are refused as well.
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


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _TaskForm(_Form):
    id: str
    env: str
    content: Objects
    instruction: str
    seed: Seed
    tags: list[str]


class _ImageForm(_Form):
    image: str
    start: Count
    length: Count


class _StateForm(_Form):
    prompt_ids: list[Count]
    images: list[_ImageForm]
    record: None = None


class _StepForm(_StateForm):
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


class _RecordForm(BaseModel):
    """What a robot's step or state is written as. Parquet has the other columns too, empty."""

    model_config = ConfigDict(strict=True, extra="ignore")
    record: bytes | str


class _RecordStepForm(_RecordForm):
    number: Count
    reward: Number | None
    reward_parts: dict[str, Number]


class _RewardForm(_Form):
    step: Count | None
    part: str
    value: Number
    source: str
    created_s: Number


class _ReportForm(_Form):
    body: JsonValue
    created_s: Number


class _TrajectoryForm(_Form):
    stepwell: int
    id: str
    channel: str
    group: str
    group_size: Annotated[int, Field(ge=1, le=_MAX_INT32)]
    is_served: bool
    task: _TaskForm
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
    rewards: list[_RewardForm]
    reports: list[_ReportForm]


def check_types(form: Any) -> None:
    """Refuse a form one of whose fields is missing, unknown or of another type, and say which."""
    _check(_TrajectoryForm, form)
    for index, step in enumerate(form["steps"]):
        _check(_RecordStepForm if _is_record(step) else _StepForm, step, "steps", index)
    state = form["final_state"]
    if state is not None:
        _check(_RecordForm if _is_record(state) else _StateForm, state, "final_state")


def _is_record(form: Any) -> bool:
    return isinstance(form, dict) and form.get("record") is not None


def _check(model: type[BaseModel], form: Any, *place: str | int) -> None:
    try:
        model.model_validate(form)
    except ValidationError as error:
        raise InputError(_describe(error.errors(include_url=False)[0], place)) from None


def _describe(error: ErrorDetails, place: tuple[str | int, ...]) -> str:
    field = ".".join(str(part) for part in (*place, *error["loc"]))
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    if error["type"] == "extra_forbidden":
        return f"field {field!r} is unknown"
    found = repr(error["input"])
    shown = found if len(found) <= 60 else f"{found[:60]}…"
    return f"{field or 'the line'}: {error['msg'][0].lower()}{error['msg'][1:]}, got {shown}"
