"""What the page of one trajectory shows: steps with images, tokens and credit, siblings, and how it ended.

    pool.get ─► steps ──┐
    credit.db ──────────┼─► ShownStep (prompt, tokens, figures) ─► template
    tokenizer ──────────┘

The prompt of a step is shown without the part that continues the step before: what is new is what the agent
saw next. Where a prompt does not continue it, the whole message is shown in which the two first differ.
Credit is shown where its steps and tokens match those of the record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.core import (
    ArrayAction,
    ArrayState,
    ImageSpan,
    Step,
    TextAction,
    TextState,
    TokenAction,
    TokenState,
)
from stepwell.core.arrays import AnyArray, IntArray, count_common_prefix
from stepwell.core.errors import StepwellError
from stepwell.pool import Filter, Pool, StoredTrajectory, TrajectorySummary
from stepwell.pool.credit_reading import StepCredit, list_step_credit, read_credit
from stepwell.pool.credit_records import CreditRecord
from stepwell.view.run_files import ViewedRun
from stepwell.view.token_reader import TokenReader
from stepwell.view.tokens import ShownToken, find_reader, read_prompt, read_texts, show_tokens

MAX_SIBLINGS = 16
_JUDGED = ("grounding", "world_modeling")  # what a judge says of a step (`rewards/judge`)
_SHOWN_ALREADY = ("messages", "problem")


@dataclass(slots=True)
class ShownStep:
    """One step of the page."""

    number: int
    prompt: str
    num_prompt: int
    num_shared: int
    tokens: list[ShownToken]
    reply: str
    images: list[str]
    arrays: list[tuple[str, str]]
    chunk: list[list[float]]
    credit: StepCredit | None
    reward: float | None
    reward_parts: dict[str, float]
    versions: tuple[int, int]
    finish: str
    verdicts: list[tuple[str, float]] = field(default_factory=list)
    problem: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class ShownTrajectory:
    """Everything that the page of a trajectory needs."""

    stored: StoredTrajectory
    steps: list[ShownStep]
    credit: CreditRecord | None
    updates: list[int]
    siblings: list[TrajectorySummary]
    has_camera: bool
    problems: list[str] = field(default_factory=list)


def show_trajectory(run: ViewedRun, pool: Pool, id: str, update: int | None = None) -> ShownTrajectory:
    """Read one trajectory; `update` chooses among several updates that learnt from it."""
    stored = pool.get(id)
    problems: list[str] = []
    records = _read_records(run, id, problems)
    record = next((one for one in records if one.update == update), records[-1] if records else None)
    steps = stored.trajectory.steps
    if record is not None and record.num_steps != len(steps):
        problems.append("The stored credit has other steps (a flat sequence), so it is not shown by token.")
        record = None
    reader = find_reader(tuple(run.tokenizer_folders))
    siblings = _find_siblings(pool, stored)
    return ShownTrajectory(
        stored,
        show_steps(steps, stored.numbers, record, reader),
        record,
        [one.update for one in records],
        siblings,
        any(_find_cameras(step) for step in steps),
        problems,
    )


def list_frames(stored: StoredTrajectory) -> list[AnyArray]:
    """The camera images of a robot's episode, in order; empty if it has none."""
    frames = []
    for step in stored.trajectory.steps:
        cameras = _find_cameras(step)
        if cameras:
            frames.append(
                np.concatenate(cameras, axis=1) if len({c.shape[0] for c in cameras}) == 1 else cameras[0]
            )
    return frames


def _read_records(run: ViewedRun, id: str, problems: list[str]) -> list[CreditRecord]:
    if run.is_pool_only:
        return []
    try:
        return read_credit(run.folder, id)
    except StepwellError as error:
        problems.append(str(error))
        return []


def _find_siblings(pool: Pool, stored: StoredTrajectory) -> list[TrajectorySummary]:
    group = stored.entry.group
    if not group:
        return [stored.entry]
    return list(pool.find(Filter(group=group), limit=MAX_SIBLINGS))


def show_steps(
    steps: Sequence[Step], numbers: Sequence[int], record: CreditRecord | None, reader: TokenReader | None
) -> list[ShownStep]:
    """The steps of one trajectory, each with what is new in its prompt."""
    rows = list_step_credit(record) if record is not None else []
    before = np.zeros(0, np.int32)
    images_before: tuple[ImageSpan, ...] = ()
    shown = []
    for i, step in enumerate(steps):
        shared = start = 0
        if isinstance(step.state, TokenState):
            shared = _count_shared(before, images_before, step.state)
            start = shared if shared == len(before) else _find_message_start(step.state, shared, reader)
            assert isinstance(step.action, TokenAction)
            before = np.concatenate([step.state.prompt_ids, step.action.action_ids])
            images_before = step.state.images
        credit = rows[i] if i < len(rows) else None
        arrays = None if record is None else _cut_credit(record, i)
        shown.append(_show_step(step, numbers[i], (shared, start), credit, arrays, reader))
    return shown


def _count_shared(before: IntArray, images: tuple[ImageSpan, ...], state: TokenState) -> int:
    """How many tokens of a prompt are those of the step before: ids, and the images they stand for."""
    shared = count_common_prefix(before, state.prompt_ids)
    changed = (new.start for old, new in zip(images, state.images, strict=False) if old != new)
    return min([shared, *changed])


def _find_message_start(state: TokenState, place: int, reader: TokenReader | None) -> int:
    """Where the message begins that a place of the prompt is in; the place itself if nothing marks it."""
    if reader is None:
        return place
    inside = {i for span in state.images for i in range(span.start, span.start + span.length)}
    marks = (i for i in range(place - 1, -1, -1) if reader.is_added(int(state.prompt_ids[i])))
    return next((i for i in marks if i not in inside), place)


def _show_step(
    step: Step,
    number: int,
    begins: tuple[int, int],
    credit: StepCredit | None,
    arrays: dict[str, Any] | None,
    reader: TokenReader | None,
) -> ShownStep:
    """`begins` counts the tokens that are as in the step before, and those that are left out of the text."""
    shared, start = begins
    state, action = step.state, step.action
    prompt, tokens, images = "", [], []
    if isinstance(state, TokenState) and isinstance(action, TokenAction):
        prompt = _read_prompt(state, start, reader)
        tokens = show_tokens(read_texts(reader, action.action_ids), step.behavior_logprobs, arrays)
        images = [span.image for span in state.images if span.start >= start]
    elif isinstance(state, TextState):
        messages: Any = step.info.get("messages") or ()
        prompt = "\n\n".join(f"{each.get('role', '')}: {each.get('content', '')}" for each in messages)
    return ShownStep(
        number=number,
        prompt=prompt if prompt else getattr(state, "instruction", ""),
        num_prompt=len(state.prompt_ids) if isinstance(state, TokenState) else 0,
        num_shared=shared,
        tokens=tokens,
        reply=action.text if isinstance(action, TokenAction | TextAction) else "",
        images=images,
        arrays=_describe_arrays(state) if isinstance(state, ArrayState) else [],
        chunk=np.round(action.chunk[:16], 3).tolist() if isinstance(action, ArrayAction) else [],
        credit=credit,
        reward=step.reward,
        reward_parts=dict(step.reward_parts),
        versions=(step.policy_version.first, step.policy_version.last),
        finish=str(getattr(step.sampling, "finish_reason", "") or ""),
        verdicts=_list_verdicts(step),
        problem=str(step.info.get("problem") or ""),
        facts=_list_facts(step),
    )


def _read_prompt(state: TokenState, start: int, reader: TokenReader | None) -> str:
    """The prompt from a place on, with one sign for all placeholders of an image."""
    parts = []
    for span in state.images:
        if span.start >= start:
            parts += [read_prompt(reader, state.prompt_ids[start : span.start]), "⟨image⟩"]
            start = span.start + span.length
    return "".join([*parts, read_prompt(reader, state.prompt_ids[start:])])


def _cut_credit(record: CreditRecord, step: int) -> dict[str, Any]:
    rows = {
        "ratio": record.ratios,
        "advantage": record.advantages,
        "value": record.values,
        "is_clipped": record.is_clipped,
        "is_trained": record.is_trained,
    }
    return {name: None if row is None else record.split_tokens(row)[step] for name, row in rows.items()}


def _describe_arrays(state: ArrayState) -> list[tuple[str, str]]:
    """Small arrays as numbers, large ones by their shape."""
    rows = []
    for name, array in state.arrays.items():
        is_small = array.size <= 24
        words = np.array2string(
            np.round(np.asarray(array, np.float64), 3).ravel(), separator=" ", threshold=24
        )
        rows.append(
            (name, words.strip("[]") if is_small else f"{'×'.join(map(str, array.shape))} {array.dtype}")
        )
    return rows


def _find_cameras(step: Step) -> list[AnyArray]:
    if not isinstance(step.state, ArrayState):
        return []
    return [
        array
        for array in step.state.arrays.values()
        if array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (1, 3, 4)
    ]


def _list_verdicts(step: Step) -> list[tuple[str, float]]:
    """What a judge said of the step, part by part, before any scale; whether or not the recipe uses it."""
    parts: Any = step.info.get("parts")
    if not isinstance(parts, dict):
        return []
    return [(name, float(parts[name])) for name in _JUDGED if isinstance(parts.get(name), int | float)]


def _list_facts(step: Step) -> list[tuple[str, str]]:
    """What the record says besides: actions, parts of the reward, the true state."""
    facts = []
    for name, value in step.info.items():
        if name in _SHOWN_ALREADY or value in (None, "", [], {}):
            continue
        words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        facts.append((name, words if len(words) <= 4000 else f"{words[:4000]} …"))
    return facts
