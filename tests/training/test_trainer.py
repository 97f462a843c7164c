"""The trainer: one update of real weights on real samples."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runs.small import small_components, small_config, warmed_model
from tests.training.made import made, sampled

from stepwell.algos.kl import full as kl_of_logits
from stepwell.algos.recipes import RECIPES, KLChoice
from stepwell.config.training import OptimizerConfig, TrainConfig
from stepwell.core import ConfigError, InputError, Split, Status, TokenState, Trajectory, WeightsError
from stepwell.engines.parity import check_parity
from stepwell.packing import backward, evaluate, pack
from stepwell.policies import CausalLMPolicy
from stepwell.policies.forward import find_backbone
from stepwell.rollout import Job
from stepwell.training import Optimizer, Trainer, rate_share
from stepwell.training.flat_sequence import flatten_trajectories


def policy(critic: str | None = "shared", **more: object) -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy.from_pretrained(warmed_model(), critic=critic, **more)  # type: ignore[arg-type]


def trainer(name: str = "steppo", *, own: CausalLMPolicy | None = None, **settings: object) -> Trainer:
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}, **settings})
    made = Trainer(own or policy(), RECIPES[name], config, horizon=2)
    made.freeze_reference()
    return made


def weights(one: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in one.policy.state_dict().items()}


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    return sampled()[1]


@pytest.mark.parametrize("name", ["steppo", "grpo", "gspo", "vagen-base"])
def test_microbatches_make_the_same_update(trajectories: list[Trajectory], name: str) -> None:
    whole, parts = trainer(name), trainer(name, token_budget=385)
    one, other = whole.update(trajectories), parts.update(trajectories)
    assert other["packed_tokens"] > one["packed_tokens"]  # prefixes are computed once per microbatch
    for key in one.keys() - {"packed_tokens"}:
        assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
    after, split_trajectories = weights(whole), weights(parts)
    # Adam's first step has the size of the rate whatever the gradient: only its sign can differ, where
    # the gradient is nearly zero
    far = [float(((after[key] - split_trajectories[key]).abs() > 1e-4).float().mean()) for key in after]
    assert max(far) < 0.01


def test_passes_and_minibatches_are_so_many_optimizer_steps(trajectories: list[Trajectory]) -> None:
    one = trainer("steppo", update_epochs=2, minibatches=3)
    one.update(trajectories)
    (state,) = one.optimizer.state_dict()
    assert {int(entry["step"]) for entry in state["state"].values()} == {6}
    assert one.num_done == 1


def test_the_learning_rate_of_an_update_is_reported(trajectories: list[Trajectory]) -> None:
    one = trainer("steppo", warmup_updates=1, schedule="linear", num_updates=3, final_learning_rate=0.0)
    rates = [one.update(trajectories)["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.0])


def test_the_policy_learns_what_was_rewarded(trajectories: list[Trajectory]) -> None:
    rewarded = copy.deepcopy(trajectories)
    for i, trajectory in enumerate(rewarded):
        for step in trajectory.steps:
            step.assign_reward({"task": float(i % 2)})
    one = trainer("rloo")
    steps = [trajectory.steps[0] for trajectory in rewarded]
    before = [float(row.sum()) for row in one.policy.score(steps)]
    for _ in range(4):
        one.update(rewarded)
    change = np.array([float(row.sum()) for row in one.policy.score(steps)]) - before
    assert change[1::2].mean() - change[::2].mean() > 0.3


def test_the_reference_stays_and_the_kl_grows(trajectories: list[Trajectory]) -> None:
    one = trainer("steppo")
    start = copy.deepcopy(one.policy.reference.state_dict())  # type: ignore[union-attr]
    told = [one.update(trajectories)["kl"] for _ in range(3)]
    assert told[0] == pytest.approx(0.0, abs=1e-6) and told[1] > 1e-5 and told[2] > told[1]
    now = one.policy.reference.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(now[key], start[key]) for key in start)


def test_a_cut_episode_is_worth_what_the_critic_says_of_its_end(trajectories: list[Trajectory]) -> None:
    cut = copy.deepcopy(trajectories)
    for trajectory in cut:
        if len(trajectory.steps) == 2:
            trajectory.final_state = trajectory.steps.pop().state
            trajectory.status = Status.TRUNCATED
            trajectory.steps[0].assign_reward({"task": 0.0})
    targets = {}
    for is_wanted in (False, True):
        one = trainer()
        one.recipe = replace(RECIPES["steppo"], bootstrap_truncated=is_wanted)
        with torch.no_grad():
            one.policy.critic.head.bias.fill_(3.0)  # type: ignore[union-attr]
        targets[is_wanted] = one.update(cut)["loss/value"]
    assert targets[False] > 4.0  # the critic says about 3 where nothing follows
    assert targets[True] < targets[False] / 2  # and 3 is right where the episode would have gone on


def test_an_own_critic_learns_the_returns_on_a_backbone_of_its_own(trajectories: list[Trajectory]) -> None:
    rewarded = copy.deepcopy(trajectories)
    for step in (step for t in rewarded for step in t.steps):
        step.assign_reward({"task": 0.5})
    one = trainer(own=policy("own"))
    before = weights(one)
    losses = [one.update(rewarded)["loss/value"] for _ in range(6)]
    assert losses[-1] < 0.5 * losses[0]
    after = weights(one)
    layer = "layers.0.mlp.up_proj.weight"
    assert not torch.equal(after[f"critic.backbone.{layer}"], before[f"critic.backbone.{layer}"])
    assert not torch.equal(after[f"critic.backbone.{layer}"], after[f"model.model.{layer}"])


def test_adapters_are_trained_and_their_base_is_the_reference(trajectories: list[Trajectory]) -> None:
    one = trainer(own=policy(lora={"r": 4}))
    assert one.policy.reference is None
    before = weights(one)
    told = [one.update(trajectories) for _ in range(3)]
    after = weights(one)
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved and all("lora_" in key or key.startswith("critic.") for key in moved)
    assert told[0]["kl"] == pytest.approx(0.0, abs=1e-6) and told[2]["kl"] > 1e-6


def test_adapters_can_be_frozen_as_the_reference_and_share_their_base(
    trajectories: list[Trajectory],
) -> None:
    one = trainer(own=policy(lora={"r": 4}))
    one.update(trajectories)
    one.freeze_reference(copies_adapters=True)
    frozen = dict(one.policy.reference.named_parameters())
    for name, parameter in one.policy.model.named_parameters():
        assert (frozen[name] is parameter) == ("lora_" not in name)
    assert one.update(trajectories)["kl"] == pytest.approx(0.0, abs=1e-6)
    assert one.update(trajectories)["kl"] > 1e-6
    assert not any(parameter.requires_grad for parameter in frozen.values())


def test_an_engine_samples_with_merged_adapters() -> None:
    components = small_components("recipe.name=grpo", "policy.lora={rank=4}")
    with torch.no_grad():
        for name, parameter in components.policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    components.engine.load_weights(1, components.policy.model_weights())
    (task,) = components.tasks(Split.TRAIN, 1, 0)
    rolled = components.runner.rollout.run(
        [Job(task, "g", 1), Job(task, "g", 2)], components.sampling_params(1.0)
    )
    report = check_parity(components.policy, [step for t in rolled.trajectories for step in t.steps])
    assert report.max_abs < 1e-4
    with components.policy.adapters.disable_adapter():  # type: ignore[union-attr]
        bare = check_parity(components.policy, rolled.trajectories[0].steps, strict=False)
    assert bare.max_abs > 1e-3
    components.close()


def test_a_flat_sequence_trains_observations_with_the_policys_own_logprobs() -> None:
    components, trajectories = sampled()
    (long,) = [t for t in trajectories if len(t.steps) == 2][:1]
    (flat,) = flatten_trajectories([long], components.policy)
    (step,) = flat.steps
    first, second = long.steps
    start = first.state.prompt_ids.size  # type: ignore[union-attr]
    gap = second.state.prompt_ids.size - start - first.num_units  # type: ignore[union-attr]
    assert step.num_units == first.num_units + gap + second.num_units
    assert step.reward == pytest.approx(long.total_reward)
    own = components.policy.score([step])[0]
    middle = slice(first.num_units, first.num_units + gap)
    np.testing.assert_allclose(step.behavior_logprobs[middle], own[middle], atol=1e-5)
    np.testing.assert_array_equal(step.behavior_logprobs[: first.num_units], first.behavior_logprobs)
    np.testing.assert_array_equal(step.behavior_logprobs[-second.num_units :], second.behavior_logprobs)


def test_a_rewritten_context_has_no_flat_sequence() -> None:
    broken = made([1.0, 2.0, 3.0])
    broken.steps[1].state = TokenState(np.array([7, 7, 7, 7], np.int32))
    with pytest.raises(InputError, match="context was rewritten"):
        flatten_trajectories([broken], policy())


def test_what_cannot_be_trained_is_refused(trajectories: list[Trajectory]) -> None:
    with pytest.raises(ConfigError, match=r"steppo needs a critic; set policy\.critic"):
        trainer(own=policy(None))
    with pytest.raises(ConfigError, match=r"kl\.estimator: 'k4' is unknown"):
        replace(RECIPES["grpo"], kl=KLChoice("k4", 0.1, "loss"))
    failed = made([1.0])
    failed.status, failed.error = Status.INFRA_ERROR, "gone"
    empty = Trajectory(failed.task, [], Status.TRUNCATED)
    with pytest.raises(InputError, match=r"no trajectory has a step .*1 truncated, 1 infra_error"):
        trainer().update([failed, empty])


def test_the_optimizers_state_survives_a_round_trip(trajectories: list[Trajectory]) -> None:
    kinds = {}
    for kind in ("adamw", "muon"):
        one = trainer("steppo", optimizer={"kind": kind})
        one.update(trajectories)
        other = trainer("steppo", optimizer={"kind": kind})
        other.policy.load_state_dict(one.policy.state_dict())
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        one.update(trajectories)
        other.update(trajectories)
        after = weights(other)
        assert all(torch.equal(tensor, after[key]) for key, tensor in weights(one).items()), kind
        kinds[kind] = one
    with pytest.raises(WeightsError, match=r"train\.optimizer\.kind must not change"):
        kinds["adamw"].load_state_dict(kinds["muon"].state_dict())


def test_muon_takes_hidden_matrices_and_adamw_the_rest() -> None:
    own = policy()
    optimizer = Optimizer(own.named_parameters(), OptimizerConfig(kind="muon"), critic_rate=7e-3)
    adamw, muon = optimizer._parts
    hidden = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in own.named_parameters() if id(p) in hidden}
    assert names and all(".layers." in name and ".weight" in name for name in names)
    rates = [(group["lr"], len(group["params"])) for group in adamw.param_groups]
    critic = [name for name, _ in own.named_parameters() if name.startswith("critic.")]
    assert rates[1] == (7e-3, len(critic)) and rates[0][0] == 3e-4
    assert sum(n for _, n in rates) + len(hidden) == len(list(own.parameters()))
    optimizer.set_rate(0.5)
    assert [group["lr"] for group in adamw.param_groups] == [1.5e-4, 3.5e-3]


def test_schedules_rise_and_fall_as_they_say() -> None:
    def shares(schedule: str) -> list[float]:
        plan = {"num_updates": 7, "schedule": schedule, "warmup": 2, "final": 0.2}
        return [round(rate_share(update, **plan), 4) for update in range(8)]  # type: ignore[arg-type]

    assert shares("constant") == [0.3333, 0.6667, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert shares("linear") == [0.3333, 0.6667, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    assert shares("cosine") == [0.3333, 0.6667, 1.0, 0.8828, 0.6, 0.3172, 0.2, 0.2]


def test_settings_of_a_run_reach_the_trainer(tmp_path: Path) -> None:
    config = small_config("recipe.value_clip=0.3", "train.critic_learning_rate=1e-2")
    components = small_components("recipe.value_clip=0.3", "train.critic_learning_rate=1e-2")
    assert components.trainer.value_clip == 0.3 and components.trainer.horizon == 2
    assert config.train == components.trainer.config


def full_kl(kl_in: str, coef: float = 0.5) -> KLChoice:
    return KLChoice("full", coef, kl_in)  # type: ignore[arg-type]


def test_the_full_kl_of_a_policy_is_the_plain_formula(trajectories: list[Trajectory]) -> None:
    """Both models' logits of every action, step by step, without any of our packing."""
    own = policy(None, dtype="float64")
    own.reference = copy.deepcopy(own.model).requires_grad_(False)
    with torch.no_grad():
        for parameter in own.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    steps = [step for trajectory in trajectories[:3] for step in trajectory.steps]
    outputs = evaluate(own, pack(steps, token_budget=400), ref_kls=True)
    plain = []
    for step in steps:
        ids = torch.tensor(np.concatenate([step.state.prompt_ids, step.action.action_ids]))[None]
        places = slice(step.state.prompt_ids.size - 1, ids.shape[1] - 1)
        sides = [model(input_ids=ids).logits[0, places] for model in (own.model, own.reference)]
        plain.append(kl_of_logits(*(side / step.sampling.logit_temperature for side in sides)))
    assert outputs.ref_kls is not None
    expected = torch.cat(plain)
    assert float(expected.detach().mean()) > 1e-3
    torch.testing.assert_close(outputs.ref_kls, expected, rtol=1e-9, atol=1e-12)
    loss, _, _ = backward(own, pack(steps, token_budget=400), lambda o: (o.ref_kls.mean(), {}), ref_kls=True)
    ours = {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}
    own.module.zero_grad()
    expected.mean().backward()
    torch.testing.assert_close(loss, expected.mean().detach(), rtol=1e-9, atol=1e-12)
    for name, parameter in own.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_microbatches_make_the_same_update_with_the_full_kl(
    trajectories: list[Trajectory], kl_in: str
) -> None:
    recipe = replace(RECIPES["ppo"], kl=full_kl(kl_in))
    found = []
    for budget in (None, 385):
        torch.manual_seed(0)
        config = TrainConfig.model_validate({"optimizer": {"learning_rate": 1e-3}, "token_budget": budget})
        one = Trainer(policy(), recipe, config, horizon=2)
        one.freeze_reference()
        first, second = (one.update(trajectories) for _ in range(2))
        assert first["kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is the policy itself
        assert second["kl"] > 1e-5
        found.append(second)
    whole, parts = found
    for key in whole.keys() - {"packed_tokens"}:
        assert whole[key] == pytest.approx(parts[key], rel=2e-2, abs=1e-4), key


@pytest.mark.parametrize("settings", [{"token_budget": 385}, {"minibatches": 2, "update_epochs": 2}])
def test_the_full_kl_in_the_reward_runs_the_reference_once_over_an_update(
    trajectories: list[Trajectory], settings: dict[str, int]
) -> None:
    one = Trainer(
        policy(),
        replace(RECIPES["ppo"], kl=full_kl("reward")),
        TrainConfig.model_validate(settings),
        horizon=2,
    )
    one.freeze_reference()
    counts: Counter[str] = Counter()
    for name, model in (("policy", one.policy.model), ("reference", one.policy.reference)):
        find_backbone(model).register_forward_hook(lambda *_, name=name: counts.update([name]))
    one.update(trajectories)  # the first one also looks at how each model computes its logits
    counts.clear()
    assert one.update(trajectories)["kl"] > 1e-5
    passes = 1 + settings.get("update_epochs", 1)  # the policy at the start of the update, and each epoch
    assert counts["reference"] > 1 and counts["policy"] == passes * counts["reference"]


def test_adapters_have_the_full_kl_to_their_base(trajectories: list[Trajectory]) -> None:
    own = policy(None, lora={"r": 4})
    with torch.no_grad():
        for _, parameter in own.named_parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    packed = pack([step for trajectory in trajectories[:2] for step in trajectory.steps])
    kls = evaluate(own, packed, ref_kls=True).ref_kls
    assert kls is not None and float(kls.detach().mean()) > 1e-4
    kls.sum().backward()
    assert all(bool(parameter.grad.any()) for _, parameter in own.named_parameters())


def test_the_full_kl_needs_one_device() -> None:
    recipe = replace(RECIPES["grpo"], kl=full_kl("loss"))
    with pytest.raises(ConfigError, match="needs one device"):
        Trainer(policy(None), recipe, TrainConfig(), devices=("cpu", "cpu"))
