"""Weights that travel beside the work: what is sent, what a generator has meanwhile, and what faults cost."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.policies.vla.made import policy, states
from tests.workers.engines import SMALL
from tests.workers.test_generators import asked, chunks

from stepwell.core import EncodingError, Request, SamplingParams, VersionSpan, WeightsError
from stepwell.core.frames import Frame
from stepwell.core.weight_parts import WeightParts
from stepwell.engines.array_engine import ArrayEngine
from stepwell.engines.weights import fingerprint_of
from stepwell.policies import CausalLMPolicy
from stepwell.runs.build.weight_publisher import WeightPublisher
from stepwell.workers import ProcessGenerator
from stepwell.workers.contracts import Generator
from stepwell.workers.engine_builders import ARRAY
from stepwell.workers.generator import GeneratorProcess, send_snapshot
from stepwell.workers.hosts import GeneratorHost
from stepwell.workers.in_process import LocalGenerator
from stepwell.workers.weight_snapshots import SnapshotBuffers, WeightSnapshot

BUCKET = 1000  # bytes: every matrix is cut into several


def snap(version: int, parts: WeightParts, buffers: SnapshotBuffers | None = None) -> WeightSnapshot:
    made = (buffers or SnapshotBuffers(torch.float32, BUCKET)).take_snapshot(version, parts)
    made.compute_marks()
    return made


def scaled(parts: WeightParts, factor: float, only: str = "") -> WeightParts:
    found = {name: one * factor if only in name else one for name, one in parts.tensors.items()}
    return WeightParts(found, parts.adapters, parts.frozen)


class Wire:
    """The way to a host, which counts what goes over it and may change it."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.host = engine, GeneratorHost(engine, lambda: None)
        self.sent: list[Frame] = []

    async def send(self, frame: Frame) -> Frame:
        self.sent.append(frame)
        return await self.host.answer_call(self.damage(frame))

    def damage(self, frame: Frame) -> Frame:
        return frame

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for frame in self.sent for array in frame.arrays)


async def test_only_parts_that_changed_are_sent_in_buckets_of_the_set_size() -> None:
    made = policy("token")
    parts = made.weight_parts()
    wire = Wire(ArrayEngine(made.model))
    first = await send_snapshot(wire.send, snap(1, parts))
    assert wire.num_bytes == 0 and wire.engine.version == 1  # it was built with these weights
    assert first.fingerprint == wire.engine.fingerprint() == fingerprint_of(made.model_weights())
    name = max(parts.tensors, key=lambda one: parts.tensors[one].numel())
    changed = scaled(parts, 0.5, only=name)
    answer = await send_snapshot(wire.send, snap(2, changed))
    assert answer.num_bytes == wire.num_bytes == parts.tensors[name].nbytes > 3 * BUCKET
    assert max(sum(array.nbytes for array in frame.arrays) for frame in wire.sent) == BUCKET
    assert answer.fingerprint == wire.engine.fingerprint() == fingerprint_of(changed.tensors)
    assert 0 < answer.paused_s < 60 and wire.engine.version == 2
    wire.sent.clear()
    assert (await send_snapshot(wire.send, snap(3, changed))).num_bytes == 0 and wire.engine.version == 3


async def test_with_lora_only_the_adapters_travel_and_the_engine_has_the_merged_weights() -> None:
    made = CausalLMPolicy.from_pretrained("tiny-0.3m", lora={"r": 2})
    engine = _make_token_engine()
    wire, buffers = Wire(engine), SnapshotBuffers(torch.float32, 10**6)
    adapters = sum(p.nbytes for n, p in made.named_parameters() if ".lora_" in n)
    first = await send_snapshot(wire.send, snap(1, made.weight_parts(), buffers))
    assert (
        wire.num_bytes
        == first.num_bytes
        == adapters
        < 0.1 * sum(one.nbytes for one in made.model_weights().values())
    )
    with torch.no_grad():
        for number, (name, parameter) in enumerate(made.named_parameters()):
            if ".lora_" in name:
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter) + number)
    wire.sent.clear()
    snapshot = snap(2, made.weight_parts(), buffers)
    answer = await send_snapshot(wire.send, snapshot)
    assert wire.num_bytes == adapters and answer.fingerprint == snapshot.fingerprint != first.fingerprint
    live = engine.live_weights()
    for name, merged in made.model_weights().items():
        torch.testing.assert_close(live[name], merged, rtol=1e-6, atol=1e-6)
    engine.close()


def _make_token_engine() -> Any:
    from stepwell.config.engine import EngineConfig
    from stepwell.engines.embedded import EmbeddedEngine

    return EmbeddedEngine.from_pretrained("tiny-0.3m", EngineConfig(max_batch_size=2, num_slots=2))


async def test_a_flipped_byte_never_reaches_the_engine_and_is_sent_again() -> None:
    made = policy("token")
    engine = ArrayEngine(made.model)
    before, parts = engine.fingerprint(), scaled(made.weight_parts(), 0.5)
    flips = 1

    class Damaging(Wire):
        def damage(self, frame: Frame) -> Frame:
            nonlocal flips
            if frame.op != "add_weights" or not flips:
                return frame
            flips -= 1
            arrays = [array.copy() for array in frame.arrays]
            arrays[-1][-1] ^= 1
            return Frame(frame.op, frame.header, arrays)

    wire = Damaging(engine)
    with pytest.raises(EncodingError, match="was damaged in transit"):
        await send_snapshot(wire.send, snap(1, parts))
    assert engine.fingerprint() == before and engine.version == 0

    flips, generator = 1, LocalGenerator("gen", engine)
    generator._host.answer_call = wire.send  # type: ignore[method-assign]
    publisher = await published(generator, 1, parts)
    assert engine.fingerprint() == fingerprint_of(parts.tensors) and engine.version == 1
    assert publisher.take_metrics()["sync/retries"] == 1.0
    flips = 99
    with pytest.raises(EncodingError, match="was damaged in transit"):
        await published(generator, 2, scaled(parts, 0.5))
    assert engine.version == 1


@dataclass
class Source:
    """Parts that are published."""

    parts: WeightParts

    def model_weights(self) -> dict[str, Any]:
        return dict(self.parts.tensors)

    def weight_parts(self) -> WeightParts:
        return self.parts


async def publish(generator: Generator, version: int, parts: WeightParts) -> WeightPublisher:
    """A publisher that is sending a version to one generator."""
    loop = asyncio.get_running_loop()
    made = WeightPublisher(
        [generator],
        torch.float32,
        lambda work: asyncio.run_coroutine_threadsafe(work, loop),
        bucket_mb=BUCKET / 1e6,
    )
    await asyncio.to_thread(made.publish, version, Source(parts))
    return made


async def published(generator: Generator, version: int, parts: WeightParts) -> WeightPublisher:
    """A publisher that has sent one version to one generator."""
    made = await publish(generator, version, parts)
    await asyncio.to_thread(made.finish)
    return made


async def test_torn_and_foreign_weights_are_refused() -> None:
    made = policy("token")
    wire, parts = Wire(ArrayEngine(made.model)), scaled(made.weight_parts(), 0.5)
    snapshot = snap(1, parts)
    begin = Frame("begin_weights", {"version": 1, "marks": snapshot.marks, "adapters": {}})
    lacking = (await wire.send(begin)).header["lacking"]
    buckets = snapshot.list_buckets(lacking)
    for bucket in buckets[:-1]:
        await wire.send(Frame("add_weights", {"version": 1, "pieces": bucket.pieces}, bucket.arrays))
    with pytest.raises(EncodingError, match=r"version 1 lacks \d+ parts"):
        await wire.send(Frame("swap_weights", {"version": 1}))
    last = {"version": 2, "pieces": buckets[-1].pieces}
    with pytest.raises(EncodingError, match="bytes of version 2 have come, but version 1 is under way"):
        await wire.send(Frame("add_weights", last, buckets[-1].arrays))
    with pytest.raises(EncodingError, match="bytes of version 2 have come, but version 1 is under way"):
        await wire.send(Frame("swap_weights", {"version": 2}))
    assert wire.engine.version == 0 and wire.engine.fingerprint() == fingerprint_of(made.model_weights())
    with pytest.raises(WeightsError, match="these weights belong to another model: "):
        await send_snapshot(wire.send, snap(3, WeightParts({"other": torch.zeros(3)})))
    await send_snapshot(wire.send, snap(4, parts))
    with pytest.raises(WeightsError, match="version 3 is older"):
        await send_snapshot(wire.send, snap(3, made.weight_parts()))


async def test_samples_of_an_engine_that_does_not_hold_what_was_published_are_not_learnt_from() -> None:
    made = policy("token")

    class Torn(ArrayEngine):
        def update_weights(self, version: int, changed: Any) -> None:
            super().update_weights(version, changed)
            next(iter(self.model.parameters())).view(-1)[0] += 1e-3

    generator = LocalGenerator("gen", Torn(made.model))
    publisher = await publish(generator, 1, scaled(made.weight_parts(), 0.5))
    assert publisher.version == -1
    with pytest.raises(WeightsError, match="weights in the engine are not those that were published"):
        await asyncio.to_thread(publisher.await_version, 1)


async def test_samples_have_the_old_version_until_the_swap_and_the_trainer_may_change_its_weights() -> None:
    made = policy("token")
    engine = ArrayEngine(made.model)
    wire, requests = Wire(engine), [Request(one, SamplingParams(seed=1)) for one in states(2)]
    live = dict(made.weight_parts().tensors)
    snapshot = snap(5, scaled(made.weight_parts(), 0.5))
    wanted = snapshot.fingerprint
    seen: list[int] = []

    class Sampling(Wire):
        def damage(self, frame: Frame) -> Frame:
            seen.append(engine.generate_blocking(requests)[0].policy_version.last)
            return frame

    wire = Sampling(engine)
    answer = await send_snapshot(wire.send, snapshot)
    assert set(seen) == {0} and len(seen) == len(wire.sent) > 5
    assert engine.generate_blocking(requests)[0].policy_version.first == 5
    assert answer.fingerprint == wanted

    buffers = SnapshotBuffers(torch.float32, BUCKET)
    kept = snap(6, WeightParts(live), buffers)
    bytes_before = {name: one.clone() for name, one in kept.tensors.items()}
    with torch.no_grad():
        for tensor in live.values():
            tensor.mul_(3.0)
    snap(7, WeightParts(live), buffers)  # the next one is written elsewhere
    assert all(torch.equal(kept.tensors[name], one) for name, one in bytes_before.items())


def test_frozen_parts_are_copied_once_and_floats_are_rounded_to_the_dtype_of_generators() -> None:
    tensors = {"a": torch.tensor([1.00001]), "b": torch.tensor([2.0]), "n": torch.tensor([3])}
    buffers = SnapshotBuffers(torch.bfloat16, BUCKET)
    first = buffers.take_snapshot(1, WeightParts(tensors, frozen=frozenset({"b"})))
    second = buffers.take_snapshot(2, WeightParts(tensors, frozen=frozenset({"b"})))
    assert first.tensors["b"] is second.tensors["b"] and first.tensors["a"] is not second.tensors["a"]
    assert first.tensors["a"].dtype == torch.bfloat16 and first.tensors["n"].dtype == torch.int64
    third = buffers.take_snapshot(3, WeightParts(tensors, frozen=frozenset({"b"})))
    assert third.tensors["a"] is first.tensors["a"]  # two buffers, in turn


async def kill(generator: ProcessGenerator) -> None:
    """Kill its process, and wait until its parent knows."""
    health = generator.read_health()
    assert health.pid is not None
    os.kill(health.pid, signal.SIGKILL)
    while generator.read_health().pid == health.pid and generator.read_health().is_alive:
        await asyncio.sleep(0.01)


async def test_a_generator_that_is_killed_in_mid_transfer_has_the_whole_version_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = policy("token")
    made.save_pretrained(tmp_path / "policy")
    parts = scaled(made.weight_parts(), 0.5)
    call, num_buckets = GeneratorProcess._call_frame, 0

    async def kill_under_way(self: GeneratorProcess, frame: Frame) -> Frame:
        nonlocal num_buckets
        num_buckets += frame.op == "add_weights"
        if frame.op == "add_weights" and num_buckets == 3:
            await kill(generator)
        return await call(self, frame)

    monkeypatch.setattr(GeneratorProcess, "_call_frame", kill_under_way)
    generator = ProcessGenerator("gen", ARRAY, {"model": str(tmp_path / "policy")}, num_threads=1)
    try:
        await generator.start()
        publisher = await published(generator, 4, parts)
        assert num_buckets >= 3 and publisher.version == 4 and generator.read_health().num_restarts == 1
        assert publisher.take_versions() == [(4, fingerprint_of(parts.tensors))]
        assert publisher.take_metrics()["sync/retries"] == 1.0
        (sample,) = await generator.generate([Request(states(1)[0], SamplingParams(seed=1))])
        assert sample.policy_version == VersionSpan.at(4)
    finally:
        await generator.close()


async def test_an_engine_that_takes_whole_weights_only_gets_them_and_again_after_its_death() -> None:
    generator = ProcessGenerator("gen", SMALL, None, num_threads=1)
    try:
        answer = await generator.sync_weights(snap(3, WeightParts({"scale": torch.tensor([4.0])})))
        assert answer.is_merged and answer.num_bytes == 4
        await kill(generator)
        (sample,) = await generator.generate(asked(2.0))
        assert chunks([sample]) == [[8.0, -8.0]] and sample.policy_version == VersionSpan.at(3)
    finally:
        await generator.close()
