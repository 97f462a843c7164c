"""Nested lists to flat lists and back, for `Timeline.from_lists` and `CreditResult.to_lists`.

People and tests write trajectories as lists of lists. Flattening checks that every field has the same shape
as `rewards`. A missing or extra entry is named (`end_values[1]`); otherwise everything after it would be
off by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InputError


def count_steps(rewards: Sequence[Sequence[object]]) -> list[int]:
    """Steps per trajectory, read off `rewards` [trajectory][step]."""
    _check_list("rewards", rewards, "trajectory")
    for j, trajectory in enumerate(rewards):
        _check_list(f"rewards[{j}]", trajectory, "step")
    return [len(trajectory) for trajectory in rewards]


def flatten_trajectories(name: str, values: Sequence[Any] | None, steps: list[int]) -> list[Any] | None:
    """[trajectory] -> flat, or None if absent."""
    if values is None:
        return None
    _check_length(name, values, len(steps), "trajectory")
    return _check_assigned(name, list(values))


def flatten_steps(
    name: str, values: Sequence[Sequence[Any]] | None, steps: list[int], *, allow_none: bool = False
) -> list[Any] | None:
    """[trajectory][step] -> flat, or None if absent."""
    if values is None:
        return None
    _check_length(name, values, len(steps), "trajectory")
    for j, (trajectory, count) in enumerate(zip(values, steps, strict=True)):
        _check_length(f"{name}[{j}]", trajectory, count, "step")
    flat = [value for trajectory in values for value in trajectory]
    return flat if allow_none else _check_assigned(name, flat)


def flatten_tokens(
    name: str, values: Sequence[Sequence[Sequence[float]]] | None, steps: list[int], lengths: list[int]
) -> list[Any] | None:
    """[trajectory][step][token] -> flat, or None if absent."""
    if (actions := flatten_steps(name, values, steps)) is None:
        return None
    for t, (action, length) in enumerate(zip(actions, lengths, strict=True)):
        _check_length(f"{name} (flat step {t})", action, length, "action token")
    return _check_assigned(name, [value for action in actions for value in action])


def find_lengths(
    steps: list[int],
    token_values: Sequence[Sequence[Sequence[float]]] | None,
    token_rewards: Sequence[Sequence[Sequence[float]]] | None,
    tokens_per_step: Sequence[Sequence[int]] | None,
) -> list[int]:
    """Action tokens per step, flat, from whichever field tells them."""
    if (lengths := flatten_steps("tokens_per_step", tokens_per_step, steps)) is not None:
        return lengths
    for name, values in (("token_values", token_values), ("token_rewards", token_rewards)):
        if (actions := flatten_steps(name, values, steps)) is not None:
            for t, action in enumerate(actions):
                _check_list(f"{name} (flat step {t})", action, "action token")
            return [len(action) for action in actions]
    return [1] * sum(steps)


def label_ids(labels: Sequence[Hashable], device: torch.device | str | None = None) -> Tensor:
    """Equal labels get equal integers; every None gets one of its own."""
    ids: dict[Hashable, int] = {}
    keys = (object() if label is None else label for label in labels)
    return torch.tensor([ids.setdefault(key, len(ids)) for key in keys], dtype=torch.int64, device=device)


def fold_list(flat: list[Any], lengths: list[int]) -> list[list[Any]]:
    """Cut a flat list into consecutive lists of the given lengths."""
    ends = accumulate(lengths, initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]


def make_floats(name: str, flat: list[Any] | None, like: Tensor) -> Tensor | None:
    """A flat list of numbers as a tensor with the dtype and device of `like`."""
    if flat is None:
        return None
    for i, value in enumerate(flat):
        if not isinstance(value, Real):
            raise InputError(f"{name}: flat entry {i} is {value!r}, expected a number; check the nesting")
    return torch.tensor(flat, dtype=like.dtype, device=like.device)


def _check_list(name: str, values: object, per: str) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(f"{name}: expected a list with one entry per {per}, got {type(values).__name__}")


def _check_length(name: str, values: Sequence[Any], expected: int, per: str) -> None:
    _check_list(name, values, per)
    if len(values) != expected:
        raise InputError(f"{name}: {len(values)} entries, expected {expected} (one per {per})")


def _check_assigned(name: str, flat: list[Any]) -> list[Any]:
    if any(value is None for value in flat):
        where = next(i for i, value in enumerate(flat) if value is None)
        raise InputError(f"{name}: flat entry {where} is None (unassigned); assign it first, 0.0 for none")
    return flat
