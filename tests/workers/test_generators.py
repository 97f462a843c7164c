"""Generators as processes: the same samples as here, new weights under way, and what a crash costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.vla.made import policy, states
from tests.workers.engines import SMALL, SmallEngine
from tests.workers.traces import nothing_left

from stepwell.config.engine import EngineConfig
from stepwell.core import (
    ArrayState,
    ConfigError,
    EncodingError,
    EngineError,
    InputError,
    Request,
    Sampled,
    SamplingParams,
    TokenAction,
    TokenState,
    VersionSpan,
    WeightsError,
    WorkerError,
)
from stepwell.core.arrays import equal
from stepwell.engines.array_engine import ArrayEngine
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.weights import fingerprint_of
from stepwell.workers import ProcessGenerator
from stepwell.workers.engine_builders import ARRAY, EMBEDDED
from stepwell.workers.weight_bytes import pack_weights, unpack_weights

MODEL = "tiny-0.3m"


@asynccontextmanager
async def generator(
    factory: str = SMALL, settings: Any = None, **more: Any
) -> AsyncIterator[ProcessGenerator]:
    with nothing_left():
        made = ProcessGenerator("gen", factory, settings, **more)
        try:
            yield made
        finally:
            await made.close()


def asked(*values: float, order: str = "") -> list[Request]:
    return [Request(ArrayState({"state": np.array([value, -value])}, order)) for value in values]


def chunks(samples: list[Sampled]) -> list[list[float]]:
    return [sample.action.chunk.ravel().tolist() for sample in samples]  # type: ignore[union-attr]


def tokens(count: int, length: int = 12) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(
            TokenState(rng.integers(5, 200, 20)),
            SamplingParams(max_tokens=length, seed=seed, ignore_end=True),
            f"{seed}",
        )
        for seed in range(count)
    ]


def assert_near(found: list[Sampled], expected: list[Sampled]) -> None:
    """Two processes may differ in the last bits (seen on aarch64), and in no more."""
    for one, other in zip(found, expected, strict=True):
        if isinstance(one.action, TokenAction):
            assert one.action == other.action
        else:
            np.testing.assert_allclose(one.action.chunk, other.action.chunk, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-4, atol=1e-4)
        assert one.sampling == other.sampling and one.policy_version == other.policy_version


def assert_same(found: list[Sampled], expected: list[Sampled]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.action == other.action and equal(one.logprobs, other.logprobs)
        assert one.sampling == other.sampling and one.policy_version == other.policy_version


@pytest.mark.slow
async def test_the_embedded_engine_in_a_process_samples_what_it_samples_here() -> None:
    settings = {"model": MODEL, "config": {"max_batch_size": 4, "num_slots": 8}}
    here = EmbeddedEngine.from_pretrained(MODEL, EngineConfig(max_batch_size=4, num_slots=8))
    half = {name: tensor.to(torch.bfloat16) * 0.5 for name, tensor in here.model.state_dict().items()}
    async with generator(EMBEDDED, settings, num_threads=1, hang_s=600) as gen:
        assert_near(await gen.generate(tokens(3)), here.generate_blocking(tokens(3)))
        await gen.forget()
        here.forget()
        assert_near(await gen.generate(tokens(3)), here.generate_blocking(tokens(3)))

        with pytest.raises(WeightsError, match="these weights belong to another model"):
            await gen.load_weights(1, {"other": torch.zeros(3)})
        long = asyncio.create_task(gen.generate(tokens(4, length=1000)))  # goes on while weights arrive
        await asyncio.sleep(0.02)
        fingerprint = await gen.load_weights(1, half)
        here.load_weights(1, half)
        assert fingerprint == here.fingerprint() == fingerprint_of(half, torch.float32)
        assert {sample.policy_version for sample in await long} == {VersionSpan(0, 1)}
        await gen.forget()
        here.forget()
        assert_near(await gen.generate(tokens(3)), here.generate_blocking(tokens(3)))
    here.close()


@pytest.mark.slow
async def test_a_robot_policy_in_a_process_samples_what_it_samples_here(tmp_path: Path) -> None:
    made = policy("flow", image=True)
    made.save_pretrained(tmp_path / "policy")
    here = ArrayEngine.from_pretrained(tmp_path / "policy")
    requests = [Request(state, SamplingParams(seed=seed)) for seed, state in enumerate(states(5, image=True))]
    async with generator(ARRAY, {"model": str(tmp_path / "policy")}, num_threads=1, hang_s=600) as gen:
        assert_near(await gen.generate(requests), here.generate_blocking(requests))
        weights = {name: tensor * 0.9 for name, tensor in made.model.state_dict().items()}
        fingerprint = await gen.load_weights(2, weights)
        here.load_weights(2, weights)
        assert fingerprint == here.fingerprint()
        found = await gen.generate(requests)
        assert_near(found, here.generate_blocking(requests))
        assert {sample.policy_version for sample in found} == {VersionSpan.at(2)}


async def test_array_samples_are_those_of_the_engine_here() -> None:
    requests = asked(1.0, 0.5, 1 / 3)
    expected = await SmallEngine(3.0).generate(requests)
    async with generator(settings={"scale": 3.0}) as gen:
        assert_same(await gen.generate(requests), expected)
        assert await gen.generate([]) == []
        await gen.forget()
        assert (await gen.generate(requests))[0].num_cached == 1


async def test_requests_under_way_go_on_while_weights_load() -> None:
    async with generator() as gen:
        slow = asyncio.create_task(gen.generate(asked(2.0, order="until 4")))
        quick = asyncio.create_task(gen.generate(asked(2.0)))
        assert chunks(await quick) == [[2.0, -2.0]] and not slow.done()
        await gen.load_weights(4, {"scale": torch.tensor([10.0], dtype=torch.bfloat16)})
        (sample,) = await slow
        assert sample.policy_version == VersionSpan(0, 4)
        assert chunks([sample]) == [[20.0, -20.0]]


@pytest.mark.slow
async def test_a_restarted_generator_has_the_weights_that_were_published_last() -> None:
    async with generator() as gen:
        weight = torch.tensor([7.0])
        fingerprint = await gen.load_weights(3, {"scale": weight})
        weight.fill_(0.0)  # the trainer goes on; what was published does not change
        with pytest.raises(WeightsError):
            await gen.load_weights(4, {"scale": weight, "more": weight})
        waiting = asyncio.create_task(gen.generate(asked(1.0, order="until 9")))
        await asyncio.sleep(0.05)
        with pytest.raises(WorkerError, match="exit code 5"):
            await gen.generate(asked(1.0, order="die"))
        with pytest.raises(WorkerError, match="exit code 5"):
            await waiting
        (sample,) = await gen.generate(asked(1.0))
        assert chunks([sample]) == [[7.0, -7.0]] and sample.policy_version == VersionSpan.at(3)
        assert gen.read_health().num_restarts == 1
        assert await gen.load_weights(4, {"scale": np.array([7.0], np.float32)}) == fingerprint


@pytest.mark.slow
async def test_an_engine_that_raises_lives_on_and_one_that_blocks_is_restarted() -> None:
    async with generator(hang_s=1.5) as gen:
        with pytest.raises(EngineError, match="out of memory"):
            await gen.generate(asked(1.0, order="raise"))
        assert gen.read_health().num_restarts == 0
        with pytest.raises(WorkerError, match="made no progress"):
            await gen.generate(asked(1.0, order="block"))
        assert chunks(await gen.generate(asked(1.0))) == [[1.0, -1.0]]


@pytest.mark.parametrize(
    "factory, words",
    [
        ("nothing", "must have the form module:function"),
        ("tests.nowhere:small", "no module 'tests.nowhere'"),
        ("tests.workers.engines:large", "has no 'large'"),
        (EMBEDDED, "needs 'model'"),
    ],
)
async def test_a_factory_that_is_not_there_is_a_mistake_of_the_configuration(
    factory: str, words: str
) -> None:
    async with generator(factory) as gen:
        with pytest.raises(ConfigError, match=words):
            await gen.start()


def test_weights_of_every_dtype_come_back_equal() -> None:
    weights = {
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "eighth": torch.randn(4).to(torch.float8_e4m3fn),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "numpy": np.arange(3, dtype=np.int16),
    }
    found = unpack_weights(*pack_weights(weights))
    assert list(found) == list(weights)
    for name, tensor in weights.items():
        wanted = torch.as_tensor(tensor)
        assert found[name].dtype == wanted.dtype and found[name].shape == wanted.shape
        assert bytes_of(found[name]) == bytes_of(wanted)


def bytes_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_weights_that_lie_about_their_size_or_dtype_are_refused() -> None:
    header, arrays = pack_weights({"a": torch.zeros(4)})
    for wrong in (
        ["a", "float64", [4]],
        ["a", "float32", [5]],
        ["a", "nn", [4]],
        ["a", "float32", [-4]],
        ["a"],
    ):
        with pytest.raises(EncodingError):
            unpack_weights({"weights": [wrong]}, arrays)
    with pytest.raises(EncodingError):
        unpack_weights(header, [])
    with pytest.raises(InputError, match="is a list"):
        pack_weights({"a": [1.0]})
