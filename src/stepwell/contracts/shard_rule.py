"""The contract of a shard rule: every request goes to exactly one generator, whatever the load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stepwell.core import ConfigError, Request, Task, TokenState
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ContractError
from stepwell.rollout.jobs import Job
from stepwell.workers.shards import ActionRequest, GeneratorLoad, ShardRule, check_shards, find_shard_rule

_COUNTS = (1, 2, 3, 7, 16)
_LOADS = (
    (GeneratorLoad("a", 0, 0, 0.0),),
    (GeneratorLoad("a", 0, 0, 0.0), GeneratorLoad("b", 0, 0, 0.0), GeneratorLoad("c", 0, 0, 0.0)),
    (GeneratorLoad("a", 40, 8, 0.5), GeneratorLoad("b", 0, 0, 0.1)),
    tuple(GeneratorLoad(str(i), i, i, 0.1 * i) for i in range(5)),
)


def check_shard_rule(name: str) -> ContractReport:
    """Report whether a shard rule keeps its contract."""
    return run_checks(f"shard rule {name}", CHECKS, ShardProbe(find_shard_rule(name)))


@dataclass(frozen=True)
class ShardProbe:
    """The rule."""

    rule: ShardRule

    def cases(self) -> Iterator[tuple[list[ActionRequest], tuple[GeneratorLoad, ...]]]:
        """Requests of one environment batch, with the load of the generators."""
        for loads in _LOADS:
            for count in _COUNTS:
                yield [_make_request(number) for number in range(count)], loads


def _make_request(number: int) -> ActionRequest:
    request = Request(TokenState(np.array([number], np.int32)), id=f"r{number}")
    return ActionRequest(
        request, Job(Task("checked", {"number": number}), f"g{number}", number), env_batch=1, turn=2
    )


def puts_every_request_into_one_shard(probe: ShardProbe) -> str:
    count = 0
    for requests, loads in probe.cases():
        try:
            check_shards(probe.rule(requests, loads), len(requests), len(loads))
        except ConfigError as error:
            raise ContractError(f"{len(requests)} requests, {len(loads)} generators: {error}") from error
        count += 1
    return f"{count} cases: 1 to {max(_COUNTS)} requests, 1 to {max(map(len, _LOADS))} generators"


def is_deterministic(probe: ShardProbe) -> str:
    for requests, loads in probe.cases():
        if probe.rule(requests, loads) != probe.rule(requests, loads):
            raise ContractError("the same requests and loads are divided differently the second time")
    return "twice the same"


CHECKS: tuple[Callable[[ShardProbe], str], ...] = (puts_every_request_into_one_shard, is_deterministic)
