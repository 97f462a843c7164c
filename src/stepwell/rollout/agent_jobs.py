"""Episodes for a user's agent, their results, and the attempts in between, as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from stepwell.core import JSON, InputError, Task

AgentStatus = Literal["done", "agent_error", "infra_error"]
_RESULT_FIELDS = ("reward", "success", "step_rewards", "wall_s", "timed_out", "failure", "info")


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One episode to play. `base_url` is the session's root at the gateway, without `/v1`."""

    id: str
    task: Task
    base_url: str
    api_key: str = "none"
    model: str = "policy"
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.endswith("/"):
            raise InputError(f"base_url {self.base_url!r} must be an http address without a slash at the end")
        if not self.timeout_s > 0:
            raise InputError(f"timeout_s of job {self.id} is {self.timeout_s}; give seconds > 0")

    def to_json(self) -> dict[str, Any]:
        """The job as JSON values."""
        return {
            "task": self.task.to_json(),
            "base_url": self.base_url,
            "api_key": self.api_key,
            "model": self.model,
            "seed": self.seed,
            "timeout_s": self.timeout_s,
        }


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The result of a job.

    `reward` and `success` are None if the agent did not return them. `step_rewards`, if it returned any, has
    one number per call of the model, in order. `info` is the rest of the dict that it returned. `failure` is
    the kind of an agent_error, one of `agent_outcome.FAILURES`.
    """

    id: str
    status: AgentStatus
    reward: float | None = None
    success: bool | None = None
    step_rewards: tuple[float, ...] | None = None
    error: str = ""
    wall_s: float = 0.0
    num_tries: int = 1
    timed_out: bool = False
    failure: str = ""
    info: dict[str, JSON] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a job. `index` is the place of the job in its round."""

    index: int
    job: AgentJob
    number: int
    num_tries: int = 1
    is_alone: bool = False
    not_before_s: float = 0.0
    started_s: float = 0.0
    cancelled_s: float | None = None

    def make_result(self, status: AgentStatus, error: str, **rest: Any) -> AgentResult:
        """The result of the job if this attempt is its last."""
        wall_s = time.monotonic() - self.started_s if self.started_s else 0.0
        fields = {"wall_s": wall_s, "num_tries": self.num_tries} | rest
        return AgentResult(self.job.id, status, error=error, **fields)

    def read_result(self, message: dict[str, Any]) -> AgentResult:
        """The result that a process reports."""
        fields = {key: message[key] for key in _RESULT_FIELDS if key in message}
        if "step_rewards" in fields:
            fields["step_rewards"] = tuple(fields["step_rewards"])
        return self.make_result(message["status"], message.get("error", ""), **fields)


@dataclass(slots=True, eq=False)
class Round:
    """The jobs of one `AgentProcesses.run`."""

    waiting: list[Attempt]
    results: dict[int, AgentResult]
    on_result: Callable[[AgentResult], None] | None = None
    on_retry: Callable[[AgentJob, AgentResult], AgentJob] | None = None

    def settle(self, attempt: Attempt, result: AgentResult) -> None:
        """Store the result of a job."""
        self.results[attempt.index] = result
        if self.on_result is not None:
            self.on_result(result)
