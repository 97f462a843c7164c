"""What must hold for every loss: gradients, microbatches, masks, special cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from torch import Tensor

from stepwell.algos import LossInputs, Timeline, kl, losses

CALLS: list[tuple[str, dict[str, Any]]] = [
    *[
        ("ppo_loss", {"ratio": ratio, "aggregate": aggregate})
        for ratio in ("token", "step", "trajectory")
        for aggregate in ("token_mean", "step_mean", "trajectory_mean")
    ],
    ("webrl_loss", {"beta": 0.7}),
    ("webrl_loss", {"beta": 0.7, "length_normalize": True}),
    ("webrl_loss", {"beta": 0.7, "max_residual": 0.3}),
    ("awr_loss", {"beta": 0.7, "max_weight": 3.0}),
    ("reinforce_loss", {}),
    ("sft_loss", {}),
    ("filtered_bc_loss", {"percentile": 40}),
    ("dpo_loss", {"beta": 0.7}),
]
SPLITTABLE = [call for call in CALLS if call[1].get("ratio") != "trajectory"]


def name_of(call: object) -> str:
    return "-".join(map(str, [call[0], *call[1].values()])) if isinstance(call, tuple) else str(call)


def make_inputs(
    shape: list[list[int]],
    seed: int = 0,
    *,
    proximal: bool = False,
    mask: bool = False,
    pairs: bool = False,
) -> LossInputs:
    """Random inputs over trajectories of steps of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    timeline = Timeline.from_lists(
        [torch.randn(len(lengths), generator=generator).tolist() for lengths in shape],
        tokens_per_step=shape,
        dtype=torch.float64,
    )

    def normal(size: int, scale: float) -> Tensor:
        return scale * torch.randn(size, dtype=torch.float64, generator=generator)

    n = timeline.num_tokens
    behavior = -1.0 + normal(n, 0.3)
    loss_mask = torch.rand(n, generator=generator) < 0.7
    loss_mask[0] = True
    return LossInputs(
        timeline,
        behavior + normal(n, 0.3),
        behavior,
        normal(n, 1.0),
        ref_logprobs=behavior + normal(n, 0.3),
        proximal_logprobs=behavior + normal(n, 0.3) if proximal else None,
        loss_mask=loss_mask if mask else None,
        pairs=torch.arange(timeline.num_steps // 2 * 2).reshape(-1, 2) if pairs else None,
    )


shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)
SHAPE = [[2, 1, 3], [1], [4, 2]]


@pytest.mark.parametrize("call", CALLS, ids=name_of)
@pytest.mark.parametrize("mask", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("proximal", [False, True], ids=["fresh", "stale"])
def test_gradient_equals_finite_differences(
    call: tuple[str, dict[str, Any]], mask: bool, proximal: bool
) -> None:
    name, kwargs = call
    inputs = make_inputs(SHAPE, seed=3, mask=mask, proximal=proximal, pairs=True)

    def loss(policy_logprobs: Tensor) -> Tensor:
        return losses.LOSSES[name](replace(inputs, policy_logprobs=policy_logprobs), **kwargs)[0]

    point = inputs.policy_logprobs.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, point)
    (gradient,) = torch.autograd.grad(loss(point), point)
    assert gradient.any(), "a loss that teaches nothing would pass gradcheck"


@pytest.mark.parametrize("function", [losses.value_mse, losses.value_bce])
def test_value_gradients_equal_finite_differences(function: Callable[..., tuple[Tensor, Any]]) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(7, dtype=torch.float64, generator=generator).requires_grad_()
    targets = torch.rand(7, dtype=torch.float64, generator=generator)
    mask = torch.tensor([True, True, False, True, True, True, False])
    assert torch.autograd.gradcheck(lambda v: function(v, targets, mask=mask)[0], values)


def test_remaining_gradients_equal_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(12, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    old, targets = x.detach() + 0.3 * y.detach(), y.detach()
    timeline = make_inputs([[2, 1, 3], [1], [3, 2]]).timeline
    assert torch.autograd.gradcheck(lambda v: losses.value_mse(v, targets, clip=0.2, old_values=old)[0], x)
    assert torch.autograd.gradcheck(lambda v: losses.value_bce(v, targets.sigmoid(), from_logits=True)[0], x)
    assert torch.autograd.gradcheck(lambda v: losses.entropy_bonus(v, timeline)[0], x)
    for estimator in ("k1", "k2", "k3"):
        assert torch.autograd.gradcheck(
            lambda v, name=estimator: kl.kl_loss(kl.estimate_kl(name, v, targets), timeline, coef=0.5)[0], x
        )
    assert torch.autograd.gradcheck(lambda v: kl.full(v.view(3, 4), targets.view(3, 4)), x)


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_gradient_flows_into_policy_logprobs_only(call: tuple[str, dict[str, Any]]) -> None:
    inputs = make_inputs(SHAPE, proximal=True, pairs=True)
    fields = ("policy_logprobs", "behavior_logprobs", "advantages", "ref_logprobs", "proximal_logprobs")
    leaves = {name: getattr(inputs, name).clone().requires_grad_() for name in fields}
    losses.LOSSES[call[0]](replace(inputs, **leaves), **call[1])[0].backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == ["policy_logprobs"]


# Microbatches


@pytest.mark.parametrize("call", SPLITTABLE, ids=name_of)
@settings(max_examples=examples(15))
@given(shape=shapes, seed=st.integers(0, 9), mask=st.booleans(), data=st.data())
def test_microbatches_add_up_to_the_minibatch(
    call: tuple[str, dict[str, Any]], shape: list[list[int]], seed: int, mask: bool, data: st.DataObject
) -> None:
    name, kwargs = call
    whole = make_inputs(shape, seed, mask=mask, proximal=True, pairs=name == "dpo_loss")
    if name == "dpo_loss" and whole.timeline.num_steps < 2:
        return
    unit = 2 if name == "dpo_loss" else 1  # pairs stay together
    count = -(-whole.timeline.num_steps // unit)
    owners = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    owners = owners.repeat_interleave(unit)[: whole.timeline.num_steps]

    point = whole.policy_logprobs.clone().requires_grad_()
    loss, metrics = losses.LOSSES[name](replace(whole, policy_logprobs=point), **kwargs)
    loss.backward()

    parts = whole.policy_logprobs.clone().requires_grad_()
    total, sums = 0.0, dict.fromkeys(metrics, 0.0)
    for owner in owners.unique():
        steps = (owners == owner).nonzero()[:, 0]
        tokens = whole.timeline.steps_to_tokens(owners == owner)
        part_loss, part_metrics = losses.LOSSES[name](whole.microbatch(steps, parts[tokens]), **kwargs)
        part_loss.backward()
        total += part_loss.item()
        sums = {key: sums[key] + part_metrics[key].item() for key in sums}

    assert total == pytest.approx(loss.item(), abs=1e-12)
    assert sums == pytest.approx({key: metric.item() for key, metric in metrics.items()}, abs=1e-12)
    torch.testing.assert_close(parts.grad, point.grad)


def test_a_trajectory_ratio_takes_whole_trajectories() -> None:
    whole = make_inputs(SHAPE)
    kwargs: dict[str, Any] = {"ratio": "trajectory", "aggregate": "trajectory_mean"}
    first, rest = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    parts = [
        losses.ppo_loss(whole.microbatch(steps, whole.policy_logprobs[tokens]), **kwargs)[0]
        for steps, tokens in ((first, slice(0, 6)), (rest, slice(6, None)))
    ]
    torch.testing.assert_close(sum(parts), losses.ppo_loss(whole, **kwargs)[0])
    torn = whole.microbatch(torch.tensor([0, 1]), whole.policy_logprobs[:3])
    with pytest.raises(ValueError, match=r"ratio: .* all tokens of a trajectory"):
        losses.ppo_loss(torn, **kwargs)


def test_value_and_entropy_microbatches_add_up() -> None:
    whole = make_inputs(SHAPE, mask=True)
    values, targets = whole.policy_logprobs, whole.behavior_logprobs
    assert targets is not None and whole.loss_mask is not None
    num_sites = int(whole.loss_mask.sum())
    parts = [
        losses.value_mse(values[i], targets[i], mask=whole.loss_mask[i], num_sites=num_sites)[0]
        for i in (slice(0, 5), slice(5, None))
    ]
    torch.testing.assert_close(sum(parts), losses.value_mse(values, targets, mask=whole.loss_mask)[0])

    entropies = -values
    parts = []
    for steps in (torch.tensor([0, 2]), torch.tensor([1, 3, 4, 5])):
        chosen = torch.zeros(6, dtype=torch.bool).index_fill(0, steps, True)
        tokens = whole.timeline.steps_to_tokens(chosen)
        part = whole.microbatch(steps, values[tokens])
        parts.append(
            losses.entropy_bonus(
                entropies[tokens],
                part.timeline,
                aggregate="trajectory_mean",
                loss_mask=part.loss_mask,
                minibatch=part.minibatch,
            )[0]
        )
    expected = losses.entropy_bonus(
        entropies, whole.timeline, aggregate="trajectory_mean", loss_mask=whole.loss_mask
    )[0]
    torch.testing.assert_close(sum(parts), expected)


# Masks


@pytest.mark.parametrize("call", CALLS, ids=name_of)
@settings(max_examples=examples(15))
@given(shape=shapes, seed=st.integers(0, 9))
def test_untrained_tokens_change_nothing(
    call: tuple[str, dict[str, Any]], shape: list[list[int]], seed: int
) -> None:
    name, kwargs = call
    inputs = make_inputs(shape, seed, mask=True, proximal=True, pairs=True)
    if name == "dpo_loss" and inputs.timeline.num_steps < 2:
        return
    assert inputs.loss_mask is not None
    fields = ("policy_logprobs", "behavior_logprobs", "advantages", "ref_logprobs", "proximal_logprobs")
    noisy = {key: torch.where(inputs.loss_mask, getattr(inputs, key), -0.123) for key in fields}
    before, _ = losses.LOSSES[name](inputs, **kwargs)
    after, _ = losses.LOSSES[name](replace(inputs, **noisy), **kwargs)
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("call", SPLITTABLE, ids=name_of)
def test_masking_a_step_out_equals_leaving_it_out(call: tuple[str, dict[str, Any]]) -> None:
    name, kwargs = call
    if name == "filtered_bc_loss":
        kwargs = {"percentile": 0}  # returns change when a step is left out
    inputs = make_inputs([[2, 1], [3], [2, 2]], seed=1)
    kept = torch.tensor([0, 1, 3, 4])
    tokens = inputs.timeline.steps_to_tokens(torch.tensor([True, True, False, True, True]))
    masked = replace(inputs, loss_mask=tokens, pairs=torch.tensor([[0, 1], [3, 4]]))
    part = inputs.timeline.take_steps(kept)
    names = ("policy_logprobs", "behavior_logprobs", "advantages", "ref_logprobs")
    shorter = LossInputs(
        part, *(getattr(inputs, key)[tokens] for key in names), pairs=torch.tensor([[0, 1], [2, 3]])
    )
    torch.testing.assert_close(
        losses.LOSSES[name](masked, **kwargs)[0], losses.LOSSES[name](shorter, **kwargs)[0]
    )


# Special cases that must agree


@given(st.integers(0, 20))
def test_ratios_of_one_step_trajectories_agree(seed: int) -> None:
    inputs = make_inputs([[3], [1], [2]], seed)
    by_step, _ = losses.ppo_loss(inputs, ratio="step", aggregate="step_mean")
    by_trajectory, _ = losses.ppo_loss(inputs, ratio="trajectory", aggregate="trajectory_mean")
    torch.testing.assert_close(by_step, by_trajectory)


@given(st.integers(0, 20))
def test_ratios_of_one_token_steps_agree(seed: int) -> None:
    inputs = make_inputs([[1, 1], [1]], seed)
    by_token, _ = losses.ppo_loss(inputs, ratio="token", aggregate="token_mean")
    by_step, _ = losses.ppo_loss(inputs, ratio="step", aggregate="step_mean")
    torch.testing.assert_close(by_token, by_step)


@pytest.mark.parametrize("ratio", ["token", "step", "trajectory"])
@given(shape=shapes, seed=st.integers(0, 9))
def test_proximal_equal_to_behavior_leaves_the_loss_alone(
    ratio: Any, shape: list[list[int]], seed: int
) -> None:
    fresh = make_inputs(shape, seed)
    stale = replace(fresh, proximal_logprobs=fresh.behavior_logprobs)
    assert torch.equal(losses.ppo_loss(fresh, ratio=ratio)[0], losses.ppo_loss(stale, ratio=ratio)[0])


@pytest.mark.parametrize("ratio", ["token", "step", "trajectory"])
def test_gradient_of_a_fresh_sample_is_the_policy_gradient(ratio: Any) -> None:
    inputs = make_inputs(SHAPE)
    advantages = inputs.timeline.tokens_by_trajectory.expand(
        torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    )
    point = inputs.read_behavior()[:].clone().requires_grad_()
    fresh = replace(inputs, policy_logprobs=point, advantages=advantages)
    loss, metrics = losses.ppo_loss(fresh, ratio=ratio, aggregate="token_mean")
    loss.backward()
    torch.testing.assert_close(point.grad, -advantages / len(advantages))
    assert metrics["ratio_mean"].item() == pytest.approx(1.0)
    assert metrics["clip_fraction"].item() == 0.0


def test_webrl_loss_vanishes_at_its_optimum() -> None:
    inputs = make_inputs(SHAPE)
    steps = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.3], dtype=torch.float64)
    per_token = inputs.timeline.steps_to_tokens(steps / inputs.timeline.tokens_per_step)
    best = replace(
        inputs,
        advantages=inputs.timeline.steps_to_tokens(steps),
        policy_logprobs=inputs.read_reference() + per_token / 0.25,
    )
    assert losses.webrl_loss(best, beta=0.25)[0].item() == pytest.approx(0.0, abs=1e-20)


@given(shapes, st.integers(0, 9))
def test_the_three_means_agree_when_all_units_have_one_size(shape: list[list[int]], seed: int) -> None:
    even = [[2, 2, 2] for _ in shape]
    inputs = make_inputs(even, seed)
    results = [
        losses.ppo_loss(inputs, aggregate=aggregate)[0]  # type: ignore[arg-type]
        for aggregate in ("token_mean", "step_mean", "trajectory_mean")
    ]
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


@pytest.mark.parametrize("call", [call for call in CALLS if call[0] != "dpo_loss"], ids=name_of)
@settings(max_examples=examples(15))
@given(shape=shapes, seed=st.integers(0, 9))
def test_permuting_trajectories_keeps_the_loss(
    call: tuple[str, dict[str, Any]], shape: list[list[int]], seed: int
) -> None:
    name, kwargs = call
    inputs = make_inputs(shape, seed, mask=True, proximal=True)
    order = torch.randperm(len(shape), generator=torch.Generator().manual_seed(seed)).tolist()
    chunks = inputs.timeline.tokens_by_trajectory.lengths.tolist()
    rewards = inputs.timeline.rewards.split([len(lengths) for lengths in shape])

    def permute(x: Tensor) -> Tensor:
        return torch.cat([x.split(chunks)[j] for j in order])

    timeline = Timeline.from_lists(
        [rewards[j].tolist() for j in order], tokens_per_step=[shape[j] for j in order], dtype=torch.float64
    )
    fields = (
        "policy_logprobs",
        "behavior_logprobs",
        "advantages",
        "ref_logprobs",
        "proximal_logprobs",
        "loss_mask",
    )
    permuted = LossInputs(timeline, **{key: permute(getattr(inputs, key)) for key in fields})
    torch.testing.assert_close(
        losses.LOSSES[name](permuted, **kwargs)[0], losses.LOSSES[name](inputs, **kwargs)[0]
    )


def test_a_float64_batch_and_float32_logprobs_are_computed_in_float32() -> None:
    inputs = make_inputs(SHAPE)
    single = replace(inputs, policy_logprobs=inputs.policy_logprobs.float())
    loss, _ = losses.ppo_loss(single)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(losses.ppo_loss(inputs)[0].item(), rel=1e-5)


# KL


@given(st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0)), min_size=1, max_size=9))
def test_k3_is_never_negative_and_all_are_zero_for_equal_policies(pairs: list[tuple[float, float]]) -> None:
    policy, ref = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    assert bool((kl.k3(policy, ref) >= 0).all())
    for name in ("k1", "k2", "k3"):
        assert not kl.estimate_kl(name, policy, policy).any()


@given(st.integers(0, 20))
def test_sampled_estimators_agree_with_the_full_divergence_in_expectation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy, ref = torch.randn(2, 1, 6, dtype=torch.float64, generator=generator).log_softmax(-1)
    exact = kl.full(policy, ref).item()
    probabilities = policy[0].exp()
    # The expectation over the vocabulary is exact, so no sampling noise blurs the comparison.
    assert (probabilities @ kl.k1(policy[0], ref[0])).item() == pytest.approx(exact)
    assert (probabilities @ kl.k3(policy[0], ref[0])).item() == pytest.approx(exact)


def test_full_kl_ignores_words_the_policy_excludes() -> None:
    inf = float("inf")
    policy = torch.tensor([[0.0, 0.0, -inf]], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([[0.0, 0.0, 0.0]], dtype=torch.float64)
    divergence = kl.full(policy, ref)
    assert divergence.item() == pytest.approx(torch.tensor(1.5).log().item())
    divergence.sum().backward()
    assert policy.grad is not None and bool(policy.grad.isfinite().all())


def test_k3_of_an_action_the_policy_abandoned_is_finite() -> None:
    assert kl.k3(torch.tensor([-200.0]), torch.tensor([0.0])).isfinite().all()
