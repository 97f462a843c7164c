"""A stored trajectory as plain values, for files that other programs read, and back.

A form is one JSON object per trajectory; Parquet has the same fields as columns. Steps of language
policies are spelled out (ids, logprobs, text); steps of robot policies, whose arrays no table holds
well, carry the bytes of their record in `record`. Nothing is lost either way: ids and float32
logprobs come back bit for bit, rewards with their history, steps off the path too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepwell.core import (
    FinishReason,
    ImageSpan,
    Sampling,
    State,
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    VersionSpan,
)
from stepwell.core.encoding import decode_step
from stepwell.core.errors import EncodingError, InputError
from stepwell.pool.inputs import Completion, FullTrajectory, NewTrajectory
from stepwell.pool.records import decode_state, encode_rows, encode_state
from stepwell.pool.results import Channel, RewardEntry, StoredTrajectory, TrajectoryReport, reward_entry

FORMAT = 1


def form_of(stored: StoredTrajectory) -> dict[str, Any]:
    """The form of a finished trajectory. Arrays stay numpy arrays; `to_json` writes them as lists."""
    trajectory, entry = stored.trajectory, stored.entry
    task = trajectory.task
    return {
        "stepwell": FORMAT,
        "id": entry.id,
        "channel": entry.channel.value,
        "group": trajectory.group,
        "group_size": entry.group_size,
        "is_served": entry.is_served,
        "task": {
            "id": task.id,
            "env": task.env,
            "content": task.content,
            "instruction": task.instruction,
            "seed": task.seed,
            "tags": list(task.tags),
        },
        "status": trajectory.status.value,
        "error": trajectory.error,
        "reward": entry.reward,
        "first_version": entry.first_version,
        "last_version": entry.last_version,
        "created_s": entry.created_s,
        "finished_s": entry.finished_s,
        "timings": trajectory.timings,
        "info": trajectory.info,
        "source": stored.source,
        "tags": list(entry.tags),
        "path": None if stored.path is None else list(stored.path),
        "final_state": _state_form(trajectory.final_state),
        "steps": [
            _step_form(number, step) for number, step in zip(stored.numbers, trajectory.steps, strict=True)
        ],
        "rewards": [
            {
                "step": given.step,
                "part": given.part,
                "value": given.value,
                "source": given.source,
                "created_s": given.created_s,
            }
            for given in stored.reward_history
        ],
        "reports": [{"body": report.body, "created_s": report.created_s} for report in stored.reports],
    }


def _step_form(number: int, step: Step) -> dict[str, Any]:
    common = {
        "number": number,
        "reward": step.reward,
        "reward_parts": step.reward_parts,
        "first_version": step.policy_version.first,
        "last_version": step.policy_version.last,
    }
    if not isinstance(step.state, TokenState) or not isinstance(step.action, TokenAction):
        return {**common, "record": encode_rows({number: step})[0][0]["record"]}
    return {
        **common,
        "prompt_ids": step.state.prompt_ids,
        "images": [_image_form(span) for span in step.state.images],
        "action_ids": step.action.action_ids,
        "text": step.action.text,
        "behavior_logprobs": step.behavior_logprobs,
        "temperature": step.sampling.temperature,
        "top_p": step.sampling.top_p,
        "seed": step.sampling.seed,
        "finish_reason": step.sampling.finish_reason.value,
        "anchor": step.anchor,
        "info": step.info,
    }


def _image_form(span: ImageSpan) -> dict[str, Any]:
    return {"image": span.image, "start": span.start, "length": span.length}


def _state_form(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    if not isinstance(state, TokenState):
        return {"record": encode_state(state)}
    return {"prompt_ids": state.prompt_ids, "images": [_image_form(span) for span in state.images]}


def whole_of(form: Mapping[str, Any], channel: Channel | None, tags: Sequence[str]) -> FullTrajectory:
    """What a form describes, ready to be stored; `InputError` where it is not one."""
    from stepwell.pool.file_schema import check_types  # here: most processes import no files

    try:
        if isinstance(form, dict) and form.get("stepwell", FORMAT) != FORMAT:
            raise InputError(f"form {form['stepwell']!r:.20}; this Stepwell reads form {FORMAT}")
        check_types(form)
        return _whole(form, channel, tags)
    except ValueError as error:
        raise InputError(f"not a trajectory as `export` writes it: {error}") from error
    except RecursionError:
        raise InputError("not a trajectory as `export` writes it: it is nested too deeply") from None


def _whole(form: Mapping[str, Any], channel: Channel | None, tags: Sequence[str]) -> FullTrajectory:
    task = form["task"]
    opening = NewTrajectory(
        id=form["id"],
        task=Task(task["env"], task["content"], task["instruction"], task["seed"], tuple(task["tags"])),
        group=form["group"],
        group_size=form["group_size"],
        channel=channel or form["channel"],
        source=form["source"],
        tags=[*form["tags"], *tags],
        created_s=form["created_s"],
    )
    if opening.task.id != task["id"]:
        raise InputError(f"task.id is {task['id']}, its content says {opening.task.id}")
    ending = Completion(
        status=Status(form["status"]),
        error=form["error"],
        path=form["path"],
        final_state=_state(form["final_state"]),
        timings=form["timings"],
        info=form["info"],
        finished_s=form["finished_s"],
    )
    steps = {each["number"]: _step(each) for each in form["steps"]}
    if len(steps) < len(form["steps"]):
        raise InputError("two steps have the same number")
    return FullTrajectory(
        opening,
        steps,
        ending,
        rewards=[_reward(given) for given in form["rewards"]],
        reports=[TrajectoryReport(**report) for report in form["reports"]],
        is_served=form["is_served"],
    )


def _reward(form: Mapping[str, Any]) -> RewardEntry:
    checked = reward_entry(form["step"], form["part"], form["value"], form["source"])
    return replace(checked, created_s=form["created_s"])


def _step(form: Mapping[str, Any]) -> Step:
    if form.get("record") is not None:
        step = decode_step(_bytes(form["record"]))
        return replace(step, reward=form["reward"], reward_parts=dict(form["reward_parts"]))
    state = _state(form)
    assert isinstance(state, TokenState)
    return Step(
        state=state,
        action=TokenAction(np.asarray(form["action_ids"], np.int32), form["text"]),
        behavior_logprobs=np.asarray([float(value) for value in form["behavior_logprobs"]], np.float32),
        reward=form["reward"],
        reward_parts=dict(form["reward_parts"]),
        sampling=Sampling(
            form["temperature"], form["top_p"], form["seed"], FinishReason(form["finish_reason"])
        ),
        policy_version=VersionSpan(form["first_version"], form["last_version"]),
        anchor=form["anchor"],
        info=form["info"],
    )


def _state(form: Mapping[str, Any] | None) -> State | None:
    if form is None:
        return None
    if form.get("record") is not None:
        return decode_state(_bytes(form["record"]))
    images = tuple(ImageSpan(span["image"], span["start"], span["length"]) for span in form["images"])
    return TokenState(np.asarray(form["prompt_ids"], np.int32), images)


def _bytes(value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise EncodingError(f"record is not base64: {error}") from error


def to_json(form: Mapping[str, Any]) -> str:
    """A form as one line."""
    return json.dumps(form, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Arrays as lists and bytes as base64; JSON has no infinities, so a logprob of -inf is a string."""
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if is_plain else [x if np.isfinite(x) else str(x) for x in value.tolist()]
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode("ascii")
