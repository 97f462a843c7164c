"""Recipes: one choice per slot, and the combinations the papers use.

    credit ──► whiten ──► loss          which advantages, how scaled, into which policy loss
    value                               how the critic is trained (None: there is none)
    kl                                  how the reference holds the policy (None: it does not)
    reward_parts                        what the step reward is the sum of

A `Recipe` is data: the trainer executes it and knows no algorithm by name. Any combination may be
written down; `Recipe` refuses on construction only what cannot work or would be ignored without a
word: unknown names and arguments, a critic that is read but never trained, cross-entropy towards
targets that are no probabilities, a KL put into rewards that the credit never reads.

Choices made here where the sources leave them open:

* `vagen-full`: γ_turn = 0.95, λ_turn = λ_token = 1. The source states γ_token alone. A discount
  across turns prefers short solutions, as its sparse task reward intends; λ = 1 keeps a late
  success visible in the first turn while the critic is still young.
* `webrl`: β = 1. The source finds small β (0.01) harmful and large β safe as long as replay is on,
  which it is. With outcomes in [0, 1] an action's log-ratio is then held within about ±1.
  Advantages are not whitened: eq. 5 compares them with a log-ratio, so their unit matters.
* `awr`: β = 1 on whitened advantages, so the default `max_weight` of 20 cuts at three standard
  deviations whatever the scale of the reward.
* KL estimators where the table names none: k1 in rewards (unbiased, free, and no gradient passes
  through it), k3 in losses (unbiased and never negative). `full` is a change of one word.
* `vanilla-ppo` takes γ and the reward's place from `vagen-base`, whose baseline it is.
* `digirl`: `horizon` is left to the environment's step limit, which the trainer fills in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwell.algos.scalar_checks import check_choice, check_not_negative
from stepwell.algos.slots import CREDIT_ARGUMENTS, KL_ESTIMATORS, LOSS_ARGUMENTS, VALUE_LOSS_NAMES
from stepwell.core.errors import ConfigError, InputError
from stepwell.core.names import suggest_name

Sites = Literal["state", "end", "tokens", "tokens_and_end"]
SITES: tuple[Sites, ...] = ("state", "end", "tokens", "tokens_and_end")

# Where each credit function reads (and trains) the critic; absent: it needs none.
CREDIT_SITES: dict[str, Sites] = {
    "token_gae": "tokens",
    "step_gae": "state",
    "turn_gae": "end",  # "state" when called with site="state"
    "bilevel_gae": "tokens_and_end",
    "webrl_advantage": "state",
    "digirl_advantage": "state",
    "mc_advantage": "state",
}
# Credit that reads token rewards, and so can hold a KL; reinforce_pp only without a baseline.
READS_TOKEN_REWARDS = frozenset({"token_gae", "step_gae", "bilevel_gae", "reinforce_pp"})
# Credit whose critic targets are outcomes in [0, 1].
OUTCOME_TARGETS = frozenset({"webrl_advantage", "digirl_advantage", "mc_advantage"})
NEEDS_ADVANTAGES = frozenset({"ppo_loss", "webrl_loss", "awr_loss", "reinforce_loss"})
NEEDS_REFERENCE = frozenset({"webrl_loss", "dpo_loss"})


@dataclass(frozen=True)
class Call:
    """A function of `CREDIT` or `LOSSES` by name, with keyword arguments."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ValueChoice:
    """How the critic is trained, and where. With `value_bce` its output is a probability."""

    loss: str
    sites: Sites


@dataclass(frozen=True)
class KLChoice:
    """Which estimator, with which coefficient, in the reward or in the loss."""

    estimator: str
    coef: float
    kl_in: Literal["reward", "loss"]


@dataclass(frozen=True)
class Recipe:
    """One choice per slot.

    optional_reward_parts  parts summed into the reward where the environment offers them
    whiten                 advantages are whitened over these; None leaves them as they are
    value_coef             weight of the critic's loss where actor and critic share a backbone
    replay, curriculum     WebRL's buffer and task evolution
    flat_sequence          observation tokens count as action tokens (the failing baseline)
    bootstrap_truncated    the critic values the state after a cut by our own budget
    """

    name: str
    credit: Call | None
    loss: Call
    value: ValueChoice | None = None
    kl: KLChoice | None = None
    reward_parts: tuple[str, ...] = ("task",)
    optional_reward_parts: tuple[str, ...] = ()
    whiten: Literal["steps", "tokens"] | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    replay: bool = False
    curriculum: bool = False
    flat_sequence: bool = False
    bootstrap_truncated: bool = False

    def __post_init__(self) -> None:
        try:
            _check_slots(self)
            _check_combination(self)
        except InputError as error:
            raise ConfigError(f"recipe {self.name!r}: {error}") from error

    @property
    def needs_critic(self) -> bool:
        return self.value is not None

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None or self.loss.name in NEEDS_REFERENCE

    @property
    def needs_groups(self) -> bool:
        """True when credit compares siblings, so tasks must be sampled more than once."""
        if self.credit is None:
            return False
        return self.credit.name in ("grpo", "rloo", "gigpo") or self.credit.kwargs.get("baseline") == "group"


def _check_slots(recipe: Recipe) -> None:
    """Every name is known and every argument is one the function takes."""
    if recipe.credit is not None:
        _check_call("credit", recipe.credit, CREDIT_ARGUMENTS)
    _check_call("loss", recipe.loss, LOSS_ARGUMENTS)
    if recipe.value is not None:
        check_choice("value.loss", recipe.value.loss, VALUE_LOSS_NAMES)
        check_choice("value.sites", recipe.value.sites, SITES)
    if recipe.kl is not None:
        check_choice("kl.estimator", recipe.kl.estimator, KL_ESTIMATORS)
        check_choice("kl.kl_in", recipe.kl.kl_in, ("reward", "loss"))
        check_not_negative("kl.coef", recipe.kl.coef)
    check_choice("whiten", recipe.whiten, (None, "steps", "tokens"))
    check_not_negative("value_coef", recipe.value_coef)
    check_not_negative("entropy_coef", recipe.entropy_coef)


def _check_call(slot: str, call: Call, table: Mapping[str, tuple[str, ...]]) -> None:
    check_choice(slot, call.name, tuple(table))
    accepted = table[call.name]
    for name in call.kwargs:
        if name not in accepted:
            guess = suggest_name(name, accepted, "Its arguments")
            raise InputError(f"{slot}: {call.name} has no argument {name!r}{guess}")


def _check_combination(recipe: Recipe) -> None:
    """What is read is trained, what is asked for is used."""
    credit, loss, value, kl = recipe.credit, recipe.loss, recipe.value, recipe.kl
    if credit is None and loss.name in NEEDS_ADVANTAGES:
        raise InputError(
            f"credit: {loss.name} weights by advantages; choose one of {', '.join(CREDIT_ARGUMENTS)}"
        )
    sites = credit_sites(credit)
    if sites is not None and value is None:
        raise InputError(
            f"value: {credit and credit.name} reads a critic that nothing trains; add a value loss"
        )
    if value is not None and sites is None:
        raise InputError(
            f"value: {credit.name if credit else 'no credit'} gives the critic no targets; set it to None"
        )
    if value is not None and value.sites != sites:
        raise InputError(
            f"value.sites: {credit and credit.name} gives targets at {sites!r}, not {value.sites!r}"
        )
    if value is not None and value.loss == "value_bce" and not (credit and credit.name in OUTCOME_TARGETS):
        raise InputError("value.loss: value_bce needs targets in [0, 1]; use value_mse with this credit")
    if kl is not None and kl.kl_in == "reward" and not reads_token_rewards(credit):
        raise InputError(
            f"kl.kl_in: {credit and credit.name} never reads token rewards; put the KL in the loss"
        )
    if recipe.whiten == "steps" and not has_step_advantages(credit):
        raise InputError("whiten: this credit differs inside a step (or is absent); use 'tokens' or None")
    if recipe.whiten is not None and credit is not None and credit.name == "reinforce_pp":
        raise InputError("whiten: reinforce_pp whitens by itself; set it to None")


def credit_sites(credit: Call | None) -> Sites | None:
    """Where a credit call gives the critic targets, or None if it uses no critic."""
    if credit is None:
        return None
    if credit.name == "turn_gae" and credit.kwargs.get("site") == "state":
        return "state"
    return CREDIT_SITES.get(credit.name)


def reads_token_rewards(credit: Call | None) -> bool:
    return credit is not None and credit.name in READS_TOKEN_REWARDS and credit.kwargs.get("baseline") is None


def has_step_advantages(credit: Call | None) -> bool:
    """True when all action tokens of a step share one advantage."""
    return credit is not None and credit.name not in ("token_gae", "bilevel_gae", "reinforce_pp")


_KL_LOSS = KLChoice("k3", 0.001, "loss")
_KL_REWARD = KLChoice("k1", 0.001, "reward")
_PPO = Call("ppo_loss", {"ratio": "token", "clip_low": 0.2, "clip_high": 0.2, "aggregate": "token_mean"})


def _ppo(ratio: str, aggregate: str, clip_low: float = 0.2, clip_high: float = 0.2) -> Call:
    return Call(
        "ppo_loss", {"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high, "aggregate": aggregate}
    )


_ALL = (
    Recipe(
        "steppo",
        credit=Call("step_gae", {"gamma": 0.99, "lam": 1.0}),
        loss=_ppo("step", "step_mean"),
        value=ValueChoice("value_mse", "state"),
        kl=_KL_LOSS,
        optional_reward_parts=("process",),
        whiten="steps",
    ),
    Recipe(
        "ppo",
        credit=Call("token_gae", {"gamma": 0.99, "lam": 1.0, "reward_at": "step_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_LOSS,
        whiten="tokens",
    ),
    Recipe(
        "vanilla-ppo",
        credit=Call("token_gae", {"gamma": 1.0, "lam": 1.0, "reward_at": "trajectory_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_REWARD,
        reward_parts=("task", "format"),
        whiten="tokens",
        flat_sequence=True,
    ),
    Recipe(
        "turn-ppo",
        credit=Call("turn_gae", {"gamma": 0.99, "lam": 1.0, "site": "end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "end"),
        kl=_KL_LOSS,
        reward_parts=("task", "format"),
        whiten="steps",
    ),
    Recipe(
        "vagen-base",
        credit=Call("token_gae", {"gamma": 1.0, "lam": 1.0, "reward_at": "trajectory_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_REWARD,
        reward_parts=("task", "format"),
        whiten="tokens",
    ),
    Recipe(
        "vagen-full",
        credit=Call(
            "bilevel_gae",
            {
                "gamma_turn": 0.95,
                "lam_turn": 1.0,
                "gamma_token": 1.0,
                "lam_token": 1.0,
                "final": "td_plus_turn",
            },
        ),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens_and_end"),
        kl=_KL_REWARD,
        reward_parts=("task", "format", "grounding", "world_modeling"),
        whiten="tokens",
    ),
    Recipe("grpo", credit=Call("grpo"), loss=_ppo("token", "trajectory_mean"), kl=_KL_LOSS),
    Recipe("rloo", credit=Call("rloo"), loss=_PPO, kl=_KL_LOSS),
    Recipe("reinforce++", credit=Call("reinforce_pp"), loss=_PPO, kl=_KL_LOSS),
    Recipe(
        "reinforce++-baseline", credit=Call("reinforce_pp", {"baseline": "group"}), loss=_PPO, kl=_KL_LOSS
    ),
    Recipe("gigpo", credit=Call("gigpo"), loss=_PPO, kl=_KL_LOSS),
    Recipe(
        "gspo",
        credit=Call("grpo"),
        loss=_ppo("trajectory", "trajectory_mean", clip_low=3e-4, clip_high=4e-4),
        kl=_KL_LOSS,
    ),
    Recipe(
        "webrl",
        credit=Call("webrl_advantage", {"gamma": 0.9, "lam": 0.5}),
        loss=Call("webrl_loss", {"beta": 1.0}),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
        replay=True,
        curriculum=True,
    ),
    Recipe(
        "digirl",
        credit=Call("digirl_advantage", {"lam": 0.5, "keep_top": 0.1}),
        loss=Call("sft_loss"),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
    ),
    Recipe(
        "awr",
        credit=Call("mc_advantage", {"gamma": 0.9}),
        loss=Call("awr_loss", {"beta": 1.0, "max_weight": 20.0}),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
        whiten="steps",
    ),
    Recipe(
        "filtered-bc",
        credit=None,
        loss=Call("filtered_bc_loss", {"percentile": 70}),
        reward_parts=("outcome",),
    ),
    Recipe("sft", credit=None, loss=Call("sft_loss"), reward_parts=()),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
