"""An engine that sees: its logprobs are the model's own, and no cache is shared by different images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.seeing_models import FAMILIES, PLACEHOLDER, image, own_logprobs, prompt, seeing_model

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import InputError, WeightsError
from stepwell.core.images import ImageStore
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import ImageSpan, TokenState
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.forward import LlamaForward
from stepwell.engines.image_features import ImageFeatures
from stepwell.engines.parity import TOLERANCE
from stepwell.engines.weights import fingerprint_of

CLOSE = TOLERANCE["float64"]  # norms are taken in float32 also in float64 models
WORDS = [5, 6, 7, 8, 9, 10, 11, 12]


def engine_of(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> tuple[EmbeddedEngine, Any]:
    model, image_format = seeing_model(family, dtype)
    config = EngineConfig(max_batch_size=4, num_slots=8, **settings)
    return EmbeddedEngine(model, None, config, image_format=image_format, image_store=ImageStore()), model


def sample(engine: EmbeddedEngine, *states: TokenState, talk: str | None = None) -> list[Any]:
    params = SamplingParams(max_tokens=5, seed=3, ignore_end=True)
    return engine.generate_blocking([Request(state, params, talk) for state in states])


def gap(engine: EmbeddedEngine, model: Any, state: TokenState, sampled: Any) -> float:
    image_features = engine._core.image_features
    assert image_features is not None
    ids = sampled.action.action_ids.tolist()
    own = own_logprobs(model, image_features.image_format, image_features.image_store, state, ids)
    return float(np.abs(own - sampled.logprobs).max())


def states_of(engine: EmbeddedEngine) -> list[TokenState]:
    image_features = engine._core.image_features
    assert image_features is not None
    shown = image_features.image_format, image_features.image_store
    return [
        prompt(*shown, WORDS, 1, WORDS[::-1]),
        prompt(*shown, WORDS, 2, WORDS[::-1]),
        prompt(*shown, 1, WORDS, 2, [3, 4]),
        prompt(*shown, WORDS, [13, 14]),
        prompt(*shown, 2, [4], 2, [4]),
    ]


@pytest.mark.parametrize("forward", ["auto", "transformers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_prompts_with_images_are_those_of_the_models_own_forward(
    family: str, forward: str
) -> None:
    engine, model = engine_of(family, forward=forward, prefill_tokens=16)  # images are cut by prefills
    with engine:
        states = states_of(engine)
        for state, sampled in zip(states, sample(engine, *states), strict=True):
            assert gap(engine, model, state, sampled) < CLOSE


def test_a_tiny_decoder_inside_a_model_that_sees_runs_lean() -> None:
    engine, _ = engine_of("llava", forward="auto")
    with engine:
        assert isinstance(engine._core.runner.forward, LlamaForward)


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_placeholders_of_different_images_share_no_cache(family: str) -> None:
    engine, model = engine_of(family)
    with engine:
        one, other, *_ = states_of(engine)
        assert np.array_equal(one.prompt_ids, other.prompt_ids)
        (first,) = sample(engine, one)
        (second,) = sample(engine, other)
        (again,) = sample(engine, one)
        assert first.num_cached == 0 and second.num_cached == len(WORDS)
        assert again.num_cached == one.prompt_ids.size - 1
        assert np.array_equal(first.logprobs, again.logprobs)
        assert gap(engine, model, other, second) < CLOSE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_from_its_cache_with_a_new_image(family: str) -> None:
    engine, model = engine_of(family)
    with engine:
        image_features = engine._core.image_features
        assert image_features is not None
        state = prompt(image_features.image_format, image_features.image_store, WORDS, 1, WORDS)
        for number in (2, 1, 3):
            (sampled,) = sample(engine, state, talk="one")
            assert gap(engine, model, state, sampled) < CLOSE
            known = state.prompt_ids.size + sampled.action.num_units
            later = prompt(image_features.image_format, image_features.image_store, [20, 21], number, [22])
            ids = np.concatenate([state.prompt_ids, sampled.action.action_ids, later.prompt_ids])
            moved = [ImageSpan(s.image, s.start + known, s.length) for s in later.images]
            state = TokenState(ids, (*state.images, *moved))
        (sampled,) = sample(engine, state, talk="one")
        assert sampled.num_cached == known - 1  # all but the last sampled token, which was never computed
        assert gap(engine, model, state, sampled) < CLOSE


def test_siblings_compute_an_image_once_and_new_weights_compute_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, model = engine_of("llava")
    with engine:
        state = states_of(engine)[0]
        image_features = engine._core.image_features
        assert image_features is not None
        looked: list[int] = []
        inner = image_features._encode_images
        monkeypatch.setattr(
            image_features, "_encode_images", lambda pixels: looked.append(len(pixels)) or inner(pixels)
        )
        sample(engine, state, state, state)
        assert looked == [1]
        engine.load_weights(1, model.state_dict())
        sample(engine, state)
        assert looked == [1, 1]
        engine.forget()
        sample(engine, state)
        assert looked == [1, 1, 1]


def test_features_over_their_limit_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model = engine_of("llava")
    with engine:
        states = states_of(engine)
        image_features = engine._core.image_features
        assert image_features is not None
        monkeypatch.setattr("stepwell.engines.image_features.FEATURE_BYTES", 0)
        for state in (states[0], states[1], states[4], states[0]):
            (sampled,) = sample(engine, state)
            assert (
                len(image_features._features) == 1
                and image_features._num_bytes == next(iter(image_features._features.values())).nbytes
            )
            assert gap(engine, model, state, sampled) < CLOSE


def test_new_weights_reach_the_vision_tower_and_the_fingerprint() -> None:
    engine, model = engine_of("llava")
    other, _ = seeing_model("llava", torch.float64, seed=1)
    with engine:
        state = states_of(engine)[0]
        sample(engine, state)
        weights = other.state_dict()
        engine.load_weights(1, weights, fingerprint=fingerprint_of(weights))
        assert engine.fingerprint() == fingerprint_of(weights) != fingerprint_of(model.state_dict())
        (sampled,) = sample(engine, state)
        assert gap(engine, other, state, sampled) < CLOSE
        tower = next(name for name in weights if "vision_tower" in name)
        with pytest.raises(WeightsError, match="1 names are missing"):
            engine.load_weights(2, {name: weights[name] for name in weights if name != tower})


def test_requests_in_flight_look_again_when_they_recompute_under_new_weights() -> None:
    engine, _ = engine_of("qwen", on_new_weights="recompute")
    other, _ = seeing_model("qwen", torch.float64, seed=1)
    core = engine._core
    state = states_of(engine)[2]
    core.add_request(Request(state, SamplingParams(max_tokens=6, seed=1, ignore_end=True), id="r"))
    for _ in range(3):
        core.step()
    ready = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    core.apply_weights(1, lambda: engine.model.load_state_dict(ready))
    finished = []
    while not finished:
        finished = core.step()
    sampled = finished[0].sampled
    image_features = core.image_features
    assert image_features is not None
    own = own_logprobs(
        other,
        image_features.image_format,
        image_features.image_store,
        state,
        sampled.action.action_ids.tolist(),
    )
    assert np.abs(own - sampled.logprobs)[3:].max() < CLOSE < np.abs(own - sampled.logprobs)[:3].max()
    engine.close()


def test_a_placeholder_that_was_sampled_is_a_word_and_not_an_image() -> None:
    engine, model = engine_of("llava")
    with engine:
        with_image = states_of(engine)[0]
        words = TokenState(with_image.prompt_ids)
        (first,) = sample(engine, with_image)
        (second,) = sample(engine, words)
        assert second.num_cached == len(WORDS)
        embedding = model.get_input_embeddings()(torch.from_numpy(words.prompt_ids.astype(np.int64)))
        with torch.no_grad():
            logits = model(inputs_embeds=embedding[None], use_cache=False).logits[0, -1]
        own = torch.log_softmax(logits, -1)[int(second.action.action_ids[0])]
        assert abs(float(own) - second.logprobs[0]) < CLOSE
        assert not np.array_equal(first.logprobs, second.logprobs)


async def test_a_prompt_with_an_image_streams() -> None:
    engine, model = engine_of("llava")
    with engine:
        state = states_of(engine)[0]
        request = Request(state, SamplingParams(max_tokens=3, ignore_end=True))
        items = [item async for item in engine.stream(request)]
        assert len(items) == 4 and gap(engine, model, state, items[-1]) < CLOSE


def test_images_that_cannot_be_seen_are_refused_with_the_reason() -> None:
    engine, _ = engine_of("llava")
    with engine:
        state = states_of(engine)[0]
        span = state.images[0]
        unknown = TokenState(state.prompt_ids, (ImageSpan("0" * 32, span.start, span.length),))
        short = TokenState(state.prompt_ids, (ImageSpan(span.image, span.start, span.length - 1),))
        ends = TokenState(state.prompt_ids[: span.start + span.length], state.images)
        wrong = TokenState(np.where(state.prompt_ids == PLACEHOLDER, 3, state.prompt_ids), state.images)
        for bad, reason in (
            (unknown, "unknown here"),
            (short, "writes an image"),
            (ends, "ends with an image"),
            (wrong, "not the tokens"),
        ):
            with pytest.raises(InputError, match=reason):
                sample(engine, bad)


def test_numbers_of_images_are_negative_and_never_given_twice() -> None:
    _, image_format = seeing_model("idefics")
    image_store = ImageStore()
    image_features = ImageFeatures(image_format, image_store, lambda pixels: [])
    one = prompt(image_format, image_store, WORDS, 1, [4])
    keys = image_features.encode_prompt(one)
    inside = slice(one.images[0].start, one.images[0].start + one.images[0].length)
    assert (keys[inside] < 0).all() and (np.delete(keys, np.r_[inside]) >= 0).all()
    pairs = set(zip(one.prompt_ids[inside].tolist(), keys[inside].tolist(), strict=True))
    assert len(pairs) == len(set(one.prompt_ids[inside].tolist()))  # one number per token id of the image
    assert np.array_equal(image_features.encode_prompt(one), keys)
    image_features.forget()
    assert set(image_features.encode_prompt(one)[inside].tolist()).isdisjoint(keys[inside].tolist())
    assert image(1).shape == (16, 16, 3)
