"""VLMPolicy beyond logprobs: positions, critics, references, adapters, saving, models that cannot pack."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.policies.vlm.made import FAMILIES, Scene
from tests.variants import keep_quick
from transformers import AutoModelForImageTextToText

from stepwell.config import PolicyConfig
from stepwell.core import ImageStore, InputError, ModelError, TokenState
from stepwell.packing import backward, pack, replay
from stepwell.policies import CausalLMPolicy, VLMPolicy, accepts_images, open_policy, resolve_model
from stepwell.policies.vlm.tiny import TINY_VLM_SIZES, build_tiny_vlm
from stepwell.policies.vlm.vision import encode_images, find_decoder, prepare_pixels

SceneOf = Callable[..., Scene]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl"])
def test_positions_are_those_of_the_model_itself(scene_of: SceneOf, family: str) -> None:
    scene = scene_of(family)
    form = scene.policy.image_format
    for step in scene.steps():
        state = step.state
        assert isinstance(state, TokenState)
        ids = torch.tensor(np.concatenate([state.prompt_ids, step.action.action_ids]))[None].long()
        if not state.images:
            continue
        images = [scene.image_store.get(span.image) for span in state.images]
        grid = prepare_pixels(form, images).arguments["image_grid_thw"]
        kinds = (ids == form.marker_id).int()
        expected, _ = scene.policy.model.model.get_rope_index(ids, kinds, image_grid_thw=grid)
        ours = form.build_positions(ids.shape[1], form.place_images(state, scene.image_store))
        assert np.array_equal(ours, expected[:, 0].numpy())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_opens_again_bit_for_bit(scene_of: SceneOf, family: str, tmp_path: Path) -> None:
    scene = scene_of(family)
    steps = scene.steps()
    saved = tmp_path / "saved"
    scene.policy.save_pretrained(saved)
    again = VLMPolicy.from_pretrained(saved, image_store=scene.image_store, dtype="float64")
    plain, report = AutoModelForImageTextToText.from_pretrained(
        saved, dtype=torch.float64, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    own = scene.policy.model.state_dict()
    for other in (again.model.state_dict(), plain.state_dict(), scene.policy.model_weights()):
        assert own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)
    with torch.no_grad():
        before, after = scene.policy.logprobs(pack(steps)), again.logprobs(pack(steps))
    assert all(map(torch.equal, before, after))
    assert (saved / "preprocessor_config.json").read_bytes() == (
        scene.path / "preprocessor_config.json"
    ).read_bytes()


@pytest.mark.parametrize("family", keep_quick(["tiny", "qwen2_5_vl", "idefics3"], "tiny".__eq__))
@pytest.mark.parametrize("critic", ["shared", "own"])
def test_values_are_equal_packed_and_alone_and_a_critic_of_its_own_sees(
    directory_of: Callable[[str], Path], family: str, critic: str, tmp_path: Path
) -> None:
    scene = Scene(directory_of(family), critic=critic)
    steps = scene.steps()
    with torch.no_grad():
        packed = scene.policy.values(pack(steps))
        alone = [scene.policy.values(replay(pack([step])))[0] for step in steps]
    for one, other in zip(packed, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    values = scene.policy.state_values([step.state for step in steps])
    assert values == pytest.approx([float(value[0]) for value in packed], rel=1e-5)
    if critic == "own":
        backward(
            scene.policy,
            pack(steps),
            lambda outputs: (outputs.values.square().sum(), {}),
            values=True,
            logprobs=False,
        )
        names = {name for name, p in scene.policy.named_parameters() if p.grad is not None}
        assert names and all(name.startswith("critic.") for name in names)
        assert any("vis" in name for name in names), "its encoder learns too"
    scene.policy.save_pretrained(tmp_path / "saved")
    again = VLMPolicy.from_pretrained(tmp_path / "saved", image_store=scene.image_store, dtype="float64")
    with torch.no_grad():
        assert all(map(torch.equal, packed, again.values(pack(steps))))


def test_the_reference_sees_and_stays(directory_of: Callable[[str], Path]) -> None:
    scene = Scene(directory_of("tiny"), reference=True)
    packed = pack(scene.steps())
    before = [part.detach() for part in scene.policy.logprobs(packed)]
    with torch.no_grad():
        for parameter in scene.policy.parameters():
            parameter.mul_(1.5)
    reference = scene.policy.reference_logprobs(packed)
    torch.testing.assert_close(torch.cat(reference), torch.cat(before), rtol=1e-10, atol=1e-12)
    assert (torch.cat(scene.policy.logprobs(packed)) - torch.cat(before)).abs().max() > 1e-3


def test_adapters_train_and_their_directory_sees(directory_of: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    scene = Scene(directory_of("tiny"), lora={"r": 2})
    steps = scene.steps()
    backward(scene.policy, pack(steps), lambda outputs: (outputs.logprobs.sum(), {}))
    trained = {name for name, parameter in scene.policy.named_parameters()}
    assert trained and all("lora" in name for name in trained)
    with torch.no_grad():
        for parameter in scene.policy.parameters():
            parameter.add_(0.01)
        expected = torch.cat(scene.policy.logprobs(pack(steps)))
    scene.policy.save_pretrained(tmp_path / "adapters")
    assert accepts_images(tmp_path / "adapters")
    again = VLMPolicy.from_pretrained(tmp_path / "adapters", image_store=scene.image_store, dtype="float64")
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(again.logprobs(pack(steps))), expected)


def test_a_model_whose_attention_stays_is_replayed_with_one_warning(
    directory_of: Callable[[str], Path], scene_of: SceneOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_scene = scene_of("llava")
    kind = type(find_decoder(packed_scene.policy.model))
    monkeypatch.setattr(kind, "_supports_attention_backend", False)
    with pytest.warns(UserWarning, match="cannot run prefix trees") as caught:
        scene = Scene(directory_of("llava"))
    assert len(caught) == 1 and scene.policy.is_replayed
    with torch.no_grad():
        expected = packed_scene.policy.logprobs(pack(packed_scene.steps()))
        found = scene.policy.logprobs(pack(scene.steps()))
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=1e-8, atol=1e-10)


def test_gradient_checkpointing_changes_nothing(
    directory_of: Callable[[str], Path], scene_of: SceneOf
) -> None:
    plain, saving = scene_of("qwen2_5_vl"), Scene(directory_of("qwen2_5_vl"), gradient_checkpointing=True)
    grads = []
    for scene in (plain, saving):
        for parameter in scene.policy.parameters():
            parameter.grad = None
        backward(scene.policy, pack(scene.steps()), lambda outputs: (outputs.logprobs.sum(), {}))
        grads.append([p.grad for p in scene.policy.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_settings_open_the_kind_of_policy_a_directory_holds(directory_of: Callable[[str], Path]) -> None:
    image_store = ImageStore()
    policy = open_policy(PolicyConfig(model=str(directory_of("llava")), critic="shared"), image_store)
    assert isinstance(policy, VLMPolicy) and policy.image_store is image_store and policy.critic is not None
    plain = open_policy(PolicyConfig(model="tiny-0.3m"), image_store)
    assert type(plain) is CausalLMPolicy
    assert accepts_images("tiny-vlm-0.5m") and not accepts_images("tiny-0.3m")


def test_a_language_policy_says_that_it_cannot_see(scene_of: SceneOf) -> None:
    blind = CausalLMPolicy.from_pretrained("tiny-0.3m")
    state = scene_of("tiny").steps()[0].state
    assert isinstance(state, TokenState)
    ids = np.minimum(state.prompt_ids, 1000)
    with pytest.raises(InputError, match="use a vision-language model"):
        blind.state_values([TokenState(ids, state.images)])


def test_an_encoder_that_gives_another_number_of_features_is_refused(scene_of: SceneOf) -> None:
    scene = scene_of("tiny")
    wrong: Any = scene_of("qwen2_5_vl").policy.image_format

    class Half(type(scene.policy.image_format)):  # type: ignore[misc]
        def build_tokens(self, height: int, width: int) -> Any:
            return wrong.build_tokens(height, width)

    form = scene.policy.image_format
    half = Half.__new__(Half)
    half.__dict__.update(form.__dict__)
    with pytest.raises(ModelError, match="36 features for images that take"):
        encode_images(scene.policy.model, half, scene.images[:1])


@pytest.mark.parametrize(("name", "count"), [("tiny-vlm-0.5m", 547_424), ("tiny-vlm-1.5m", 1_484_416)])
def test_a_tiny_model_has_the_documented_size_and_depends_on_its_seed_alone(name: str, count: int) -> None:
    assert name in TINY_VLM_SIZES
    state = torch.get_rng_state()
    model, tokenizer = build_tiny_vlm(name, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.config.text_config.vocab_size == len(tokenizer) == 1025
    again, other = build_tiny_vlm(name, seed=3)[0], build_tiny_vlm(name, seed=4)[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_tiny_model_is_found_by_name_and_opens_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = VLMPolicy.from_pretrained(resolve_model("tiny-vlm-0.5m", seed=1))
    assert not policy.is_replayed and policy.image_format.build_tokens(50, 70).num_features == 36
