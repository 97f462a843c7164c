"""Shards: how the requests of one environment batch become slots, and which generator gets which.

    none         one slot, to whichever generator is free first
    even         one slot per generator, of equal size
    by_latency   one slot per generator, sized so that all of them should be answered at the same time
    module:function   a user's own, called as `function(asks, loads) -> list[Cut]`

A slot is never split afterwards: it is answered by one generator in one call. Environments go on as
soon as their own slot is answered, so smaller slots mean less waiting and smaller batches.

Invariant: a strategy puts every request into exactly one slot; one that does not is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.core import ConfigError, Request
from stepwell.core.user_objects import F, find_object, mark_kind
from stepwell.rollout.jobs import Job


@dataclass(frozen=True, slots=True)
class Ask:
    """One environment's request for an action: what a strategy or a priority function may look at."""

    request: Request
    job: Job
    env_batch: int  # which of all environment batches asks
    turn: int  # actions its episode had before


@dataclass(frozen=True, slots=True)
class GeneratorLoad:
    """How busy a generator is. `sample_s` is its recent time per sample, 0 while unknown."""

    name: str
    num_waiting: int  # samples in slots that wait for it alone
    num_inflight: int  # samples it is working on
    sample_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A slot: the numbers of its requests, and the generator it is for (None: any)."""

    indices: tuple[int, ...]
    generator: int | None = None


Shard = Callable[[Sequence[Ask], Sequence[GeneratorLoad]], list[Cut]]


def none(asks: Sequence[Ask], loads: Sequence[GeneratorLoad]) -> list[Cut]:
    """The whole batch, to any."""
    return [Cut(tuple(range(len(asks))))]


def even(asks: Sequence[Ask], loads: Sequence[GeneratorLoad]) -> list[Cut]:
    """An equal share to each; neighbours stay together. Who gets what is left over changes in turn."""
    count, first = len(loads), asks[0].env_batch + asks[0].turn
    edges = [len(asks) * i // count for i in range(count + 1)]
    return [
        Cut(tuple(range(edges[i], edges[i + 1])), (first + i) % count)
        for i in range(count)
        if edges[i] < edges[i + 1]
    ]


def by_latency(asks: Sequence[Ask], loads: Sequence[GeneratorLoad]) -> list[Cut]:
    """Request by request to whoever would be done with it first, given its backlog and speed."""
    known = [load.sample_s for load in loads if load.sample_s > 0]
    usual = sum(known) / len(known) if known else 1.0
    speeds = [load.sample_s or usual for load in loads]
    backlog = [load.num_waiting + load.num_inflight for load in loads]
    chosen: list[list[int]] = [[] for _ in loads]
    for number in range(len(asks)):
        costs = [(backlog[i] + len(chosen[i]) + 1) * speeds[i] for i in range(len(loads))]
        chosen[costs.index(min(costs))].append(number)
    return [Cut(tuple(row), i) for i, row in enumerate(chosen) if row]


SHARDS: dict[str, Shard] = {"none": none, "even": even, "by_latency": by_latency}


def shard_rule(function: F) -> F:
    """Mark a function as a shard rule, so that `stepwell check` knows what it is."""
    return mark_kind(function, "shard")


def shard_named(name: str) -> Shard:
    """A strategy by name or import path."""
    return SHARDS[name] if name in SHARDS else load_function(name, "groups.generators.shard", SHARDS)


def load_function(path: str, field: str, names: Sequence[str] | dict[str, Any] = ()) -> Callable[..., Any]:
    """The function that `module:function` names."""
    offered = f", or one of {', '.join(names)}" if names else ""
    if ":" not in path:
        raise ConfigError(f"{field}: {path!r} is not module:function{offered}")
    found = find_object(path, f"{field} {path!r}")
    if not callable(found):
        raise ConfigError(f"{field}: {path!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def check_cuts(cuts: Sequence[Cut], num_asks: int, num_generators: int) -> None:
    """Refuse a strategy that loses or doubles a request, or names a generator that is not there."""
    indices = sorted(index for cut in cuts for index in cut.indices)
    if indices != list(range(num_asks)):
        raise ConfigError(
            f"groups.generators.shard: the strategy must put each of {num_asks} requests into exactly one "
            f"slot, it gave {[cut.indices for cut in cuts]}"
        )
    for cut in cuts:
        if cut.generator is not None and not 0 <= cut.generator < num_generators:
            raise ConfigError(
                f"groups.generators.shard: the strategy sent a slot to generator {cut.generator}; there are "
                f"{num_generators}, numbered from 0"
            )
        if not cut.indices:
            raise ConfigError("groups.generators.shard: the strategy gave an empty slot; leave it out")
