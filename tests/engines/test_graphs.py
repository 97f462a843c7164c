"""The state a captured decoding step keeps on the device, with capture replaced by plain calls.

What CUDA would replay is run eagerly here, so that everything around the capture is tested
on any machine: buckets, spare rows, and rows that go on without being uploaded again.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.models import generate_alone, prompts_of, small_model
from tests.engines.replayed_steps import PlainGraphRunner

from stepwell.config.engine import EngineConfig
from stepwell.core.position_marks import mark_sequence
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.core import EngineCore
from stepwell.engines.graphs import round_up_rows
from stepwell.engines.runner_factory import build_runner


def core_of(model: Any, **settings: Any) -> EngineCore:
    config = EngineConfig(**settings)
    own = copy.deepcopy(model).requires_grad_(False)
    plain = build_runner(own, config)
    runner = PlainGraphRunner(plain.forward, plain.store, plain.table, False, config.max_batch_size)
    return EngineCore(own, None, runner, config)


def drain(core: EngineCore) -> dict[str, Sampled]:
    results = {}
    while core.is_busy:
        results.update({done.id: done.sampled for done in core.step()})
    return results


def greedy(prompt: list[int], num_tokens: int, name: str, conversation: str | None = None) -> Request:
    return Request(
        TokenState(prompt), SamplingParams(max_tokens=num_tokens, temperature=0.0), conversation, name
    )


def test_buckets_hold_what_they_are_asked_for_and_waste_at_most_a_third() -> None:
    sizes = [round_up_rows(n) for n in range(1, 600)]
    assert all(size >= n and (size - n) / size < 1 / 3 for n, size in enumerate(sizes, start=1))
    assert sorted(set(sizes))[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


@pytest.mark.parametrize("style", ["llama", "qwen3", "gemma2"])
def test_replayed_steps_equal_generate_while_requests_join_and_leave(style: str) -> None:
    model = small_model(style, torch.float64)
    core = core_of(model, max_batch_size=5, prefill_tokens=16)
    prompts = prompts_of([10, 4, 33, 2, 7, 19, 5])
    found = {}
    for i, prompt in enumerate(prompts):
        core.add_request(greedy(prompt, 12 - i, str(i)))
        found.update({done.id: done.sampled for done in core.step()})
    found.update(drain(core))
    for i, prompt in enumerate(prompts):
        assert found[str(i)].action.action_ids.tolist() == generate_alone(model, prompt, 12 - i)


def test_rows_that_go_on_are_not_uploaded_again() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model, max_batch_size=4)
    a, b = prompts_of([6, 9])
    core.add_request(greedy(a, 20, "a"))
    core.add_request(greedy(b, 30, "b"))
    found = drain(core)
    assert core.runner.num_uploads == 2  # type: ignore[attr-defined]  # both, and b once a had left
    assert found["a"].action.action_ids.tolist() == generate_alone(model, a, 20)
    assert found["b"].action.action_ids.tolist() == generate_alone(model, b, 30)


def test_a_slot_that_changes_hands_between_steps_is_uploaded_again() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model, max_batch_size=1, num_slots=1)
    a, b = prompts_of([6, 9])
    core.add_request(greedy(a, 40, "a"))
    for _ in range(3):
        core.step()
    core.cancel("a")
    core.add_request(greedy(b, 6, "b"))
    assert drain(core)["b"].action.action_ids.tolist() == generate_alone(model, b, 6)


def test_turns_reuse_their_cache_under_replay() -> None:
    model = small_model("qwen3", torch.float64)
    core = core_of(model, max_batch_size=3)
    histories = prompts_of([6, 11, 8], seed=1)
    for turn in range(3):
        for i, history in enumerate(histories):
            core.add_request(greedy(history, 5, str(i), f"talk {i}"))
        found = drain(core)
        for i, history in enumerate(histories):
            ids = found[str(i)].action.action_ids.tolist()
            assert ids == generate_alone(model, history, 5)
            assert (found[str(i)].num_cached > 0) == (turn > 0)
            histories[i] = history + ids + [9]


def test_replayed_sampling_draws_what_the_plain_runner_draws() -> None:
    model = small_model("llama", torch.float64)
    requests = [
        Request(TokenState(p), SamplingParams(max_tokens=15, temperature=t, top_p=q, seed=i, ignore_end=True))
        for i, (p, t, q) in enumerate(
            zip(prompts_of([5, 9, 14, 3]), (1.0, 0.7, 0.0, 1.4), (1.0, 0.8, 1.0, 0.5), strict=True)
        )
    ]
    config = EngineConfig()
    own = copy.deepcopy(model).requires_grad_(False)
    results = []
    for core in (core_of(model), EngineCore(own, None, build_runner(own, config), config)):
        for request in requests:
            core.add_request(request)
        found = drain(core)
        results.append([found[request.id].action.action_ids.tolist() for request in requests])
    assert results[0] == results[1]


def test_replayed_steps_note_the_positions_at_which_they_read() -> None:
    core = core_of(small_model("llama"), max_batch_size=3, prefill_tokens=16)
    prompts = prompts_of([10, 4, 33, 20])
    for i, prompt in enumerate(prompts):
        core.add_request(greedy(prompt, 7, str(i)))
    samples = drain(core)
    for i, prompt in enumerate(prompts):
        assert samples[str(i)].position_mark == mark_sequence(np.arange(len(prompt) + 6))
