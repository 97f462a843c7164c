"""The parts of a step's reward, and the choice of those that count.

    task            what the environment gave for the turn
    process         its weight times how much nearer to the goal the turn came, where the world says so
    format          its weight where the reply has exactly the asked form, else 0
    outcome         1 on the last step of a success, 0 on every other step
    grounding       its weight times the match of the described with the true state
    world_modeling  its weight times the match of the predicted with the true next state

The last two exist only where the strategy writes a state and the world knows its own in the
asked form; who compares them is `rewards.judge.kind`. A judge behind an endpoint and the part
`repetition` need a whole batch: see `batch.py`; for parts of a user's own (`rewards.parts`) see `own.py`.
The recipe says which parts are summed, and `Step.assign_reward` keeps each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stepwell.agents.reply import Reply
from stepwell.agents.strategy import Field, Strategy, find_strategy
from stepwell.config.run import OwnPartConfig, RewardConfig
from stepwell.core.env_description import StateForm
from stepwell.core.errors import ConfigError
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.state_match import match_state

_ALWAYS = ("task", "format", "outcome")
_FIELD_OF = {"grounding": Field.OBSERVATION, "world_modeling": Field.PREDICTION}


def part_names(
    strategy: Strategy | str,
    forms: Collection[StateForm],
    form: StateForm,
    own: Sequence[OwnPartConfig] = (),
) -> tuple[str, ...]:
    """The parts of a step for a strategy in a world that knows its state in `forms`, and the user's own."""
    fields = find_strategy(strategy).fields if form in forms else ()
    written = (part for part, field in _FIELD_OF.items() if field in fields)
    return (*_ALWAYS, *written, *(part.name for part in own))


def step_parts(
    *,
    turn_reward: float,
    reply: Reply,
    is_last: bool,
    success: bool,
    state: Mapping[StateForm, str],
    next_state: Mapping[StateForm, str],
    form: StateForm,
    weights: RewardConfig,
    strategy: Strategy | str,
    process: float | None = None,
    judge: RuleJudge | None = None,
) -> dict[str, float]:
    """Every part this step has; `state` is the true one before the actions, `next_state` after them.

    Without a judge, descriptions are matched with the truth in their own form.
    """
    parts = {
        "task": float(turn_reward),
        "format": weights.format if reply.is_strict else 0.0,
        "outcome": 1.0 if is_last and success else 0.0,
    }
    if process is not None:
        parts["process"] = weights.process * process
    fields = find_strategy(strategy).fields
    if Field.OBSERVATION in fields and form in state:
        scored = _score(form, reply.observation or "", state, weights, judge)
        parts["grounding"] = weights.grounding * scored
    if Field.PREDICTION in fields and form in next_state:
        scored = _score(form, reply.prediction or "", next_state, weights, judge)
        parts["world_modeling"] = weights.world_modeling * scored
    return parts


def _score(
    form: StateForm, said: str, truth: Mapping[StateForm, str], weights: RewardConfig, judge: RuleJudge | None
) -> float:
    if judge is None:
        return match_state(form, said, truth[form])
    verdict = judge.judge(form, said, truth)
    return verdict.score if weights.judge.graded else float(verdict.is_yes(weights.judge.threshold))


def compose(
    parts: Mapping[str, float], wanted: Collection[str], optional: Collection[str] = ()
) -> dict[str, float]:
    """The parts a recipe sums: all `wanted` ones, and of the `optional` ones those that are there."""
    missing = [name for name in wanted if name not in parts]
    if missing:
        raise ConfigError(
            f"recipe.reward_parts wants {', '.join(missing)}, but a step here has only {', '.join(parts)}: "
            "choose an agent.strategy that writes what is to be rewarded and a state_form the world has, "
            "or change recipe.reward_parts"
        )
    return {name: parts[name] for name in dict.fromkeys((*wanted, *optional)) if name in parts}
