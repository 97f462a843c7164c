"""The trained weights of one rank: its shards (or copies), their gradients, and the whole of them.

    parameter of the policy          own part, which the optimizer sees
    ───────────────────────          ──────────────────────────────────
    in shards (DTensor)     ─────►   the local rows: a plain tensor in the same memory
    whole on every rank     ─────►   the parameter itself; its gradients are summed over ranks

`clip_gradients` sums what the backward passes left apart, and clips actor and critics by their norms over all
shards. `gather` makes whole tensors of shards again, bucket by bucket, on every rank at once.

Invariant: after `clip_gradients` and an optimizer step, copies of a whole parameter are equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from stepwell.training.muon import orthogonalize
from stepwell.training.optimizer import is_critic_name
from stepwell.training.rank_link import Named, split_buckets
from stepwell.training.rank_memory import Layout

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FINGERPRINTS = 1 << 61


class RankWeights:
    """What one rank trains."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], dtypes: Mapping[str, torch.dtype]) -> None:
        self.given = dict(named)
        self.own = {name: nn.Parameter(_read_local(p).detach()) for name, p in named}
        self._dtypes = dtypes  # as the trainer's policy has them
        self._names = {id(p): name for name, p in self.own.items()}

    def is_sharded(self, name: str) -> bool:
        """Whether this rank holds only a part of it."""
        return isinstance(self.given[name], DTensor)

    # --- gradients ----------------------------------------------------------------------

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step."""
        for name, parameter in self.given.items():
            parameter.grad = self.own[name].grad = None

    @torch.no_grad()
    def clip_gradients(self, limit: float) -> dict[str, float]:
        """Sum gradients over ranks and clip actor and critics to this norm each; returns the norms before."""
        self._sum_copies()
        for name, parameter in self.given.items():
            own = self.own[name]
            own.data = _read_local(parameter).detach()  # its memory may have moved since
            own.grad = None if parameter.grad is None else _read_local(parameter.grad)
        norms: dict[str, float] = {}
        for label, is_critic in (("grad_norm", False), ("grad_norm/critic", True)):
            names = [n for n in self.own if is_critic_name(n) == is_critic and self.own[n].grad is not None]
            if names or not is_critic:
                norms[label] = self._clip_together(names, limit)
        return norms

    def _clip_together(self, names: list[str], limit: float) -> float:
        squares = torch.zeros(2, dtype=torch.float64)
        gradients = [gradient for name in names if (gradient := self.own[name].grad) is not None]
        norms = torch._foreach_norm(gradients) if gradients else ()
        parts = torch.stack([norm.double() for norm in norms]).square().tolist() if gradients else []
        for name, part in zip(names, parts, strict=True):
            squares[int(self.is_sharded(name))] += part
        sharded = squares[1:].to(self._wire_device)
        dist.all_reduce(sharded)
        norm = float((squares[0] + sharded.cpu()[0]).sqrt())
        scale = min(1.0, limit / (norm + 1e-6))
        if gradients and norm == norm and scale < 1.0:
            torch._foreach_mul_(gradients, scale)
        return norm

    def _sum_copies(self) -> None:
        """Sum the gradients of what is whole on every rank. Who has none anywhere keeps none."""
        copies = [(name, p) for name, p in self.given.items() if not self.is_sharded(name)]
        if not copies or dist.get_world_size() == 1:
            return
        has_any = torch.tensor([p.grad is not None for _, p in copies], dtype=torch.uint8)
        flags = has_any.to(self._wire_device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        moved = [(name, p) for (name, p), flag in zip(copies, flags.tolist(), strict=True) if flag]
        gradients: list[Named] = []
        for name, parameter in moved:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append((name, parameter.grad))
        for bucket in _split_by_type(gradients):
            joined = torch.cat([gradient.reshape(-1) for _, gradient in bucket]).to(self._wire_device)
            dist.all_reduce(joined)
            sizes = [gradient.numel() for _, gradient in bucket]
            for (_, gradient), part in zip(bucket, torch.split(joined, sizes), strict=True):
                gradient.copy_(part.view_as(gradient))

    def send_copies(self) -> None:
        """Give every rank the bits of rank 0, where ranks compute on devices of several kinds."""
        for name, parameter in self.given.items():
            if not self.is_sharded(name):
                whole = parameter.detach().to(self._wire_device)
                dist.broadcast(whole, 0)
                parameter.data.copy_(whole)

    def orthogonalize(self, parameter: Tensor, update: Tensor) -> tuple[Tensor, int]:
        """Muon's update of a matrix, of which this rank has some rows. All ranks call this together."""
        name = self._names[id(parameter)]
        given = self.given[name]
        whole = orthogonalize(self._join_shards(name, update))
        return self.take_shard(name, whole), max(given.shape)

    # --- whole tensors --------------------------------------------------------------------

    def gather(self, tensors: Mapping[str, Tensor]) -> Iterator[Named]:
        """Whole tensors of shards, in buckets. All ranks must read the iterator to its end."""
        for bucket in split_buckets(tensors.items()):
            for label, tensor in bucket:
                name = label.rpartition(":")[0] or label
                yield label, self._join_shards(name, tensor)

    def gather_weights(self) -> Iterator[Named]:
        """The trained weights, in the types of the trainer's policy."""
        with torch.no_grad():
            local = {name: _read_local(p) for name, p in self.given.items()}
        yield from self.gather({name: part.to(self._dtypes[name]) for name, part in local.items()})

    def describe_layout(self) -> Layout:
        """Types and shapes of what `gather_weights` gives."""
        return {name: (self._dtypes[name], p.shape) for name, p in self.given.items()}

    def gather_gradients(self) -> Iterator[Named]:
        """The gradients of the last step, summed and clipped."""
        found = {name: p.grad for name, p in self.own.items() if p.grad is not None}
        yield from self.gather(found)

    def take_shard(self, name: str, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor with the parameter's shape; other tensors as they are."""
        given = self.given[name]
        if not isinstance(given, DTensor) or whole.shape != given.shape:
            return whole
        size, rank = given.device_mesh.size(), given.device_mesh.get_local_rank()
        parts = torch.chunk(whole, size)
        return parts[rank] if rank < len(parts) else whole[:0]

    def view_sharded(self, label: str, tensor: Tensor) -> Tensor:
        """A tensor of this rank as a part of the whole one (a DTensor), if it is one."""
        given = self.given[label.rpartition(":")[0] or label]
        if not isinstance(given, DTensor) or tensor.shape != _read_local(given).shape or tensor.ndim == 0:
            return tensor
        return DTensor.from_local(
            tensor, given.device_mesh, [Shard(0)], shape=given.shape, stride=given.stride()
        )

    def _join_shards(self, name: str, tensor: Tensor) -> Tensor:
        if dist.get_world_size() == 1:
            return tensor
        seen = self.view_sharded(name, tensor)
        return seen.full_tensor() if isinstance(seen, DTensor) else tensor

    def compute_fingerprint(self) -> tuple[int, int]:
        """Sums of the weights' bits: of this rank's shards, which add up over ranks, and of its copies."""
        sums = [0, 0]
        found = []
        with torch.no_grad():
            for parameter in self.given.values():
                local = _read_local(parameter).contiguous()
                found.append(local.view(_AS_INTEGERS[local.element_size()]).sum(dtype=torch.int64))
        for number, (name, bits) in enumerate(zip(self.given, torch.stack(found).tolist(), strict=True)):
            sums[int(self.is_sharded(name))] += (number + 1) * bits
        return sums[1] % _FINGERPRINTS, sums[0] % _FINGERPRINTS

    @property
    def _wire_device(self) -> torch.device:
        """Where tensors of a collective lie."""
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _read_local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _split_by_type(tensors: list[Named]) -> Iterator[list[Named]]:
    by_type: dict[torch.dtype, list[Named]] = {}
    for name, tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append((name, tensor))
    for same in by_type.values():
        yield from split_buckets(same)
