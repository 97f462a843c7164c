"""Outputs that the backward pass computes again instead of keeping them.

A norm's output and the product of a gate are each as large as what they are made of, but cost one pass over
memory to make again. The matrix products that read them would keep them for their own gradients. Inside
`recompute_outputs` they keep a `_Recipe` instead: a function that makes the output from tensors that are kept
anyway.

    with recompute_outputs():
        ...                              # a layer calls note_output(output, make_again)
    loss.backward()                      # what needs the output computes it again

Invariants
* An output is recognised by its memory while it is alive: nothing else can be there then. What is not
  recognised is kept as usual, so a mistake costs memory, never a wrong gradient.
* An output that several readers kept is made once, and forgotten after the last of them read it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MakeAgain = Callable[[], Tensor]


class _Recipe:
    """How to make an output again, for a number of readers."""

    def __init__(self, make_again: MakeAgain) -> None:
        self.make_again = make_again
        self.num_readers = 0
        self._made: Tensor | None = None

    def read_output(self) -> Tensor:
        made = self.make_again() if self._made is None else self._made
        self.num_readers -= 1
        self._made = made if self.num_readers > 0 else None
        return made


class _NotedOutputs:
    """The outputs of one forward pass that can be made again."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[weakref.ref[Tensor], _Recipe]] = {}

    def note_output(self, output: Tensor, make_again: MakeAgain) -> None:
        self._noted[output.data_ptr()] = (weakref.ref(output), _Recipe(make_again))

    def forget_all(self) -> None:
        """Leave recipes to those who read them, so that memory is free as soon as they have."""
        self._noted.clear()

    def pack_tensor(self, tensor: Tensor) -> Tensor | tuple[_Recipe, torch.Size]:
        reference, recipe = self._noted.get(tensor.data_ptr(), (None, None))
        output = None if reference is None else reference()
        if recipe is None or output is None:
            return tensor
        if output.numel() != tensor.numel() or output.dtype != tensor.dtype or not tensor.is_contiguous():
            return tensor
        recipe.num_readers += 1
        return recipe, tensor.shape

    def unpack_tensor(self, packed: Tensor | tuple[_Recipe, torch.Size]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        recipe, shape = packed
        return recipe.read_output().view(shape)


_open: list[_NotedOutputs] = []


@contextmanager
def recompute_outputs() -> Iterator[None]:
    """Inside, noted outputs are not kept for the backward pass."""
    noted = _NotedOutputs()
    _open.append(noted)
    try:
        with torch.autograd.graph.saved_tensors_hooks(noted.pack_tensor, noted.unpack_tensor):
            yield
    finally:
        _open.pop()
        noted.forget_all()


def note_output(output: Tensor, make_again: MakeAgain) -> None:
    """Say how an output is made again. Without an open `recompute_outputs` this does nothing."""
    if _open and torch.is_grad_enabled():
        _open[-1].note_output(output, make_again)
