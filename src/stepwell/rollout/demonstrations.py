"""Demonstrations: episodes in which an oracle replies instead of a model.

`OracleSampler` takes the place of an engine, so that demonstrations are rendered, rewarded and recorded by
the same loop as sampled episodes. Its replies have exactly the required format, with the true state in the
fields that describe one. With `noise`, each action is replaced by a random one (`Env.random_action`) with
that probability, and the oracle continues from there: a fallible expert, some of whose episodes fail. In a
state without a way out it acts at random. Asked for a summary, it lists what was done.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence

import numpy as np

from stepwell.agents import Agent, Field
from stepwell.core import (
    ActionSpace,
    ConfigError,
    FinishReason,
    InputError,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Task,
    TokenAction,
    Trajectory,
    read_call,
)
from stepwell.core.errors import StepwellError
from stepwell.core.user_code import format_own_lines
from stepwell.core.versions import VersionSpan
from stepwell.envs.base import Env
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.jobs import Job, require_demonstrations

_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


class OracleSampler:
    """Answers each request with what the oracle of its environment would do."""

    def __init__(
        self,
        envs: EnvBatch,
        agent: Agent,
        encode: Callable[[str], Sequence[int]],
        end_id: int,
        *,
        noise: float = 0.0,
    ) -> None:
        first = envs.envs[0]
        if not first.has_oracle:
            raise ConfigError(
                f"warm_start.num_demos: {first.name} has no oracle to demonstrate; set it to 0, or give "
                "the environment an oracle()"
            )
        self._envs, self._agent, self._noise = envs, agent, noise
        self._encode, self._end_id = encode, end_id

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One demonstrated reply per request; the request's seed draws the noise."""
        return [self._answer_request(request) for request in requests]

    def _answer_request(self, request: Request) -> Sampled:
        assert request.conversation is not None and request.params.seed is not None
        rng, text = np.random.default_rng(request.params.seed), request.demonstration
        if text is None:
            text = self._envs.ask(int(request.conversation), lambda env: self._write_reply(env, rng))
        ids = np.array([*self._encode(text), self._end_id], dtype=np.int32)
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.GIVEN)
        return Sampled(TokenAction(ids, text), _NO_LOGPROBS, sampling, VersionSpan.at(0))

    def _write_reply(self, env: Env, rng: np.random.Generator) -> str:
        space = self._agent.description.actions
        actions = space.first_turn(_ask_oracle(env, space.names))
        if not actions:
            actions = self._draw_action(env, rng)
        if self._noise:
            actions = [
                next(iter(self._draw_action(env, rng)), action) if rng.random() < self._noise else action
                for action in actions
            ]
            actions = space.first_turn(actions)
        fields, form = self._agent.strategy.fields, self._agent.form
        said: dict[str, str] = {"reasoning": _write_reasoning(space, actions)}
        if Field.OBSERVATION in fields:
            said["observation"] = env.state().get(form, "")
        if Field.PREDICTION in fields:
            ahead = copy.deepcopy(env)
            ahead.step(actions)
            said["prediction"] = ahead.state().get(form, "")
        return self._agent.write(actions, **said)

    def _draw_action(self, env: Env, rng: np.random.Generator) -> list[str]:
        """One random action; none if the environment has no random actions."""
        names = self._agent.description.actions.names
        if names:
            return [str(rng.choice(names))]
        try:
            return [env.random_action(random.Random(int(rng.integers(2**62))))]
        except ConfigError:
            return []


def _ask_oracle(env: Env, names: Sequence[str]) -> Sequence[str]:
    """The oracle's plan. An oracle that fails, or that plans no actions, is the user's to mend."""
    wanted = f"{type(env).__name__}.oracle"
    try:
        plan = env.oracle()
    except StepwellError:
        raise
    except (Exception, SystemExit) as error:  # a user's own code may raise anything
        raise InputError(f"{wanted} failed:\n{format_own_lines(error)}") from error
    if isinstance(plan, str) or not isinstance(plan, Sequence) or (names and not set(names).issuperset(plan)):
        known = ", ".join(names) or "as texts"
        raise InputError(f"{wanted} must give a list of actions ({known}), got {plan!r:.60}")
    return plan


def _write_reasoning(space: ActionSpace, actions: Sequence[str]) -> str:
    if not space.tools:
        return f"I go {space.separator.join(actions)}."
    names = [read_call(action).name for action in actions]
    return "I can answer." if names == [space.answer] else f"I call {', '.join(names)}."


def demonstrate(rollout: Rollout, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
    """One demonstration per task, by a rollout whose sampler is an oracle."""
    assert isinstance(rollout.sampler, OracleSampler)
    seeds = np.random.default_rng([seed, len(tasks)]).integers(2**62, size=len(tasks))
    jobs = [Job(task, task.id, int(seed)) for task, seed in zip(tasks, seeds, strict=True)]
    return require_demonstrations(rollout.run(jobs, SamplingParams()), rollout.envs.name)
