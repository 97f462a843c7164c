"""The contract of a shard rule: every request goes to exactly one generator, whatever the load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stepwell.contracts.report import BrokenContract, ContractReport, run_checks
from stepwell.core import ConfigError, Request, Task, TokenState
from stepwell.rollout.jobs import Job
from stepwell.workers.shards import Ask, GeneratorLoad, Shard, check_cuts, shard_named

_COUNTS = (1, 2, 3, 7, 16)
_LOADS = (
    (GeneratorLoad("a", 0, 0, 0.0),),
    (GeneratorLoad("a", 0, 0, 0.0), GeneratorLoad("b", 0, 0, 0.0), GeneratorLoad("c", 0, 0, 0.0)),
    (GeneratorLoad("a", 40, 8, 0.5), GeneratorLoad("b", 0, 0, 0.1)),
    tuple(GeneratorLoad(str(i), i, i, 0.1 * i) for i in range(5)),
)


def check_shard_rule(name: str) -> ContractReport:
    """Report whether a shard rule keeps its contract."""
    return run_checks(f"shard rule {name}", CHECKS, ShardProbe(shard_named(name)))


@dataclass(frozen=True)
class ShardProbe:
    """The rule."""

    rule: Shard

    def cases(self) -> Iterator[tuple[list[Ask], tuple[GeneratorLoad, ...]]]:
        """Requests of one environment batch, and how busy the generators are."""
        for loads in _LOADS:
            for count in _COUNTS:
                yield [_make_ask(number) for number in range(count)], loads


def _make_ask(number: int) -> Ask:
    request = Request(TokenState(np.array([number], np.int32)), id=f"r{number}")
    return Ask(request, Job(Task("checked", {"number": number}), f"g{number}", number), env_batch=1, turn=2)


def puts_every_request_into_one_slot(probe: ShardProbe) -> str:
    count = 0
    for asks, loads in probe.cases():
        try:
            check_cuts(probe.rule(asks, loads), len(asks), len(loads))
        except ConfigError as error:
            raise BrokenContract(f"{len(asks)} requests, {len(loads)} generators: {error}") from error
        count += 1
    return f"{count} cases: 1 to {max(_COUNTS)} requests, 1 to {max(map(len, _LOADS))} generators"


def is_deterministic(probe: ShardProbe) -> str:
    for asks, loads in probe.cases():
        if probe.rule(asks, loads) != probe.rule(asks, loads):
            raise BrokenContract("the same requests and loads are cut differently the second time")
    return "twice the same"


CHECKS: tuple[Callable[[ShardProbe], str], ...] = (puts_every_request_into_one_slot, is_deterministic)
