"""The objective of a minibatch is the sum of those of its parts, for every recipe."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.made import made
from tests.training.test_objective import outputs_of, reference_of

from stepwell.algos.recipes import RECIPES
from stepwell.core import InputError, Status, Step, Trajectory
from stepwell.packing import Outputs, pack
from stepwell.packing.budget import cut_by_budget
from stepwell.training import TrajectoryMinibatch
from stepwell.training.objective import Objective

CPU = torch.device("cpu")
RECIPE_NAMES = sorted(RECIPES)


def make_trajectories() -> list[Trajectory]:
    return [
        made([0.0, 1.0, 0.5], group="a", lengths=[2, 3, 1], status=Status.SUCCESS),
        made([0.0, 0.0], group="a", lengths=[1, 4]),
        made([0.3], group="b", lengths=[3]),
        made(
            [0.0, 1.0, 0.0, 1.0], group="b", lengths=[2, 2, 5, 1], status=Status.TRUNCATED, final=[1, 2, 3, 9]
        ),
    ]


def make_objective(name: str, *, version: int | None = None, trained: bool = False) -> Objective:
    trajectories = make_trajectories()
    if name in ("webrl", "digirl", "awr", "filtered-bc"):
        for trajectory in trajectories:
            for step in trajectory.steps:
                step.assign_reward({"task": 0.0})
            trajectory.steps[-1].assign_reward({"task": float(trajectory.status is Status.SUCCESS)})
    trained_steps = {trajectories[0].id: [True, False, True]} if trained else {}
    batch = TrajectoryMinibatch(trajectories, CPU, with_bootstrap=True, trained_steps=trained_steps)
    recipe = RECIPES[name]
    ref = reference_of(batch) if recipe.needs_reference else None
    instructions = torch.full((len(trajectories),), 0.4) if recipe.needs_instruction_critic else None
    return Objective(recipe, batch, ref, 10, 0.3, version, instruction_values=instructions)


def start_credit(objective: Objective, outputs: Outputs) -> None:
    from stepwell.training.update_credit import compute_update_credit

    timeline = objective.fill_timeline(outputs.map_tensors(torch.Tensor.detach))
    credit = None
    if objective.recipe.credit is not None:
        (credit,), _ = compute_update_credit(objective.recipe, [timeline], 10)
    objective.start_from(timeline, credit)


def select_outputs(outputs: Outputs, lengths: np.ndarray, steps: np.ndarray) -> Outputs:
    def choose(values: torch.Tensor, sizes: np.ndarray) -> torch.Tensor:
        parts = values.split(sizes.tolist())
        return torch.cat([parts[i] for i in steps])

    assert outputs.logprobs is not None and outputs.values is not None and outputs.entropies is not None
    return Outputs(
        choose(outputs.logprobs, lengths),
        choose(outputs.values, lengths + 1),
        choose(outputs.entropies, lengths),
    )


def run_parts(objective: Objective, outputs: Outputs, labels: np.ndarray) -> tuple[torch.Tensor, dict]:
    lengths = np.array([step.num_units for step in objective.minibatch.steps] + [0])
    total, metrics = torch.zeros(()), {}
    for label in np.unique(labels):
        steps = np.flatnonzero(labels == label)
        assert objective.is_separate(steps)
        loss, more = objective.compute_part(select_outputs(outputs, lengths, steps), steps)
        total = total + loss
        for name, value in more.items():
            metrics[name] = metrics.get(name, 0.0) + value
    return total, metrics | objective.measure_whole(outputs.map_tensors(torch.Tensor.detach))


def find_gradients(loss: torch.Tensor, outputs: Outputs) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, outputs.list_present(), allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize(
    "options", [{}, {"version": 1}, {"trained": True}], ids=["plain", "stale", "replayed"]
)
@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_parts_of_every_recipe_add_up(name: str, options: dict) -> None:
    one, other = make_objective(name, **options), make_objective(name, **options)
    outputs = outputs_of(one.minibatch, seed=3)
    for objective in (one, other):
        start_credit(objective, outputs)
    loss, metrics = one(outputs)
    num_packed = one.minibatch.timeline.num_steps + 1
    if one.couples == "trajectory":
        labels = np.array([0, 0, 0, 1, 1, 0, 2, 2, 2, 2, 1])
    else:
        labels = np.array([0, 1, 0, 1, 2, 3, 0, 1, 2, 0, 4])
    assert len(labels) == num_packed
    total, summed = run_parts(other, outputs, labels)
    torch.testing.assert_close(total, loss)
    assert summed.keys() == metrics.keys()
    for key, value in metrics.items():
        torch.testing.assert_close(summed[key], value, rtol=1e-4, atol=1e-6, msg=key)
    for a, b in zip(find_gradients(total, outputs), find_gradients(loss, outputs), strict=True):
        torch.testing.assert_close(a, b)


def test_a_part_of_a_trajectory_is_not_separate_where_the_loss_couples_trajectories() -> None:
    objective = make_objective("gspo")
    start_credit(objective, outputs_of(objective.minibatch))
    assert objective.is_separate(np.array([0, 1, 2, 5]))
    assert not objective.is_separate(np.array([0, 1]))


def test_nothing_is_separate_before_credit_is_known() -> None:
    assert not make_objective("steppo").is_separate(np.array([0, 1]))


# --- units that stay together -----------------------------------------------------------


@given(data=st.data())
def test_units_that_fit_are_never_cut(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))
    shared = np.array(
        [0] + [data.draw(st.integers(0, int(min(lengths[i - 1 : i + 1])) - 1)) for i in range(1, count)]
    )
    units = np.array(data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    budget = data.draw(st.integers(int(lengths.max()), int(lengths.sum()) + 1))
    ranges = cut_by_budget(lengths, shared, budget, units)
    assert [place for a, b in ranges for place in range(a, b)] == list(range(count))
    fresh = np.concatenate([[0], np.cumsum(lengths - shared)])
    for a, b in ranges:
        assert fresh[b] - fresh[a] + shared[a] <= budget
    joints = [i for i in range(count + 1) if not set(units[:i]) & set(units[i:])]
    for a, b in pairwise(joints):
        if fresh[b] - fresh[a] + shared[a] <= budget:
            assert not any(a < start < b for start, _ in ranges), "a part that fits was cut"


def test_a_trajectory_that_fits_is_in_one_microbatch() -> None:
    trajectories = make_trajectories()
    owners = np.repeat(np.arange(4), [len(t.steps) for t in trajectories])
    packed = TrajectoryMinibatch(trajectories, CPU, token_budget=26, keeps_trajectories=True).packed
    assert len(packed.microbatches) > 1
    for number in range(4):
        assert sum(bool((owners[m.steps] == number).any()) for m in packed.microbatches) == 1


def test_units_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="one per step"):
        pack([Step.from_tokens([1], [2])], units=[0, 1])
