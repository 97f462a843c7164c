"""The contract of a policy loss: a finite number, a gradient for the policy only, and masks respected.

The loss gets exactly the inputs that it declares (`needs`). Reading an undeclared input fails, because it is
missing. Declaring an unused input fails too, because the trainer would keep a reference for nothing. The
trainer evaluates a loss on the logprobs of the whole minibatch, so a loss may couple steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.algos import LossInputs, Timeline
from stepwell.algos.declarations import LossTraits, load_function, read_traits
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ContractError, InputError

_FIELDS = {"advantages": "advantages", "behavior": "behavior_logprobs", "reference": "ref_logprobs"}


def check_loss(name: str, kwargs: Mapping[str, Any] | None = None) -> ContractReport:
    """Report whether the loss `name`, called with `kwargs`, keeps its contract."""
    given = dict(kwargs or {})
    probe = LossProbe(name, load_function("loss", name), read_traits("loss", name, given), given)
    return run_checks(f"loss {name}", CHECKS, probe)


@dataclass(frozen=True)
class LossProbe:
    """The loss, its declaration, and how to call it."""

    name: str
    function: Callable[..., Any]
    traits: LossTraits
    kwargs: Mapping[str, Any]

    def run(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics; a missing input is one that the loss did not declare."""
        try:
            returned: tuple[Tensor, dict[str, Tensor]] = self.function(inputs, **self.kwargs)
        except InputError as error:
            if "missing" not in str(error):
                raise
            raise ContractError(
                f"it reads what it does not declare ({error}); add it to needs={self.traits.needs!r}"
            ) from error
        return returned

    def measure(self, inputs: LossInputs) -> tuple[float, Tensor]:
        """The loss as a number, and its gradient with respect to `policy_logprobs`."""
        policy = inputs.policy_logprobs.detach().clone().requires_grad_()
        loss, _ = self.run(replace(inputs, policy_logprobs=policy))
        return float(loss.detach()), find_gradient(loss, policy)


def find_gradient(loss: Tensor, by: Tensor) -> Tensor:
    """The gradient of `loss` with respect to `by`; zeros if it does not depend on it."""
    (gradient,) = torch.autograd.grad(loss, by, retain_graph=True, allow_unused=True)
    return torch.zeros_like(by) if gradient is None else gradient


def make_inputs(traits: LossTraits, dtype: torch.dtype = torch.float32) -> LossInputs:
    """Three trajectories with the declared inputs; policy, behavior and reference differ a little."""
    generator = torch.Generator().manual_seed(3)
    steps, tokens = torch.tensor([2, 1, 3]), torch.tensor([2, 1, 3, 1, 2, 2])
    count = int(tokens.sum())

    def draw(scale: float) -> Tensor:
        return (scale * torch.randn(count, generator=generator, dtype=torch.float64)).to(dtype)

    base = -1.0 - torch.rand(count, generator=generator, dtype=torch.float64).to(dtype)
    rewards = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 1.0], dtype=dtype)
    timeline = Timeline(steps, tokens, rewards, groups=torch.tensor([0, 0, 0]))
    offered: dict[str, Any] = {
        "advantages": draw(1.0),
        "behavior": base + draw(0.05),
        "reference": base + draw(0.05),
    }
    return LossInputs(
        timeline,
        base,
        pairs=torch.tensor([[0, 2], [3, 5]]) if "pairs" in traits.needs else None,
        **{_FIELDS[name]: value for name, value in offered.items() if name in traits.needs},
    )


def returns_a_loss_and_metrics(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    inputs = replace(inputs, policy_logprobs=inputs.policy_logprobs.requires_grad_())
    returned: object = probe.run(inputs)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], dict):
        raise ContractError(f"it must return (loss, metrics), a pair with a dictionary; got {returned!r:.80}")
    loss, metrics = returned
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise ContractError("the loss must be a tensor without dimensions; take a mean or a weighted sum")
    if not bool(loss.isfinite()):
        raise ContractError(f"the loss is {loss.item()}; guard divisions, exponentials and logarithms")
    for name, value in metrics.items():
        if not isinstance(value, Tensor) or value.ndim != 0 or value.requires_grad:
            raise ContractError(f"metric {name!r} must be a detached tensor without dimensions")
        if not bool(value.isfinite()):
            raise ContractError(f"metric {name!r} is {value.item()}")
    return f"loss {loss.item():.4g}; metrics: {', '.join(metrics) or 'none'}"


def gradient_reaches_the_policy(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    policy = inputs.policy_logprobs.detach().clone().requires_grad_()
    loss, _ = probe.run(replace(inputs, policy_logprobs=policy))
    if not loss.requires_grad:
        raise ContractError("the loss has no gradient; compute it from inputs.policy_logprobs, undetached")
    gradient = find_gradient(loss, policy)
    if not bool(gradient.any()):
        raise ContractError("no gradient reaches inputs.policy_logprobs: nothing would be learnt")
    if not bool(gradient.isfinite().all()):
        raise ContractError("the gradient is not finite")
    return f"{int((gradient != 0).sum())} of {len(policy)} action tokens get one"


def gradient_reaches_nothing_else(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    others: dict[str, Any] = {
        name: value.clone().requires_grad_()
        for name in _FIELDS.values()
        if (value := getattr(inputs, name)) is not None
    }
    policy = inputs.policy_logprobs.detach().clone().requires_grad_()
    loss, _ = probe.run(replace(inputs, policy_logprobs=policy, **others))
    for name, value in others.items():
        if bool(find_gradient(loss, value).any()):
            raise ContractError(
                f"a gradient reaches {name}; read it by inputs.read_{_ACCESSORS[name]}(), which detaches it"
            )
    return "advantages and other logprobs are constants"


_ACCESSORS = {"advantages": "advantages", "behavior_logprobs": "behavior", "ref_logprobs": "reference"}


def everything_declared_is_read(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    whole, gradient = probe.measure(inputs)
    for need in probe.traits.needs:
        if need == "pairs":
            continue
        name = _FIELDS[need]
        other = replace(inputs, **{name: getattr(inputs, name) + 0.3 * torch.arange(gradient.numel()).sin()})
        changed, other_gradient = probe.measure(other)
        if changed == whole and torch.equal(other_gradient, gradient):
            raise ContractError(f"it declares needs={need!r}, but other {name} change nothing; drop it")
    return ", ".join(probe.traits.needs) or "it needs policy_logprobs alone"


def masked_tokens_are_left_out(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    mask = torch.tensor([True, True, True, False, True, True, True, False, True, True, False])
    masked = replace(inputs, loss_mask=mask)
    loss, gradient = probe.measure(masked)
    if bool(gradient[~mask].any()):
        raise ContractError(
            "masked action tokens get a gradient; reduce with inputs.reduction (token_weights, step_sum, ...)"
        )
    other = replace(masked, policy_logprobs=masked.policy_logprobs - 0.5 * (~mask).to(gradient.dtype))
    if abs(probe.measure(other)[0] - loss) > 1e-5 * max(1.0, abs(loss)):
        raise ContractError("logprobs of masked action tokens change the loss; leave them out by loss_mask")
    return f"{int((~mask).sum())} of {len(mask)} action tokens masked: no gradient, no influence"


def is_deterministic_and_changes_no_input(probe: LossProbe) -> str:
    inputs = make_inputs(probe.traits)
    tensors = {name: getattr(inputs, name) for name in ("policy_logprobs", *_FIELDS.values())}
    before = {name: value.clone() for name, value in tensors.items() if value is not None}
    first, second = probe.measure(inputs), probe.measure(inputs)
    for name, value in before.items():
        if not torch.equal(value, tensors[name]):
            raise ContractError(f"it changes {name} in place; work on a copy")
    if first[0] != second[0] or not torch.equal(first[1], second[1]):
        raise ContractError("the same inputs give another loss; use no random numbers and no state")
    return "twice the same, bit for bit"


def works_in_float64(probe: LossProbe) -> str:
    loss, _ = probe.run(make_inputs(probe.traits, torch.float64))
    if loss.dtype != torch.float64:
        raise ContractError(f"policy_logprobs are float64, the loss {loss.dtype}; keep the dtype")
    return "dtype is kept"


CHECKS: tuple[Callable[[LossProbe], str], ...] = (
    returns_a_loss_and_metrics,
    gradient_reaches_the_policy,
    gradient_reaches_nothing_else,
    everything_declared_is_read,
    masked_tokens_are_left_out,
    is_deterministic_and_changes_no_input,
    works_in_float64,
)
