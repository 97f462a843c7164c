"""Greedy decoding equals transformers' own `generate`, token by token, however requests meet."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from tests.engines.models import STYLES, generate_alone, prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import FinishReason, TokenState
from stepwell.engines.core import EngineCore
from stepwell.engines.runner_factory import build_runner

FORWARDS = [(style, "auto") for style in STYLES]
FORWARDS += [(style, "transformers") for style in STYLES if not style.startswith("gemma")]


def core_of(model: Any, **settings: Any) -> EngineCore:
    config = EngineConfig(**settings)
    own = copy.deepcopy(model).requires_grad_(False)
    return EngineCore(own, None, build_runner(own, config), config)


def greedy(prompt: list[int], num_tokens: int, name: str, conversation: str | None = None) -> Request:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
    return Request(TokenState(prompt), params, conversation, id=name)


def run(core: EngineCore, *requests: Request) -> dict[str, list[int]]:
    for request in requests:
        core.add_request(request)
    return {name: ids for name, (ids, _) in drain(core).items()}


def drain(core: EngineCore) -> dict[str, tuple[list[int], int]]:
    results = {}
    while core.is_busy:
        for done in core.step():
            results[done.id] = (done.sampled.action.action_ids.tolist(), done.sampled.num_cached)
    return results


@functools.cache
def ragged_answers(style: str) -> tuple[Any, list[list[int]], dict[str, list[int]]]:
    """A model, ragged prompts, and what `generate` says to each alone: the same for every forward."""
    model = small_model(style, torch.float64)
    prompts = prompts_of([3, 17, 1, 9, 40, 30])
    return model, prompts, {str(i): generate_alone(model, p, 14) for i, p in enumerate(prompts)}


@pytest.mark.parametrize(("style", "forward"), FORWARDS)
def test_ragged_prompts_in_one_batch_equal_generate(style: str, forward: str) -> None:
    model, prompts, expected = ragged_answers(style)
    core = core_of(model, forward=forward, max_batch_size=4, prefill_tokens=16)
    assert run(core, *(greedy(p, 14, str(i)) for i, p in enumerate(prompts))) == expected


@pytest.mark.parametrize("style", ["llama", "qwen3", "gemma3"])
def test_float32_equals_generate_too(style: str) -> None:
    model = small_model(style)
    prompts = prompts_of([5, 25, 12, 12])
    found = run(core_of(model), *(greedy(p, 12, str(i)) for i, p in enumerate(prompts)))
    assert found == {str(i): generate_alone(model, p, 12) for i, p in enumerate(prompts)}


@pytest.mark.parametrize("style", STYLES)
def test_turns_of_a_conversation_reuse_its_cache_and_equal_generate(style: str) -> None:
    model = small_model(style, torch.float64)
    core = core_of(model, max_batch_size=3)
    histories = prompts_of([6, 11, 8], seed=1)
    for turn in range(3):
        for i, history in enumerate(histories):
            core.add_request(greedy(history, 5 + i, str(i), f"conversation {i}"))
        found = drain(core)
        for i, history in enumerate(histories):
            ids, num_cached = found[str(i)]
            assert ids == generate_alone(model, history, 5 + i)
            assert (num_cached > 0) == (turn > 0)
            if turn:  # everything but the observation and the last sampled token was there already
                assert num_cached == len(history) - 7 - 1
            histories[i] = history + ids + prompts_of([7], seed=10 * turn + i)[0]


def test_requests_that_join_a_running_batch_change_nothing() -> None:
    model = small_model("qwen3", torch.float64)
    core = core_of(model, max_batch_size=3)
    prompts = prompts_of([10, 4, 21, 2])
    results = {}
    for i, prompt in enumerate(prompts):
        core.add_request(greedy(prompt, 16 - 3 * i, str(i)))
        for _ in range(2):
            results.update({done.id: done.sampled for done in core.step()})
    while core.is_busy:
        results.update({done.id: done.sampled for done in core.step()})
    for i, prompt in enumerate(prompts):
        assert results[str(i)].action.action_ids.tolist() == generate_alone(model, prompt, 16 - 3 * i)


def test_a_cancelled_request_keeps_its_tokens_and_leaves_the_others_alone() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model, max_batch_size=2)
    first, second, third = prompts_of([9, 13, 6])
    for name, prompt in (("a", first), ("b", second), ("c", third)):
        core.add_request(greedy(prompt, 12, name))
    for _ in range(4):
        core.step()
    assert (core.num_running, core.num_waiting) == (2, 1)
    assert core.cancel("a") and not core.cancel("a")
    found = drain_samples(core)
    assert found["a"].sampling.finish_reason is FinishReason.CANCELLED
    assert found["a"].action.action_ids.tolist() == generate_alone(model, first, 4)
    for name, prompt in (("b", second), ("c", third)):
        assert found[name].action.action_ids.tolist() == generate_alone(model, prompt, 12)


def test_cancelling_makes_room_at_once() -> None:
    core = core_of(small_model("llama"), max_batch_size=1)
    a, b = prompts_of([5, 5])
    core.add_request(greedy(a, 50, "a"))
    core.add_request(greedy(b, 2, "b"))
    core.step()
    core.cancel("a")
    steps = 0
    while core.is_busy:
        core.step()
        steps += 1
    assert steps == 2  # b's two tokens


def test_a_waiting_request_can_be_cancelled_before_it_began() -> None:
    core = core_of(small_model("llama"), max_batch_size=1)
    for name in "ab":
        core.add_request(greedy([5, 6], 3, name))
    assert core.cancel("b")
    found = drain_samples(core)
    assert found["b"].action.action_ids.tolist() == [] and len(found["a"].action.action_ids) == 3


def drain_samples(core: EngineCore) -> dict[str, Any]:
    results = {}
    while core.is_busy:
        results.update({done.id: done.sampled for done in core.step()})
    return results


@pytest.mark.parametrize("style", ["llama", "gemma2"])
def test_siblings_compute_their_prompt_once(style: str) -> None:
    model = small_model(style, torch.float64)
    core = core_of(model, max_batch_size=4)
    prompt = prompts_of([30])[0]
    for i in range(4):
        core.add_request(greedy(prompt, 6, str(i), f"sibling {i}"))
    found = drain(core)
    assert [found[str(i)][1] for i in range(4)] == [0, 29, 29, 29]
    assert all(ids == generate_alone(model, prompt, 6) for ids, _ in found.values())


def test_a_sibling_waits_for_a_prompt_computed_in_chunks() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model, max_batch_size=2, prefill_tokens=16)
    prompt = prompts_of([60])[0]
    for i in range(2):
        core.add_request(greedy(prompt, 4, str(i)))
    found = drain(core)
    assert [found[str(i)] for i in range(2)] == [(generate_alone(model, prompt, 4), n) for n in (0, 59)]


def test_a_rewritten_history_reuses_the_prefix_that_is_still_true() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model)
    prompt = prompts_of([20])[0]
    run(core, greedy(prompt, 5, "first", "talk"))
    rewritten = [*prompt[:12], *prompts_of([6], seed=3)[0]]
    core.add_request(greedy(rewritten, 5, "second", "talk"))
    assert drain(core)["second"] == (generate_alone(model, rewritten, 5), 12)


def test_with_few_slots_the_least_recently_used_conversation_is_forgotten() -> None:
    model = small_model("llama", torch.float64)
    core = core_of(model, max_batch_size=2, num_slots=2)
    histories = {name: prompts_of([12], seed=ord(name))[0] for name in "abc"}
    cached = {}
    for name in "abcba":
        core.add_request(greedy(histories[name], 4, name, name))
        ids, num_cached = drain(core)[name]
        assert ids == generate_alone(model, histories[name], 4)
        histories[name] += [*ids, 7, 8]
        cached.setdefault(name, []).append(num_cached)
    assert cached == {"a": [0, 0], "b": [0, 15], "c": [0]}  # c pushed a out; b was still there


def test_a_batch_among_idle_slots_reads_only_its_own() -> None:
    """Rows in use may lie together, with gaps, or far apart: three ways to read them."""
    model = small_model("qwen3", torch.float64)
    core = core_of(model, max_batch_size=8, num_slots=24)
    histories = [prompts_of([4 + i], seed=i)[0] for i in range(24)]
    for i in range(0, 24, 8):
        run(core, *(greedy(histories[j], 3, str(j), str(j)) for j in range(i, i + 8)))
    for picked in ([3, 4, 5], [7, 8, 10, 11], [1, 23]):
        asked = {j: [*histories[j], *generate_alone(model, histories[j], 3), 9] for j in picked}
        for j, prompt in asked.items():
            core.add_request(greedy(prompt, 4, str(j), str(j)))
        for name, (ids, num_cached) in drain(core).items():
            assert num_cached == len(asked[int(name)]) - 2
            assert ids == generate_alone(model, asked[int(name)], 4)
