"""The environments' own words about their states are understood: the truth scores 1, another state less."""

from __future__ import annotations

import random

import pytest

from stepwell.agents import STRATEGIES, Agent
from stepwell.config.run import AgentConfig, RewardConfig
from stepwell.core import StateForm
from stepwell.envs.registry import make_env
from stepwell.rewards import compute_step_parts, match_state
from stepwell.rewards.state_match import parse_relations


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "courier"])
def test_the_truth_scores_one_and_other_tasks_score_less(name: str) -> None:
    env = make_env(name, {})
    states = []
    for seed in range(12):
        env.reset(seed=seed)
        states.append(env.state())
    for form in StateForm:
        scores = {
            (a, b): match_state(form, states[a][form], states[b][form]) for a in range(12) for b in range(12)
        }
        assert all(scores[at, at] == 1.0 for at in range(12))
        assert all(scores[a, b] < 1.0 for a, b in scores if states[a][form] != states[b][form])
        assert all(score == pytest.approx(scores[b, a]) for (a, b), score in scores.items())


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "courier"])
def test_every_sentence_of_an_env_says_something(name: str) -> None:
    env = make_env(name, {})
    for seed in range(12):
        env.reset(seed=seed)
        for sentence in env.state()[StateForm.NATURAL_LANGUAGE].split(". "):
            assert len(parse_relations(sentence)) == 2, sentence


@pytest.mark.parametrize("form", list(StateForm))
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_an_agent_that_tells_the_truth_earns_every_part_in_full(strategy: str, form: StateForm) -> None:
    env = make_env("frozenlake", {})
    env.reset(seed=4)
    config = AgentConfig(strategy=strategy, state_form=form.value)  # type: ignore[arg-type]
    agent, weights = Agent(env.description, config), RewardConfig()
    before = env.state()
    actions = random.Random(0).choices(env.description.actions.names, k=env.description.actions.max_per_turn)
    _, reward, terminated, _, info = env.step(actions)
    after = env.state()
    text = agent.write(actions, observation=before[form], reasoning="So.", prediction=after[form])
    parts = compute_step_parts(
        turn_reward=reward, reply=agent.read(text), is_last=terminated, success=bool(info["success"]),
        state=before, next_state=after, form=form, weights=weights, strategy=agent.strategy,
    )  # fmt: skip
    full = {"format": 0.5, "grounding": 0.5, "world_modeling": 0.5}
    assert {name: parts[name] for name in parts if name in full} == {n: full[n] for n in full if n in parts}
    assert parts["task"] == reward
