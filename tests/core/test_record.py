"""What a step, task and trajectory accept, refuse and promise."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import (
    ArrayAction,
    ArrayState,
    ContextLengthError,
    EngineError,
    EnvError,
    FinishReason,
    ImageSpan,
    InfraError,
    InputError,
    Observation,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Split,
    Status,
    Step,
    StepwellError,
    Task,
    TokenAction,
    TokenState,
    ToolSchema,
    Trajectory,
    VersionSpan,
    hash_bytes,
    hash_content,
    select_trainable,
)

IMAGE = hash_bytes(b"image")


def trajectory(status: Status, rewards: list[float | None], error: str = "") -> Trajectory:
    steps = [Step.from_tokens([1, 2], [3], reward=reward) for reward in rewards]
    return Trajectory(Task("world", {"n": 1}), steps, status, error=error)


@pytest.mark.parametrize(
    ("prompt", "action", "logprobs", "message"),
    [
        ([], [1], [], "prompt_ids is empty"),
        ([[1, 2]], [1], [], "prompt_ids must be a flat list"),
        ([1.5], [1], [], "prompt_ids must be a flat list of integer"),
        ([1], [-1], [], "action_ids holds ids outside"),
        ([1], [2**31], [], "action_ids holds ids outside"),
        ([1], [1, 2], [-0.1], "behavior_logprobs has 1 values for 2 action units"),
        ([1], [1], [float("nan")], "behavior_logprobs contains NaN at position 0"),
        ([1], [1], [[-0.1]], "behavior_logprobs must be one value per action unit"),
    ],
)
def test_a_malformed_step_is_refused_by_field(prompt, action, logprobs, message) -> None:
    with pytest.raises(InputError, match=message):
        Step.from_tokens(prompt, action, behavior_logprobs=logprobs)


def test_a_reward_must_be_finite_and_none_is_not_zero() -> None:
    with pytest.raises(InputError, match="reward is inf"):
        Step.from_tokens([1], [2], reward=float("inf"))
    assert Step.from_tokens([1], [2]).reward is None
    assert Step.from_tokens([1], [2], reward=0.0).reward == 0.0


def test_the_reward_is_the_sum_of_its_parts() -> None:
    step = Step.from_tokens([1], [2])
    step.assign_reward({"task": 1.0, "format": 0.5, "action": -0.1})
    assert step.reward == pytest.approx(1.4)
    assert step.reward_parts["format"] == 0.5
    with pytest.raises(InputError, match="reward part 'judge' is nan"):
        step.assign_reward({"judge": float("nan")})


def test_a_record_does_not_change_when_the_caller_changes_its_array() -> None:
    prompt = np.array([1, 2, 3])
    step = Step.from_tokens(prompt, [4])
    prompt[0] = 99
    assert step.state.prompt_ids.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        step.state.prompt_ids[0] = 5


def test_token_and_array_halves_do_not_mix() -> None:
    with pytest.raises(InputError, match="must be of one kind"):
        Step(TokenState(np.array([1])), ArrayAction(np.zeros((1, 2)), 0), np.zeros(0))
    with pytest.raises(InputError, match="must be of one kind"):
        Step(ArrayState({}), TokenAction(np.array([1])), np.zeros(0))


def test_a_chunk_must_be_a_matrix_of_numbers() -> None:
    with pytest.raises(InputError, match=r"action.chunk must be \[C, D\]"):
        ArrayAction(np.zeros(3), 3)
    with pytest.raises(InputError, match=r"state.arrays\['x'\] has dtype"):
        ArrayState({"x": np.array(["text"])})


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(IMAGE, 0, 3), (IMAGE, 2, 1)], "overlaps"),
        ([(IMAGE, 2, 3)], "ends at 5, past the 4"),
        ([(IMAGE, 0, 0)], "empty or negative"),
        ([("image.png", 0, 1)], "not a content hash"),
    ],
)
def test_image_spans_must_fit_the_prompt(spans, message) -> None:
    with pytest.raises(InputError, match=message):
        TokenState(np.array([1, 2, 3, 4]), tuple(ImageSpan(*span) for span in spans))


def test_equal_prompts_with_other_images_are_other_states() -> None:
    prompt = np.array([1, 2, 3])
    one = TokenState(prompt, (ImageSpan(IMAGE, 1, 1),))
    assert one == TokenState(prompt, (ImageSpan(IMAGE, 1, 1),))
    assert one != TokenState(prompt, (ImageSpan(hash_bytes(b"other"), 1, 1),))


def test_staleness_counts_from_the_oldest_version_of_a_span() -> None:
    span = VersionSpan.at(4).merge(VersionSpan.at(2))
    assert span == VersionSpan(2, 4)
    assert span.staleness(current=6) == 4
    with pytest.raises(InputError, match="older than the step's own version"):
        span.staleness(current=3)
    with pytest.raises(InputError, match="first <= last"):
        VersionSpan(3, 2)


def test_greedy_logprobs_are_those_of_the_unscaled_distribution() -> None:
    assert Sampling(temperature=0.0).logit_temperature == 1.0
    assert Sampling(temperature=0.7).logit_temperature == 0.7


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"stop": ("",)}, "stop contains an empty string"),
    ],
)
def test_sampling_parameters_out_of_range_are_refused(params, message) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**params)


def test_params_with_another_seed_differ_in_nothing_else() -> None:
    params = SamplingParams(7, 0.5, 0.9, 1, ("x",), (3,), True)
    assert params.with_seed(2) == SamplingParams(7, 0.5, 0.9, 2, ("x",), (3,), True)
    assert params.with_seed(None).seed is None and params.seed == 1


def test_a_sample_becomes_the_step_it_was_drawn_for() -> None:
    request = Request(TokenState(np.array([1, 2])))
    sampled = Sampled(
        TokenAction(np.array([3, 4]), "hi"),
        np.array([-0.5, -1.0], np.float32),
        Sampling(0.7, 0.9, 11, FinishReason.LENGTH),
        VersionSpan(1, 2),
    )
    step = sampled.step(request.state)
    assert step.behavior_logprobs.tolist() == [-0.5, -1.0]
    assert (step.sampling.temperature, step.policy_version.last, step.action.text) == (0.7, 2, "hi")


def test_a_task_is_its_content_whatever_seed_made_it() -> None:
    one, same = Task("lake", {"b": 1, "a": 2}, seed=1), Task("lake", {"a": 2, "b": 1}, seed=2)
    assert one.id == same.id
    assert one.split() is same.split()
    assert Task("lake", {"a": 3}).id != one.id
    assert Task("other", {"a": 2, "b": 1}).id != one.id


def test_splits_are_disjoint_by_content_and_near_the_asked_share() -> None:
    tasks = [Task("lake", {"board": n}) for n in range(4000)]
    held_out = sum(task.split(0.2) is Split.HELD_OUT for task in tasks)
    assert 700 < held_out < 900
    assert all(task.split(0.0) is Split.TRAIN for task in tasks[:50])
    assert all(task.split(1.0) is Split.HELD_OUT for task in tasks[:50])


def test_content_hash_refuses_what_json_cannot_say() -> None:
    with pytest.raises(InputError, match="JSON values"):
        hash_content({"a": float("nan")})
    with pytest.raises(InputError, match="JSON values"):
        hash_content({"a": {1, 2}})


def test_infra_failures_never_enter_a_gradient_and_are_counted() -> None:
    made = [
        trajectory(Status.SUCCESS, [1.0]),
        trajectory(Status.INFRA_ERROR, [1.0], "worker 3 died"),
        trajectory(Status.AGENT_ERROR, [0.0], "unparsable"),
        trajectory(Status.TRUNCATED, []),
    ]
    kept, counts = select_trainable(made)
    assert [item.status for item in kept] == [Status.SUCCESS, Status.AGENT_ERROR]
    assert counts == {"success": 1, "failure": 0, "truncated": 1, "agent_error": 1, "infra_error": 1}


def test_only_a_truncated_episode_would_have_gone_on() -> None:
    assert [status.is_terminated for status in Status] == [True, True, False, True, False]


def test_an_error_status_must_say_what_went_wrong() -> None:
    with pytest.raises(InputError, match="must say what went wrong"):
        trajectory(Status.INFRA_ERROR, [])


def test_total_reward_refuses_an_unassigned_step() -> None:
    assert trajectory(Status.SUCCESS, [0.5, 1.0]).total_reward == 1.5
    with pytest.raises(InputError, match="reward of step 1 is not assigned"):
        trajectory(Status.SUCCESS, [0.5, None]).total_reward  # noqa: B018


def test_errors_of_the_system_and_of_the_caller_are_told_apart() -> None:
    assert issubclass(EngineError, InfraError) and issubclass(EnvError, InfraError)
    assert issubclass(ContextLengthError, ValueError) and not issubclass(ContextLengthError, InfraError)
    assert issubclass(InfraError, StepwellError) and not issubclass(InfraError, ValueError)


def test_a_tool_survives_the_way_through_the_chat_form() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tool = ToolSchema("search", "looks up", schema)
    assert ToolSchema.from_openai(tool.to_openai()) == tool
    assert ToolSchema.from_openai({"name": "ping"}).parameters == {"type": "object", "properties": {}}
    with pytest.raises(InputError, match="tool name"):
        ToolSchema("two words")
    with pytest.raises(InputError, match="type 'object'"):
        ToolSchema("search", parameters={"type": "string"})
    with pytest.raises(InputError, match="needs a 'function' object"):
        ToolSchema.from_openai({"type": "function"})


def test_an_observation_takes_only_rgb_images() -> None:
    image = np.zeros((2, 3, 3), np.uint8)
    assert Observation("a", (image,)) == Observation("a", (image.copy(),))
    assert Observation("a", (image,)) != Observation("a", (image + 1,))
    with pytest.raises(InputError, match=r"images\[0\] must be uint8 RGB"):
        Observation(images=(image.astype(np.float32),))
