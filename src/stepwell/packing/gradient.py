"""The gradient of any loss over a batch, with one microbatch in memory at a time.

A loss may couple any steps (a trajectory's ratio, a mean over the minibatch), so it is always computed on the
outputs of the whole batch. With one microbatch this is ordinary backpropagation. With several, the outputs
are first computed without a graph, and the loss on them gives the gradient of every output. Then each
microbatch is run again with a graph, and its outputs receive those gradients. The result is the same gradient
for every token budget, up to rounding. It also does not matter which device runs a microbatch:
`DistributedBatch` is a batch that several devices run together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stepwell.core import InputError
from stepwell.packing.arrays import ArrayMicrobatch, PackedArrays
from stepwell.packing.batch import Microbatch, Packed


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a policy for a batch: flat, in step order; None for outputs that were not requested.

    `logprobs` and `entropies` have one element per action token. `values` has L+1 per step: before each
    action token and after the last. They are what the critic's head puts out; `policy.critic.read_values`
    turns them into values.
    """

    logprobs: Tensor | None
    values: Tensor | None
    entropies: Tensor | None

    def list_present(self) -> list[Tensor]:
        """List the outputs that were requested."""
        return [output for output in (self.logprobs, self.values, self.entropies) if output is not None]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Apply a function to every output."""
        return Outputs(
            *(
                None if output is None else change(output)
                for output in (self.logprobs, self.values, self.entropies)
            )
        )


class Evaluator(Protocol):
    """The part of a policy's interface that the gradient needs."""

    def prepare_batch(self, packed: Any) -> Any:
        """Check the batch and return it in the form this policy runs."""
        ...

    def run(self, microbatch: Any, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of one microbatch, in its own order."""
        ...


class DistributedBatch(Protocol):
    """A batch whose microbatches are distributed over several devices."""

    def outputs(self, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of the whole batch in step order, without a graph."""
        ...

    def pull_back(self, pulls: tuple[Tensor, ...], *, logprobs: bool, values: bool, entropies: bool) -> None:
        """Add the contributions of all devices' microbatches to the policy's gradients."""
        ...


AnyPacked = Packed | PackedArrays
LossFunction = Callable[[Outputs], tuple[Tensor, dict[str, Any]]]


def evaluate(
    policy: Evaluator,
    packed: AnyPacked,
    *,
    logprobs: bool = True,
    values: bool = False,
    entropies: bool = False,
) -> Outputs:
    """Outputs of the whole batch, in step order."""
    return _compute_outputs(policy, policy.prepare_batch(packed), _list_wanted(logprobs, values, entropies))


def _list_wanted(logprobs: bool, values: bool, entropies: bool) -> dict[str, bool]:
    return {"logprobs": logprobs, "values": values, "entropies": entropies}


def _compute_outputs(policy: Evaluator, packed: AnyPacked, wanted: dict[str, bool]) -> Outputs:
    parts = [policy.run(microbatch, **wanted) for microbatch in packed.microbatches]
    by_token = [microbatch.logprob_indices for microbatch in packed.microbatches]
    by_value = [microbatch.value_indices for microbatch in packed.microbatches]
    return Outputs(
        _restore_order([part.logprobs for part in parts], by_token),
        _restore_order([part.values for part in parts], by_value),
        _restore_order([part.entropies for part in parts], by_token),
    )


def _restore_order(parts: list[Tensor | None], slots: list[Any]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(present) == 1:
        return present[0]  # one microbatch keeps the order of the steps
    places = torch.cat([torch.from_numpy(slot) for slot in slots]).to(present[0].device)
    joined = torch.cat(present)
    return torch.empty_like(joined).index_copy(0, places, joined)


def backward(
    policy: Evaluator,
    packed: AnyPacked,
    loss_function: LossFunction,
    *,
    logprobs: bool = True,
    values: bool = False,
    entropies: bool = False,
    shared: DistributedBatch | None = None,
) -> tuple[Tensor, dict[str, Any], Outputs]:
    """Add the gradient of `loss_function` to the policy's parameters.

    Returns the loss, its metrics and the outputs it was computed from, all detached. NaN is an error; on a
    GPU the gradients may then contain NaN and must not be used. With `shared`, its devices run the batch
    together.
    """
    packed = policy.prepare_batch(packed)
    wanted = _list_wanted(logprobs, values, entropies)
    if shared is None and len(packed.microbatches) == 1:
        outputs = _compute_outputs(policy, packed, wanted)
        loss, metrics = loss_function(outputs)
        checked = FiniteCheck(outputs, loss)
        if not loss.is_cuda:
            checked.require_finite()
        loss.backward()  # type: ignore[no-untyped-call]
        checked.require_finite()  # on a GPU only now, because reading earlier would wait for the forward pass
        return loss.detach(), metrics, outputs.map_tensors(torch.Tensor.detach)
    with torch.no_grad():
        outputs = _compute_outputs(policy, packed, wanted) if shared is None else shared.outputs(**wanted)
    leaves = outputs.map_tensors(lambda output: output.detach().requires_grad_())
    loss, metrics = loss_function(leaves)
    check_finite(outputs, loss)
    pulls = torch.autograd.grad(loss, leaves.list_present(), allow_unused=True, materialize_grads=True)
    if shared is None:
        for microbatch in packed.microbatches:
            pull_gradients(policy.run(microbatch, **wanted), microbatch, pulls, wanted)
    else:
        shared.pull_back(pulls, **wanted)
    return loss.detach(), metrics, outputs


def pull_gradients(
    outputs: Outputs,
    microbatch: Microbatch | ArrayMicrobatch,
    pulls: tuple[Tensor, ...],
    wanted: dict[str, bool],
) -> None:
    """Backpropagate a microbatch's share of the output gradients through its graph."""
    kinds = [name for name, is_wanted in wanted.items() if is_wanted]
    parts, shares = [], []
    for kind, part, whole in zip(kinds, outputs.list_present(), pulls, strict=True):
        if part.requires_grad:  # a microbatch of value-only steps has no logprobs
            slots = microbatch.value_indices if kind == "values" else microbatch.logprob_indices
            parts.append(part)
            shares.append(whole[torch.from_numpy(slots).to(whole.device)])
    torch.autograd.backward(parts, shares)


class FiniteCheck:
    """Checks outputs and loss for NaN: computed on their device, read on demand."""

    def __init__(self, outputs: Outputs, loss: Tensor | None = None) -> None:
        checked = {name: getattr(outputs, name) for name in ("logprobs", "values", "entropies")} | {
            "loss": loss
        }
        self._names = [name for name, tensor in checked.items() if tensor is not None]
        self._is_bad = torch.stack([checked[name].detach().isnan().any() for name in self._names])

    def require_finite(self) -> None:
        """Raise an error for NaN, before it reaches a caller or, through a gradient, the weights."""
        if bool(self._is_bad.any()):
            name = self._names[int(self._is_bad.nonzero()[0])]
            raise InputError(
                f"{name} contains NaN: the model's weights or inputs are not finite. "
                "Lower the learning rate, clip gradients, or reload an earlier checkpoint"
            )


def check_finite(outputs: Outputs, loss: Tensor | None = None) -> None:
    """Raise an error for NaN at once."""
    FiniteCheck(outputs, loss).require_finite()
