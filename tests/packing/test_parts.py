"""A separable loss runs every microbatch once and gives the gradient of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.variants import keep_quick
from torch import Tensor

from stepwell.core import InputError
from stepwell.packing import Outputs, backward, pack
from stepwell.packing.tree import IntArray
from stepwell.policies import CausalLMPolicy

BATCHES = ["dialogue", "rewritten", "group", "repeated", "value_only", "mixture"]


class StepLoss:
    """A sum over units of steps: inside a unit everything depends on everything."""

    def __init__(self, policy: CausalLMPolicy, action_lengths: list[int], units: IntArray) -> None:
        self.units, self.lengths = units, np.array(action_lengths)
        self.num_runs = 0
        self._run, policy.run = policy.run, self.count_runs  # type: ignore[method-assign]
        self.measured = 0

    def count_runs(self, *arguments: Any, **options: Any) -> Outputs:
        self.num_runs += 1
        return self._run(*arguments, **options)

    def is_separate(self, steps: IntArray) -> bool:
        return set(np.flatnonzero(np.isin(self.units, self.units[steps]))) == set(steps.tolist())

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
        return self.compute_part(outputs, np.arange(self.units.size))

    def compute_part(self, outputs: Outputs, steps: IntArray) -> tuple[Tensor, dict[str, Any]]:
        assert outputs.logprobs is not None and outputs.values is not None and outputs.entropies is not None
        lengths = self.lengths[steps]
        logprobs, entropies = (
            outputs.logprobs.split(lengths.tolist()),
            outputs.entropies.split(lengths.tolist()),
        )
        values = outputs.values.split((lengths + 1).tolist())
        total = outputs.values.new_zeros(())
        for unit in np.unique(self.units[steps]):
            inside = np.flatnonzero(self.units[steps] == unit)
            spread = torch.stack([(values[i] - 0.1 * steps[i]).square().sum() for i in inside]).sum()
            terms = torch.stack([(logprobs[i] * (1 + entropies[i])).sum() for i in inside]).sum()
            total = total + (0.05 * terms).exp() + spread * (1 + terms)
        return total / self.units.size, {"loss_sum": total.detach()}

    def measure_whole(self, outputs: Outputs) -> dict[str, Any]:
        assert outputs.logprobs is not None
        self.measured = int(outputs.logprobs.numel())
        return {"logprob_mean": outputs.logprobs.mean()}


def run_loss(
    policy: CausalLMPolicy, steps: list, units: IntArray, budget: int | None
) -> tuple[Any, StepLoss]:
    for parameter in policy.parameters():
        parameter.grad = None
    packed = pack(steps, token_budget=budget)
    loss = StepLoss(policy, packed.action_lengths, units)
    try:
        value, metrics, outputs = backward(policy, packed, loss, values=True, entropies=True)
    finally:
        policy.run = loss._run  # type: ignore[method-assign]
    grads = torch.cat(
        [torch.zeros(p.numel()).to(p) if p.grad is None else p.grad.flatten() for p in policy.parameters()]
    )
    return (value, metrics, outputs, grads, len(packed.microbatches)), loss


@pytest.mark.parametrize("couples", ["steps", "pairs", "batch"])
@pytest.mark.parametrize("batch", keep_quick(BATCHES, ("group", "mixture").__contains__))
def test_every_budget_gives_the_gradient_of_the_whole_batch(batch, couples, open_policy, batches) -> None:
    policy, steps = open_policy("llama", dtype="float64", critic="shared"), batches[batch]
    units = {"steps": 1, "pairs": 2, "batch": len(steps)}[couples]
    units = np.arange(len(steps)) // units
    whole, _ = run_loss(policy, steps, units, None)
    longest = max(step.state.prompt_ids.size + step.num_units for step in steps)
    for budget in (longest, longest + 7, 2 * longest):
        parts, loss = run_loss(policy, steps, units, budget)
        assert torch.allclose(parts[0], whole[0], rtol=1e-10)
        assert torch.allclose(parts[3], whole[3], rtol=1e-8, atol=1e-12)
        for ours, theirs in zip(parts[2].list_present(), whole[2].list_present(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-10)
        if couples == "steps":
            assert loss.num_runs == parts[4], "every microbatch runs once"
            if parts[4] > 1:
                assert torch.allclose(parts[1]["loss_sum"], whole[1]["loss_sum"], rtol=1e-10)
                assert loss.measured == parts[2].logprobs.numel()
        assert loss.num_runs <= 2 * parts[4]


def test_nan_in_one_part_is_refused(open_policy, batches) -> None:
    policy, steps = open_policy("llama", dtype="float64", critic="shared"), batches["group"]
    weight = next(policy.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    longest = max(step.state.prompt_ids.size + step.num_units for step in steps)
    try:
        with pytest.raises(InputError, match="NaN"):
            run_loss(policy, steps, np.arange(len(steps)), longest)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
