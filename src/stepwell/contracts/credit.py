"""The contract of a credit function: shapes, finite values, and exactly the inputs it declares.

Every check runs the function on small ragged batches that contain only the critic outputs named by its
declaration. A function compares siblings exactly if its result changes when every trajectory is alone in its
group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import CreditTraits, load_function, read_traits
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ContractError, InputError

HORIZON = 8  # turn limit of the imaginary environment
_VALUES: dict[str | None, tuple[str, ...]] = {
    None: (),
    "state": ("state_values", "instruction_values"),
    "end": ("end_values",),
    "tokens": ("token_values",),
    "tokens_and_end": ("token_values", "end_values"),
}


def check_credit(name: str, kwargs: Mapping[str, Any] | None = None) -> ContractReport:
    """Report whether the credit function `name`, called with `kwargs`, keeps its contract."""
    given = dict(kwargs or {})
    probe = CreditProbe(name, load_function("credit", name), read_traits("credit", name, given), given)
    return run_checks(f"credit {name}", CHECKS, probe)


@dataclass(frozen=True)
class CreditProbe:
    """The function, its declaration for these arguments, and batches to call it with."""

    name: str
    function: Callable[..., Any]
    traits: CreditTraits
    kwargs: Mapping[str, Any]

    def run(self, timeline: Timeline) -> CreditResult:
        """The result; a missing input is one that the function did not declare."""
        filled = {"horizon": HORIZON} if "horizon" in self.traits.fills else {}
        try:
            result: CreditResult = self.function(timeline, **{**filled, **self.kwargs})
        except InputError as error:
            if "missing" not in str(error):
                raise
            raise ContractError(
                f"it reads what it does not declare ({error}); correct reads={self.traits.reads!r}"
            ) from error
        return result

    @cached_property
    def batch(self) -> Timeline:
        """Two groups of three siblings, with the inputs that the function declares."""
        return make_batch(self.traits)

    @cached_property
    def result(self) -> CreditResult:
        return self.run(self.batch)


def make_batch(traits: CreditTraits, dtype: torch.dtype = torch.float32) -> Timeline:
    """Six ragged trajectories in two groups. Rewards are outcomes if the targets are."""
    generator = torch.Generator().manual_seed(0)
    steps, tokens = torch.tensor([2, 1, 3, 2, 4, 1]), torch.tensor([2, 1, 3, 1, 2, 2, 1, 4, 3, 1, 2, 1, 5])
    ends = steps.cumsum(0) - 1
    sizes = {"trajectory": len(steps), "step": len(tokens), "token": int(tokens.sum())}
    draw = {per: torch.rand(size, generator=generator, dtype=torch.float64) for per, size in sizes.items()}
    rewards = (
        torch.zeros(sizes["step"], dtype=torch.float64) if traits.targets == "outcomes" else draw["step"]
    )
    rewards = rewards.index_copy(0, ends, torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    values = {
        "token_values": torch.rand(sizes["token"], generator=generator),
        "end_values": torch.rand(sizes["step"], generator=generator),
        "state_values": torch.rand(sizes["step"], generator=generator),
        "instruction_values": torch.rand(sizes["trajectory"], generator=generator),
    }
    return Timeline(
        steps,
        tokens,
        rewards.to(dtype),
        groups=torch.tensor([0, 0, 0, 1, 1, 1]),
        anchors=torch.tensor([0, 1, 0, 0, 1, 1, 2, 3, 2, 3, 3, 2, 2]),
        **{name: values[name].to(dtype) for name in _VALUES[traits.reads]},
    )


def returns_a_credit_result(probe: CreditProbe) -> str:
    result: object = probe.run(probe.batch)
    if not isinstance(result, CreditResult):
        raise ContractError(
            f"it returned {type(result).__name__}; return CreditResult.of_steps(timeline, advantages), "
            "CreditResult.of_trajectories(...) or CreditResult(timeline, advantages)"
        )
    return f"on {probe.batch.num_trajectories} trajectories with {probe.batch.num_tokens} action tokens"


def advantages_fit_the_action_tokens(probe: CreditProbe) -> str:
    check_vector("advantages", probe.result.advantages, probe.batch.num_tokens, "action token", probe.batch)
    return f"one finite number for each of {probe.batch.num_tokens} action tokens"


def steps_have_one_advantage_as_declared(probe: CreditProbe) -> str:
    result, timeline = probe.result, probe.batch
    if result.step_advantages is not None:
        check_vector("step_advantages", result.step_advantages, timeline.num_steps, "step", timeline)
    if probe.traits.level == "token":
        return "declared level='token': advantages may differ inside a step"
    if result.step_advantages is None:
        raise ContractError(
            "step_advantages are missing; return CreditResult.of_steps(...), or declare level='token'"
        )
    if not torch.equal(timeline.steps_to_tokens(result.step_advantages), result.advantages):
        raise ContractError("action tokens of one step have different advantages; declare level='token'")
    return "all action tokens of a step share it"


def critic_targets_are_where_declared(probe: CreditProbe) -> str:
    result, timeline, reads = probe.result, probe.batch, probe.traits.reads
    if reads is None:
        if result.value_targets is not None:
            raise ContractError("it gives the critic targets; declare reads='state' (or where it reads it)")
        return "it needs no critic"
    if result.value_targets is None or result.value_sites is None:
        raise ContractError(f"it declares reads={reads!r} but gives no value_targets and value_sites")
    sites = {"state": timeline.state_sites, "end": timeline.end_sites, "tokens": timeline.token_sites}
    names = ("tokens", "end") if reads == "tokens_and_end" else (reads,)
    expected = {tuple(site) for name in names for site in sites[name].tolist()}
    if {tuple(site) for site in result.value_sites.tolist()} != expected:
        raise ContractError(f"value_sites are not those of reads={reads!r}; use timeline.{names[0]}_sites")
    check_vector("value_targets", result.value_targets, len(result.value_sites), "site", timeline)
    low, high = float(result.value_targets.min()), float(result.value_targets.max())
    if probe.traits.targets == "outcomes" and not 0 <= low <= high <= 1:
        raise ContractError(f"targets='outcomes' must lie in [0, 1], found {low:g} to {high:g}")
    return f"{len(result.value_sites)} targets at {reads!r}"


def siblings_are_compared_as_declared(probe: CreditProbe) -> str:
    batch = probe.batch
    own = torch.arange(batch.num_trajectories)
    alone = probe.run(replace(batch, groups=own, anchors=torch.arange(batch.num_steps)))
    changes = not torch.equal(alone.advantages, probe.result.advantages)
    if changes and not probe.traits.compares_siblings:
        raise ContractError(
            "advantages change when a trajectory is alone in its group, so it compares siblings; declare "
            "compares_siblings=True, else every task is sampled once and there is nothing to compare with"
        )
    if not changes and probe.traits.compares_siblings:
        raise ContractError(
            "it declares compares_siblings=True, but advantages do not depend on groups; read "
            "timeline.read_group_labels(), or drop the declaration"
        )
    return "it does" if changes else "it does not"


def token_rewards_are_read_as_declared(probe: CreditProbe) -> str:
    batch = probe.batch
    penalties = -torch.rand(batch.num_tokens, generator=torch.Generator().manual_seed(5))
    penalized = probe.run(replace(batch, token_rewards=penalties.to(batch.rewards.dtype)))
    changes = not torch.equal(penalized.advantages, probe.result.advantages)
    if changes and not probe.traits.reads_token_rewards:
        raise ContractError("token rewards change the result; declare reads_token_rewards=True")
    if not changes and probe.traits.reads_token_rewards:
        raise ContractError(
            "it declares reads_token_rewards=True, but they change nothing, and a KL in the reward would be "
            "lost; add timeline.read_token_rewards(), or drop the declaration"
        )
    return "it does" if changes else "it does not"


def whitens_as_declared(probe: CreditProbe) -> str:
    if not probe.traits.whitens:
        return "not declared: a recipe may whiten the advantages"
    advantages = probe.result.advantages.double()
    mean, deviation = float(advantages.mean()), float(advantages.std(correction=0))
    if abs(mean) > 1e-3 or abs(deviation - 1) > 1e-2:
        raise ContractError(f"it declares whitens=True, but mean is {mean:.3g} and deviation {deviation:.3g}")
    return "mean 0, deviation 1 over action tokens"


def rewards_decide(probe: CreditProbe) -> str:
    batch = probe.batch
    for other in (1.0 - batch.rewards, batch.rewards.flip(0)):
        if not torch.equal(probe.run(replace(batch, rewards=other)).advantages, probe.result.advantages):
            return "other rewards give other advantages"
    raise ContractError("advantages are the same whatever the rewards are; there is nothing to learn from")


def keep_selects_steps(probe: CreditProbe) -> str:
    keep = probe.result.keep
    if keep is None:
        return "every step is trained"
    if keep.dtype != torch.bool or keep.shape != (probe.batch.num_steps,):
        raise ContractError(f"keep must be a bool for each step, got {keep.dtype} {list(keep.shape)}")
    return f"{int(keep.sum())} of {len(keep)} steps are trained"


def is_deterministic_and_changes_no_input(probe: CreditProbe) -> str:
    before = clone_fields(probe.batch)
    again = probe.run(probe.batch)
    for name, value in clone_fields(probe.batch).items():
        if not torch.equal(value, before[name]):
            raise ContractError(f"it changes timeline.{name} in place; work on a copy")
    if not torch.equal(again.advantages, probe.result.advantages):
        raise ContractError("the same batch gives another result; use no random numbers and no state")
    return "twice the same, bit for bit"


def order_of_trajectories_does_not_matter(probe: CreditProbe) -> str:
    batch, order = probe.batch, torch.tensor([4, 2, 0, 5, 3, 1])
    shuffled = probe.run(reorder(batch, order))
    expected = probe.result.advantages[_places(batch, order)["token"]]
    if not torch.allclose(shuffled.advantages, expected, rtol=1e-4, atol=1e-5):
        raise ContractError(
            "advantages depend on the order of trajectories; groups are given by their labels"
        )
    return "advantages move with their trajectories"


def works_in_float64_and_on_one_step(probe: CreditProbe) -> str:
    double = make_batch(probe.traits, dtype=torch.float64)
    check_vector("advantages", probe.run(double).advantages, double.num_tokens, "action token", double)
    single = double.take_steps(torch.tensor([0]))
    check_vector("advantages", probe.run(single).advantages, single.num_tokens, "action token", single)
    return "dtype is kept; a batch of one step is finite"


CHECKS: tuple[Callable[[CreditProbe], str], ...] = (
    returns_a_credit_result,
    advantages_fit_the_action_tokens,
    steps_have_one_advantage_as_declared,
    critic_targets_are_where_declared,
    siblings_are_compared_as_declared,
    token_rewards_are_read_as_declared,
    whitens_as_declared,
    rewards_decide,
    keep_selects_steps,
    is_deterministic_and_changes_no_input,
    order_of_trajectories_does_not_matter,
    works_in_float64_and_on_one_step,
)


def check_vector(name: str, value: object, length: int, per: str, timeline: Timeline) -> None:
    """`value` is a finite tensor of [length], in the batch's dtype, without gradient."""
    if not isinstance(value, Tensor) or value.shape != (length,):
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ContractError(f"{name} must be a tensor of [{length}], one per {per}; got {shape}")
    if value.dtype != timeline.rewards.dtype:
        raise ContractError(f"{name} are {value.dtype}, rewards {timeline.rewards.dtype}; keep the dtype")
    if not bool(value.isfinite().all()):
        raise ContractError(
            f"{name} hold {value[~value.isfinite()][0].item()}; guard divisions and logarithms"
        )
    if value.requires_grad:
        raise ContractError(f"{name} carry a gradient; credit is a weight of the loss, so detach it")


def reorder(timeline: Timeline, order: Tensor) -> Timeline:
    """The same trajectories in another order."""
    index = _places(timeline, order)
    moved: dict[str, Any] = {}
    for name, per in _PER.items():
        value = getattr(timeline, name)
        moved[name] = None if value is None else value[index[per]]
    return Timeline(**moved)


_PER = {
    **dict.fromkeys(("steps_per_trajectory", "bootstrap", "groups", "instruction_values"), "trajectory"),
    **dict.fromkeys(("tokens_per_step", "rewards", "end_values", "state_values", "anchors"), "step"),
    **dict.fromkeys(("token_values", "token_rewards"), "token"),
}


def _places(timeline: Timeline, order: Tensor) -> dict[str, Tensor]:
    steps = torch.cat([(timeline.steps_by_trajectory.index == j).nonzero()[:, 0] for j in order.tolist()])
    tokens = torch.cat([(timeline.tokens_by_step.index == t).nonzero()[:, 0] for t in steps.tolist()])
    return {"trajectory": order, "step": steps, "token": tokens}


def clone_fields(timeline: Timeline) -> dict[str, Tensor]:
    """Copies of every tensor of a batch."""
    values = {field.name: getattr(timeline, field.name) for field in fields(timeline)}
    return {name: value.clone() for name, value in values.items() if value is not None}
