"""The parts of a step's reward, and the selection of those that count.

    task            the environment's reward for the turn
    process         its weight times the progress towards the goal, if the environment reports it
    format          its weight if the reply has exactly the requested form, else 0
    outcome         1 on the last step of a success, 0 on every other step
    grounding       its weight times the match of the described and the true state
    world_modeling  its weight times the match of the predicted and the true next state

The last two exist only if the strategy writes a state and the environment knows its own state in
the requested form; `rewards.judge.kind` selects the judge. A judge behind an endpoint and the part
`repetition` need a whole batch: see `batch.py`. For a user's own parts (`rewards.parts`) see
`user_parts.py`. The recipe selects the parts to sum, and `Step.assign_reward` keeps each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from stepwell.agents.reply import Reply
from stepwell.agents.strategy import Field, Strategy, find_strategy
from stepwell.config.run import OwnPartConfig, RewardConfig
from stepwell.core.env_description import EnvDescription, StateForm
from stepwell.core.errors import ConfigError
from stepwell.rewards.state_match import match_state

if TYPE_CHECKING:
    from stepwell.rewards.judge.rule import RuleJudge

_ALWAYS = ("task", "format", "outcome")
_FIELD_OF = {"grounding": Field.OBSERVATION, "world_modeling": Field.PREDICTION}


def make_rule_judge(description: EnvDescription) -> RuleJudge:
    """The judge by rules of what an agent says about states; imported here, as most agents write none."""
    from stepwell.rewards.judge.rule import RuleJudge

    return RuleJudge(description.vocabulary)


def list_part_names(
    strategy: Strategy | str, forms: Collection[StateForm], form: StateForm, own: Sequence[OwnPartConfig] = ()
) -> tuple[str, ...]:
    """The parts of a step for a strategy and an environment with states in `forms`, and the user's own."""
    fields = find_strategy(strategy).fields if form in forms else ()
    written = (part for part, field in _FIELD_OF.items() if field in fields)
    return (*_ALWAYS, *written, *(part.name for part in own))


def compute_step_parts(
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
    """All parts of a step; `state` is the true state before the actions, `next_state` after them.

    Without a judge, descriptions are matched with the truth in the same form.
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
        scored = _score_text(form, reply.observation or "", state, weights, judge)
        parts["grounding"] = weights.grounding * scored
    if Field.PREDICTION in fields and form in next_state:
        scored = _score_text(form, reply.prediction or "", next_state, weights, judge)
        parts["world_modeling"] = weights.world_modeling * scored
    return parts


def _score_text(
    form: StateForm, text: str, truth: Mapping[StateForm, str], weights: RewardConfig, judge: RuleJudge | None
) -> float:
    if judge is None:
        return match_state(form, text, truth[form])
    verdict = judge.judge(form, text, truth)
    return verdict.score if weights.judge.graded else float(verdict.is_yes(weights.judge.threshold))


def select_parts(
    parts: Mapping[str, float], wanted: Collection[str], optional: Collection[str] = ()
) -> dict[str, float]:
    """The parts that a recipe sums: all `wanted` ones, and the `optional` ones that exist."""
    missing = [name for name in wanted if name not in parts]
    if missing:
        raise ConfigError(
            f"recipe.reward_parts needs {', '.join(missing)}, but a step here has only {', '.join(parts)}: "
            "choose an agent.strategy that writes the state and a state_form that the environment has, "
            "or change recipe.reward_parts"
        )
    return {name: parts[name] for name in dict.fromkeys((*wanted, *optional)) if name in parts}
