"""The format of exported files: a stored trajectory as plain values, and back.

A document is one JSON object per trajectory; Parquet has the same fields as columns. Steps of
language policies are written field by field (ids, logprobs, text). Steps of robot policies, whose
arrays do not suit a table, have the bytes of their record in `record`. Nothing is lost: ids and
float32 logprobs come back bit for bit, rewards with their history, and steps off the path too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from stepwell.core import (
    FinishReason,
    ImageSpan,
    Outcome,
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
from stepwell.pool.results import (
    Channel,
    OutcomeEntry,
    RewardEntry,
    StoredTrajectory,
    TrajectoryReport,
    make_reward_entry,
)

FORMAT = 1


def to_document(stored: StoredTrajectory) -> dict[str, Any]:
    """The document of a finished trajectory. Arrays stay numpy arrays; `to_json` writes them as lists."""
    trajectory, entry = stored.trajectory, stored.entry
    task = trajectory.task
    return {
        "stepwell": FORMAT,
        "id": entry.id,
        "channel": entry.channel.value,
        "group": trajectory.group,
        "group_size": entry.group_size,
        "is_served": entry.is_served,
        "task": {"id": task.id, **task.to_json()},
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
        "final_state": _encode_state(trajectory.final_state),
        "steps": [
            _encode_step(number, step) for number, step in zip(stored.numbers, trajectory.steps, strict=True)
        ],
        "rewards": [asdict(given) for given in stored.reward_history],
        "outcomes": [
            {**asdict(each.outcome), "created_s": each.created_s} for each in stored.outcome_history
        ],
        "reports": [{"body": report.body, "created_s": report.created_s} for report in stored.reports],
    }


def _encode_step(number: int, step: Step) -> dict[str, Any]:
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
        "images": [asdict(span) for span in step.state.images],
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


def _encode_state(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    if not isinstance(state, TokenState):
        return {"record": encode_state(state)}
    return {"prompt_ids": state.prompt_ids, "images": [asdict(span) for span in state.images]}


def from_document(
    document: Mapping[str, Any], channel: Channel | None, tags: Sequence[str]
) -> FullTrajectory:
    """The trajectory in a document, ready to be stored; `InputError` if the document is invalid."""
    from stepwell.pool.file_schema import check_types  # here: most processes import no files

    try:
        if isinstance(document, dict) and document.get("stepwell", FORMAT) != FORMAT:
            raise InputError(f"format {document['stepwell']!r:.20}; this Stepwell reads format {FORMAT}")
        check_types(document)
        return _decode_trajectory(document, channel, tags)
    except ValueError as error:
        raise InputError(f"not a trajectory in the format of `export`: {error}") from error
    except RecursionError:
        raise InputError("not a trajectory in the format of `export`: nested too deeply") from None


def _decode_trajectory(
    document: Mapping[str, Any], channel: Channel | None, tags: Sequence[str]
) -> FullTrajectory:
    task = document["task"]
    beginning = NewTrajectory(
        id=document["id"],
        task=Task.from_json(task),
        group=document["group"],
        group_size=document["group_size"],
        channel=channel or document["channel"],
        source=document["source"],
        tags=[*document["tags"], *tags],
        created_s=document["created_s"],
    )
    if beginning.task.id != task["id"]:
        raise InputError(f"task.id is {task['id']!r:.60}, but its content has id {beginning.task.id}")
    completion = Completion(
        status=Status(document["status"]),
        error=document["error"],
        path=document["path"],
        final_state=_decode_state(document["final_state"]),
        timings=document["timings"],
        info=document["info"],
        finished_s=document["finished_s"],
    )
    steps = {each["number"]: _decode_step(each) for each in document["steps"]}
    if len(steps) < len(document["steps"]):
        raise InputError("two steps have the same number")
    return FullTrajectory(
        beginning,
        steps,
        completion,
        rewards=[_decode_reward(given) for given in document["rewards"]],
        outcomes=[_decode_outcome(given) for given in document.get("outcomes") or ()],
        reports=[TrajectoryReport(**report) for report in document["reports"]],
        is_served=document["is_served"],
    )


def _decode_reward(document: Mapping[str, Any]) -> RewardEntry:
    checked = make_reward_entry(document["step"], document["part"], document["value"], document["source"])
    return replace(checked, created_s=document["created_s"])


def _decode_outcome(document: Mapping[str, Any]) -> OutcomeEntry:
    judged = Outcome(document["success_probability"], document["source"], document["judge"])
    return OutcomeEntry(judged, document["created_s"])


def _decode_step(document: Mapping[str, Any]) -> Step:
    if document.get("record") is not None:
        step = decode_step(_decode_bytes(document["record"]))
        return replace(step, reward=_read_reward(document), reward_parts=dict(document["reward_parts"]))
    state = _decode_state(document)
    assert isinstance(state, TokenState)
    return Step(
        state=state,
        action=TokenAction(np.asarray(document["action_ids"], np.int32), document["text"]),
        behavior_logprobs=np.asarray([float(value) for value in document["behavior_logprobs"]], np.float32),
        reward=_read_reward(document),
        reward_parts=dict(document["reward_parts"]),
        sampling=Sampling(
            document["temperature"],
            document["top_p"],
            document["seed"],
            FinishReason(document["finish_reason"]),
        ),
        policy_version=VersionSpan(document["first_version"], document["last_version"]),
        anchor=document["anchor"],
        info=document["info"],
    )


def _read_reward(document: Mapping[str, Any]) -> float | None:
    reward = document["reward"]
    return None if reward is None else float(reward)  # another program may write a whole number


def _decode_state(document: Mapping[str, Any] | None) -> State | None:
    if document is None:
        return None
    if document.get("record") is not None:
        return decode_state(_decode_bytes(document["record"]))
    images = tuple(ImageSpan(**span) for span in document["images"])
    return TokenState(np.asarray(document["prompt_ids"], np.int32), images)


def _decode_bytes(value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise EncodingError(f"record is not base64: {error}") from error


def to_json(document: Mapping[str, Any]) -> str:
    """A document as one line."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False, default=_to_plain)


def _to_plain(value: Any) -> Any:
    """Arrays as lists and bytes as base64; JSON has no infinities, so a logprob of -inf is a string."""
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if is_plain else [x if np.isfinite(x) else str(x) for x in value.tolist()]
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode("ascii")
