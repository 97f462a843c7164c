"""A shard rule of your own: long prompts to the first generator, short ones to the others.

    stepwell check examples/own_shard_rule.py:by_length
    stepwell train frozenlake workers.mode=stream workers.generators.num_workers=2 \\
        workers.generators.shard=examples/own_shard_rule.py:by_length

A rule sees the requests of one environment batch and how busy every generator is. It gives shards: the
numbers of the requests that are answered together, and the generator they go to. Every request must be in
exactly one shard.
"""

from collections.abc import Sequence

from stepwell.workers.shards import ActionRequest, GeneratorLoad, Shard, shard_rule


@shard_rule
def by_length(requests: Sequence[ActionRequest], loads: Sequence[GeneratorLoad]) -> list[Shard]:
    """The longer half to generator 0, the shorter half to the one of the others with the least to do."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].request.state.prompt_ids))
    half = (len(order) + 1) // 2
    others = range(1, len(loads)) or range(1)
    free = min(others, key=lambda i: loads[i].num_waiting + loads[i].num_inflight)
    shards = [Shard(tuple(order[:half]), 0), Shard(tuple(order[half:]), free)]
    return [shard for shard in shards if shard.indices]
