"""The engine's marks of positions equal those of the trainer's packing, however the cache was filled."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.faulty_positions import INDEX_FAULTS, shift_indices
from tests.engines.models import prompts_of, small_model
from tests.engines.replayed_steps import PlainGraphRunner
from tests.engines.seeing_models import FAMILIES, prompt, seeing_model

from stepwell.config.engine import EngineConfig
from stepwell.core import ImageStore, Request, SamplingParams, Step, TokenState
from stepwell.core.encoding import decode_step, encode_step
from stepwell.core.position_marks import mark_sequence
from stepwell.engines import EmbeddedEngine
from stepwell.packing import pack
from stepwell.policies import CausalLMPolicy, VLMPolicy
from stepwell.training.position_check import compute_step_marks


def sample(engine: EmbeddedEngine, states: list[TokenState], *names: str, num_tokens: int = 6) -> list[Step]:
    params = SamplingParams(max_tokens=num_tokens, seed=5, ignore_end=True)
    talks = [*names, *[None] * (len(states) - len(names))]
    requests = [Request(state, params, talk) for state, talk in zip(states, talks, strict=True)]
    samples = engine.generate_blocking(requests)
    return [sampled.step(state) for sampled, state in zip(samples, states, strict=True)]


def extend(step: Step, more: list[int]) -> TokenState:
    """The next prompt of a dialogue."""
    state, action = step.state, step.action
    return TokenState(np.concatenate([state.prompt_ids, action.action_ids, more]), state.images)  # type: ignore[union-attr]


def find_wrong(policy: Any, steps: list[Step], **options: Any) -> list[int]:
    """Steps whose marks differ from the trainer's."""
    assert all(step.position_mark is not None for step in steps)
    marks = compute_step_marks(policy, pack(steps, **options))
    return [i for i, step in enumerate(steps) if step.position_mark != marks[i]]


@pytest.mark.parametrize("attention", ["tree", "replay"])
@pytest.mark.parametrize("style", ["llama", "gemma2"])
def test_dialogues_siblings_and_cut_histories_are_read_where_the_trainer_reads_them(
    style: str, attention: str
) -> None:
    model = small_model(style)
    policy = CausalLMPolicy(copy.deepcopy(model), attention=attention)
    opening, *tails = prompts_of([20, 9, 3, 17, 1])
    settings = EngineConfig(max_batch_size=3, num_slots=4, prefill_tokens=16)
    with EmbeddedEngine(model, config=settings) as engine:
        steps = sample(engine, [TokenState(opening + tail) for tail in tails], "a", "b")
        steps += sample(engine, [extend(step, [7, 8]) for step in steps[:4]], "a", "b")
        steps += sample(
            engine, [TokenState(opening + [9] * 12)], "a"
        )  # this conversation dropped its history
        engine.load_weights(1, engine.live_weights())
        steps += sample(engine, [extend(steps[4], [5])], "a")
        engine.forget()
        steps += sample(engine, [extend(steps[5], [5])] * 3, "b")
    assert len(steps) == 13
    assert not find_wrong(policy, steps) and not find_wrong(policy, steps, token_budget=60, min_run=16)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_read_where_the_trainer_reads_them(family: str) -> None:
    model, image_format = seeing_model(family)
    image_store = ImageStore()
    policy = VLMPolicy(copy.deepcopy(model))
    policy.image_format, policy.image_store = image_format, image_store
    first = prompt(image_format, image_store, [3, 4, 5], 0, [6, 7])
    second = prompt(image_format, image_store, [3, 4, 5], 0, [6, 7], 1, [8])
    with EmbeddedEngine(model, image_format=image_format, image_store=image_store) as engine:
        steps = sample(engine, [first, second, first, TokenState([5, 6, 7])], "a")
        steps += sample(engine, [extend(steps[0], [9, 3])], "a")
    assert not find_wrong(policy, steps)
    if image_format.num_axes > 1:  # there a position is not the place
        num_read = first.prompt_ids.size + steps[0].num_units - 1
        assert steps[0].position_mark != mark_sequence(np.arange(num_read))


def test_requests_that_outlive_their_weights_are_read_at_the_same_positions() -> None:
    model = small_model("llama")
    settings = EngineConfig(on_new_weights="recompute", prefill_tokens=16)
    state = TokenState(prompts_of([30])[0])
    with EmbeddedEngine(model, config=settings) as engine:
        core = engine._core
        core.add_request(Request(state, SamplingParams(max_tokens=9, seed=1, ignore_end=True)))
        done, num_steps = [], 0
        while not done:
            done, num_steps = core.step(), num_steps + 1
            if num_steps == 6:
                core.apply_weights(1, lambda: None)
    assert done[0].sampled.policy_version.last == 1
    assert not find_wrong(CausalLMPolicy(model), [done[0].sampled.step(state)])


def test_one_position_too_many_is_seen_in_every_step_that_reaches_it() -> None:
    model = small_model("llama")
    states = [TokenState(ids) for ids in prompts_of([40, 59, 70])]
    with EmbeddedEngine(copy.deepcopy(model)) as engine, shift_indices(engine):
        steps = sample(engine, states)
    assert find_wrong(CausalLMPolicy(model), steps) == [2]  # 59 + 6 tokens: the last one is not read


def replay_steps(engine: EmbeddedEngine) -> None:
    """Let an engine on a CPU decode as captured graphs do."""
    core = engine._core
    plain = core.runner
    core.runner = PlainGraphRunner(plain.forward, plain.store, plain.table, False, core.config.max_batch_size)


@pytest.mark.parametrize("name", INDEX_FAULTS)
@pytest.mark.parametrize("decoding", ["plain", "replayed"])
def test_a_fault_in_prefill_decoding_or_reuse_is_seen_and_gone_without_it(decoding: str, name: str) -> None:
    check_that_a_fault_is_seen(small_model("llama"), name, is_replayed=decoding == "replayed")


@pytest.mark.gpu
@pytest.mark.parametrize("name", INDEX_FAULTS)
@pytest.mark.parametrize("forward", ["lean", "transformers"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("kernel", ["triton", "torch"])
def test_a_fault_of_an_engine_on_a_gpu_is_seen_in_bfloat16(
    kernel: str, graphs: bool, forward: str, name: str
) -> None:
    settings = EngineConfig(attention_kernel=kernel, cuda_graphs=graphs, forward=forward)
    check_that_a_fault_is_seen(small_model("llama").to("cuda", torch.bfloat16), name, settings)


def check_that_a_fault_is_seen(
    model: Any, name: str, settings: EngineConfig | None = None, *, is_replayed: bool = False
) -> None:
    """Sample dialogues with a shared opening from an engine with a fault, and from the same one without."""
    policy = CausalLMPolicy(copy.deepcopy(model))
    opening, *tails = prompts_of([50, 11, 20, 30])
    states = [TokenState([*opening, 3 + i, *tail]) for i, tail in enumerate(tails)]
    with EmbeddedEngine(model, config=settings or EngineConfig(prefill_tokens=64)) as engine:
        if is_replayed:
            replay_steps(engine)
        for plant in (INDEX_FAULTS[name], None):
            with nullcontext() if plant is None else plant(engine):
                steps = sample(engine, states, "a", "b", "c")
                steps += sample(engine, [extend(step, [7, 8, 9]) for step in steps], "a", "b", "c")
            assert bool(find_wrong(policy, steps)) == (plant is not None)


def test_a_mark_is_kept_with_its_step_and_is_no_part_of_what_makes_steps_equal() -> None:
    step = Step.from_tokens([1, 2], [3])
    step.position_mark = mark_sequence(np.arange(2))
    stored = decode_step(encode_step(step))
    assert stored.position_mark == step.position_mark
    stored.position_mark = None
    assert stored == step


def test_equal_axes_have_the_mark_of_one_axis_and_any_change_another() -> None:
    text = np.arange(50)
    three = np.stack([text] * 3)
    assert mark_sequence(three) == mark_sequence(text)
    marks = {mark_sequence(text), mark_sequence(text[:-1]), mark_sequence(text[::-1])}
    for axis in range(3):
        moved = three.copy()
        moved[axis, 20] += 1
        marks.add(mark_sequence(moved))
    assert len(marks) == 6
