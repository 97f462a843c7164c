"""Steps and trajectories to store: small, and different from each other by a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from stepwell.core import (
    ArrayAction,
    ArrayState,
    FinishReason,
    ImageSpan,
    Sampling,
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
    VersionSpan,
)
from stepwell.pool import Pool

TASK = Task("lake", {"board": "SF/FG"}, "reach the goal", seed=3, tags=("easy",))


def step(number: int = 0, *, version: int = 0, reward: float | None = None) -> Step:
    """A step whose prompt shares nothing with another's."""
    ids = [1000 * (number + 1) + i for i in range(20)]
    made = Step.from_tokens(
        ids, [number, 7], behavior_logprobs=[-0.25, -1.5], text=f"act {number}", policy_version=version
    )
    if reward is not None:
        made.assign_reward({"task": reward})
    return made


def dialogue(num_turns: int, *, seed: int = 0, version: int = 0) -> list[Step]:
    """Turns that each continue the prompt and action of the one before."""
    rng = np.random.default_rng(seed)
    ids, steps = rng.integers(0, 5000, 40), []
    for _ in range(num_turns):
        action = rng.integers(0, 5000, 5)
        logprobs = -rng.random(5)
        steps.append(Step.from_tokens(ids, action, behavior_logprobs=logprobs, policy_version=version))
        ids = np.concatenate([ids, action, rng.integers(0, 5000, 8)])
    return steps


def trajectory(
    name: str,
    steps: Sequence[Step] | None = None,
    *,
    status: Status = Status.SUCCESS,
    group: str = "",
    task: Task = TASK,
) -> Trajectory:
    error = "it broke" if status in (Status.AGENT_ERROR, Status.INFRA_ERROR) else ""
    made = [step(0, reward=1.0)] if steps is None else list(steps)
    return Trajectory(task, made, status, group=group, error=error, id=name)


def fill(pool: Pool, name: str, *, size: int = 1, num_steps: int = 2, version: int = 0) -> list[str]:
    """A complete group in the pool; gives the ids of its trajectories."""
    ids = [f"{name}/{i}" for i in range(size)]
    made = [step(n, version=version, reward=0.5) for n in range(num_steps)]
    pool.add([trajectory(id, made, group=name) for id in ids])
    return ids


# Hypothesis

_ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)
_names = st.text("abcdefgh", min_size=1, max_size=4)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e300, 1e300) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
json_objects = st.dictionaries(_names, _json, max_size=3)
rewards = st.none() | st.floats(-1e6, 1e6)
_hashes = st.integers(0, 5).map(lambda n: f"{n:032x}")
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    seed=st.none() | st.integers(0, 2**62),
    finish_reason=st.sampled_from(FinishReason),
)


@st.composite
def token_states(draw: st.DrawFn, before: list[int] | None = None) -> TokenState:
    """A prompt that may continue `before`, with images that may lie anywhere."""
    start = before[: draw(st.integers(0, len(before)))] if before else []
    ids = start + draw(_ids)
    spans, end = [], 0
    for _ in range(draw(st.integers(0, 2))):
        begin = end + draw(st.integers(0, 20))
        length = draw(st.integers(1, 6))
        if begin + length > len(ids):
            break
        spans.append(ImageSpan(draw(_hashes), begin, length))
        end = begin + length
    return TokenState(np.asarray(ids, np.int32), tuple(spans))


@st.composite
def array_steps(draw: st.DrawFn) -> Step:
    seed = draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    state = ArrayState({"image": rng.integers(0, 255, (2, 3), np.uint8), "pose": rng.random(4)}, "push")
    action = ArrayAction(rng.random((2, 3)).astype(np.float32), 6, {"bins": rng.integers(0, 9, (2, 3))})
    return Step(state, action, -rng.random(6).astype(np.float32), info=draw(json_objects))


@st.composite
def token_steps(draw: st.DrawFn, before: list[int] | None = None) -> Step:
    action = draw(st.lists(st.integers(0, 99), max_size=6))
    known = draw(st.booleans())
    logprobs = [draw(st.floats(-50, 0, width=32) | st.just(float("-inf"))) for _ in action] if known else []
    first = draw(st.integers(0, 5))
    return Step(
        state=draw(token_states(before)),
        action=TokenAction(np.asarray(action, np.int32), draw(st.text(max_size=5))),
        behavior_logprobs=np.asarray(logprobs, np.float32),
        reward=draw(rewards),
        reward_parts={},
        sampling=draw(samplings),
        policy_version=VersionSpan(first, first + draw(st.integers(0, 2))),
        anchor=draw(st.none() | _names),
        info=draw(json_objects),
    )


@st.composite
def step_lists(draw: st.DrawFn, max_size: int = 5) -> list[Step]:
    """Steps that mostly continue each other, sometimes branch, and sometimes are a robot's."""
    steps: list[Step] = []
    before: list[int] | None = None
    for _ in range(draw(st.integers(0, max_size))):
        one = draw(array_steps()) if draw(st.integers(0, 9)) == 0 else draw(token_steps(before))
        steps.append(one)
        if isinstance(one.state, TokenState) and isinstance(one.action, TokenAction):
            before = [*one.state.prompt_ids.tolist(), *one.action.action_ids.tolist()]
    return steps


tasks = st.builds(
    Task,
    _names,
    json_objects,
    st.text(max_size=5),
    st.integers(0, 2**40),
    st.lists(_names, max_size=2).map(tuple),
)


@st.composite
def trajectories(draw: st.DrawFn, name: str) -> Trajectory:
    status = draw(st.sampled_from(Status))
    failed = status in (Status.AGENT_ERROR, Status.INFRA_ERROR)
    return Trajectory(
        task=draw(tasks),
        steps=draw(step_lists()),
        status=status,
        group=draw(st.sampled_from(["", f"group of {name}"])),
        final_state=draw(st.none() | token_states()),
        error=draw(st.text(min_size=1, max_size=5)) if failed else "",
        timings=draw(st.dictionaries(_names, st.floats(0, 1e6), max_size=2)),
        info=draw(json_objects),
        id=name,
    )
