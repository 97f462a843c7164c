"""Captured passes give what eager passes give for every microbatch that fits one; others run eagerly."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs.small import warmed_model
from tests.training.made import sampled
from transformers import LlamaConfig, LlamaForCausalLM

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import Step
from stepwell.packing import Packed, TreeLayout, backward, evaluate, pack, paths, sequences
from stepwell.packing.kernel_inputs import PlanSize
from stepwell.policies import captured_passes
from stepwell.policies.captured_passes import CapturedPasses, choose_size
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.critic import CriticModel, ValueHead
from stepwell.training import Trainer, critic_clock

SHAPE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
}  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ATTENTIONS = ["sequences", "paths"]


class RepeatingRecorder:
    """On a CPU nothing is captured: what was recorded runs again, on the same buffers."""

    pool_bytes = 0
    num_replays = 0
    is_recording = False
    """While this is true a GPU would run no Python (a replay), or hold no event (a recording)."""

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            RepeatingRecorder.is_recording = True
            RepeatingRecorder.num_replays += 1
            run()
            RepeatingRecorder.is_recording = False

        replay()
        return replay


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over whole sequences on a CPU too, for all trees."""
    monkeypatch.setattr(sequences, "SHORTEST", 1)
    monkeypatch.setattr(sequences, "MOST_WORK", 1e9)
    monkeypatch.setattr(sequences, "MOST_TOKENS", 1e9)
    if not torch.cuda.is_available():
        monkeypatch.setattr(sequences, "supports_sequences", find_any_sequences)
        monkeypatch.setattr(captured_passes, "GraphRecorder", RepeatingRecorder)
        monkeypatch.setattr(captured_passes, "_RUNS_ON", ("cpu",))


def find_any_sequences(query: Any, value: Any, layout: TreeLayout, how: Any) -> bool:
    return sequences.find_sequences(layout) is not None


def build_policy(device: str, *, is_captured: bool, critic: str = "shared") -> CausalLMPolicy:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(device, dtype).eval()
    own = copy.deepcopy(model.model) if critic == "own" else None
    head = ValueHead(64, dtype).to(device)
    policy = CausalLMPolicy(model, critic=CriticModel(head, own), attention="tree")
    policy.captures_passes = is_captured
    policy.set_checkpointing("auto")
    return policy


def draw_batch(seed: int, turns: int = 3, budget: int | None = None) -> Packed:
    """Two groups of three siblings; lengths differ from seed to seed, but not by much."""
    draw = np.random.default_rng(seed)
    steps = []
    for _ in range(2):
        prompt = draw.integers(0, 61, size=30)
        for _ in range(3):
            context = prompt
            for _ in range(turns):
                action = draw.integers(0, 61, size=5)
                steps.append(Step.from_tokens(context, action))
                context = np.concatenate([context, action, draw.integers(0, 61, size=draw.integers(7, 9))])
    return pack(steps, token_budget=budget)


def compute_gradients(policy: CausalLMPolicy, packed: Packed) -> dict[str, torch.Tensor]:
    policy.module.zero_grad()

    def loss(outputs: Any) -> Any:
        pulls = torch.linspace(-1, 1, outputs.logprobs.numel(), device=policy.device)
        return (outputs.logprobs * pulls).sum() + outputs.values.square().sum(), {}

    backward(policy, packed, loss, values=True)
    return {name: p.grad.float() for name, p in policy.module.named_parameters() if p.grad is not None}


def list_passes(policy: CausalLMPolicy) -> list[Any]:
    passes: CapturedPasses = policy.model.model.captured_passes
    return passes.passes


def require_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], device: str) -> None:
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        gap = float((ours[name] - grad).norm() / grad.norm().clamp(min=1e-6))
        assert gap < (0.05 if device == "cuda" else 1e-4), name


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("critic", ["shared", "own"])
def test_a_captured_pass_gives_the_gradients_of_the_eager_one_for_every_batch_that_fits(
    device: str, critic: str
) -> None:
    eager, ours = (build_policy(device, is_captured=on, critic=critic) for on in (False, True))
    for seed in (0, 0, 0, 1, 2):
        batch = draw_batch(seed)
        require_equal(compute_gradients(ours, batch), compute_gradients(eager, draw_batch(seed)), device)
    assert 1 <= len(list_passes(ours)) < 5
    assert not hasattr(eager.model.model, "captured_passes") or eager.model.model.captured_passes is None


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_trees_of_similar_size_share_a_captured_pass(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "SHORTEST", 1 if attention == "sequences" else 1 << 30)
    monkeypatch.setattr(sequences, "MOST_WORK", 99)
    monkeypatch.setattr(sequences, "MOST_TOKENS", 99)
    eager, ours = (build_policy("cuda", is_captured=on) for on in (False, True))
    for seed in (0, 0, 1, 2, 3, 0):
        found = compute_gradients(ours, draw_batch(seed, turns=12))
        require_equal(found, compute_gradients(eager, draw_batch(seed, turns=12)), "cuda")
    assert list_passes(ours)
    if attention == "paths":
        assert len(list_passes(ours)) == 1
    assert ours.model.model.captured_passes.pool_bytes > 0


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
def test_several_microbatches_and_passes_without_gradients_are_captured_too(device: str) -> None:
    eager, ours = (build_policy(device, is_captured=on) for on in (False, True))
    for _ in range(3):
        theirs = evaluate(eager, draw_batch(3, budget=200), values=True)
        with torch.no_grad():
            found = evaluate(ours, draw_batch(3, budget=200), values=True)
        for a, b in zip(found.list_present(), theirs.list_present(), strict=True):
            assert (a - b).abs().max() < (0.2 if device == "cuda" else 1e-4)
        batch = draw_batch(3, budget=200)
        require_equal(compute_gradients(ours, batch), compute_gradients(eager, batch), device)
    kinds = {each.is_trained for each in list_passes(ours)}
    assert kinds == {True, False}


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
def test_a_pass_that_waits_for_its_backward_pass_is_not_overwritten(device: str) -> None:
    eager, ours = (build_policy(device, is_captured=on) for on in (False, True))
    batches = [draw_batch(0), draw_batch(0), draw_batch(0), draw_batch(1)]
    for policy in (eager, ours):
        for batch in batches[:2]:
            compute_gradients(policy, batch)
        policy.module.zero_grad()
        first, second = (evaluate(policy, batch, values=True) for batch in batches[2:])
        (first.logprobs.sum() + second.values.sum()).backward()
    assert list_passes(ours)
    found, theirs = ({n: p.grad.float() for n, p in each.module.named_parameters()} for each in (ours, eager))
    require_equal(found, theirs, device)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_change_in_place_are_read_and_weights_that_moved_are_not_captured(device: str) -> None:
    eager, ours = (build_policy(device, is_captured=on) for on in (False, True))
    for _ in range(2):
        compute_gradients(ours, draw_batch(0))
    layer = ours.model.model.layers[0].mlp.down_proj, eager.model.model.layers[0].mlp.down_proj
    with torch.no_grad():
        for each in layer:
            each.weight.mul_(1.5)
    require_equal(compute_gradients(ours, draw_batch(0)), compute_gradients(eager, draw_batch(0)), device)
    for each in layer:
        each.weight.data = each.weight.data * 2
    require_equal(compute_gradients(ours, draw_batch(0)), compute_gradients(eager, draw_batch(0)), device)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
def test_a_backbone_that_cannot_be_captured_runs_eagerly_with_one_warning(device: str) -> None:
    eager, ours = (build_policy(device, is_captured=on) for on in (False, True))

    norm, run = ours.model.model.norm, ours.model.model.norm.forward

    def want_parameters(states: torch.Tensor) -> torch.Tensor:
        assert isinstance(norm.weight, torch.nn.Parameter), "weights that are replaced"
        return run(states)

    norm.forward = want_parameters
    with pytest.warns(UserWarning, match="not captured.*weights that are replaced") as seen:
        for _ in range(4):
            found = compute_gradients(ours, draw_batch(0))
    assert len(seen) == 1
    require_equal(found, compute_gradients(eager, draw_batch(0)), device)
    assert not list_passes(ours)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["backbone", "layer"])
def test_hooks_see_every_pass_because_a_backbone_with_hooks_is_not_captured(device: str, where: str) -> None:
    ours = build_policy(device, is_captured=True)
    for _ in range(3):
        compute_gradients(ours, draw_batch(0))
    seen: list[bool] = []
    replayed = RepeatingRecorder.num_replays
    module = ours.model.model if where == "backbone" else ours.model.model.layers[0].mlp
    handle = module.register_forward_hook(lambda *given: seen.append(True))
    for _ in range(3):
        compute_gradients(ours, draw_batch(0))
    assert len(seen) == 3 and replayed == RepeatingRecorder.num_replays
    handle.remove()
    compute_gradients(ours, draw_batch(0))
    assert len(seen) == 3


@pytest.mark.usefixtures("everywhere")
def test_passes_in_inference_mode_are_eager() -> None:
    ours = build_policy("cpu", is_captured=True)
    with torch.inference_mode():
        for _ in range(3):
            evaluate(ours, draw_batch(0))
    assert not list_passes(ours)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("device", DEVICES)
def test_the_critics_time_is_that_of_its_passes_captured_or_not(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_time() -> float:
        assert not RepeatingRecorder.is_recording, "an event in a captured pass has no time"
        return time.monotonic()

    monkeypatch.setattr(critic_clock.time, "perf_counter", read_time)
    times: dict[bool, list[float]] = {}
    for is_captured in (False, True):
        policy, marks = build_policy(device, is_captured=is_captured, critic="own"), []
        for _ in range(4):
            with critic_clock.measure_critic_time(policy.critic, policy.device) as clock:
                compute_gradients(policy, draw_batch(0))
            marks.append(len(clock._spans))
            assert clock.read_metrics()["time/critic_s"] > 0
        times[is_captured] = marks
    assert policy.critic is not None and policy.critic.backbone.captured_passes.passes
    assert times[True] == times[False] == [2, 2, 2, 2]  # one way forward, one way back


@pytest.mark.usefixtures("everywhere")
def test_sizes_that_hardly_come_again_are_captured_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_passes, "MOST_PASSES", 2)
    ours = build_policy("cpu", is_captured=True)
    kept = []
    for turns in (3, 3, 9, 9, 15, 15, 15):  # three sizes, the third when two passes ran twice
        compute_gradients(ours, draw_batch(0, turns=turns))
        kept.append(len({each.size for each in list_passes(ours)}))
    assert kept == [0, 1, 1, 2, 2, 2, 2]
    first = list(list_passes(ours))
    for _ in range(8):  # now the passes have paid
        compute_gradients(ours, draw_batch(0, turns=9))
    compute_gradients(ours, draw_batch(0, turns=15))
    assert list_passes(ours) != first and len(list_passes(ours)) == 2


@pytest.mark.gpu
@pytest.mark.usefixtures("everywhere")
def test_a_capture_that_fails_leaves_random_numbers_and_other_captures_as_they_were() -> None:
    ours = build_policy("cuda", is_captured=True)
    norm, run = ours.model.model.norm, ours.model.model.norm.forward
    norm.forward = lambda states: [run(states), torch.cuda.synchronize()][0]
    with pytest.warns(UserWarning, match="not captured"):
        for _ in range(3):
            compute_gradients(ours, draw_batch(0))
    assert not list_passes(ours) and torch.randn(3, device="cuda").isfinite().all()
    other = build_policy("cuda", is_captured=True)
    for _ in range(3):
        compute_gradients(other, draw_batch(0))
    assert list_passes(other)


@pytest.mark.usefixtures("everywhere")
def test_backbones_of_several_dtypes_and_copies_of_a_backbone_are_not_captured_with_others() -> None:
    ours = build_policy("cpu", is_captured=True)
    for _ in range(2):
        compute_gradients(ours, draw_batch(0))
    assert list_passes(ours) and not copy.deepcopy(ours.model.model).captured_passes.passes
    mixed = build_policy("cpu", is_captured=True)
    mixed.model.model.extra = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    for _ in range(3):
        compute_gradients(mixed, draw_batch(0))
    assert not list_passes(mixed)


def test_a_size_has_room_for_similar_trees() -> None:
    runs = np.array([500, 300, 280, 290]), np.array([500, 800, 780, 790])
    plan = paths.PathPlan(*runs, key_tokens=np.concatenate([np.arange(count) % 1370 for count in runs[1]]))
    size = choose_size(plan)
    assert size.tokens >= 1370 and size.holds(plan.pad(size.tokens).size)
    smaller = paths.PathPlan(runs[0] - 5, runs[1] - 9, plan.key_tokens[:-36])
    assert size.holds(smaller.pad(size.tokens).size)
    half = paths.PathPlan(runs[0][:3], runs[1][:3], plan.key_tokens[: runs[1][:3].sum()])
    assert size.holds(half.pad(size.tokens).size), "padding is cut into runs no longer than the others"
    assert not size.holds(PlanSize((size.tokens, "sequences", True, ((1, 1370),)), (0,)))
    larger = paths.PathPlan(np.array([1370]), np.array([1370]), np.arange(1370))
    assert not size.holds(larger.pad(size.tokens).size)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("recipe", ["ppo", "steppo", "grpo"])
def test_whole_updates_with_captured_passes_have_the_figures_of_eager_ones(recipe: str) -> None:
    figures, weights = [], []
    for is_captured in (False, True):
        torch.manual_seed(0)
        policy = CausalLMPolicy.from_pretrained(
            warmed_model(), critic="own" if recipe != "grpo" else None, cuda_graphs=is_captured
        )
        one = Trainer(policy, RECIPES[recipe], TrainConfig.model_validate({"minibatches": 2}), horizon=2)
        one.freeze_reference()
        trajectories = sampled()[1]
        figures.append([one.update(trajectories) for _ in range(3)])
        weights.append({name: p.detach().clone() for name, p in policy.named_parameters()})
        held = [module for module in policy.module.modules() if getattr(module, "captured_passes", None)]
        assert bool(held) == is_captured and all(module.captured_passes.passes for module in held)
    for theirs, ours in zip(*figures, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"time/critic_s"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name
    far = [float(((weights[0][n] - weights[1][n]).abs() > 1e-4).float().mean()) for n in weights[0]]
    assert max(far) < 0.01  # (Adam's first step has the sign of a gradient that is nearly zero)
