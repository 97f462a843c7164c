"""Prompts with images at servers: a local one that does as vLLM does, and a real one.

`scripts/test_extra_vllm.sh` starts the real one and runs this.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.completions_server import serving
from tests.engines.seeing_server import SeeingServer
from tests.engines.served_engines import QUICK, changed_weights
from tests.engines.served_models import SEEING, read_seeing, write_seeing

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError, EngineError, InputError, WeightsError
from stepwell.core.images import ImageStore
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import ImageSpan, TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.parity import check_parity
from stepwell.engines.served.engine import ServedEngine
from stepwell.engines.served.images import ServedImages
from stepwell.engines.served.vllm_images import VllmImageSampler
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.rendering.vision import ImageFormat, load_image_format

URL = os.environ.get("STEPWELL_VLLM_SEEING", "")
FAMILY = os.environ.get("STEPWELL_VLLM_FAMILY", "")
REAL = pytest.param(
    "real vllm",
    marks=[pytest.mark.extra_vllm, pytest.mark.skipif(not URL, reason="run scripts/test_extra_vllm.sh")],
)
IMAGES = ImageStore()
PARTS = {"llava": {"encoder": "vision_tower"}, "qwen": {"encoder": "visual.blocks", "projector": "merger"}}


@dataclass
class Place:
    """A server, and the model that it serves."""

    family: str
    folder: Path
    image_format: ImageFormat
    server: SeeingServer | None = None  # None: the real one

    def open_engine(self, backend: str = "vllm", **server: Any) -> ServedEngine:
        urls = [URL if self.server is None else self.server.url]
        settings = {"backend": backend, "urls": urls, "server": {**QUICK, **server}}
        return ServedEngine(
            *read_seeing(self.family),
            EngineConfig.model_validate(settings),
            folder=self.folder / "weights",
            image_format=self.image_format,
            image_store=IMAGES,
        )

    def publish_next(self, engine: ServedEngine, seed: int, part: str = "") -> VLMPolicy:
        """New weights (of the parts with this name), and the trainer that has them."""
        policy = VLMPolicy.from_pretrained(self.folder, image_store=IMAGES)
        old = policy.model.state_dict()
        new = changed_weights(policy.model, 0.1, seed)
        policy.model.load_state_dict({name: new[name] if part in name else old[name] for name in old})
        engine.load_weights(engine.version + 1, policy.model.state_dict())
        return policy

    def show(self, *images: int, seed: int = 0, words: int = 12) -> TokenState:
        """So many words, each image, and as many words after every image."""
        draw = np.random.default_rng(seed)
        parts, spans = [draw.integers(3, 900, size=words)], []
        for image in images:
            pixels = draw_image(image)
            run = self.image_format.build_tokens(*pixels.shape[:2]).ids
            spans.append(ImageSpan(IMAGES.add(pixels), sum(map(len, parts)), len(run)))
            parts += [run, draw.integers(3, 900, size=words)]
        return TokenState(np.concatenate(parts), tuple(spans))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models as directories."""
    return {family: write_seeing(tmp_path_factory.mktemp(family), family) for family in SEEING}


@contextmanager
def open_place(family: str, folder: Path, is_real: bool = False) -> Iterator[Place]:
    model, tokenizer = read_seeing(family)
    image_format = load_image_format(folder, tokenizer)
    assert image_format is not None
    if is_real:
        yield Place(family, folder, image_format)
        return
    with serving(SeeingServer(copy.deepcopy(model), tokenizer, "processed", context=512)) as server:
        assert isinstance(server, SeeingServer)
        yield Place(family, folder, image_format, server)


@pytest.fixture(params=[*SEEING, REAL])
def place(request: Any, folders: dict[str, Path]) -> Iterator[Place]:
    is_real = request.param == "real vllm"
    family = FAMILY if is_real else request.param
    with open_place(family, folders[family], is_real) as found:
        yield found


@pytest.fixture
def local(folders: dict[str, Path]) -> Iterator[Place]:
    with open_place("llava", folders["llava"]) as found:
        yield found


@pytest.fixture
def engine(place: Place) -> Iterator[ServedEngine]:
    with place.open_engine() as running:
        running.load_weights(0, read_seeing(place.family)[0].state_dict())
        yield running


def draw_image(seed: int, height: int = 48, width: int = 80) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ask(state: TokenState, **params: Any) -> Request:
    return Request(state, SamplingParams(**{"max_tokens": 8, "seed": 1, **params}))


def measure_gap(policy: VLMPolicy, requests: list[Request], samples: list[Sampled]) -> float:
    steps = [sample.step(request.state) for request, sample in zip(requests, samples, strict=True)]
    return check_parity(policy, steps, strict=False).max_abs


def test_logprobs_after_images_are_those_of_the_trainer(engine: ServedEngine, place: Place) -> None:
    policy = place.publish_next(engine, seed=1)
    shown: list[tuple[int, ...]] = [(1,), (1, 2), (3, 3, 4), (), (2, 1)]
    heats = (1.0, 0.7, 1.3, 1.0, 0.0)
    requests = [ask(place.show(*shown[i % 5], seed=i), temperature=heats[i // 5], seed=i) for i in range(25)]
    samples = asyncio.run(engine.generate(requests))
    gap = measure_gap(policy, requests, samples)
    print(f"{place.family}: largest difference of logprobs {gap:.3g}")
    assert gap <= 1e-4
    assert {sample.policy_version for sample in samples} == {VersionSpan.at(engine.version)}


def test_greedy_actions_after_images_are_those_of_the_embedded_engine(
    engine: ServedEngine, place: Place
) -> None:
    policy = place.publish_next(engine, seed=2)
    states = [place.show(*images, seed=i) for i, images in enumerate([(1,), (2,), (1, 2), (2, 1)])]
    requests = [ask(state, temperature=0.0, ignore_end=True) for state in states]
    tokenizer, config = read_seeing(place.family)[1], EngineConfig(max_length=512)
    with EmbeddedEngine(
        policy.model, tokenizer, config, image_format=place.image_format, image_store=IMAGES
    ) as own:
        ours = asyncio.run(own.generate(requests))
    theirs = asyncio.run(engine.generate(requests))
    for a, b in zip(theirs, ours, strict=True):
        assert a.action == b.action
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_equal_beginnings_share_keys_only_if_they_show_the_same_image(
    engine: ServedEngine, place: Place
) -> None:
    engine.forget()
    first, other = place.show(5, words=110), place.show(6, words=110)
    assert first.prompt_ids.tolist() == other.prompt_ids.tolist()
    answers = [asyncio.run(engine.generate([ask(state)]))[0] for state in (first, first, other)]
    assert answers[0].num_cached == 0
    assert answers[1].num_cached > 110 >= answers[2].num_cached
    assert answers[0].action == answers[1].action
    assert not np.allclose(answers[0].logprobs[:1], answers[2].logprobs[:1], atol=1e-4)


@pytest.mark.parametrize("part", ["encoder", "projector", "language_model"])
def test_new_weights_of_every_part_reach_samples_after_images_that_were_seen_before(
    engine: ServedEngine, place: Place, part: str
) -> None:
    requests = [ask(place.show(7, seed=i), seed=i) for i in range(4)]
    before = asyncio.run(engine.generate(requests))
    policy = place.publish_next(engine, seed=3, part=PARTS[place.family].get(part, part))
    after = asyncio.run(engine.generate(requests))
    assert measure_gap(policy, requests, after) <= 1e-4
    assert measure_gap(policy, requests, before) > 1e-4


async def test_requests_with_images_under_way_go_on_while_weights_change(
    engine: ServedEngine, place: Place
) -> None:
    before = engine.version
    requests = [ask(place.show(8, seed=i), max_tokens=150, ignore_end=True) for i in range(3)]
    under_way = asyncio.create_task(engine.generate(requests))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(place.publish_next, engine, 4)
    samples = await under_way
    assert [len(sample.logprobs) for sample in samples] == [150] * 3
    assert {sample.policy_version for sample in samples} == {VersionSpan(before, before + 1)}


def test_weights_by_collective_reach_a_policy_that_sees(place: Place) -> None:
    asked = [ask(place.show(9, 1, seed=i), seed=i) for i in range(4)]
    with place.open_engine(weight_transfer="collective") as engine:
        policy = place.publish_next(engine, seed=5)
        assert measure_gap(policy, asked, asyncio.run(engine.generate(asked))) <= 1e-4


async def test_a_stream_after_images_gives_what_generate_gives(local: Place) -> None:
    assert local.server is not None
    images, asked = ServedImages(local.image_format, IMAGES), ask(local.show(14))
    async with VllmImageSampler(local.server.url, "tiny", images=images) as sampler:
        (whole,) = await sampler.generate([asked])
        *tokens, last = [item async for item in sampler.stream(asked)]
    assert isinstance(last, Sampled) and last.action == whole.action
    assert isinstance(last.action, TokenAction)
    assert [token.id for token in tokens] == last.action.action_ids.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("part", ["vision_tower", ""])
@pytest.mark.parametrize("fault", ["keeps_features", "keeps_tower", "keeps_cache", "ignores_updates"])
def test_a_server_with_old_weights_or_features_of_images_is_found(
    local: Place, fault: str, part: str
) -> None:
    assert local.server is not None
    with local.open_engine() as engine:
        local.publish_next(engine, seed=6)
        local.server.faults = {fault}
        with pytest.raises(WeightsError, match="Its samples were not used"):
            local.publish_next(engine, seed=7, part=part)


def test_an_image_is_encoded_once_for_every_set_of_weights(local: Place) -> None:
    assert local.server is not None
    with local.open_engine() as engine:
        for seed in (8, 9):
            local.publish_next(engine, seed=seed)
            before = local.server.num_encoded
            asyncio.run(engine.generate([ask(local.show(10, 11, seed=i)) for i in range(4)]))
            assert local.server.num_encoded == before + 2


def test_what_a_server_cannot_be_given_is_refused(local: Place) -> None:
    assert local.server is not None
    local.server.scale_out = False
    with pytest.raises(ConfigError, match="with --enable-scale-out"):
        local.open_engine()
    with pytest.raises(ConfigError, match="sglang gets prompts as token ids, without images"):
        local.open_engine("sglang")
    local.server.scale_out = True
    state = local.show(12)
    moved = TokenState(state.prompt_ids, (ImageSpan(state.images[0].image, 3, 36),))
    with local.open_engine() as engine:
        engine.load_weights(0, read_seeing()[0].state_dict())
        with pytest.raises(InputError, match="are not the tokens that this model"):
            asyncio.run(engine.generate([ask(moved)]))


@pytest.mark.parametrize("change", ["place", "prompt", "token"])
def test_a_reply_to_another_prompt_or_with_other_tokens_is_refused(local: Place, change: str) -> None:
    assert local.server is not None
    answer = local.server.on_vllm_inference_v1_generate
    with local.open_engine() as engine:
        engine.load_weights(0, read_seeing()[0].state_dict())

        def change_reply(body: dict[str, Any]) -> dict[str, Any]:
            reply = copy.deepcopy(answer(body))
            if change == "place":
                reply["mm_placeholders"]["image"][0]["offset"] += 1
            elif change == "prompt":
                reply["prompt_token_ids"].append(5)
            else:
                reply["choices"][0]["token_ids"][0] += 1
            return reply

        local.server.on_vllm_inference_v1_generate = change_reply  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="server"):
            asyncio.run(engine.generate([ask(local.show(13))]))
