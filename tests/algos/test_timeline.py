"""The flat batch: how nested lists fold into it, parts are taken from it, and bad ones are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algos import Timeline, credit, label_ids
from stepwell.core.errors import InputError

EXAMPLE: dict[str, Any] = {
    "rewards": [[0.0, 1.0], [2.0]],
    "token_values": [[[0.2, 0.3], [0.4, 0.5, 0.6]], [[0.1]]],
    "end_values": [[0.35, 0.7], [0.9]],
    "token_rewards": [[[0.0, -1.0], [0.0, 0.0, -2.0]], [[-3.0]]],
    "bootstrap": [0.0, 0.5],
    "groups": ["door", "key"],
    "anchors": [["a", "b"], ["a"]],
    "instruction_values": [0.3, 0.4],
}


def flat_fields() -> dict[str, Any]:
    """The same batch, for the flat constructor."""
    timeline = Timeline.from_lists(**EXAMPLE)
    return {name: getattr(timeline, name) for name in Timeline.__dataclass_fields__}


def test_nested_lists_fold_into_the_flat_layout() -> None:
    timeline = Timeline.from_lists(**EXAMPLE, dtype=torch.float64)
    assert timeline.steps_per_trajectory.tolist() == [2, 1]
    assert timeline.tokens_per_step.tolist() == [2, 3, 1]
    assert timeline.rewards.tolist() == [0.0, 1.0, 2.0]
    assert timeline.token_values is not None
    assert timeline.token_values.tolist() == [0.2, 0.3, 0.4, 0.5, 0.6, 0.1]
    assert timeline.groups is not None and timeline.groups.tolist() == [0, 1]
    assert timeline.anchors is not None and timeline.anchors.tolist() == [0, 1, 0]
    assert (timeline.num_trajectories, timeline.num_steps, timeline.num_tokens) == (2, 3, 6)
    assert timeline.tokens_by_trajectory.lengths.tolist() == [5, 1]
    assert timeline.returns.tolist() == [1.0, 2.0]
    assert timeline.outcomes.tolist() == [1.0, 2.0]
    assert timeline.read_state_values().tolist() == [0.2, 0.4, 0.1]


def test_the_flat_constructor_gives_the_same_batch_as_nested_lists() -> None:
    flat, nested = Timeline(**flat_fields()), Timeline.from_lists(**EXAMPLE)
    assert credit.bilevel_gae(flat).to_lists() == credit.bilevel_gae(nested).to_lists()


def test_state_values_stand_in_for_token_values_where_only_states_are_valued() -> None:
    short = {key: EXAMPLE[key] for key in ("rewards", "token_rewards", "bootstrap")}
    by_state = Timeline.from_lists(**short, state_values=[[0.2, 0.4], [0.1]])
    by_token = Timeline.from_lists(**short, token_values=EXAMPLE["token_values"])
    assert credit.step_gae(by_state).to_lists() == credit.step_gae(by_token).to_lists()


def test_actions_have_one_token_when_nothing_tells_their_length() -> None:
    assert Timeline.from_lists([[1.0, 0.0], [2.0]]).tokens_per_step.tolist() == [1, 1, 1]


def test_a_reward_of_zero_is_assigned() -> None:
    assert Timeline.from_lists([[0.0]]).returns.tolist() == [0.0]


def test_labels_equal_only_where_they_are_equal_and_none_equals_nothing() -> None:
    assert label_ids(["x", None, "y", "x", None]).tolist() == [0, 1, 2, 0, 3]


def test_sites_lie_where_a_policy_puts_its_values() -> None:
    timeline = Timeline.from_lists(**EXAMPLE)
    # values of the three steps, put end to end: 0 1 2 | 3 4 5 6 | 7 8
    assert timeline.index_sites(timeline.token_sites).tolist() == [0, 1, 3, 4, 5, 7]
    assert timeline.index_sites(timeline.end_sites).tolist() == [2, 6, 8]
    assert timeline.index_sites(timeline.state_sites).tolist() == [0, 3, 7]


def test_moving_to_another_dtype_changes_numbers_and_keeps_labels() -> None:
    timeline = Timeline.from_lists(**EXAMPLE).to(dtype=torch.float64)
    assert timeline.rewards.dtype == timeline.read_bootstrap().dtype == torch.float64
    assert timeline.groups is not None and timeline.groups.dtype == torch.int64


def test_taking_steps_keeps_what_belongs_to_them() -> None:
    part = Timeline.from_lists(**EXAMPLE, dtype=torch.float64).take_steps(torch.tensor([1, 2]))
    assert part.steps_per_trajectory.tolist() == [1, 1]
    assert part.tokens_per_step.tolist() == [3, 1]
    assert part.token_values is not None and part.token_values.tolist() == [0.4, 0.5, 0.6, 0.1]
    assert part.end_values is not None and part.end_values.tolist() == [0.7, 0.9]
    only_second = Timeline.from_lists(**EXAMPLE).take_steps(torch.tensor([2]))
    assert only_second.steps_per_trajectory.tolist() == [1]
    assert only_second.read_bootstrap().tolist() == [0.5]


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=4))
def test_results_fold_back_into_the_shape_they_came_from(shape: list[list[int]]) -> None:
    count = iter(range(1000))
    values = [[[float(next(count)) for _ in range(n)] for n in lengths] for lengths in shape]
    timeline = Timeline.from_lists([[0.0] * len(lengths) for lengths in shape], token_values=values)
    negated = credit.token_gae(timeline, gamma=0.0)  # A = -v
    assert [[[-x for x in step] for step in trajectory] for trajectory in negated.to_lists()] == values


# What bad input gets: the field's name first, the fix after it

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [[0.0, None], [2.0]]}, "rewards: flat entry 1 is None .*assign it"),
        ({"rewards": [[0.0, NAN], [2.0]]}, "rewards: holds nan at position 1"),
        ({"rewards": [[0.0, "1"], [2.0]]}, "rewards: flat entry 1 is '1', expected a number"),
        ({"rewards": [0.0, 1.0]}, r"rewards\[0\]: expected a list"),
        ({"rewards": [[[0.0], [1.0]], [[2.0]]]}, r"rewards: flat entry 0 is \[0.0\], expected a number"),
        ({"rewards": 3.0}, "rewards: expected a list"),
        ({"token_values": [[[0.2, 0.3], [0.4, 0.5]], [[0.1]]]}, "token_rewards .*3 entries, expected 2"),
        ({"token_values": [[[0.2, 0.3]], [[0.1]]]}, r"token_values\[0\]: 1 entries, expected 2"),
        ({"token_values": [[0.2, 0.4], [0.1]]}, r"token_values \(flat step 0\): expected a list"),
        ({"token_values": [[[0.2, INF], [0.4, 0.5, 0.6]], [[0.1]]]}, "token_values: holds inf at position 1"),
        ({"token_values": [[[0.2, None], [0.4, 0.5, 0.6]], [[0.1]]]}, "token_values: flat entry 1 is None"),
        ({"end_values": [[0.35, 0.7]]}, "end_values: 1 entries, expected 2"),
        ({"end_values": [[0.35], [0.9]]}, r"end_values\[0\]: 1 entries, expected 2"),
        ({"bootstrap": [0.0]}, "bootstrap: 1 entries, expected 2"),
        ({"bootstrap": 0.0}, "bootstrap: expected a list"),
        ({"groups": ["door"]}, "groups: 1 entries, expected 2"),
        ({"anchors": [["a"], ["a"]]}, r"anchors\[0\]: 1 entries, expected 2"),
        ({"instruction_values": [0.1, NAN]}, "instruction_values: holds nan"),
        ({"state_values": [[0.1, 0.2], [0.3]]}, "state_values: .*give one of them"),
        ({"tokens_per_step": [[2, 3], [2]]}, r"token_values \(flat step 2\): 1 entries, expected 2"),
    ],
)
def test_nested_lists_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Timeline.from_lists(**(EXAMPLE | change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rewards": []}, "steps_per_trajectory: the batch is empty; skip the update"),
        ({"rewards": [[1.0], []]}, "steps_per_trajectory: entry 1 is 0; .*at least one step"),
        (
            {"rewards": [[1.0, 1.0]], "token_values": [[[0.1], []]]},
            "tokens_per_step: entry 1 is 0; .*bootstrap",
        ),
        ({"rewards": [[1.0]], "tokens_per_step": [[-2]]}, "tokens_per_step: entry 0 is -2"),
    ],
)
def test_empty_batches_trajectories_and_actions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Timeline.from_lists(**fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [0.0, 1.0, 2.0]}, "rewards: expected a tensor, got list"),
        ({"rewards": None}, "rewards: expected a tensor, got NoneType"),
        ({"rewards": torch.zeros(3, 1)}, r"rewards: shape \[3, 1\], expected \[3\] \(one per step"),
        ({"rewards": torch.zeros(2)}, r"rewards: shape \[2\], expected \[3\]"),
        ({"rewards": torch.zeros(3, dtype=torch.int64)}, r"rewards: dtype torch.int64 .*\.float\(\)"),
        ({"rewards": torch.zeros(3, dtype=torch.float16)}, "rewards: dtype torch.float16"),
        (
            {"token_values": torch.zeros(1)},
            r"token_values: shape \[1\], expected \[6\] \(one per action token",
        ),
        ({"token_values": torch.zeros(6, dtype=torch.float64)}, "token_values: .*use one dtype"),
        ({"bootstrap": torch.tensor(0.0)}, r"bootstrap: shape \[\], expected \[2\]"),
        ({"groups": torch.zeros(2)}, r"groups: dtype torch.float32 .*\.long\(\)"),
        ({"anchors": torch.zeros(2, dtype=torch.int64)}, r"anchors: shape \[2\], expected \[3\]"),
        ({"tokens_per_step": torch.tensor([2.0, 3.0, 1.0])}, "tokens_per_step: dtype torch.float32"),
        ({"steps_per_trajectory": torch.tensor([2, 2])}, "steps_per_trajectory: sums to 4, .* lists 3 steps"),
        ({"steps_per_trajectory": torch.tensor([[2, 1]])}, r"steps_per_trajectory: shape \[1, 2\]"),
        ({"end_values": torch.zeros(3, device="meta")}, "end_values: lives on meta but the rest is on cpu"),
    ],
)
def test_flat_tensors_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Timeline(**(flat_fields() | change))


@pytest.mark.parametrize("steps", [[], [1, 0], [0, 0], [3], [-1, 0]])
def test_steps_to_take_must_be_ascending_and_present(steps: list[int]) -> None:
    with pytest.raises(InputError, match="steps: "):
        Timeline.from_lists(**EXAMPLE).take_steps(torch.tensor(steps, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("token_gae", "token_values"),
        ("step_gae", "state_values"),
        ("turn_gae", "state_values"),
        ("bilevel_gae", "token_values"),
        ("webrl_advantage", "state_values"),
        ("mc_advantage", "state_values"),
        ("digirl_advantage", "state_values"),
        ("grpo", "groups"),
        ("rloo", "groups"),
        ("gigpo", "groups"),
    ],
)
def test_a_missing_part_is_named(name: str, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: missing"):
        credit.CREDIT[name](Timeline.from_lists([[0.0, 1.0]]))


def test_further_missing_parts_are_named() -> None:
    timeline = Timeline.from_lists([[0.0, 1.0]], token_values=[[[0.1], [0.2]]], groups=["a"])
    with pytest.raises(InputError, match=r"^end_values: missing"):
        credit.bilevel_gae(timeline)
    with pytest.raises(InputError, match=r"^instruction_values: missing"):
        credit.digirl_advantage(timeline)
    with pytest.raises(InputError, match=r"^anchors: missing"):
        credit.gigpo(timeline)
    with pytest.raises(InputError, match=r"^groups: missing"):
        credit.reinforce_pp(Timeline.from_lists([[0.0]]), baseline="group")


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("token_gae", {"gamma": 1.5}, "gamma: 1.5 is outside"),
        ("token_gae", {"lam": NAN}, "lam: nan is outside"),
        ("token_gae", {"clock": "turn"}, "clock: 'turn' is unknown; .*'step'"),
        ("token_gae", {"reward_at": "end"}, "reward_at: 'end' is unknown; .*'step_end'"),
        ("step_gae", {"gamma": -0.1}, "gamma: -0.1 is outside"),
        ("turn_gae", {"site": "start"}, "site: 'start' is unknown"),
        ("bilevel_gae", {"gamma_turn": 2.0}, "gamma_turn: 2.0 is outside"),
        ("bilevel_gae", {"final": "none"}, "final: 'none' is unknown"),
        ("grpo", {"eps": 0.0}, "eps: 0.0 must be"),
        ("gigpo", {"omega": -1.0}, "omega: -1.0 must be"),
        ("reinforce_pp", {"baseline": "batch"}, "baseline: 'batch' is unknown"),
        ("webrl_advantage", {"lam": 1.1}, "lam: 1.1 is outside"),
        ("digirl_advantage", {"horizon": 1}, "horizon: 1, but a trajectory has 2 steps"),
        ("digirl_advantage", {"keep_top": 1.2}, "keep_top: 1.2 is outside"),
        ("mc_advantage", {"gamma": INF}, "gamma: inf is outside"),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        credit.CREDIT[name](Timeline.from_lists(**EXAMPLE), **kwargs)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(0), None, "x: nothing to whiten"),
        (torch.zeros(2, 2), None, r"x: shape \[2, 2\]"),
        (torch.tensor([1.0, NAN]), None, "x: holds nan"),
        (torch.zeros(2), torch.ones(3, dtype=torch.bool), r"mask: shape \[3\], expected \[2\]"),
        (torch.zeros(2), torch.ones(2), "mask: dtype torch.float32 is not a mask"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bool), "x: nothing to whiten"),
    ],
)
def test_whiten_refuses_what_has_no_mean(x: torch.Tensor, mask: torch.Tensor | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        credit.whiten(x, mask)


def test_results_refuse_what_they_do_not_have() -> None:
    timeline = Timeline.from_lists(**EXAMPLE)
    with pytest.raises(InputError, match="value_sites: this credit uses no critic"):
        _ = credit.grpo(timeline).value_index
    with pytest.raises(InputError, match="level: token-level credit has no step advantages"):
        credit.token_gae(timeline).whiten_advantages("steps")
