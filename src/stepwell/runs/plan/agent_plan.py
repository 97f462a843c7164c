"""The plan of a run with a user's own agent.

What the agent asks of the model is not known in advance, so the estimate of memory says what it assumes.
The agent is loaded once, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepwell.core.text import format_count
from stepwell.rollout.agent_processes import AgentProcesses
from stepwell.runs.build.agent_sessions import DEFAULT_TIMEOUT_S
from stepwell.runs.build.components import Components
from stepwell.runs.plan.base_plan import TITLE, BasePlan
from stepwell.runs.plan.memory import MemoryEstimate
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.text import format_line

ASSUMED_CALLS = 4
"""Calls per episode that the estimate of memory assumes."""


class AgentPlan(BasePlan):
    """The figures of such a plan, and its lines."""

    def __init__(self, components: Components) -> None:
        own = components.config.own_agent
        assert own.function is not None
        AgentProcesses(own.function).close()  # refuses an agent that cannot be called
        super().__init__(components)
        language, lora, most = components.language, self.config.policy.lora, self.config.sampling.max_tokens
        self.size = ModelSize.read(language.base_path, 0 if lora is None else lora.rank)
        self.context_limit = language.context_limit
        self.episode_tokens = min(self.context_limit, ASSUMED_CALLS * 2 * most)
        self.memory = MemoryEstimate(
            self.config,
            self.recipe,
            self.size,
            components.critic_kind,
            update_tokens=self.num_trajectories * self.episode_tokens,
            most_tokens=self.num_trajectories * self.context_limit,
            sampled_tokens=self.num_trajectories * ASSUMED_CALLS * most / 2,
            longest=self.episode_tokens,
            context_limit=self.context_limit,
        )
        self.find_problems()

    def lines(self) -> Iterator[str]:
        config, own = self.config, self.config.own_agent
        yield TITLE
        yield format_line(
            "agent",
            f"{config.title}, {format_count(own.concurrency, 'episode')} at once in "
            f"{'each of ' if own.num_processes > 1 else ''}{format_count(own.num_processes, 'process')}; "
            f"an episode ends within {config.train.episode_timeout_s or DEFAULT_TIMEOUT_S:g} s "
            "(train.episode_timeout_s)",
        )
        where = config.env.name if own.tasks is None else Path(own.tasks).name
        yield format_line(
            "tasks", f"{where}: {self.trained.describe()} for training, {self.held_out.describe()} held out"
        )
        yield from self.describe_policy(self.size, self.memory.num_trained, self.context_limit)
        yield from self.describe_recipe()
        yield from self._update_lines()
        yield from self.run_lines()
        yield from self.memory.lines()
        yield format_line(
            "",
            f"memory is for episodes of about {self.episode_tokens:,} tokens; the agent decides how many "
            "there are",
        )
        yield from (format_line("warning", text) for text in self.warnings)

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        yield format_line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}; "
            f"a call answers with at most {self.config.sampling.max_tokens} tokens (sampling.max_tokens)",
        )
        yield format_line("", self.describe_minibatches(" trajectories"))
