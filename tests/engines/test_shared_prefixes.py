"""What conversations share is computed once: exact counts of tokens, and the same answers as alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.models import generate_alone, prompts_of, small_model
from tests.properties import examples

from stepwell.config.engine import EngineConfig
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.kv_store import MAX_COPIED_TOKENS, KVStore, PrefixCopies

SYSTEM, OWN, REPLY = 40, 12, 5


def list_turns(num_tasks: int, num_turns: int) -> list[list[list[int]]]:
    """Prompts of a world that shows the present alone: one opening for all, then the task's own words."""
    opening, *own = prompts_of([SYSTEM, *[OWN] * (num_tasks * num_turns)])
    for i, words in enumerate(own):
        words[0] = 3 + i  # no two continue alike
    return [
        [opening + own[turn * num_tasks + task] for task in range(num_tasks)] for turn in range(num_turns)
    ]


def ask(engine: EmbeddedEngine, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=REPLY, temperature=0.0, ignore_end=True)
    requests = [Request(TokenState(prompt), params, f"place {i}") for i, prompt in enumerate(prompts)]
    return [sampled.action.action_ids.tolist() for sampled in engine.generate_blocking(requests)]


def open_engine(model: Any, num_tasks: int) -> EmbeddedEngine:
    return EmbeddedEngine(model, config=EngineConfig(max_batch_size=num_tasks, num_slots=num_tasks))


def test_an_opening_that_all_tasks_share_is_computed_once_for_all_turns() -> None:
    model = small_model("llama", torch.float64)
    turns = list_turns(num_tasks=6, num_turns=3)
    with open_engine(model, 6) as engine:
        for prompts in turns:
            assert ask(engine, prompts) == [generate_alone(model, prompt, REPLY) for prompt in prompts]
        # the last token of a prompt is decoded
        assert engine.counts.prefilled_tokens == SYSTEM + 3 * 6 * (OWN - 1)
        assert engine.counts.decoded_tokens == 3 * 6 * REPLY
        assert engine.counts.reused_tokens == (3 * 6 - 1) * SYSTEM


def test_new_weights_compute_the_opening_again() -> None:
    model, other = (small_model("llama", torch.float64, seed=seed) for seed in (0, 1))
    (prompts,) = list_turns(num_tasks=4, num_turns=1)
    with open_engine(model, 4) as engine:
        ask(engine, prompts)
        before = engine.counts.prefilled_tokens
        engine.load_weights(1, copy.deepcopy(other.state_dict()))
        assert ask(engine, prompts) == [generate_alone(other, prompt, REPLY) for prompt in prompts]
        assert engine.counts.prefilled_tokens - before == before == SYSTEM + 4 * (OWN - 1)


def fill_store(num_slots: int, length: int) -> KVStore:
    store = KVStore(num_slots, length, torch.device("cpu"), torch.float32)
    store.ensure_length(length)
    store.ensure_layer(0, 1, 2, 3)
    numbers = torch.arange(num_slots * length, dtype=torch.float32).view(num_slots, 1, length, 1)
    store.keys(0)[:num_slots] = numbers
    store.values(0)[:num_slots] = -numbers
    return store


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_copies_made_together_equal_copies_one_after_the_other(data: st.DataObject) -> None:
    num_slots, length = 6, 8
    targets = data.draw(st.lists(st.integers(0, num_slots - 1), unique=True))
    together, apart = fill_store(num_slots, length), fill_store(num_slots, length)
    copies, known, rows = PrefixCopies(together), [length] * num_slots, []
    for target in targets:
        source = data.draw(st.integers(0, num_slots - 1).filter(lambda slot, t=target: slot != t))
        known[target] = data.draw(st.integers(1, known[source]))  # of a copy, no more than it holds
        rows.append((source, target, known[target]))
    for source, target, count in rows:
        copies.add_copy(source, target, count)
        apart.copy_prefixes([source], [target], count)
    copies.make_copies()
    for slot in range(num_slots):
        for read in (KVStore.keys, KVStore.values):
            ours, theirs = (read(store, 0)[slot, :, : known[slot]] for store in (together, apart))
            assert torch.equal(ours, theirs)


def test_many_long_copies_are_made_in_parts() -> None:
    length = MAX_COPIED_TOKENS // 4
    store = fill_store(8, length)
    copies = PrefixCopies(store)
    for target in range(1, 8):
        copies.add_copy(target - 1, target, length)  # a chain across parts
    copies.make_copies()
    first = np.asarray(store.values(0)[0])
    assert all(np.array_equal(np.asarray(store.values(0)[slot]), first) for slot in range(8))
