"""Packed steps with images give what the plain model gives, in value and gradient, for every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.vlm.made import FAMILIES, Scene
from tests.variants import keep_quick

from stepwell.algos.kl import full as full_kl
from stepwell.core import InputError, Step, TokenState
from stepwell.packing import FlatAction, backward, evaluate, pack, replay
from stepwell.policies.forward import find_backbone
from stepwell.policies.vlm.vision import prepare_pixels

SceneOf = Callable[..., Scene]


def _plain_logits(scene: Scene, step: Step, model: Any) -> torch.Tensor:
    """The logits of the step's action from one call of the model as Hugging Face documents it."""
    assert isinstance(step.state, TokenState)
    ids = torch.tensor(np.concatenate([step.state.prompt_ids, step.action.action_ids]))[None].long()
    inputs: dict[str, Any] = {"input_ids": ids}
    names = [span.image for span in step.state.images]
    if names:
        images = [scene.image_store.get(name) for name in names]
        inputs |= prepare_pixels(scene.policy.image_format, images).arguments
        inputs["pixel_values"] = inputs["pixel_values"].double()
        if scene.policy.image_format.num_axes == 3:
            inputs["mm_token_type_ids"] = (ids == scene.policy.image_format.marker_id).int()
    return model(**inputs, use_cache=False).logits[0, step.state.prompt_ids.size - 1 : -1]


def _plain_logprobs(scene: Scene, step: Step) -> torch.Tensor:
    logits = _plain_logits(scene, step, scene.policy.model).log_softmax(-1)
    return logits.gather(-1, torch.tensor(step.action.action_ids)[:, None].long())[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logprobs_are_those_of_the_plain_model(scene_of: SceneOf, family: str) -> None:
    scene = scene_of(family)
    steps = scene.steps()
    packed = pack(steps)
    assert packed.num_tokens < 0.8 * packed.num_step_tokens, "there is something to share"
    assert not scene.policy.is_replayed
    with torch.no_grad():
        for ours, step in zip(scene.policy.logprobs(packed), steps, strict=True):
            torch.testing.assert_close(ours, _plain_logprobs(scene, step), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", keep_quick(FAMILIES, "tiny".__eq__))
def test_the_full_kl_of_packed_images_is_the_plain_formula(
    directory_of: Callable[[str], Path], family: str
) -> None:
    scene = Scene(directory_of(family), reference=True)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in scene.policy.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    steps = scene.steps()
    models = scene.policy.model, scene.policy.reference
    sides = ([_plain_logits(scene, step, model) for step in steps] for model in models)
    expected = full_kl(*map(torch.cat, sides))
    found = evaluate(scene.policy, pack(steps), ref_kls=True).ref_kls
    assert found is not None and float(expected.detach().mean()) > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    names = [name for name, _ in scene.policy.named_parameters()]
    ours, plain = (
        torch.autograd.grad(kls.mean(), list(scene.policy.parameters()), allow_unused=True)
        for kls in (found, expected)
    )
    for name, one, other in zip(names, ours, plain, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9, msg=name)


def _gradient(scene: Scene, packed: Any, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    for parameter in scene.policy.parameters():
        parameter.grad = None
    backward(scene.policy, packed, lambda outputs: ((outputs.logprobs * weights).sum(), {}))
    return {name: p.grad.clone() for name, p in scene.policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_are_those_of_single_steps(scene_of: SceneOf, family: str) -> None:
    scene = scene_of(family)
    steps = scene.steps()
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(sum(step.num_units for step in steps), generator=generator, dtype=torch.float64)
    packed = _gradient(scene, pack(steps), weights)
    small = _gradient(scene, pack(steps, token_budget=pack(steps).longest), weights)
    alone = {}
    at = 0
    for step in steps:
        part = _gradient(scene, replay(pack([step])), weights[at : at + step.num_units])
        at += step.num_units
        for name, grad in part.items():
            alone[name] = alone.get(name, 0) + grad
    assert packed.keys() == small.keys() == alone.keys()
    encoder = [name for name in packed if "vision" in name or "visual" in name]
    assert encoder and any(packed[name].abs().max() > 1e-3 for name in encoder), "the encoder is trained"
    for name, grad in packed.items():
        size = float(alone[name].abs().max())
        for other in (alone[name], small[name]):
            assert float((grad - other).abs().max()) <= 2e-6 * size + 1e-9, name


@pytest.mark.parametrize("family", FAMILIES)
def test_each_distinct_image_is_encoded_once(
    scene_of: SceneOf, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(family)
    calls: list[int] = []
    backbone = type(find_backbone(scene.policy.model))
    found = backbone.get_image_features

    def counted(self: Any, **arguments: Any) -> Any:
        output = found(self, **arguments)
        parts = output.pooler_output
        parts = [parts] if isinstance(parts, torch.Tensor) else parts
        calls.append(sum(part.reshape(-1, part.shape[-1]).shape[0] for part in parts))
        return output

    monkeypatch.setattr(backbone, "get_image_features", counted)
    steps = scene.steps()
    shown = [span.image for step in steps for span in step.state.images]  # type: ignore[union-attr]
    assert len(shown) == 9 and set(shown) == set(scene.names)
    with torch.no_grad():
        scene.policy.logprobs(pack(steps))
    tokens = scene.policy.image_format.build_tokens
    wanted = sum(tokens(*image.shape[:2]).num_features for image in scene.images)
    assert calls == [wanted]


@pytest.mark.parametrize("family", FAMILIES)
def test_images_change_what_follows_and_nothing_before(scene_of: SceneOf, family: str) -> None:
    scene = scene_of(family)
    steps = scene.steps()
    same = Step(steps[-2].state, steps[0].action, steps[0].behavior_logprobs)
    with torch.no_grad():
        first, other = scene.policy.logprobs(pack([steps[0], same]))
    assert (first - other).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flat_sequence_sees_the_images_inside_it(scene_of: SceneOf, family: str) -> None:
    scene = scene_of(family)
    first, second = scene.steps()[:2]
    start = first.state.prompt_ids.size
    whole = np.concatenate([second.state.prompt_ids, second.action.action_ids])
    later = second.state.images[len(first.state.images) :]
    assert len(later) == 2, "images come after the first prompt"
    flat = Step(first.state, FlatAction(whole[start:], images=later), np.zeros(0, np.float32))
    with torch.no_grad():
        ours, one, two = scene.policy.logprobs(pack([flat, first, second]))
        (alone,) = scene.policy.logprobs(replay(pack([flat])))
    place = second.state.prompt_ids.size - start
    torch.testing.assert_close(ours, alone, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours[: one.numel()], one, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours[place:], two, rtol=1e-6, atol=1e-7)


def test_placeholders_of_another_count_or_other_ids_are_refused(scene_of: SceneOf) -> None:
    scene = scene_of("qwen2_5_vl")
    state = scene.steps()[0].state
    assert isinstance(state, TokenState)
    (span,) = state.images
    short = type(span)(span.image, span.start, span.length - 1)
    ids = state.prompt_ids.copy()
    ids[span.start] = 9
    for wrong, message in (
        (TokenState(state.prompt_ids, (short,)), r"40 x 60 pixels as \d+"),
        (TokenState(ids, state.images), "are not the tokens that this model"),
        (TokenState(state.prompt_ids, (type(span)("0" * 32, span.start, span.length),)), "unknown here"),
    ):
        step = Step.from_tokens(wrong.prompt_ids, [3], images=wrong.images)
        with pytest.raises(InputError, match=message):
            scene.policy.logprobs(pack([step]))
