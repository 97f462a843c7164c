"""The plan of a run with a user's own agent: what it will do and needs, without training anything.

What the agent asks of the model is its own affair, so prompts and calls are not known: the estimate of
memory says what it assumes. The agent is loaded once, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.rollout.agent_processes import AgentProcesses
from stepwell.runs.build.agent_rollout import DEFAULT_TIMEOUT_S
from stepwell.runs.build.components import Parts, held_out_tasks
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.run_plan import Talk, _line, _listed, _many, _Plan, minibatch_sizes

ASSUMED_CALLS = 4
"""How many calls an episode is taken to make, in the estimate of memory."""


class AgentPlan(_Plan):
    """The figures of such a plan, and its lines."""

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config, self.parts, self.recipe = config, parts, parts.recipe
        self.warnings: list[str] = []
        assert config.own_agent.function is not None
        AgentProcesses(config.own_agent.function).close()  # refuses an agent that cannot be called
        lora = config.policy.lora
        self.size = ModelSize.read(parts.base_path, 0 if lora is None else lora.rank)
        self.tasks = parts.tasks(Split.TRAIN, config.train.num_tasks, config.seed)
        self.held_out = held_out_tasks(parts) if config.eval.num_tasks else []
        self.limit = parts.context_limit
        self.num_trajectories = config.train.tasks_per_update * config.train.group_size
        reply = config.sampling.max_tokens / 2
        self.episode_tokens = min(self.limit, ASSUMED_CALLS * 2 * config.sampling.max_tokens)
        self.talk = Talk(0, self.episode_tokens, reply, reply, ASSUMED_CALLS, self.episode_tokens)
        self.typical_tokens = self.num_trajectories * self.episode_tokens
        self._find_problems(longest=None)

    def lines(self) -> Iterator[str]:
        """At most thirty."""
        config, own = self.config, self.config.own_agent
        yield "what would be done (nothing is trained now)"
        yield _line(
            "agent",
            f"{config.title}, {_many(own.concurrency, 'episode')} at once in each of "
            f"{_many(own.num_processes, 'process')}; "
            f"an episode ends within {config.train.episode_timeout_s or DEFAULT_TIMEOUT_S:g} s "
            "(train.episode_timeout_s)",
        )
        where = config.env.name if own.tasks is None else Path(own.tasks).name
        yield _line("tasks", f"{where}: {len(self.tasks):,} for training, {len(self.held_out):,} held out")
        yield from self._policy_lines()
        yield from self._recipe_lines(self.recipe)
        yield from self._update_lines()
        yield from self._run_lines()
        yield from self._memory_lines()
        yield _line(
            "", f"memory is for episodes of about {self.episode_tokens:,} tokens, which the agent decides"
        )
        yield from (_line("warning", text) for text in self.warnings)

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        yield _line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}; "
            f"a call answers with at most {self.config.sampling.max_tokens} tokens (sampling.max_tokens)",
        )
        sizes = minibatch_sizes(train.tasks_per_update, train.group_size, train.minibatches)
        steps = _many(len(sizes) * train.update_epochs, "optimizer step")
        yield _line(
            "",
            f"{_many(len(sizes), 'minibatch')} of {_listed(sizes)} trajectories; "
            f"{_many(train.update_epochs, 'pass')} = {steps}",
        )
