"""A policy in shards: every rank keeps a part of each weight, and gathers a layer when it runs (FSDP2).

    ForwardRoot ── model ── layers        each layer is gathered, run, and freed again
        │          └─ embeddings, norms, head, image encoder     gathered for the whole pass
        ├── critic ── its own backbone: as the model
        │          └─ value head          whole on every rank: a few numbers, one of them a scalar
    ForwardRoot ── reference              frozen, in shards too

`fully_shard` gathers weights by hooks of the modules that are called. A policy calls its backbone and reads
the weights of its head directly, so the hooks sit on a module around the whole pass (`ForwardRoot`).

16-bit weights are float32 in the shards: the optimizer's originals themselves. They are rounded when a layer
is gathered, and gradients are summed in float32. Frozen weights (those under adapters) keep their type. A
rank that is alone has nothing to gather, it only rounds: once per update, if it trains all of its weights.

Invariants
* All ranks gather the same layers in the same order. A microbatch without actions or images still runs the
  actor (`runs_all_parts`), and gives zeros as gradients of what it did not use (`_TiedOutput`).
* Gradients are sums over ranks, as those of one device over microbatches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from stepwell.packing import Outputs
from stepwell.training.policy import Policy

_HALF = (torch.bfloat16, torch.float16)
_HEADS = ("critic.head.", "instruction_critic.head.")


class ForwardRoot(nn.Module):
    """Around one pass of a policy: what sharded weights are gathered for."""

    def __init__(self, parts: nn.Module) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, runner: Any, microbatch: Any, wanted: dict[str, bool]) -> tuple[Tensor | None, ...]:
        """Outputs of one microbatch; `runner` is a policy around these modules."""
        found: Outputs = runner.run(microbatch, **wanted)
        outputs = [found.logprobs, found.values, found.entropies]
        unused = list(_list_unused(runner, microbatch, wanted)) if torch.is_grad_enabled() else []
        if unused:
            place = next(i for i, output in enumerate(outputs) if output is not None)
            outputs[place] = _TiedOutput.apply(outputs[place], *unused)  # type: ignore[no-untyped-call]
        return tuple(outputs)


class _TiedOutput(torch.autograd.Function):
    """Lets a backward pass reach parameters that were not used, with zeros."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = parameters
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor, ...]:
        return (pulls[0], *(torch.zeros_like(parameter) for parameter in ctx.parameters))


def _list_unused(runner: Any, microbatch: Any, wanted: dict[str, bool]) -> Iterator[nn.Parameter]:
    """Trained parameters that this microbatch leaves out and another one of the batch may use."""
    scores = wanted["logprobs"] or wanted["entropies"]
    if hasattr(runner, "image_store"):
        places = microbatch.cache.get("image_places")
        if places is None or places.names:
            return
        own = runner.critic.backbone if wanted["values"] and runner.critic is not None else None
        is_run = scores or (wanted["values"] and own is None)
        for part in ([runner.model] if is_run else []) + ([own] if own is not None else []):
            yield from _list_image_parameters(runner, part)
    elif scores and hasattr(microbatch, "acting") and microbatch.acting.size == 0:
        yield from (parameter for parameter in runner.model.head.parameters() if parameter.requires_grad)


def _list_image_parameters(runner: Any, part: Any) -> Iterator[nn.Parameter]:
    decoder = {id(parameter) for parameter in runner._find_attending(part).parameters()}
    head = part.get_output_embeddings()
    decoder |= set() if head is None else {id(parameter) for parameter in head.parameters()}
    for parameter in part.parameters():
        if parameter.requires_grad and id(parameter) not in decoder:
            yield parameter


class ShardedPolicy:
    """A policy whose weights lie in shards over the ranks of `mesh`."""

    def __init__(self, policy: Policy, mesh: DeviceMesh) -> None:
        self.policy, self.mesh = policy, mesh
        any_policy: Any = policy
        any_policy.runs_all_parts = True
        precision = _widen_weights(policy)
        module: nn.ModuleDict = any_policy.module
        heads = {p for name, p in module.named_parameters() if name.startswith(_HEADS)}
        parts = [policy.model, *_list_backbones(policy)]
        self.root = self._shard_parts(ForwardRoot(module), parts, precision, heads)
        self.reference: Any = None
        if policy.reference is not None:
            frozen = MixedPrecisionPolicy()
            root = ForwardRoot(policy.reference)
            self.reference = self._shard_parts(root, [policy.reference], frozen, set())
        is_rounded = precision.param_dtype is not None
        trains_all = all(parameter.requires_grad for parameter in self.root.parameters())
        self._keeps_gathered = mesh.size() == 1 and is_rounded and trains_all
        if self._keeps_gathered:
            self.root.set_reshard_after_forward(False)
            self.root.set_reshard_after_backward(False)

    def _shard_parts(
        self, root: ForwardRoot, parts: list[Any], precision: MixedPrecisionPolicy, whole: set[nn.Parameter]
    ) -> Any:
        for part in parts:
            for layer in list_layers(part, self.policy):
                fully_shard(layer, mesh=self.mesh, mp_policy=precision)
        fully_shard(root, mesh=self.mesh, mp_policy=precision, ignored_params=whole)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        return root

    def run(
        self, microbatch: Any, wanted: dict[str, bool], *, with_instructions: bool, keep: bool
    ) -> Outputs:
        """Outputs of one microbatch; all ranks call this together. `keep`: a backward pass follows."""
        runner = self.policy.read_instructions() if with_instructions else self.policy
        with torch.set_grad_enabled(keep):
            outputs = Outputs(*self.root(runner, microbatch, wanted))
        if not keep and not self._keeps_gathered:
            self.root.reshard()
        return outputs

    def forget_gathered(self) -> None:
        """Gather all weights anew for the next pass: their shards have changed."""
        for module in self.root.modules() if self._keeps_gathered else ():
            if isinstance(module, FSDPModule):
                module.reshard()

    def run_reference(self, microbatch: Any, wanted: dict[str, bool]) -> Outputs:
        """Outputs of the frozen reference."""
        if self.reference is None:
            with self.policy.adapters.disable_adapter():
                return self.run(microbatch, wanted, with_instructions=False, keep=False)
        with torch.no_grad():
            outputs = Outputs(*self.reference(make_reference(self.policy), microbatch, wanted))
        self.reference.reshard()
        return outputs


def make_reference(policy: Policy) -> Policy:
    """The policy around its frozen reference."""
    frozen = copy.copy(policy)
    frozen.model, frozen.critic = policy.reference, None
    return frozen


def list_layers(part: Any, policy: Any) -> list[nn.Module]:
    """The layers that are gathered one by one: the elements of the decoder's outermost lists."""
    is_language = hasattr(policy, "_find_attending")
    whole = policy._find_attending(part) if is_language else getattr(part, "encoder", part)
    layers: list[nn.Module] = []
    inside: set[int] = set()
    for module in whole.modules():
        if isinstance(module, nn.ModuleList) and id(module) not in inside:
            layers += [layer for layer in module if any(True for _ in layer.parameters())]
            inside |= {id(inner) for inner in module.modules()}
    return layers


def _list_backbones(policy: Policy) -> list[Any]:
    critics = (policy.critic, policy.instruction_critic)
    return [critic.backbone for critic in critics if critic is not None and critic.backbone is not None]


def _widen_weights(policy: Policy) -> MixedPrecisionPolicy:
    """Make trained 16-bit weights float32; says in which type layers are gathered."""
    kinds = {parameter.dtype for _, parameter in policy.named_parameters() if parameter.dtype in _HALF}
    if not kinds:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    for _, parameter in policy.named_parameters():
        parameter.data = parameter.data.float()
    return MixedPrecisionPolicy(
        param_dtype=kinds.pop(), reduce_dtype=torch.float32, cast_forward_inputs=False
    )
