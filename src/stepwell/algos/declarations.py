"""What the system must know of a credit function or a loss, declared beside the function.

    @credit(reads="state", compares_siblings=True)
    def my_credit(tl: Timeline, *, gamma: float = 0.99) -> CreditResult: ...

    @loss(needs=("advantages", "reference"))
    def my_loss(inputs: LossInputs, *, beta: float = 0.1) -> tuple[Tensor, Metrics]: ...

The trainer knows no function by name. It asks the declaration whether tasks must be sampled several times,
where the critic is read, whether a reference is needed. `stepwell check` compares a function with its
declaration.

A function is named by a built-in name (`grpo`), by `module:name`, or given as an object (`FunctionSpec`).
Built-in functions import torch, which takes seconds. Their declarations are therefore read from their source
text, so that recipes are checked and listed without torch; this is why built-in declarations are literals.

Invariants
* A function without a declaration is refused, never guessed about.
* A credit function runs without gradients: the decorator sees to it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module, resources
from typing import Any, Literal, TypeVar

from stepwell.algos.scalar_checks import check_choice
from stepwell.core.errors import ConfigError, InputError
from stepwell.core.names import suggest_name
from stepwell.core.user_objects import find_object, get_declared_kind, is_import_path, mark_kind, name_object

Kind = Literal["credit", "loss"]
Sites = Literal["state", "end", "tokens", "tokens_and_end"]
Need = Literal["advantages", "behavior", "reference", "pairs"]
Coupling = Literal["step", "trajectory", "batch"]
OldSamples = Literal["corrected", "allowed", "refused"]
MeanOver = Literal["token_mean", "step_mean", "trajectory_mean"]
MEANS: tuple[MeanOver, ...] = ("token_mean", "step_mean", "trajectory_mean")
OLD_SAMPLES: tuple[OldSamples, ...] = ("corrected", "allowed", "refused")
COUPLINGS: tuple[Coupling, ...] = ("step", "trajectory", "batch")
SITES: tuple[Sites, ...] = ("state", "end", "tokens", "tokens_and_end")
NEEDS: tuple[Need, ...] = ("advantages", "behavior", "reference", "pairs")

CREDIT_MODULES: dict[str, str] = {
    name: f"stepwell.algos.credit.{name}"
    for name in (
        *("token_gae", "step_gae", "turn_gae", "bilevel_gae", "grpo", "rloo", "reinforce_pp", "gigpo"),
        *("webrl_advantage", "digirl_advantage", "mc_advantage"),
    )
}
LOSS_MODULES: dict[str, str] = {
    "ppo_loss": "stepwell.algos.losses.ppo",
    "webrl_loss": "stepwell.algos.losses.webrl",
    "awr_loss": "stepwell.algos.losses.awr",
    "reinforce_loss": "stepwell.algos.losses.reinforce",
    "sft_loss": "stepwell.algos.losses.imitation",
    "filtered_bc_loss": "stepwell.algos.losses.imitation",
    "dpo_loss": "stepwell.algos.losses.dpo",
}
BUILT_IN: dict[Kind, dict[str, str]] = {"credit": CREDIT_MODULES, "loss": LOSS_MODULES}
VALUE_LOSS_NAMES = ("value_mse", "value_bce")
KL_ESTIMATORS = ("k1", "k2", "k3", "full")
"""Those of a recipe. `full` is computed in the policy's own pass, on one device."""

_DECLARATION = "__stepwell_declaration__"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CreditTraits:
    """What a credit function does, as far as the rest of the system must know.

    reads                where it reads the critic and gives it targets; None: it needs no critic
    compares_siblings    it compares trajectories of one group, so each task is sampled several times
                         (`train.group_size`)
    reads_token_rewards  it reads `token_rewards`, so a KL in the reward reaches it
    targets              "outcomes": its critic targets are final outcomes in [0, 1], which allows `value_bce`
    level                "step": all action tokens of a step share one advantage; "token": they may differ
    whitens              its advantages are whitened already, so a recipe must not whiten them again
    reads_instructions   it reads the critic of instructions, once per trajectory, and gives it targets
    fills                arguments that the trainer fills in where settings leave them out: "horizon", the
                         environment's turn limit
    """

    reads: Sites | None = None
    compares_siblings: bool = False
    reads_token_rewards: bool = False
    targets: Literal["returns", "outcomes"] = "returns"
    level: Literal["step", "token"] = "step"
    whitens: bool = False
    fills: tuple[str, ...] = ()
    reads_instructions: bool = False

    def __post_init__(self) -> None:
        check_choice("reads", self.reads, (None, *SITES))
        check_choice("targets", self.targets, ("returns", "outcomes"))
        check_choice("level", self.level, ("step", "token"))
        for name in self.fills:
            check_choice("fills", name, ("horizon",))


@dataclass(frozen=True)
class LossTraits:
    """What a policy loss needs, as far as the rest of the system must know.

    needs   "advantages": a recipe with this loss needs a credit function
            "behavior": logprobs of the engine at sampling time; demonstrations have none
            "reference": logprobs of the frozen reference, which the trainer then keeps
            "pairs": preference pairs, which the trainer does not make
    couples what a term of the loss depends on: "step", the outputs of one step; "trajectory"; or "batch".
            All else (counts, masks, advantages) it takes from `inputs.reduction`, so that the losses of parts
            of a minibatch add up. Then a minibatch of several microbatches needs one pass instead of two
    old_samples
            samples of an older policy, which asynchronous runs learn from: "corrected", it weighs them by
            their ratio to `behavior_logprobs`; "allowed", it is right for samples of any policy; "refused",
            neither, so asynchronous runs refuse it
    aggregate
            what the loss is a mean over, unless it takes a keyword `aggregate`; KL and entropy follow it
    """

    needs: tuple[Need, ...] = ()
    couples: Coupling = "batch"
    old_samples: OldSamples = "refused"
    aggregate: MeanOver = "token_mean"

    def __post_init__(self) -> None:
        check_choice("couples", self.couples, COUPLINGS)
        check_choice("old_samples", self.old_samples, OLD_SAMPLES)
        check_choice("aggregate", self.aggregate, MEANS)
        for name in self.needs:
            check_choice("needs", name, NEEDS)


@dataclass(frozen=True)
class Declaration:
    """A function's traits, and the keyword arguments it takes.

    `variants` holds traits that depend on an argument: {"site": {"end": {"reads": "end"}}}.
    """

    kind: Kind
    traits: CreditTraits | LossTraits
    arguments: tuple[str, ...]
    variants: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)

    def get_traits(self, kwargs: Mapping[str, Any]) -> Any:
        """The traits of a call with these keyword arguments."""
        traits = self.traits
        for argument, by_value in self.variants.items():
            if changes := by_value.get(kwargs.get(argument)):
                traits = replace(traits, **changes)
        return traits


def credit(
    *,
    reads: Sites | None = None,
    compares_siblings: bool = False,
    reads_token_rewards: bool = False,
    targets: Literal["returns", "outcomes"] = "returns",
    level: Literal["step", "token"] = "step",
    whitens: bool = False,
    fills: tuple[str, ...] = (),
    reads_instructions: bool = False,
    variants: Mapping[str, Mapping[Any, Mapping[str, Any]]] | None = None,
) -> Callable[[F], F]:
    """Declare a credit function: `function(timeline, *, keywords) -> CreditResult`. See `CreditTraits`."""
    traits = CreditTraits(
        reads, compares_siblings, reads_token_rewards, targets, level, whitens, fills, reads_instructions
    )

    def declare(function: F) -> F:
        import torch

        return _declare(torch.no_grad()(function), "credit", traits, variants)

    return declare


def loss(
    *,
    needs: tuple[Need, ...] = (),
    couples: Coupling = "batch",
    old_samples: OldSamples = "refused",
    aggregate: MeanOver = "token_mean",
    variants: Mapping[str, Mapping[Any, Mapping[str, Any]]] | None = None,
) -> Callable[[F], F]:
    """Declare a policy loss: `function(inputs, *, keywords) -> (loss, metrics)`. See `LossTraits`."""
    traits = LossTraits(needs, couples, old_samples, aggregate)
    return lambda function: _declare(function, "loss", traits, variants)


def _declare(
    function: F,
    kind: Kind,
    traits: CreditTraits | LossTraits,
    variants: Mapping[str, Mapping[Any, Mapping[str, Any]]] | None = None,
) -> F:
    parameters = inspect.signature(function).parameters.values()
    arguments = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    setattr(function, _DECLARATION, Declaration(kind, traits, arguments, variants or {}))
    return mark_kind(function, kind)


@dataclass(frozen=True)
class FunctionSpec:
    """A credit function or loss by name, with keyword arguments.

    `name` is built in (`grpo`), or `module:name`. `FunctionSpec.of(my_credit, gamma=0.9)` takes the function.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: str | Callable[..., Any], **kwargs: Any) -> FunctionSpec:
        """The spec of a function, given itself or by its name."""
        return cls(name_object(function), kwargs)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.kwargs.items())})"


def find_declaration(kind: Kind, name: str) -> Declaration:
    """The declaration of a function by name; `InputError` where there is none."""
    if name in BUILT_IN[kind]:
        return _read_declaration(kind, name)
    function = _find_own(kind, name)
    declared = getattr(function, _DECLARATION, None)
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise InputError(f"{kind}: {name} is async; write def, which returns its result")
    if not isinstance(declared, Declaration):
        raise InputError(
            f"{kind}: {name} is not declared; write @{kind}(...) above it "
            f"(from stepwell.algos.declarations import {kind}), which says what it needs"
        )
    if declared.kind != kind:
        raise InputError(f"{kind}: {name} is declared as a {declared.kind} function")
    return declared


def read_traits(kind: Kind, name: str, kwargs: Mapping[str, Any]) -> Any:
    """The traits of a call with these keyword arguments; unknown ones are refused."""
    declaration = find_declaration(kind, name)
    if unknown := sorted(set(kwargs) - set(declaration.arguments)):
        raise InputError(
            f"{name} has no argument {unknown[0]!r}; it takes {', '.join(declaration.arguments)}"
        )
    return declaration.get_traits(kwargs)


def load_function(kind: Kind, name: str) -> Callable[..., Any]:
    """The function behind a name."""
    if name in BUILT_IN[kind]:
        built_in: Callable[..., Any] = getattr(import_module(BUILT_IN[kind][name]), name)
        return built_in
    find_declaration(kind, name)
    return _find_own(kind, name)


def _find_own(kind: Kind, name: str) -> Callable[..., Any]:
    if not is_import_path(name):
        known = suggest_name(name, BUILT_IN[kind], "Known")
        raise InputError(f"{kind}: {name!r} is unknown{known}, or module:name of your own")
    try:
        found: Any = find_object(name, f"{kind} {name!r}")
    except ConfigError as error:
        raise InputError(str(error)) from error
    if not callable(found):
        what = f"; it is marked as {get_declared_kind(found)}" if get_declared_kind(found) else ""
        raise InputError(f"{kind}: {name} is a {type(found).__name__}, not a function{what}")
    function: Callable[..., Any] = found
    return function


@lru_cache(maxsize=64)
def _read_declaration(kind: Kind, name: str) -> Declaration:
    """A built-in function's declaration, from the source of its module: importing it would import torch."""
    *_, folder, module = BUILT_IN[kind][name].split(
        "."
    )  # the folder itself is not imported: it imports torch
    source = resources.files("stepwell.algos").joinpath(folder, f"{module}.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    calls = [node for node in function.decorator_list if isinstance(node, ast.Call)]
    call = next(node for node in calls if isinstance(node.func, ast.Name) and node.func.id == kind)
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    variants = options.pop("variants", {})
    traits = (CreditTraits if kind == "credit" else LossTraits)(**options)
    arguments = tuple(argument.arg for argument in function.args.kwonlyargs)
    return Declaration(kind, traits, arguments, variants)
