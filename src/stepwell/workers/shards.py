"""Shard rules: how the requests of one environment batch are divided among generators.

    none              one shard, for the generator that is free first
    even              one shard per generator, of equal size
    by_latency        one shard per generator, sized so that all should be answered at the same time
    module:function   a user's own, called as `function(requests, loads) -> list[Shard]`

A shard is never split afterwards: one generator answers it in one call. Environments continue as soon as
their own shard is answered, so smaller shards mean less waiting and smaller batches.

Invariant: a rule puts every request into exactly one shard. A rule that does not is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.core import ConfigError, Request
from stepwell.core.user_objects import F, find_object, mark_kind
from stepwell.rollout.jobs import Job


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One environment's request for an action: what a shard rule or a priority function may read."""

    request: Request
    job: Job
    env_batch: int  # the number of its environment batch among all
    turn: int  # number of actions its episode had before


@dataclass(frozen=True, slots=True)
class GeneratorLoad:
    """How busy a generator is. `sample_s` is its recent time per sample; 0 if unknown."""

    name: str
    num_waiting: int  # samples in shards that wait for it alone
    num_inflight: int  # samples it is working on
    sample_s: float


@dataclass(frozen=True, slots=True)
class Shard:
    """The indices of some requests, and the generator they are for (None: any)."""

    indices: tuple[int, ...]
    generator: int | None = None


ShardRule = Callable[[Sequence[ActionRequest], Sequence[GeneratorLoad]], list[Shard]]


def keep_whole(requests: Sequence[ActionRequest], loads: Sequence[GeneratorLoad]) -> list[Shard]:
    """Send the whole batch to any generator."""
    return [Shard(tuple(range(len(requests))))]


def split_evenly(requests: Sequence[ActionRequest], loads: Sequence[GeneratorLoad]) -> list[Shard]:
    """Send an equal share to each; neighbours stay together. The remainder goes to each in turn."""
    count, first = len(loads), requests[0].env_batch + requests[0].turn
    edges = [len(requests) * i // count for i in range(count + 1)]
    return [
        Shard(tuple(range(edges[i], edges[i + 1])), (first + i) % count)
        for i in range(count)
        if edges[i] < edges[i + 1]
    ]


def split_by_latency(requests: Sequence[ActionRequest], loads: Sequence[GeneratorLoad]) -> list[Shard]:
    """Send each request to the generator that would finish it first, given its backlog and speed."""
    known = [load.sample_s for load in loads if load.sample_s > 0]
    usual = sum(known) / len(known) if known else 1.0
    speeds = [load.sample_s or usual for load in loads]
    backlog = [load.num_waiting + load.num_inflight for load in loads]
    chosen: list[list[int]] = [[] for _ in loads]
    for number in range(len(requests)):
        costs = [(backlog[i] + len(chosen[i]) + 1) * speeds[i] for i in range(len(loads))]
        chosen[costs.index(min(costs))].append(number)
    return [Shard(tuple(row), i) for i, row in enumerate(chosen) if row]


SHARDS: dict[str, ShardRule] = {"none": keep_whole, "even": split_evenly, "by_latency": split_by_latency}


def shard_rule(function: F) -> F:
    """Mark a function as a shard rule, so that `stepwell check` knows what it is."""
    return mark_kind(function, "shard")


def find_shard_rule(name: str) -> ShardRule:
    """A shard rule by name or import path."""
    return SHARDS[name] if name in SHARDS else load_user_function(name, "workers.generators.shard", SHARDS)


def load_user_function(
    path: str, field: str, names: Sequence[str] | dict[str, Any] = ()
) -> Callable[..., Any]:
    """The function with the import path `module:function`."""
    offered = f", or one of {', '.join(names)}" if names else ""
    if ":" not in path:
        raise ConfigError(f"{field}: {path!r} is not module:function{offered}")
    found = find_object(path, f"{field} {path!r}")
    if not callable(found):
        raise ConfigError(f"{field}: {path!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def check_shards(shards: Sequence[Shard], num_requests: int, num_generators: int) -> None:
    """Refuse a rule that loses or doubles a request, or names an unknown generator."""
    if not isinstance(shards, Sequence) or not all(isinstance(shard, Shard) for shard in shards):
        raise ConfigError(
            "workers.generators.shard: the rule must return a list of Shard(indices, generator), not "
            f"{shards!r:.80}"
        )
    indices = sorted(index for shard in shards for index in shard.indices)
    if indices != list(range(num_requests)):
        raise ConfigError(
            f"workers.generators.shard: the rule must put each of {num_requests} requests into exactly one "
            f"shard, but it gave {[shard.indices for shard in shards]}"
        )
    for shard in shards:
        if shard.generator is not None and not 0 <= shard.generator < num_generators:
            raise ConfigError(
                f"workers.generators.shard: the rule sent a shard to generator {shard.generator}; there are "
                f"{num_generators}, numbered from 0"
            )
        if not shard.indices:
            raise ConfigError("workers.generators.shard: the rule gave an empty shard; leave it out")
