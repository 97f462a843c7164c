"""Every loss and KL estimator against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stepwell.algos import LossInputs, Timeline, kl, losses
from stepwell.core import InputError


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logs(*values: float) -> Tensor:
    return doubles(*values).log()


def timeline(
    lengths: list[list[int]], rewards: list[list[float]] | None = None, **fields: object
) -> Timeline:
    zeros = [[0.0] * len(trajectory) for trajectory in lengths]
    return Timeline.from_lists(rewards or zeros, tokens_per_step=lengths, dtype=torch.float64, **fields)  # type: ignore[arg-type]


@pytest.fixture
def ratios() -> LossInputs:
    """Trajectories of steps with 2 + 1 and 1 tokens; token ratios 2, 1/2, 1.1 and 1; A = 1, -1, 2, 3."""
    return LossInputs(
        timeline([[2, 1], [1]]), logs(0.2, 0.1, 0.11, 0.3), logs(0.1, 0.2, 0.1, 0.3), doubles(1, -1, 2, 3)
    )


@pytest.mark.parametrize(
    ("ratio", "aggregate", "expected"),
    [
        # Token terms -1.2 (clipped), 0.8 (clipped), -2.2 | -3.
        ("token", "token_mean", -5.6 / 4),
        ("token", "step_mean", (-0.2 - 2.2 - 3.0) / 3),
        ("token", "trajectory_mean", (-2.6 / 3 - 3.0) / 2),
        # Step ratios 1, 1.1 | 1; the first step's term is the mean of -1 and 1.
        ("step", "token_mean", (0.0 * 2 - 2.2 - 3.0) / 4),
        ("step", "step_mean", (0.0 - 2.2 - 3.0) / 3),
        ("step", "trajectory_mean", (-2.2 / 3 - 3.0) / 2),
        # Trajectory ratios 1.1^(1/3) | 1; the first trajectory's term is -2/3 of its ratio.
        ("trajectory", "token_mean", (3 * (-2 / 3 * 1.1 ** (1 / 3)) - 3.0) / 4),
        ("trajectory", "step_mean", (2 * (-2 / 3 * 1.1 ** (1 / 3)) - 3.0) / 3),
        ("trajectory", "trajectory_mean", (-2 / 3 * 1.1 ** (1 / 3) - 3.0) / 2),
    ],
)
def test_ppo_loss_of_every_ratio_and_mean(
    ratios: LossInputs, ratio: str, aggregate: str, expected: float
) -> None:
    loss, _ = losses.ppo_loss(ratios, ratio=ratio, aggregate=aggregate)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(expected)


def test_ppo_metrics(ratios: LossInputs) -> None:
    _, metrics = losses.ppo_loss(ratios)
    assert metrics["ratio_mean"].item() == pytest.approx((2 + 0.5 + 1.1 + 1) / 4)
    assert metrics["clip_fraction"].item() == pytest.approx(0.5)
    assert metrics["advantage_mean"].item() == pytest.approx(5 / 4)
    assert metrics["approx_kl"].item() == pytest.approx((4.6 - 4 - math.log(1.1)) / 4)
    assert all(metric.ndim == 0 and not metric.requires_grad for metric in metrics.values())


def test_ppo_clips_low_and_high_apart() -> None:
    def loss(ratio: float, advantage: float) -> float:
        inputs = LossInputs(timeline([[1]]), logs(ratio), logs(1.0), doubles(advantage))
        return losses.ppo_loss(inputs, clip_low=0.1, clip_high=0.3)[0].item()

    assert loss(2.0, 1.0) == pytest.approx(-1.3)
    assert loss(0.5, -1.0) == pytest.approx(0.9)
    assert loss(0.5, 1.0) == pytest.approx(-0.5)  # clipping never hides a way to improve
    assert loss(2.0, -1.0) == pytest.approx(2.0)


def test_ppo_weights_by_the_truncated_correction() -> None:
    # policy/proximal = 1.25, clipped to 1.2; proximal/behavior = 3, cut at 2
    inputs = LossInputs(timeline([[1]]), logs(0.75), logs(0.2), doubles(1.0), proximal_logprobs=logs(0.6))
    loss, metrics = losses.ppo_loss(inputs)
    assert loss.item() == pytest.approx(-2.4)
    assert metrics["correction_mean"].item() == pytest.approx(3.0)
    assert metrics["correction_capped_fraction"].item() == 1.0
    assert losses.ppo_loss(inputs, correction_cap=5.0)[0].item() == pytest.approx(-3.6)


def test_ppo_correction_has_the_granularity_of_the_ratio() -> None:
    # proximal/behavior 4 and 1/4 per token: cut to 2 and 1/4 alone, but 1 as a step
    inputs = LossInputs(
        timeline([[2]]), logs(0.4, 0.1), logs(0.1, 0.4), doubles(1, 1), proximal_logprobs=logs(0.4, 0.1)
    )
    assert losses.ppo_loss(inputs, ratio="token")[0].item() == pytest.approx(-(2 + 0.25) / 2)
    assert losses.ppo_loss(inputs, ratio="step")[0].item() == pytest.approx(-1.0)


def test_ppo_survives_ratios_beyond_the_float_range() -> None:
    inputs = LossInputs(
        timeline([[1, 1]]).to(dtype=torch.float32),
        torch.tensor([0.0, -1.0]),
        torch.tensor([-200.0, -200.0]),
        torch.tensor([0.0, 1.0]),
    )
    assert losses.ppo_loss(inputs)[0].item() == pytest.approx(-0.6)


def test_webrl_loss_is_the_squared_violation_per_step() -> None:
    inputs = LossInputs(
        timeline([[2, 1]]),
        doubles(-1.0, -2.0, -3.0),
        advantages=doubles(1.0, 1.0, -0.5),
        ref_logprobs=doubles(-1.3, -2.2, -2.6),
    )
    # log-ratios 0.5 and -0.4, times β = 2, against 1 and -0.5
    loss, metrics = losses.webrl_loss(inputs, beta=2.0)
    assert loss.item() == pytest.approx((0.0 + 0.09) / 2)
    assert metrics["negative_fraction"].item() == 0.5
    assert metrics["log_ratio_mean"].item() == pytest.approx(0.05)
    normalized, _ = losses.webrl_loss(inputs, beta=2.0, length_normalize=True)
    assert normalized.item() == pytest.approx((0.25 + 0.09) / 2)


def test_webrl_loss_is_linear_beyond_the_largest_residual() -> None:
    logprobs = doubles(-1.0, -1.0, -1.0).requires_grad_()
    inputs = LossInputs(
        timeline([[1, 1, 1]]),
        logprobs,
        advantages=doubles(0.5, 1.0, -1.0),
        ref_logprobs=doubles(-1.0, -21.0, 1.0),
    )
    # residuals -0.5, 19 and -1: only the second is beyond 1
    loss, _ = losses.webrl_loss(inputs, max_residual=1.0)
    assert loss.item() == pytest.approx((0.25 + (2 * 19 - 1) + 1.0) / 3)
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.0 / 3, 2.0 / 3, -2.0 / 3])
    with pytest.raises(InputError, match="max_residual"):
        losses.webrl_loss(inputs, max_residual=0.0)


def test_awr_loss_weights_whole_actions_and_cuts_the_weight() -> None:
    advantages = doubles(math.log(2), math.log(2), math.log(100))
    inputs = LossInputs(timeline([[2, 1]]), doubles(-1, -2, -1), advantages=advantages)
    loss, metrics = losses.awr_loss(inputs)
    assert loss.item() == pytest.approx((2 * 3 + 20 * 1) / 2)
    assert metrics["weight_mean"].item() == pytest.approx(11.0)
    assert metrics["weight_capped_fraction"].item() == 0.5
    assert losses.awr_loss(inputs, beta=2.0)[0].item() == pytest.approx((2**0.5 * 3 + 10 * 1) / 2)


def test_awr_loss_of_a_huge_advantage_is_finite() -> None:
    inputs = LossInputs(timeline([[1]]), doubles(-1), advantages=doubles(1e6))
    assert losses.awr_loss(inputs)[0].item() == pytest.approx(20.0)


def test_reinforce_loss() -> None:
    inputs = LossInputs(timeline([[2, 1]]), doubles(-1, -2, -3), advantages=doubles(1, 1, -2))
    assert losses.reinforce_loss(inputs)[0].item() == pytest.approx(-1.0)


def test_reinforce_weights_old_samples_by_the_truncated_correction() -> None:
    # proximal/behavior = 0.5 and 3, cut at 2: the mean of 0.5·log 0.5 and 2·log 0.25
    sides = (logs(0.5, 0.25), logs(0.4, 0.2), doubles(1.0, 1.0))
    inputs = LossInputs(timeline([[2]]), *sides, proximal_logprobs=logs(0.2, 0.6))
    loss, metrics = losses.reinforce_loss(inputs)
    assert loss.item() == pytest.approx(-(0.5 * math.log(0.5) + 2 * math.log(0.25)) / 2)
    assert metrics["correction_mean"].item() == pytest.approx(1.75)
    assert metrics["correction_capped_fraction"].item() == 0.5
    fresh = LossInputs(timeline([[2]]), *sides)
    assert losses.reinforce_loss(fresh)[0].item() == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)


def test_sft_loss_is_the_mean_negative_logprob_of_what_is_trained() -> None:
    everything = LossInputs(timeline([[2, 1]]), doubles(-1, -2, -6))
    assert losses.sft_loss(everything)[0].item() == pytest.approx(3.0)
    some = LossInputs(timeline([[2, 1]]), doubles(-1, -2, -6), loss_mask=torch.tensor([True, True, False]))
    assert losses.sft_loss(some)[0].item() == pytest.approx(1.5)


def test_filtered_bc_keeps_returns_at_or_above_the_percentile() -> None:
    inputs = LossInputs(
        timeline([[1], [1], [2], [1]], rewards=[[0.5], [1.0], [2.0], [3.0]]), doubles(-1, -2, -3, -4, -8)
    )
    # the 50th percentile is 1.5
    loss, metrics = losses.filtered_bc_loss(inputs, percentile=50)
    assert loss.item() == pytest.approx((3 + 4 + 8) / 3)
    assert metrics["kept_fraction"].item() == pytest.approx(3 / 5)
    # the 70th, by default, is 2.1
    assert losses.filtered_bc_loss(inputs)[0].item() == pytest.approx(8.0)


def test_filtered_bc_drops_failures_when_returns_are_binary() -> None:
    rewards = [[0.0], [0.0], [0.0], [0.0], [1.0]]
    inputs = LossInputs(timeline([[1]] * 5, rewards=rewards), doubles(-1, -2, -3, -4, -5))
    # the 70th percentile is 0, which every failure reaches
    assert losses.filtered_bc_loss(inputs)[0].item() == pytest.approx(5.0)


def test_filtered_bc_without_any_success_is_zero_and_says_so() -> None:
    logprobs = doubles(-1, -2).requires_grad_()
    loss, metrics = losses.filtered_bc_loss(LossInputs(timeline([[1], [1]]), logprobs))
    loss.backward()
    assert loss.item() == 0.0 and metrics["kept_fraction"].item() == 0.0
    assert logprobs.grad is not None and not logprobs.grad.any()


def test_dpo_loss_compares_whole_actions() -> None:
    inputs = LossInputs(
        timeline([[2], [1], [1]]),
        doubles(-1.0, -1.0, -2.0, -5.0),
        ref_logprobs=doubles(-1.4, -1.8, -1.2, -5.0),
        pairs=torch.tensor([[0, 1]]),
    )
    # log-ratios 1.2 and -0.8: margin 2β
    loss, metrics = losses.dpo_loss(inputs, beta=0.5)
    assert loss.item() == pytest.approx(-math.log(1 / (1 + math.exp(-1.0))))
    assert metrics["margin_mean"].item() == pytest.approx(1.0)
    assert metrics["accuracy"].item() == 1.0


def test_entropy_bonus_is_minus_the_mean_entropy() -> None:
    loss, metrics = losses.entropy_bonus(doubles(1, 2, 6), timeline([[2, 1]]))
    assert loss.item() == pytest.approx(-3.0) and metrics["entropy"].item() == pytest.approx(3.0)
    by_step, _ = losses.entropy_bonus(doubles(1, 2, 6), timeline([[2, 1]]), aggregate="step_mean")
    assert by_step.item() == pytest.approx(-(1.5 + 6) / 2)


def test_value_mse_and_its_clip() -> None:
    values, targets = doubles(1, 2), doubles(0, 4)
    loss, metrics = losses.value_mse(values, targets)
    assert loss.item() == pytest.approx((1 + 4) / 2)
    assert metrics["absolute_error"].item() == pytest.approx(1.5)
    # held at 0.7 and 1.5: errors 0.49 and 6.25, of which only the second is the larger
    clipped, metrics = losses.value_mse(values, targets, clip=0.5, old_values=doubles(0.2, 1.0))
    assert clipped.item() == pytest.approx((1 + 6.25) / 2)
    assert metrics["clip_fraction"].item() == 0.5


def test_value_bce_of_probabilities_and_of_logits() -> None:
    probabilities, targets = doubles(0.5, 0.8), doubles(1, 0)
    expected = -(math.log(0.5) + math.log(0.2)) / 2
    assert losses.value_bce(probabilities, targets)[0].item() == pytest.approx(expected)
    loss, metrics = losses.value_bce(probabilities.logit(), targets, from_logits=True)
    assert loss.item() == pytest.approx(expected)
    assert metrics["value_mean"].item() == pytest.approx(0.65)


def test_kl_estimators() -> None:
    policy, ref = logs(0.5), logs(0.25)
    assert kl.k1(policy, ref).item() == pytest.approx(math.log(2))
    assert kl.k2(policy, ref).item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl.k3(policy, ref).item() == pytest.approx(0.5 - 1 + math.log(2))
    full = kl.full(logs(0.5, 0.5)[None], logs(0.25, 0.75)[None])
    assert full.tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3)])


def test_kl_in_the_reward_and_in_the_loss() -> None:
    estimates = doubles(0.1, 0.3, 0.8)
    assert kl.kl_reward(estimates, coef=0.5).tolist() == pytest.approx([-0.05, -0.15, -0.4])
    loss, metrics = kl.kl_loss(estimates, timeline([[2, 1]]), coef=0.5)
    assert loss.item() == pytest.approx(0.2) and metrics["kl"].item() == pytest.approx(0.4)
    by_step, _ = kl.kl_loss(estimates, timeline([[2, 1]]), coef=0.5, aggregate="step_mean")
    assert by_step.item() == pytest.approx(0.25)


def test_losses_are_listed_under_their_own_names() -> None:
    for table in (losses.LOSSES, losses.VALUE_LOSSES):
        assert [function.__name__ for function in table.values()] == list(table)
    assert list(losses.LOSSES) == [
        "ppo_loss",
        "webrl_loss",
        "awr_loss",
        "reinforce_loss",
        "sft_loss",
        "filtered_bc_loss",
        "dpo_loss",
    ]
