"""What both sides are told: the model, the boards in order, and every setting that must be equal.

Plain data in one JSON file. This module runs in both environments, so it imports only parts of
Stepwell that need no torch: environments, agents and rendering.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import Task
from stepwell.envs import make_env


@dataclass(frozen=True)
class Job:
    """One setup. `tasks` holds the boards of update 1, then those of update 2, and so on."""

    model: str
    out: str
    options: dict[str, Any]
    tasks: list[dict[str, Any]]
    num_updates: int
    prompts_per_update: int
    group_size: int
    max_tokens: int
    learning_rate: float
    beta2: float
    grad_clip: float
    std_eps: float
    num_threads: int
    seed: int

    @property
    def num_turns(self) -> int:
        return int(self.options["max_turns"])

    @property
    def num_trajectories(self) -> int:
        """Of one update."""
        return self.prompts_per_update * self.group_size

    def boards(self) -> list[Task]:
        return [Task("frozenlake", task["content"], seed=task["seed"]) for task in self.tasks]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str | Path) -> Job:
        return cls(**json.loads(Path(path).read_text()))


def lake_agent(job: Job) -> Agent:
    """The words around the boards: the same prompt and the same reading of replies for both."""
    return Agent(make_env("frozenlake", job.options).description, AgentConfig(strategy="no_think"))


@dataclass
class Clock:
    """When each update ended and what its time went into, in seconds; and how much was said.

    `num_tokens` counts sampled tokens: a policy that falls silent would make its side look fast.
    """

    ends: list[float]
    parts: dict[str, float]
    successes: list[float]
    num_tokens: int = 0

    def write(self, job: Job) -> None:
        (Path(job.out) / "clock.json").write_text(json.dumps(asdict(self)))
