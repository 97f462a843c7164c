"""Critics: link, warm start, the critic of instructions, gradients clipped apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.made import made, sampled
from tests.variants import keep_quick

from stepwell.algos import Timeline, credit
from stepwell.algos.recipes import RECIPES, FunctionSpec
from stepwell.config.training import OptimizerConfig, TrainConfig, WarmStartConfig
from stepwell.core import ConfigError, Status, Trajectory
from stepwell.packing import backward, pack
from stepwell.policies import CausalLMPolicy
from stepwell.training import Optimizer, Trainer, TrajectoryMinibatch, imitate
from stepwell.training.checkpoint import load_policy, save_checkpoint
from stepwell.training.critics import compute_critic_targets, prepare_critics, read_instruction_values

CPU = torch.device("cpu")


def fresh(critic: str = "shared") -> CausalLMPolicy:
    return CausalLMPolicy.from_pretrained("tiny-0.3m", critic=critic)  # type: ignore[arg-type]


def episodes() -> list[Trajectory]:
    """Eight that fail after one long action, eight that succeed after two short ones."""
    bad = [made([0.0], group=str(i), lengths=[9]) for i in range(8)]
    more = {"lengths": [2, 1], "status": Status.SUCCESS, "prompt": [7, 2, 3]}
    good = [made([0.0, 1.0], group=str(i), **more) for i in range(8)]  # type: ignore[arg-type]
    return [*bad, *good]


def warm(policy: CausalLMPolicy, recipe: str, shown: list[Trajectory], epochs: int) -> None:
    settings = WarmStartConfig(num_demos=len(shown), batch_size=len(shown), epochs=epochs, value_coef=5.0)
    for _ in imitate(policy, shown, settings, seed=0, recipe=RECIPES[recipe]):
        pass


@pytest.fixture(scope="module")
def warmed() -> CausalLMPolicy:
    policy = fresh()
    warm(policy, "digirl", episodes(), 60)
    return policy


def values_of(policy: CausalLMPolicy, trajectories: list[Trajectory]) -> list[float]:
    states = [step.state for trajectory in trajectories for step in trajectory.steps]
    return [float(value) for value in policy.state_values(states)]


@pytest.mark.parametrize("recipe", keep_quick(["webrl", "awr", "digirl"], "webrl".__eq__))
def test_a_warm_start_teaches_the_probabilities_that_updates_read(recipe: str) -> None:
    policy, (bad, good) = fresh(), (episodes()[0], episodes()[-1])
    warm(policy, recipe, [bad] * 8 + [good] * 8, 60)
    low, *high = values_of(policy, [bad, good])
    assert low < 0.1 and min(high) > 0.9  # read through a sigmoid, an output of 1 would be 0.73
    batch = TrajectoryMinibatch([bad, good], CPU)
    trainer = Trainer(policy, RECIPES[recipe], TrainConfig(), horizon=2)
    trainer.freeze_reference()
    read = torch.stack([row[0] for row in policy.values(batch.packed)]).tolist()
    metrics = trainer.update([bad, good])
    assert [low, *high] == pytest.approx(read, abs=1e-5)
    assert metrics["explained_variance"] > 0.9
    assert metrics["loss/value"] < 0.1


def test_a_critic_keeps_its_link_on_disk_and_another_one_is_refused(
    warmed: CausalLMPolicy, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, warmed, None, {"update": 3})
    opened = CausalLMPolicy.from_pretrained(tmp_path / "update-000003")
    assert opened.critic is not None and opened.critic.link == "logit"
    assert values_of(opened, episodes()) == values_of(warmed, episodes())
    with pytest.raises(ConfigError, match="probabilities of success, this recipe reads returns"):
        Trainer(opened, RECIPES["steppo"], TrainConfig())
    again = fresh()
    prepare_critics(again, RECIPES["digirl"])
    load_policy(tmp_path / "update-000003", again)
    assert values_of(again, episodes()) == values_of(warmed, episodes())
    batch = TrajectoryMinibatch(episodes(), CPU)
    assert torch.equal(read_instruction_values(again, batch), read_instruction_values(warmed, batch))


def test_a_directory_from_before_links_takes_the_recipes(tmp_path: Path) -> None:
    policy = fresh()
    policy.save_pretrained(tmp_path / "new")
    (tmp_path / "new" / "stepwell_policy.json").write_text('{"format": 1, "critic": "shared"}')
    opened = CausalLMPolicy.from_pretrained(tmp_path / "new")
    prepare_critics(opened, RECIPES["webrl"])
    assert opened.critic is not None and opened.critic.link == "logit"


def test_the_critic_of_instructions_learns_outcomes_with_weights_of_its_own(warmed: CausalLMPolicy) -> None:
    expected = read_instruction_values(warmed, TrajectoryMinibatch(episodes(), CPU))
    assert float(expected[:8].max()) < 0.1 and float(expected[8:].min()) > 0.9
    assert warmed.critic is not None and warmed.instruction_critic is not None
    ours, theirs = warmed.critic.head.weight, warmed.instruction_critic.head.weight
    assert not torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_an_update_of_digirl_moves_both_critics(kind: str) -> None:
    policy = fresh(kind)
    trainer = Trainer(policy, RECIPES["digirl"], TrainConfig(), horizon=2)
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    metrics = trainer.update(episodes())
    after = policy.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert {"critic.head.weight", "instruction_critic.head.weight"} <= moved
    assert any(name.startswith("instruction_critic.backbone.") for name in moved) == (kind == "own")
    assert metrics["loss/instruction_value"] == pytest.approx(0.69, abs=0.1)  # ln 2: it knew nothing yet


def test_the_critic_of_instructions_decides_which_trajectories_digirl_keeps() -> None:
    timeline = Timeline.from_lists(
        [[0.0, 1.0], [0.0, 1.0]], state_values=[[0.1, 0.1]] * 2, instruction_values=[0.9, 0.2]
    )
    keep = credit.digirl_advantage(timeline, horizon=10, keep_top=0.5).keep
    assert keep is not None and keep.tolist() == [False, False, True, True]


def test_a_warm_start_teaches_the_sites_and_the_discount_of_the_recipe() -> None:
    timeline = TrajectoryMinibatch([made([0.0, 1.0], lengths=[2, 3])], CPU).timeline

    def lesson(name: str, **kwargs: object) -> tuple[list[list[int]], list[float]]:
        recipe = RECIPES[name]
        assert recipe.credit is not None
        changed = FunctionSpec(recipe.credit.name, {**recipe.credit.kwargs, **kwargs})
        result = compute_critic_targets(replace(recipe, credit=changed), timeline)
        assert result.value_sites is not None and result.value_targets is not None
        return result.value_sites.tolist(), result.value_targets.tolist()

    states, tokens = [[0, 0], [1, 0]], [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    assert lesson("steppo", gamma=0.5) == (states, [0.5, 1.0])
    assert lesson("steppo", gamma=0.5, lam=0.3) == (states, [0.5, 1.0])
    assert lesson("ppo", gamma=0.5) == (tokens, [0.0625, 0.125, 0.25, 0.5, 1.0])
    assert lesson("awr") == (states, [1.0, 1.0])
    sites, targets = lesson("vagen-full", gamma_turn=0.5)
    assert sites == [*tokens, [0, 2], [1, 3]]
    assert targets == [0.5, 0.5, 1.0, 1.0, 1.0, 0.5, 1.0]


def test_with_a_critic_of_its_own_every_recipe_starts_from_the_same_actor() -> None:
    shown, actors = episodes(), []
    for recipe in ("steppo", "ppo", "grpo", "digirl"):
        policy = fresh("own")
        warm(policy, recipe, shown, 2)
        actors.append(policy.model.state_dict())
    for other in actors[1:]:
        assert all(torch.equal(other[name], weight) for name, weight in actors[0].items())


def test_a_critic_that_is_far_off_does_not_slow_the_actor() -> None:
    policy = fresh("own")
    steps = [step for trajectory in sampled()[1] for step in trajectory.steps]
    optimizer = Optimizer(policy.named_parameters(), OptimizerConfig())

    def norms(scale: float) -> tuple[float, float]:
        optimizer.zero_grad()
        backward(
            policy,
            pack(steps),
            lambda out: (-out.logprobs.mean() + scale * out.values.sum(), {}),
            values=True,
        )
        optimizer.clip_gradients(0.5)
        named = list(policy.named_parameters())

        def norm(prefix: str) -> float:
            grads = [p.grad.norm() for n, p in named if n.startswith(prefix) and p.grad is not None]
            return float(torch.stack(grads).norm())

        return norm("model."), norm("critic.")

    small, large = norms(1e-6), norms(1e3)
    assert small[0] == large[0]
    assert large[1] == pytest.approx(0.5, rel=1e-4) and small[1] < 0.01


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_critics_learning_rate_reaches_all_its_weights(kind: str) -> None:
    policy = fresh("own")
    config = OptimizerConfig(kind=kind, learning_rate=1e-9, muon_learning_rate=1e-9)  # type: ignore[arg-type]
    optimizer = Optimizer(policy.named_parameters(), config, critic_rate=1e-2)
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    for _, parameter in policy.named_parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in policy.named_parameters():
        change = float((parameter - before[name]).detach().square().mean().sqrt())
        assert (change > 1e-4) == name.startswith("critic."), name
