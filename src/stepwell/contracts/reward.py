"""The contract of a reward part: a finite number for every possible step of an agent.

The steps come from real episodes: played by the environment's oracle, played at random, and with unreadable
replies, which have no actions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig, OwnPartConfig
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ConfigError, ContractError
from stepwell.envs import make_env
from stepwell.rewards import OwnPart, StepOutcome, load_own_parts

NUM_EPISODES = 6
_UNREADABLE = ("", "I do not know.", "<answer>", "<answer>fly to the moon</answer>", "\u2028 ü \x00 井" * 50)


def check_reward(
    function: str, env: str = "frozenlake", options: Mapping[str, Any] | None = None
) -> ContractReport:
    """Report whether the reward function keeps its contract on steps of `env`."""
    config = OwnPartConfig(name="checked", function=function)
    probe = RewardProbe(load_own_parts([config])[0], tuple(play_steps(env, options)))
    return run_checks(f"reward {function}", CHECKS, probe)


@dataclass(frozen=True)
class RewardProbe:
    """The part, and steps to reward."""

    part: OwnPart
    steps: tuple[StepOutcome, ...]


def play_steps(name: str, options: Mapping[str, Any] | None = None) -> Iterator[StepOutcome]:
    """Steps of a few episodes, and the same steps with unreadable replies."""
    env = make_env(name, options)
    if env.is_robot:
        raise ConfigError(f"env {name!r} is a robot's: its steps have no text to reward")
    agent, rng = Agent(env.description, AgentConfig()), random.Random(0)
    for seed in range(NUM_EPISODES):
        observation, _ = env.reset(seed=seed)
        is_over, turn = False, 0
        while not is_over:
            plan = env.oracle() if env.has_oracle and seed % 2 == 0 else []
            actions = env.description.actions.first_turn(plan) or [env.random_action(rng)]
            seen, (observation, reward, terminated, truncated, info) = observation, env.step(actions)
            is_over = terminated or truncated
            step = StepOutcome(
                text=agent.write(actions),
                actions=tuple(actions),
                observation=seen,
                next_observation=observation,
                env_reward=float(reward),
                is_last=is_over,
                success=bool(info.get("success")),
                task=env.task,
                turn=turn,
            )
            yield step
            yield replace(step, text=_UNREADABLE[turn % len(_UNREADABLE)], actions=(), success=False)
            turn += 1
    env.close()


def returns_finite_numbers(probe: RewardProbe) -> str:
    try:
        scores = [probe.part.score(step) for step in probe.steps]
    except ConfigError as error:
        raise ContractError(str(error).replace("rewards.parts 'checked': ", "")) from error
    return f"{min(scores):g} to {max(scores):g} on {len(scores)} steps"


def replies_that_cannot_be_read_are_rewarded_too(probe: RewardProbe) -> str:
    unreadable = [step for step in probe.steps if not step.actions]
    scores = [probe.part.score(step) for step in unreadable]
    return f"{min(scores):g} to {max(scores):g} on {len(scores)} steps without actions"


def is_deterministic(probe: RewardProbe) -> str:
    first = [probe.part.score(step) for step in probe.steps]
    if [probe.part.score(step) for step in reversed(probe.steps)][::-1] != first:
        raise ContractError(
            "the same step gets another reward the second time; use no random numbers and keep no state: "
            "steps of many episodes come in any order"
        )
    return "twice the same, in any order"


CHECKS: tuple[Callable[[RewardProbe], str], ...] = (
    returns_finite_numbers,
    replies_that_cannot_be_read_are_rewarded_too,
    is_deterministic,
)
