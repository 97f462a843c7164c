"""The gradient of any loss over a batch, with one microbatch in memory at a time.

A loss may couple any steps (a trajectory's ratio, statistics of the minibatch). How often a microbatch runs
depends on what it couples:

| the batch | how |
|---|---|
| one microbatch | forward and backward, once |
| several, and the loss is a sum over them (`SeparableLoss`) | each forward and backward, once |
| several otherwise | each twice: first all outputs without a graph, then the loss on them gives the gradient
of every output, and each microbatch runs again with a graph and receives its share |

A loss may be separable for some microbatches only; then only the others run twice. The result is the same
gradient for every token budget, up to rounding. It also does not matter which device runs a microbatch: an
`Evaluator` may let several devices run it (`training/ranked_policy.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from stepwell.core import InputError
from stepwell.packing.arrays import ArrayMicrobatch, PackedArrays
from stepwell.packing.batch import Microbatch, Packed
from stepwell.packing.device_copies import copy_to_device
from stepwell.packing.tree import IntArray


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a policy for a batch: flat, in step order; None for outputs that were not requested.

    `logprobs` and `entropies` have one element per action token. `values` has L+1 per step: before each
    action token and after the last. They are what the critic's head puts out; `policy.critic.read_values`
    turns them into values. `ref_kls` has per action token the KL of the policy's whole distribution to that
    of its reference.
    """

    logprobs: Tensor | None
    values: Tensor | None
    entropies: Tensor | None
    ref_kls: Tensor | None = None

    def list_all(self) -> tuple[Tensor | None, ...]:
        """List the outputs in the order of the fields."""
        return self.logprobs, self.values, self.entropies, self.ref_kls

    def list_present(self) -> list[Tensor]:
        """List the outputs that were requested."""
        return [output for output in self.list_all() if output is not None]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Apply a function to every output."""
        return Outputs(*(None if output is None else change(output) for output in self.list_all()))


class Evaluator(Protocol):
    """The part of a policy's interface that the gradient needs."""

    def prepare_batch(self, packed: Any) -> Any:
        """Check the batch and return it in the form this policy runs."""

    def run(self, microbatch: Any, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of one microbatch, in its own order; language policies also have `ref_kls`."""


AnyPacked = Packed | PackedArrays
AnyMicrobatch = Microbatch | ArrayMicrobatch
LossFunction = Callable[[Outputs], tuple[Tensor, dict[str, Any]]]


@runtime_checkable
class SeparableLoss(Protocol):
    """A loss that is a sum of losses of parts of the batch, where what a part couples is inside it.

    All it needs of the rest of the batch (counts, masks, advantages) is known before the first part runs.
    """

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the whole batch."""

    def is_separate(self, steps: IntArray) -> bool:
        """Whether the loss of these steps (ascending) depends on the outputs of no other step."""

    def compute_part(self, outputs: Outputs, steps: IntArray) -> tuple[Tensor, dict[str, Any]]:
        """The share of these steps in the loss, and metrics that add up over parts."""

    def measure_whole(self, outputs: Outputs) -> dict[str, Any]:
        """Metrics of the whole batch, after its last part."""


def evaluate(
    policy: Evaluator,
    packed: AnyPacked,
    *,
    logprobs: bool = True,
    values: bool = False,
    entropies: bool = False,
    ref_kls: bool = False,
) -> Outputs:
    """Outputs of the whole batch, in step order."""
    wanted = _list_wanted(logprobs, values, entropies, ref_kls)
    return _compute_outputs(policy, policy.prepare_batch(packed), wanted)


def _list_wanted(logprobs: bool, values: bool, entropies: bool, ref_kls: bool) -> dict[str, bool]:
    """What to ask a policy for; only language models know of `ref_kls`."""
    wanted = {"logprobs": logprobs, "values": values, "entropies": entropies}
    return wanted | {"ref_kls": True} if ref_kls else wanted


def _compute_outputs(policy: Evaluator, packed: AnyPacked, wanted: dict[str, bool]) -> Outputs:
    parts = [policy.run(microbatch, **wanted) for microbatch in packed.microbatches]
    return _join_outputs(parts, packed.microbatches)


def _join_outputs(
    parts: list[Outputs],
    microbatches: Sequence[AnyMicrobatch],
    by_token: list[IntArray] | None = None,
    by_value: list[IntArray] | None = None,
) -> Outputs:
    """The outputs of all microbatches in the order of their places, which may be given."""
    by_token = by_token or [microbatch.logprob_indices for microbatch in microbatches]
    by_value = by_value or [microbatch.value_indices for microbatch in microbatches]
    return Outputs(
        _restore_order([part.logprobs for part in parts], by_token),
        _restore_order([part.values for part in parts], by_value),
        _restore_order([part.entropies for part in parts], by_token),
        _restore_order([part.ref_kls for part in parts], by_token),
    )


def _restore_order(parts: list[Tensor | None], positions: list[Any]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(present) == 1:
        return present[0]  # one microbatch keeps the order of the steps
    places = copy_to_device(np.concatenate(positions), present[0].device)
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
    ref_kls: bool = False,
) -> tuple[Tensor, dict[str, Any], Outputs]:
    """Add the gradient of `loss_function` to the policy's parameters.

    Returns the loss, its metrics and the outputs it was computed from, all detached. NaN is an error; on a
    GPU the gradients may then contain NaN and must not be used.
    """
    packed = policy.prepare_batch(packed)
    wanted = _list_wanted(logprobs, values, entropies, ref_kls)
    if len(packed.microbatches) > 1 and isinstance(loss_function, SeparableLoss):
        once = [loss_function.is_separate(microbatch.steps) for microbatch in packed.microbatches]
        if any(once):
            return _PartsBackward(policy, packed, loss_function, wanted).run_batch(once)
    if len(packed.microbatches) == 1:
        outputs = _compute_outputs(policy, packed, wanted)
        loss, metrics = loss_function(outputs)
        checked = FiniteCheck(outputs, loss)
        if not loss.is_cuda:
            checked.require_finite()
        loss.backward()  # type: ignore[no-untyped-call]
        checked.require_finite()  # on a GPU only now, because reading earlier would wait for the forward pass
        return loss.detach(), metrics, outputs.map_tensors(torch.Tensor.detach)
    with torch.no_grad():
        outputs = _compute_outputs(policy, packed, wanted)
    leaves = outputs.map_tensors(lambda output: output.detach().requires_grad_())
    loss, metrics = loss_function(leaves)
    check_finite(outputs, loss)
    pulls = torch.autograd.grad(loss, leaves.list_present(), allow_unused=True, materialize_grads=True)
    for microbatch in packed.microbatches:
        pull_gradients(policy.run(microbatch, **wanted), microbatch, pulls, wanted)
    return loss.detach(), metrics, outputs


def pull_gradients(
    outputs: Outputs, microbatch: AnyMicrobatch, pulls: tuple[Tensor, ...], wanted: dict[str, bool]
) -> None:
    """Backpropagate a microbatch's share of the output gradients through its graph."""
    _pull_shares(outputs, pulls, wanted, microbatch.logprob_indices, microbatch.value_indices)


def _pull_shares(
    outputs: Outputs, pulls: tuple[Tensor, ...], wanted: dict[str, bool], tokens: IntArray, values: IntArray
) -> None:
    kinds = [name for name, is_wanted in wanted.items() if is_wanted]
    parts, shares = [], []
    for kind, part, whole in zip(kinds, outputs.list_present(), pulls, strict=True):
        if part.requires_grad:  # a microbatch of value-only steps has no logprobs
            positions = values if kind == "values" else tokens
            parts.append(part)
            shares.append(whole[copy_to_device(positions, whole.device)])
    torch.autograd.backward(parts, shares)


def pull_own_gradients(outputs: Sequence[Tensor], pulls: Sequence[Tensor]) -> None:
    """Backpropagate the gradients of outputs, as far as they have a graph."""
    pairs = [(output, pull) for output, pull in zip(outputs, pulls, strict=True) if output.requires_grad]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [pull for _, pull in pairs])


class _PartsBackward:
    """The gradient of a separable loss: every separate microbatch runs once, the others together twice."""

    def __init__(
        self, policy: Evaluator, packed: AnyPacked, loss: SeparableLoss, wanted: dict[str, bool]
    ) -> None:
        self.policy, self.packed, self.loss, self.wanted = policy, packed, loss, wanted
        self.total: Tensor | None = None
        self.metrics: dict[str, Any] = {}
        self.found: list[tuple[AnyMicrobatch, Outputs]] = []
        self.checks: list[FiniteCheck] = []

    def run_batch(self, once: list[bool]) -> tuple[Tensor, dict[str, Any], Outputs]:
        """Add the gradients of all microbatches; `once` says which of them are separate."""
        coupled: list[AnyMicrobatch] = []
        microbatches: Sequence[AnyMicrobatch] = self.packed.microbatches
        for microbatch, is_separate in zip(microbatches, once, strict=True):
            if is_separate:
                self._run_once(microbatch)
            else:
                coupled.append(microbatch)
        if coupled:
            self._run_twice(coupled)
        for check in self.checks:  # on a GPU only now, because reading earlier would wait for it
            check.require_finite()
        outputs = _join_outputs([part for _, part in self.found], [each for each, _ in self.found])
        assert self.total is not None
        return self.total, self.metrics | self.loss.measure_whole(outputs), outputs

    def _run_once(self, microbatch: AnyMicrobatch) -> None:
        outputs = self.policy.run(microbatch, **self.wanted)
        loss = self._compute_part(outputs, microbatch.steps)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        self.found.append((microbatch, outputs.map_tensors(torch.Tensor.detach)))

    def _run_twice(self, microbatches: list[AnyMicrobatch]) -> None:
        with torch.no_grad():
            parts = [self.policy.run(microbatch, **self.wanted) for microbatch in microbatches]
        self.found += zip(microbatches, parts, strict=True)
        by_token = _rank_places([each.logprob_indices for each in microbatches])
        by_value = _rank_places([each.value_indices for each in microbatches])
        joined = _join_outputs(parts, microbatches, by_token, by_value)
        leaves = joined.map_tensors(lambda output: output.detach().requires_grad_())
        steps = np.sort(np.concatenate([each.steps for each in microbatches]))
        loss = self._compute_part(leaves, steps)
        pulls = torch.autograd.grad(loss, leaves.list_present(), allow_unused=True, materialize_grads=True)
        for microbatch, tokens, values in zip(microbatches, by_token, by_value, strict=True):
            outputs = self.policy.run(microbatch, **self.wanted)
            _pull_shares(outputs, pulls, self.wanted, tokens, values)

    def _compute_part(self, outputs: Outputs, steps: IntArray) -> Tensor:
        loss, metrics = self.loss.compute_part(outputs, steps)
        check = FiniteCheck(outputs, loss)
        if loss.is_cuda:
            self.checks.append(check)
        else:
            check.require_finite()
        self.total = loss.detach() if self.total is None else self.total + loss.detach()
        for name, value in metrics.items():
            self.metrics[name] = self.metrics[name] + value if name in self.metrics else value
        return loss


def _rank_places(places: list[IntArray]) -> list[IntArray]:
    """The places of some microbatches' outputs, numbered without gaps."""
    _, ranks = np.unique(np.concatenate(places), return_inverse=True)
    return np.split(ranks.astype(np.int64), np.cumsum([part.size for part in places])[:-1])


_NAMES = ("logprobs", "values", "entropies", "ref_kls", "loss")


class FiniteCheck:
    """Checks outputs and loss for NaN: computed on their device, read on demand."""

    def __init__(self, outputs: Outputs, loss: Tensor | None = None) -> None:
        tensors = zip(_NAMES, (*outputs.list_all(), loss), strict=True)
        checked = {name: tensor for name, tensor in tensors if tensor is not None}
        self._names = list(checked)
        self._is_bad = torch.stack([tensor.detach().isnan().any() for tensor in checked.values()])

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
