"""Recipes: the choices that make a method, and the combinations that the papers use.

    credit ──► whiten ──► loss          which advantages, how scaled, into which policy loss
    value                               how the critic is trained (None: there is none)
    kl                                  how the reference holds the policy (None: it does not)
    reward_parts                        what the step reward is the sum of

A `Recipe` is data. The trainer executes it and knows no algorithm by name: what it must know of a function
is in the function's declaration (`declarations.py`). Any combination may be written down. A recipe
refuses on construction what cannot work and what would silently be ignored: unknown names and arguments, a
critic that is read but never trained, cross-entropy towards targets that are not probabilities, a KL in
rewards that the credit never reads.

A recipe is found by a built-in name, by the name that an installed package gives it (entry point
`stepwell.recipes`), or by `module:NAME` (`find_recipe`).

Choices made here where the sources leave them open:

* `vagen-full`: γ_turn = 0.95, λ_turn = λ_token = 1. The source states γ_token alone. A discount across turns
  prefers short solutions, as its sparse task reward intends. λ = 1 keeps a late success visible in the first
  turn while the critic is still young.
* `webrl`: β = 1. The source finds small β (0.01) harmful and large β safe as long as replay is on, which it
  is. With outcomes in [0, 1] an action's log-ratio is then held within about ±1. Advantages are not whitened:
  eq. 5 compares them with a log-ratio, so their unit matters.
* `awr`: β = 1 on whitened advantages, so the default `max_weight` of 20 cuts at three standard deviations
  whatever the scale of the reward.
* KL estimators where the table names none: k1 in rewards (unbiased, free, and no gradient passes through it),
  k3 in losses (unbiased and never negative). `full` has no sampling noise; it costs a pass of the reference
  in every pass of the policy.
* `reinforce++`: γ = 0.99 per token, as the study that compares it with StepPO has it. Its own source sums
  rewards without a discount, which is `recipe.credit.gamma=1`.
* `turn-ppo` reads V(s_t): a value after the action is no baseline for it. `recipe.credit.site="end"` is the
  other reading.
* `vanilla-ppo` takes γ and the reward's place from `vagen-base`, whose baseline it is.
* `digirl`: `horizon` is left to the environment's turn limit, which the trainer fills in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from stepwell.algos.declarations import (
    CREDIT_MODULES,
    KL_ESTIMATORS,
    SITES,
    VALUE_LOSS_NAMES,
    CreditTraits,
    FunctionSpec,
    Kind,
    LossTraits,
    Sites,
    find_declaration,
)
from stepwell.algos.scalar_checks import check_choice, check_not_negative
from stepwell.core import user_objects
from stepwell.core.errors import ConfigError, InputError
from stepwell.core.names import suggest_name

__all__ = ["RECIPES", "FunctionSpec", "KLChoice", "Recipe", "ValueChoice", "find_recipe", "list_recipes"]


@dataclass(frozen=True)
class ValueChoice:
    """How the critic is trained, and where."""

    loss: str
    sites: Sites

    @property
    def link(self) -> Literal["identity", "logit"]:
        """How an output of the critic is read: with cross-entropy as a logit, else as the value itself."""
        return "logit" if self.loss == "value_bce" else "identity"


@dataclass(frozen=True)
class KLChoice:
    """Which estimator, with which coefficient, in the reward or in the loss."""

    estimator: str
    coef: float
    kl_in: Literal["reward", "loss"]


@dataclass(frozen=True)
class Recipe:
    """The choices that make a method.

    optional_reward_parts  parts summed into the reward where the environment offers them
    whiten                 advantages are whitened over these; None leaves them as they are
    value_coef             weight of the critic's loss where actor and critic share a backbone
    replay, curriculum     WebRL's buffer and task evolution
    flat_sequence          observation tokens count as action tokens (the failing baseline)
    bootstrap_truncated    the critic values the state after a cut by our own budget
    """

    name: str
    credit: FunctionSpec | None
    loss: FunctionSpec
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
            _check_choices(self)
            _check_combination(self)
        except InputError as error:
            raise ConfigError(f"recipe {self.name!r}: {error}") from error

    @property
    def credit_traits(self) -> CreditTraits:
        """What the credit function declares; nothing without one."""
        return CreditTraits() if self.credit is None else _get_credit_traits(self.credit)

    @property
    def loss_traits(self) -> LossTraits:
        """What the policy loss declares."""
        return _get_loss_traits(self.loss)

    @property
    def needs_critic(self) -> bool:
        return self.value is not None

    @property
    def needs_instruction_critic(self) -> bool:
        return self.credit_traits.reads_instructions

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None or "reference" in self.loss_traits.needs

    @property
    def needs_full_kl(self) -> bool:
        """True when the KL is that of whole distributions, which the policy's own pass computes."""
        return self.kl is not None and self.kl.estimator == "full"

    @property
    def needs_reference_logprobs(self) -> bool:
        """True when something reads the reference's logprobs of the sampled tokens."""
        return self.needs_reference and not (self.needs_full_kl and "reference" not in self.loss_traits.needs)

    @property
    def needs_groups(self) -> bool:
        """True when credit compares siblings, so tasks must be sampled more than once."""
        return self.credit_traits.compares_siblings

    def with_credit(self, credit: FunctionSpec, **changes: Any) -> Recipe:
        """The recipe with another credit function and `changes`; what depends on it follows its declaration.

        The critic is trained where the new credit reads it, or not at all. Advantages that are whitened
        already are not whitened again, and those that differ inside a step are whitened over tokens.
        """
        try:
            traits = _get_credit_traits(credit)
        except InputError as error:
            raise ConfigError(f"recipe {self.name!r}: {error}") from error
        value_loss = "value_mse" if self.value is None else self.value.loss
        if traits.targets == "returns":
            value_loss = "value_mse"
        value = None if traits.reads is None else ValueChoice(value_loss, traits.reads)
        whiten = None if traits.whitens else self.whiten
        if whiten == "steps" and traits.level == "token":
            whiten = "tokens"
        return replace(self, **{"credit": credit, "value": value, "whiten": whiten} | changes)


def _get_credit_traits(spec: FunctionSpec) -> CreditTraits:
    traits = find_declaration("credit", spec.name).get_traits(spec.kwargs)
    assert isinstance(traits, CreditTraits)
    return traits


def _get_loss_traits(spec: FunctionSpec) -> LossTraits:
    traits = find_declaration("loss", spec.name).get_traits(spec.kwargs)
    assert isinstance(traits, LossTraits)
    return traits


def _check_choices(recipe: Recipe) -> None:
    """Every name is known and every argument is one the function takes."""
    if recipe.credit is not None:
        _check_arguments("credit", recipe.credit)
    _check_arguments("loss", recipe.loss)
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


def _check_arguments(kind: Kind, spec: FunctionSpec) -> None:
    accepted = find_declaration(kind, spec.name).arguments
    for name in spec.kwargs:
        if name not in accepted:
            guess = suggest_name(name, accepted, "Its arguments")
            raise InputError(f"{kind}: {spec.name} has no argument {name!r}{guess}")


def _check_combination(recipe: Recipe) -> None:
    """What is read is trained, and what is asked for is used."""
    value, kl, traits, needs = recipe.value, recipe.kl, recipe.credit_traits, recipe.loss_traits.needs
    credit = "no credit" if recipe.credit is None else recipe.credit.name
    if recipe.credit is None and "advantages" in needs:
        raise InputError(
            f"credit: {recipe.loss.name} weights by advantages; choose one of {', '.join(CREDIT_MODULES)}"
        )
    if "pairs" in needs:
        raise InputError(
            f"loss: {recipe.loss.name} needs preference pairs, which the trainer does not make; "
            "call it from a loop of your own"
        )
    if traits.reads is not None and value is None:
        raise InputError(f"value: {credit} reads a critic that nothing trains; add a value loss")
    if traits.reads_instructions and value is None:
        raise InputError(f"value: {credit} reads a critic of instructions that nothing trains")
    if value is not None and traits.reads is None:
        raise InputError(f"value: {credit} gives the critic no targets; set it to None")
    if value is not None and value.sites != traits.reads:
        raise InputError(f"value.sites: {credit} gives targets at {traits.reads!r}, not {value.sites!r}")
    if value is not None and value.loss == "value_bce" and traits.targets != "outcomes":
        raise InputError("value.loss: value_bce needs targets in [0, 1]; use value_mse with this credit")
    if kl is not None and kl.kl_in == "reward" and not traits.reads_token_rewards:
        raise InputError(f"kl.kl_in: {credit} never reads token rewards; put the KL in the loss")
    if recipe.whiten is not None and traits.whitens:
        raise InputError(f"whiten: {credit} whitens by itself; set it to None")
    if recipe.whiten == "steps" and (recipe.credit is None or traits.level == "token"):
        raise InputError("whiten: this credit differs inside a step (or is absent); use 'tokens' or None")


_KL_LOSS = KLChoice("k3", 0.001, "loss")
_KL_REWARD = KLChoice("k1", 0.001, "reward")
_PPO = FunctionSpec(
    "ppo_loss", {"ratio": "token", "clip_low": 0.2, "clip_high": 0.2, "aggregate": "token_mean"}
)


def _make_ppo(ratio: str, aggregate: str, clip_low: float = 0.2, clip_high: float = 0.2) -> FunctionSpec:
    return FunctionSpec(
        "ppo_loss", {"ratio": ratio, "clip_low": clip_low, "clip_high": clip_high, "aggregate": aggregate}
    )


_ALL = (
    Recipe(
        "steppo",
        credit=FunctionSpec("step_gae", {"gamma": 0.99, "lam": 1.0}),
        loss=_make_ppo("step", "step_mean"),
        value=ValueChoice("value_mse", "state"),
        kl=_KL_LOSS,
        optional_reward_parts=("process",),
        whiten="steps",
    ),
    Recipe(
        "ppo",
        credit=FunctionSpec("token_gae", {"gamma": 0.99, "lam": 1.0, "reward_at": "step_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_LOSS,
        whiten="tokens",
    ),
    Recipe(
        "vanilla-ppo",
        credit=FunctionSpec("token_gae", {"gamma": 1.0, "lam": 1.0, "reward_at": "trajectory_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_REWARD,
        reward_parts=("task", "format"),
        whiten="tokens",
        flat_sequence=True,
    ),
    Recipe(
        "turn-ppo",
        credit=FunctionSpec("turn_gae", {"gamma": 0.99, "lam": 1.0, "site": "state"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "state"),
        kl=_KL_LOSS,
        reward_parts=("task", "format"),
        whiten="steps",
    ),
    Recipe(
        "vagen-base",
        credit=FunctionSpec("token_gae", {"gamma": 1.0, "lam": 1.0, "reward_at": "trajectory_end"}),
        loss=_PPO,
        value=ValueChoice("value_mse", "tokens"),
        kl=_KL_REWARD,
        reward_parts=("task", "format"),
        whiten="tokens",
    ),
    Recipe(
        "vagen-full",
        credit=FunctionSpec(
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
    Recipe("grpo", credit=FunctionSpec("grpo"), loss=_make_ppo("token", "trajectory_mean"), kl=_KL_LOSS),
    Recipe("rloo", credit=FunctionSpec("rloo"), loss=_PPO, kl=_KL_LOSS),
    Recipe("reinforce++", credit=FunctionSpec("reinforce_pp", {"gamma": 0.99}), loss=_PPO, kl=_KL_LOSS),
    Recipe(
        "reinforce++-baseline",
        credit=FunctionSpec("reinforce_pp", {"baseline": "group"}),
        loss=_PPO,
        kl=_KL_LOSS,
    ),
    Recipe("gigpo", credit=FunctionSpec("gigpo"), loss=_PPO, kl=_KL_LOSS),
    Recipe(
        "gspo",
        credit=FunctionSpec("grpo"),
        loss=_make_ppo("trajectory", "trajectory_mean", clip_low=3e-4, clip_high=4e-4),
        kl=_KL_LOSS,
    ),
    Recipe(
        "webrl",
        credit=FunctionSpec("webrl_advantage", {"gamma": 0.9, "lam": 0.5}),
        loss=FunctionSpec("webrl_loss", {"beta": 1.0}),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
        replay=True,
        curriculum=True,
    ),
    Recipe(
        "digirl",
        credit=FunctionSpec("digirl_advantage", {"lam": 0.5, "keep_top": 0.1}),
        loss=FunctionSpec("sft_loss"),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
    ),
    Recipe(
        "awr",
        credit=FunctionSpec("mc_advantage", {"gamma": 0.9}),
        loss=FunctionSpec("awr_loss", {"beta": 1.0, "max_weight": 20.0}),
        value=ValueChoice("value_bce", "state"),
        reward_parts=("outcome",),
        whiten="steps",
    ),
    Recipe(
        "filtered-bc",
        credit=None,
        loss=FunctionSpec("filtered_bc_loss", {"percentile": 70}),
        reward_parts=("outcome",),
    ),
    Recipe("sft", credit=None, loss=FunctionSpec("sft_loss"), reward_parts=()),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def list_recipes() -> dict[str, str]:
    """Every recipe that has a name, with the import path of those that installed packages add."""
    added = user_objects.list_installed(user_objects.RECIPES)
    return {name: "" for name in RECIPES} | {
        name: path for name, path in added.items() if name not in RECIPES
    }


def find_recipe(name: str | Recipe) -> Recipe:
    """A recipe by its name or `module:NAME`; a `Recipe` is returned as it is."""
    if isinstance(name, Recipe):
        return name
    if name in RECIPES:
        return RECIPES[name]
    is_path = user_objects.is_import_path(name)
    path = name if is_path else user_objects.find_installed(user_objects.RECIPES, name)
    if path is None:
        known = suggest_name(name, list_recipes(), "Recipes")
        raise ConfigError(f"there is no recipe {name!r}{known}, or module:NAME of your own")
    found = user_objects.find_object(path, f"recipe {name!r}")
    if not isinstance(found, Recipe):
        raise ConfigError(
            f"recipe {name!r} is a {type(found).__name__}; it must be a stepwell.algos.Recipe, "
            "such as RECIPE = replace(RECIPES['grpo'], name='mine')"
        )
    return found
