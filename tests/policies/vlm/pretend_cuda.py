"""Tensors that say they are on a GPU and compute on the CPU, for machines that have none.

Inside `pretended()` whatever is made on, or moved to, `cuda:0` is a `Pretended`: code that asks sees a
CUDA tensor, its numbers are kept by an ordinary one. What a GPU refuses is refused here: operations over
tensors of two devices (a CPU tensor of one element, or as an index of a CUDA one, is let through, as
there) and numpy arrays of CUDA tensors. Kernels that only a GPU has (FlexAttention, flash attention over
segments, Triton, captured graphs) are replaced by our own slower ways, which take any device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import transformers.generation.utils  # noqa: F401  (what it reads of torch.cuda must be the real thing)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from stepwell.engines import embedded, graphs, runner_factory
from stepwell.packing import attention, paths, segments_cuda, sequences

CUDA = torch.device("cuda", 0)
_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default)
_INDEXING = (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default)


class MixedDevicesError(RuntimeError):
    """An operation over tensors of two devices."""


class Pretended(torch.Tensor):
    """A tensor of `cuda:0` whose numbers `inner` keeps; torch itself believes it is of no device."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> Pretended:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("meta"),
            requires_grad=requires_grad,
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Pretended) -> None:
        self.inner = value.inner

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Pretended({self.inner})"

    def __format__(self, how: str) -> str:
        return format(self.inner.item() if self.ndim == 0 else str(self), how)

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Pretended:
        if id(self) not in memo:
            copy = memo[id(self)] = Pretended(self.inner.detach().clone(), self.requires_grad)
            copy._is_param = getattr(self, "_is_param", False)
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    """Also what takes no tensor of ours, such as `torch.zeros(3, device="cuda:0")`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
    if ours and func not in _COPIES:
        _refuse_mixtures(func, args, tensors)
    wanted = kwargs.get("device") or next((a for a in args if isinstance(a, torch.device)), None)
    kind = "" if wanted is None else torch.device(wanted).type
    is_ours = bool(ours) if wanted is None else kind in ("cuda", "meta")  # as torch makes what is like ours
    if func is _aten.copy_.default:
        is_ours = isinstance(args[0], Pretended)
    given = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    result = func(*_inner(args), **_inner(given))
    known = {id(tensor.inner): tensor for tensor in ours}  # what is changed in place stays what it was

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not is_ours:
            return value
        return known[id(value)] if id(value) in known else Pretended(value)

    return tree_map(outer, result)


def _inner(given: Any) -> Any:
    def inner(value: Any) -> Any:
        if isinstance(value, Pretended):
            return value.inner
        return torch.device("cpu") if isinstance(value, torch.device) else value

    return tree_map(inner, given)


def _refuse_mixtures(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    indices = tree_leaves(args[1]) if func in _INDEXING and isinstance(args[0], Pretended) else []
    strange = [t for t in tensors if not isinstance(t, Pretended) and t.ndim > 0]
    if any(not any(t is index for index in indices) for t in strange):
        raise MixedDevicesError(f"{func}: tensors on cuda:0 and on cpu: {[tuple(t.shape) for t in strange]}")


class _Stream:
    def synchronize(self) -> None:
        """Nothing runs ahead of the host here."""


class _Replayed:
    """A graph that was not captured: every launch makes the pass anew."""

    def __init__(self, runner: graphs.GraphRunner, key: graphs.GraphKey) -> None:
        self.runner, self.key = runner, key

    def replay(self) -> None:
        self.runner._run_pass(self.key)


@contextmanager
def pretended() -> Iterator[None]:
    """A machine with one GPU, as far as our code can tell."""
    work = embedded._run_worker

    def work_there(*given: Any) -> None:  # modes are of a thread; the engine has its own
        torch._C._set_only_lift_cpu_tensors(True)
        with _Everywhere():
            work(*given)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("_lazy_init", lambda: None),
            ("synchronize", lambda *_: None),
            ("device", lambda *_: nullcontext()),
            ("current_stream", lambda *_: _Stream()),
        ):
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "inference_mode", torch.no_grad)  # it and subclasses do not go together
        patch.setattr(attention, "can_use_flex", lambda *_: False)
        patch.setattr(paths, "supports_paths", lambda *_: False)
        patch.setattr(sequences, "KERNEL", "none")
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(segments_cuda, "supports", lambda *_: False)
        patch.setattr(runner_factory, "_should_use_triton", lambda *_: False)
        patch.setattr(graphs.GraphRunner, "_capture_graph", lambda runner, key: _Replayed(runner, key))
        patch.setattr(embedded, "_run_worker", work_there)
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied when they move
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with _Everywhere():
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_swap_module_params_on_conversion(before)
