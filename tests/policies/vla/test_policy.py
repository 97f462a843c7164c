"""A robot policy's logprobs, values, gradients and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.vla.made import CHUNK, DIM, STEPS, policy, sampled_steps, shape, states
from tests.properties import examples

from stepwell.config import PolicyConfig
from stepwell.core import (
    ArrayAction,
    ArraySpec,
    ArrayState,
    ConfigError,
    InputError,
    ModelError,
    RobotEnvDescription,
    Step,
    WeightsError,
)
from stepwell.packing import backward, pack_arrays
from stepwell.policies.vla import VLAPolicy, bins
from stepwell.policies.vla.inputs import stack_inputs
from stepwell.policies.vla.parameter_count import count_parameters

HEADS = ("token", "flow")
NO_LOGPROBS = np.zeros(0, np.float32)


def given_step(state: ArrayState, actions: np.ndarray) -> Step:
    return Step(state, ArrayAction(actions.astype(np.float32), actions.size), NO_LOGPROBS)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("critic", ["none", "shared", "own"])
@pytest.mark.parametrize("image", [False, True])
def test_parameters_are_counted_without_building_the_policy(head: str, critic: str, image: bool) -> None:
    built = policy(head, critic=None if critic == "none" else critic, image=image)
    made_for = shape(head, image=image)
    counted = count_parameters(made_for.config, made_for.arrays, made_for.action_dim, critic)
    assert counted == sum(parameter.numel() for _, parameter in built.named_parameters())


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_token_logprobs_and_entropies_are_those_of_a_categorical(temperature: float) -> None:
    made = policy("token", dtype="float64")
    steps = sampled_steps(made, states(4), temperature=temperature)
    logits = made.model.head.logits(made.model.encode(*stack_inputs([s.state for s in steps], made.model)))
    expected = torch.distributions.Categorical(logits=logits / (temperature or 1.0))
    places = torch.from_numpy(np.stack([step.action.draws["bins"] for step in steps]))
    packed = pack_arrays(steps)
    torch.testing.assert_close(
        torch.stack(made.logprobs(packed)), expected.log_prob(places).flatten(1), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(torch.stack(made.entropies(packed)), expected.entropy().flatten(1))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_stored_logprobs_are_recomputed_also_where_an_episode_cut_the_chunk(
    head: str, temperature: float
) -> None:
    made = policy(head, dtype="float64")
    steps = sampled_steps(made, states(7), cuts=(3, 1, 2), temperature=temperature)
    units = [CHUNK, 1, 2] if head == "token" else [STEPS / DIM] * 3
    assert [step.num_units for step in steps[:3]] == [n * DIM for n in units]
    for found, step in zip(made.score(steps), steps, strict=True):
        np.testing.assert_allclose(found, step.behavior_logprobs, rtol=0, atol=2e-6)


def test_what_was_not_executed_moves_no_logprob_of_a_token_head_and_no_density_of_a_flow_head() -> None:
    for head in HEADS:
        made = policy(head, dtype="float64")
        (whole,) = sampled_steps(made, states(1))
        (cut,) = sampled_steps(made, states(1), cuts=(1,))
        if head == "token":
            np.testing.assert_array_equal(cut.behavior_logprobs, whole.behavior_logprobs[:DIM])
            continue
        chain = cut.action.draws["chain"].copy()
        chain[-1, 1:] += 5.0  # the end of what was never executed: no later transition depends on it
        other = Step(cut.state, ArrayAction(cut.action.chunk, STEPS, {"chain": chain}), cut.behavior_logprobs)
        np.testing.assert_allclose(made.score([other])[0], made.score([cut])[0], rtol=0, atol=1e-12)
        assert abs(made.score([whole])[0] - made.score([cut])[0]).min() > 1e-3


@pytest.mark.parametrize("head", HEADS)
def test_any_microbatch_gives_the_same_outputs_and_gradient(head: str) -> None:
    made = policy(head, critic="shared", dtype="float64", image=True)
    seen = states(7, image=True)
    steps = sampled_steps(made, seen, cuts=(3, 2))
    steps.insert(2, Step(seen[0], ArrayAction(np.zeros((0, DIM), np.float32), 0), NO_LOGPROBS))
    found = []
    for micro_batch in (None, 1, 3):
        made.module.zero_grad()
        _, _, outputs = backward(
            made,
            pack_arrays(steps, micro_batch=micro_batch),
            lambda out: (out.logprobs.exp().sum() * 1e-2 + out.values.square().mean(), {}),
            values=True,
        )
        grads = torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None])
        found.append((outputs.logprobs, outputs.values, grads))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert found[0][0].numel() == sum(step.num_units for step in steps)
    assert found[0][1].numel() == sum(step.num_units + 1 for step in steps)


@pytest.mark.parametrize("head", HEADS)
def test_imitation_draws_the_same_whatever_the_microbatch(head: str) -> None:
    made = policy(head, dtype="float64")
    rng = np.random.default_rng(0)
    steps = [given_step(s, rng.uniform(-1, 1, (1 + i % CHUNK, DIM))) for i, s in enumerate(states(5))]
    whole, parts = (made.evaluate(pack_arrays(steps, micro_batch=m, seed=4)).logprobs for m in (None, 2))
    torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-12)
    other = made.evaluate(pack_arrays(steps, seed=5)).logprobs
    assert bool((other != whole).all()) == (head == "flow")


@pytest.mark.parametrize("head", HEADS)
def test_every_weight_gets_a_gradient(head: str) -> None:
    made = policy(head, critic="own", image=True)
    steps = sampled_steps(made, states(6, image=True))
    backward(
        made, pack_arrays(steps), lambda out: (out.logprobs.square().mean() + out.values.square().mean(), {}),
        values=True,
    )  # fmt: skip
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, name


def test_values_are_those_of_the_state_at_every_place_of_a_step() -> None:
    for critic in ("shared", "own"):
        made = policy("token", critic=critic)
        steps = sampled_steps(made, states(3))
        expected = made.state_values([step.state for step in steps])
        for row, value in zip(made.values(pack_arrays(steps)), expected, strict=True):
            np.testing.assert_allclose(row.detach().numpy(), np.full(CHUNK * DIM + 1, value), rtol=1e-5)


def test_instructions_matter_and_each_state_has_its_own() -> None:
    made = policy("token", dtype="float64")
    (state,) = states(1)
    told = [
        ArrayState(state.arrays, words)
        for words in ("open the drawer", "close the drawer", "open the drawer")
    ]
    action = ArrayAction(np.zeros((1, DIM), np.float32), DIM)
    first, second, third = made.score([Step(s, action, NO_LOGPROBS) for s in told])
    assert np.array_equal(first, third) and abs(first - second).max() > 1e-4


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("critic", [None, "shared", "own"])
def test_a_saved_policy_is_the_same_when_opened(head: str, critic: str | None, tmp_path: Path) -> None:
    made = policy(head, critic=critic)
    made.fit_inputs(states(20, seed=5))
    made.save_pretrained(tmp_path / "p")
    opened = VLAPolicy.from_pretrained(tmp_path / "p")
    assert opened.model.shape == made.model.shape and (opened.critic is None) == (critic is None)
    for name, tensor in made.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name
    with_critic = VLAPolicy.from_pretrained(tmp_path / "p", critic=critic or "shared")
    assert with_critic.critic is not None and with_critic.critic.kind == (critic or "shared")


def test_a_directory_that_is_no_robot_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        VLAPolicy.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="llama"):
        VLAPolicy.from_pretrained(tmp_path)


def test_settings_make_the_policy_and_an_env_of_another_kind_is_refused(tmp_path: Path) -> None:
    description = RobotEnvDescription("w", shape("flow").arrays, DIM, 10)
    config = PolicyConfig(critic="shared", vla=shape("flow").config)
    made, again = (VLAPolicy.from_config(config, description, seed) for seed in (1, 1))
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters(), strict=True))
    made.save_pretrained(tmp_path / "p")
    config = config.model_copy(update={"model": str(tmp_path / "p")})
    VLAPolicy.from_config(config, description)
    other = RobotEnvDescription("other", {"proprio": ArraySpec((9,))}, DIM, 10)
    with pytest.raises(ConfigError, match=r"proprio \[3\].*other has proprio \[9\]"):
        VLAPolicy.from_config(config, other)
    with pytest.raises(ConfigError, match="bfloat16"):
        VLAPolicy.from_config(config.model_copy(update={"dtype": "bfloat16"}), description)


def test_steps_of_another_policy_are_refused() -> None:
    token, flow = policy("token"), policy("flow")
    with pytest.raises(InputError, match=r"drawn as bins.*draws chain"):
        flow.score(sampled_steps(token, states(2)))
    with pytest.raises(InputError, match="'proprio'"):
        token.score([given_step(ArrayState({"state": np.zeros(4, np.float32)}), np.zeros((1, DIM)))])
    with pytest.raises(InputError, match=r"policy\.vla\.chunk"):
        token.score([given_step(states(1)[0], np.zeros((CHUNK + 1, DIM)))])
    with pytest.raises(WeightsError, match="missing"):
        token.load_state_dict(flow.state_dict())


def test_inputs_are_centred_and_scaled_by_what_was_shown() -> None:
    made = policy("token", critic="own")
    arrays = [
        {"proprio": np.array([1000 + i, 5.0, 0.0], np.float32), "state": np.full(4, 0.01 * i, np.float32)}
        for i in range(5)
    ]
    made.fit_inputs([ArrayState(a) for a in arrays])
    for encoder in (made.model.encoder, made.critic.backbone):
        assert encoder.centre[:3].tolist() == [1002.0, 5.0, 0.0]
        assert encoder.scale[:3].tolist() == pytest.approx([2**0.5, 1.0, 1.0])


def test_a_reference_keeps_the_logprobs_of_when_it_was_made() -> None:
    made = policy("flow")
    steps = sampled_steps(made, states(3))
    made.reference = VLAPolicy.from_shape(shape("flow"), seed=9).model
    packed = pack_arrays(steps)
    expected = VLAPolicy(made.reference).logprobs(packed)
    for found, row in zip(made.reference_logprobs(packed), expected, strict=True):
        assert torch.equal(found, row) and not found.requires_grad


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20), st.integers(2, 300))
def test_the_middle_of_an_actions_bin_is_near_the_action_and_lies_in_it(
    actions: list[float], count: int
) -> None:
    values = torch.tensor(actions)
    places = bins.find_bin(values, count)
    centres = bins.find_bin_centre(places, count)
    assert float((centres - values).abs().max()) <= 1.0 / count + 1e-6
    assert torch.equal(bins.find_bin(centres, count), places)


def test_drawn_bins_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5]).expand(20_000, 1, 4)
    uniforms = torch.from_numpy(np.random.default_rng(0).random((20_000, 1)))
    places = bins.draw_bins(logits, uniforms, torch.full((20_000,), 0.5))
    shares = torch.bincount(places.flatten(), minlength=4) / 20_000
    torch.testing.assert_close(shares, (logits[0, 0] / 0.5).softmax(0), rtol=0, atol=0.01)
    assert bins.draw_bins(logits[:3], uniforms[:3], torch.zeros(3)).flatten().tolist() == [1, 1, 1]
