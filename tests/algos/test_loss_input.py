"""What bad input to a loss or KL gets: an error that names the field and the fix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stepwell.algos import LossInputs, Timeline, kl, losses
from stepwell.core.errors import InputError

TIMELINE = Timeline.from_lists([[0.0, 1.0]], tokens_per_step=[[2, 1]])
LOGPROBS = torch.tensor([-1.0, -2.0, -3.0])
FULL: dict[str, Any] = {
    "timeline": TIMELINE,
    "policy_logprobs": LOGPROBS,
    "behavior_logprobs": LOGPROBS,
    "advantages": torch.ones(3),
    "ref_logprobs": LOGPROBS,
    "proximal_logprobs": LOGPROBS,
    "pairs": torch.tensor([[0, 1]]),
}


@pytest.mark.parametrize(
    "field", [name for name in FULL if name.endswith("logprobs") or name == "advantages"]
)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2), r"shape \[2\], expected \[3\] \(one per action token"),
        (torch.zeros(1), r"shape \[1\], expected \[3\]"),
        (torch.zeros(3, 1), r"shape \[3, 1\], expected \[3\]"),
        (torch.tensor(0.0), r"shape \[\], expected \[3\]"),
        (torch.zeros(3, dtype=torch.int64), "dtype torch.int64"),
        (torch.zeros(3, dtype=torch.bfloat16), "dtype torch.bfloat16"),
        (torch.tensor([0.0, math.nan, 0.0]), "holds nan at position 1"),
        (torch.tensor([0.0, 0.0, -math.inf]), "holds -inf at position 2"),
        (torch.zeros(3, device="meta"), "lives on meta but the rest is on cpu"),
        ([0.0, 0.0, 0.0], "expected a tensor, got list"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: {message}"):
        LossInputs(**(FULL | {field: value}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_logprobs": None}, "policy_logprobs: expected a tensor, got NoneType"),
        ({"loss_mask": torch.ones(3)}, r"loss_mask: dtype torch.float32 is not a mask; .*\.bool\(\)"),
        ({"loss_mask": torch.ones(2, dtype=torch.bool)}, r"loss_mask: shape \[2\], expected \[3\]"),
        ({"loss_mask": torch.zeros(3, dtype=torch.bool)}, "loss_mask: selects no action token"),
        ({"pairs": torch.zeros(1, 2, dtype=torch.int64, device="meta")}, "pairs: lives on meta"),
        ({"pairs": torch.tensor([0, 1])}, r"pairs: expected an int64 tensor \[pair, 2\]"),
        ({"pairs": torch.tensor([[0.0, 1.0]])}, "pairs: expected an int64 tensor"),
        ({"pairs": torch.tensor([[0, 2]])}, r"pairs: flat step out of range; .*0\.\.1"),
        (
            {"timeline": Timeline.from_lists([[0.0, 1.0]], tokens_per_step=[[2, 1]], anchors=[["a", "b"]])},
            "pairs: .*different anchors",
        ),
    ],
)
def test_inputs_that_contradict_each_other_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LossInputs(**(FULL | change))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ppo_loss", "behavior_logprobs"),
        ("ppo_loss", "advantages"),
        ("webrl_loss", "ref_logprobs"),
        ("webrl_loss", "advantages"),
        ("awr_loss", "advantages"),
        ("reinforce_loss", "advantages"),
        ("dpo_loss", "ref_logprobs"),
        ("dpo_loss", "pairs"),
    ],
)
def test_a_loss_names_the_part_it_misses(name: str, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: missing, and this loss needs it; "):
        losses.LOSSES[name](LossInputs(**(FULL | {field: None})))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("ppo_loss", {"ratio": "sequence"}, "ratio: 'sequence' is unknown; .*'trajectory'"),
        ("ppo_loss", {"aggregate": "mean"}, "aggregate: 'mean' is unknown"),
        ("ppo_loss", {"clip_low": 1.5}, "clip_low: 1.5 is outside"),
        ("ppo_loss", {"clip_high": -0.1}, "clip_high: -0.1 must be"),
        ("ppo_loss", {"correction_cap": 0.0}, "correction_cap: 0.0 must be"),
        ("webrl_loss", {"beta": 0.0}, "beta: 0.0 must be"),
        ("awr_loss", {"beta": math.nan}, "beta: nan must be"),
        ("awr_loss", {"max_weight": -1.0}, "max_weight: -1.0 must be"),
        ("filtered_bc_loss", {"percentile": 101}, "percentile: 101 is outside"),
        ("dpo_loss", {"beta": -0.1}, "beta: -0.1 must be"),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        losses.LOSSES[name](LossInputs(**FULL), **kwargs)


def test_dpo_without_pairs_is_refused() -> None:
    inputs = LossInputs(**(FULL | {"pairs": torch.zeros(0, 2, dtype=torch.int64)}))
    with pytest.raises(InputError, match="pairs: empty"):
        losses.dpo_loss(inputs)


def test_microbatches_that_cannot_be_are_refused() -> None:
    whole = LossInputs(**FULL)
    with pytest.raises(InputError, match="steps: they separate a chosen step"):
        whole.microbatch(torch.tensor([0]), LOGPROBS[:2])
    with pytest.raises(InputError, match=r"policy_logprobs: shape \[3\], expected \[2\]"):
        LossInputs(**(FULL | {"pairs": None})).microbatch(torch.tensor([0]), LOGPROBS)
    part = whole.microbatch(torch.tensor([0, 1]), LOGPROBS)
    with pytest.raises(InputError, match="minibatch: this is a microbatch already"):
        part.microbatch(torch.tensor([0]), LOGPROBS[:2])
    two = Timeline.from_lists([[0.0], [0.0]], tokens_per_step=[[2], [1]])
    with pytest.raises(InputError, match="minibatch: names 1 trajectories, the timeline has 2"):
        LossInputs(two, LOGPROBS, minibatch=part.minibatch)


@pytest.mark.parametrize(
    ("values", "targets", "kwargs", "message"),
    [
        (torch.zeros(2), torch.zeros(3), {}, r"values: shape \[2\], expected \[3\]"),
        (torch.zeros(3, 1), torch.zeros(3), {}, r"values: shape \[3, 1\]"),
        (torch.zeros(3), torch.zeros(3, 1), {}, r"targets: shape \[3, 1\]"),
        (torch.zeros(0), torch.zeros(0), {}, "targets: empty"),
        (torch.tensor([math.nan]), torch.zeros(1), {}, "values: holds nan"),
        (torch.zeros(1), torch.zeros(1), {"mask": torch.zeros(1, dtype=torch.bool)}, "mask: selects no site"),
        (torch.zeros(1), torch.zeros(1), {"mask": torch.ones(1)}, "mask: dtype"),
    ],
)
def test_value_losses_refuse_what_does_not_fit(
    values: torch.Tensor, targets: torch.Tensor, kwargs: dict[str, Any], message: str
) -> None:
    for function in losses.VALUE_LOSSES.values():
        with pytest.raises(InputError, match=message):
            function(values, targets, **kwargs)


def test_value_clip_needs_the_old_values() -> None:
    with pytest.raises(InputError, match="old_values: missing"):
        losses.value_mse(torch.zeros(1), torch.zeros(1), clip=0.2)
    with pytest.raises(InputError, match=r"clip: 0.0 must be"):
        losses.value_mse(torch.zeros(1), torch.zeros(1), clip=0.0, old_values=torch.zeros(1))


def test_value_bce_refuses_what_is_no_probability() -> None:
    with pytest.raises(InputError, match=r"values: .*from_logits=True"):
        losses.value_bce(torch.tensor([1.5]), torch.tensor([1.0]))
    with pytest.raises(InputError, match=r"targets: .*use value_mse"):
        losses.value_bce(torch.tensor([0.5]), torch.tensor([2.0]))


def test_kl_and_entropy_refuse_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="estimator: 'k4' is unknown"):
        kl.estimate_kl("k4", LOGPROBS, LOGPROBS)
    with pytest.raises(InputError, match=r"ref_logprobs: shape \[2\], expected \[3\]"):
        kl.k3(LOGPROBS, LOGPROBS[:2])
    with pytest.raises(InputError, match=r"policy_logits: .*token, word"):
        kl.full(LOGPROBS, LOGPROBS)
    with pytest.raises(InputError, match=r"ref_logits: shape \[1, 3\]"):
        kl.full(torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(InputError, match=r"estimates: shape \[2\], expected \[3\]"):
        kl.kl_loss(LOGPROBS[:2], TIMELINE, coef=0.1)
    with pytest.raises(InputError, match=r"coef: -0.1 must be"):
        kl.kl_reward(LOGPROBS, coef=-0.1)
    with pytest.raises(InputError, match=r"entropies: shape \[2\], expected \[3\]"):
        losses.entropy_bonus(LOGPROBS[:2], TIMELINE)
