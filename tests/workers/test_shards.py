"""Shards: every request is in exactly one shard, and shards are sized by who can answer them soonest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.devices import ask

from stepwell.core import ConfigError
from stepwell.workers.shards import (
    SHARDS,
    GeneratorLoad,
    Shard,
    check_shards,
    find_shard_rule,
    load_user_function,
)

LOADS = st.lists(
    st.builds(GeneratorLoad, st.just("g"), st.integers(0, 9), st.integers(0, 9), st.floats(0, 2)),
    min_size=1,
    max_size=5,
)


@given(st.sampled_from(sorted(SHARDS)), st.integers(1, 40), LOADS)
def test_every_request_is_in_exactly_one_shard(name: str, count: int, loads: list[GeneratorLoad]) -> None:
    shards = SHARDS[name]([ask(i) for i in range(count)], loads)
    check_shards(shards, count, len(loads))
    assert sorted(i for cut in shards for i in cut.indices) == list(range(count))


def sizes(name: str, count: int, *loads: GeneratorLoad) -> dict[int | None, int]:
    return {cut.generator: len(cut.indices) for cut in SHARDS[name]([ask(i) for i in range(count)], loads)}


def test_even_shards_differ_by_at_most_one() -> None:
    three = [GeneratorLoad("g", 0, 0, 0.0)] * 3
    assert sizes("even", 8, *three) == {0: 2, 1: 3, 2: 3}
    assert sizes("even", 2, *three) == {1: 1, 2: 1}
    (cut,) = SHARDS["even"]([ask(0, env_batch=1, turn=1)], three)
    assert cut.generator == (2 + 2) % 3  # another turn, another one
    assert sizes("none", 8, *three) == {None: 8}


def test_a_generator_that_is_twice_as_fast_gets_twice_as_much() -> None:
    assert sizes("by_latency", 9, GeneratorLoad("a", 0, 0, 1.0), GeneratorLoad("b", 0, 0, 0.5)) == {
        0: 3,
        1: 6,
    }


def test_what_waits_already_counts() -> None:
    assert sizes("by_latency", 4, GeneratorLoad("a", 2, 2, 1.0), GeneratorLoad("b", 0, 0, 1.0)) == {1: 4}


def backwards(requests: object, loads: object) -> list[Shard]:
    return [Shard((1, 0), 0)]


def test_a_users_function_is_found_by_its_path_and_its_mistakes_are_refused() -> None:
    assert find_shard_rule(f"{__name__}:backwards") is backwards
    with pytest.raises(
        ConfigError, match=r"workers.generators.shard: 'odd' is not module:function, or one of"
    ):
        find_shard_rule("odd")
    with pytest.raises(ConfigError, match=r"priority 'math:nothing': math has no 'nothing'"):
        load_user_function("math:nothing", "workers.generators.priority")
    with pytest.raises(ConfigError, match="exactly one shard"):
        check_shards([Shard((0, 1)), Shard((1,))], 2, 1)
    with pytest.raises(ConfigError, match="sent a shard to generator 3; there are 2"):
        check_shards([Shard((0,), 3)], 1, 2)
