"""Sampling: right probabilities, repeatable seeds, logprobs as defined, no neighbour's influence."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.models import prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.core import EngineCore
from stepwell.engines.runner_factory import build_runner
from stepwell.engines.sampling import choose_tokens, hash_uniforms, hash_uniforms_on_device


def sample(model: Any, requests: list[Request], **settings: Any) -> list[Sampled]:
    config = EngineConfig(**settings)
    own = copy.deepcopy(model).requires_grad_(False)
    core = EngineCore(own, None, build_runner(own, config), config)
    for request in requests:
        core.add_request(request)
    results: dict[str, Sampled] = {}
    while core.is_busy:
        results.update({done.id: done.sampled for done in core.step()})
    return [results[request.id] for request in requests]


def logprobs_by_forward(model: Any, prompt: list[int], action: list[int], temperature: float) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + action])).logits[0, len(prompt) - 1 : -1].double()
    table = torch.log_softmax(logits / temperature, dim=-1)
    return table[torch.arange(len(action)), torch.tensor(action)].numpy()


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_host_and_device_draw_the_same_numbers(pairs: list[tuple[int, int]]) -> None:
    seeds, indices = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    host = hash_uniforms(seeds, indices)
    device = hash_uniforms_on_device(torch.from_numpy(seeds), torch.from_numpy(indices)).numpy()
    assert host.dtype == np.float32 and (host == device).all()
    assert (host >= 0).all() and (host < 1).all()


def test_draws_are_uniform_along_indices_and_along_seeds() -> None:
    n = 20_000
    for numbers in (
        hash_uniforms(np.zeros(n, np.int64), np.arange(n)),
        hash_uniforms(np.arange(n), np.zeros(n, np.int64)),
    ):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 45  # chi-square, 19 degrees: p < 0.001 beyond 43.8
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_sampled_frequencies_are_the_models_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -30.0]).expand(40_000, 5)
    numbers = torch.from_numpy(hash_uniforms(np.full(40_000, 9), np.arange(40_000)))
    tokens, logprobs = choose_tokens(logits, torch.full((40_000,), 0.7), None, numbers)
    exact = torch.softmax(logits[0] / 0.7, dim=-1)
    frequencies = torch.bincount(tokens, minlength=5) / 40_000
    assert torch.allclose(frequencies, exact, atol=0.01)
    assert frequencies[4] == 0
    assert torch.allclose(logprobs, exact.log()[tokens])


def test_top_p_samples_only_the_smallest_set_that_reaches_it_and_in_proportion() -> None:
    probs = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])
    numbers = torch.from_numpy(hash_uniforms(np.full(20_000, 3), np.arange(20_000)))
    logits = probs.log().expand(20_000, 5)
    tokens, logprobs = choose_tokens(logits, None, torch.full((20_000,), 0.65), numbers)
    frequencies = torch.bincount(tokens, minlength=5) / 20_000
    assert torch.allclose(frequencies, torch.tensor([0, 4 / 7, 0, 3 / 7, 0]), atol=0.012)
    assert torch.allclose(logprobs, probs.log()[tokens])  # untruncated


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=30), st.floats(0.01, 0.999), st.floats(0, 0.999999))
def test_top_p_support_matches_a_plain_sort(logits: list[float], top_p: float, number: float) -> None:
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float64), dim=-1)
    ordered = sorted(probs.tolist(), reverse=True)
    total, least = 0.0, ordered[0]
    for value in ordered:
        if total >= top_p:
            break
        least, total = value, total + value
    token, _ = choose_tokens(
        torch.tensor([logits], dtype=torch.float64), None, torch.tensor([top_p]), torch.tensor([number])
    )
    assert probs[token[0]] >= least * (1 - 1e-6)


def test_top_p_one_row_is_untouched_by_a_neighbour_that_truncates() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).expand(2, 50)
    for number in np.linspace(0, 0.999, 50, dtype=np.float32):
        numbers = torch.tensor([number, number])
        alone = choose_tokens(logits[:1], None, None, numbers[:1])[0]
        beside = choose_tokens(logits, None, torch.tensor([1.0, 0.5]), numbers)[0]
        assert alone[0] == beside[0]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("style", ["llama", "gemma2"])
def test_logprobs_are_those_of_a_plain_forward_at_the_recorded_temperature(
    style: str, temperature: float
) -> None:
    model = small_model(style)
    prompts = prompts_of([4, 19, 11])
    params = SamplingParams(max_tokens=9, temperature=temperature, top_p=0.8, seed=5)
    for prompt, got in zip(
        prompts, sample(model, [Request(TokenState(p), params) for p in prompts]), strict=True
    ):
        action = got.action.action_ids.tolist()
        expected = logprobs_by_forward(model, prompt, action, got.sampling.logit_temperature)
        assert got.logprobs.dtype == np.float32
        np.testing.assert_allclose(got.logprobs, expected, atol=2e-5)
        assert (got.sampling.temperature, got.sampling.top_p) == (temperature, 0.8)


def test_a_seed_repeats_and_another_differs() -> None:
    model = small_model("llama", torch.float64)
    prompt = prompts_of([8])[0]
    runs = [
        sample(
            model, [Request(TokenState(prompt), SamplingParams(max_tokens=20, seed=seed, ignore_end=True))]
        )
        for seed in (1, 1, 2)
    ]
    ids = [got[0].action.action_ids.tolist() for got in runs]
    assert ids[0] == ids[1] != ids[2]


def test_a_requests_tokens_do_not_depend_on_its_company() -> None:
    model = small_model("qwen3", torch.float64)
    prompts = prompts_of([5, 18, 9, 30, 2])
    requests = [
        Request(TokenState(p), SamplingParams(max_tokens=15, seed=i, temperature=0.9, ignore_end=True))
        for i, p in enumerate(prompts)
    ]
    together = sample(model, requests, max_batch_size=5)
    squeezed = sample(model, requests[::-1], max_batch_size=2, prefill_tokens=16)[::-1]
    for alone, a, b in zip([sample(model, [r])[0] for r in requests], together, squeezed, strict=True):
        for other in (a, b):
            assert other.action.action_ids.tolist() == alone.action.action_ids.tolist()
            np.testing.assert_allclose(other.logprobs, alone.logprobs, atol=1e-6)


def test_a_mixed_batch_gives_each_row_its_own_temperature() -> None:
    model = small_model("llama", torch.float64)
    prompt = prompts_of([8])[0]
    params = [
        SamplingParams(max_tokens=12, temperature=t, top_p=p, seed=4, ignore_end=True)
        for t, p in ((0.0, 1.0), (1.0, 1.0), (1.7, 1.0), (1.0, 0.5))
    ]
    requests = [Request(TokenState(prompt), p) for p in params]
    mixed = sample(model, requests)
    for request, got in zip(requests, mixed, strict=True):
        assert got.action.action_ids.tolist() == sample(model, [request])[0].action.action_ids.tolist()


def test_a_missing_seed_is_drawn_from_the_engines_stream_and_recorded() -> None:
    model = small_model("llama", torch.float64)
    requests = [
        Request(TokenState([5, 6, 7]), SamplingParams(max_tokens=10, ignore_end=True)) for _ in range(3)
    ]
    first, again = sample(model, requests, seed=11), sample(model, requests, seed=11)
    seeds = [got.sampling.seed for got in first]
    assert len(set(seeds)) == 3 and seeds == [got.sampling.seed for got in again]
    repeated = Request(TokenState([5, 6, 7]), SamplingParams(max_tokens=10, seed=seeds[1], ignore_end=True))
    assert sample(model, [repeated])[0].action == first[1].action
