"""Who plays the episodes of a run, and with which weights.

EpisodeRunner ─┬─ LocalRunner    engine and rollout in this process
               └─ WorkerGroups   simulators and generators (`worker_groups.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.core import SamplingParams, WeightsError
from stepwell.core.weight_parts import WeightParts
from stepwell.rollout import Job, Rollout, RolloutResult

if TYPE_CHECKING:
    import torch

    from stepwell.engines import ArrayEngine, EmbeddedEngine, ServedEngine
    from stepwell.runs.build.agent_rollout import AgentRollout


class WeightSource(Protocol):
    """A policy, as far as its weights are published."""

    model: Any

    def model_weights(self) -> Mapping[str, Any]:
        """What an engine loads."""

    def weight_parts(self) -> WeightParts:
        """The same weights, in parts."""


class EpisodeRunner(Protocol):
    """Plays episodes with the newest weights that it was given."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights that sample."""

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job."""

    def publish(self, version: int, policy: WeightSource) -> str | None:
        """Load new weights; returns their fingerprint, or None if they are loaded later."""

    def check_weights(self) -> None:
        """Refuse an engine that no longer holds the weights it was given, or makes other rotary tables."""

    def forget(self) -> None:
        """Drop the caches of what was sampled."""

    def close(self) -> None: ...


@dataclass(eq=False)
class LocalRunner:
    """Engine and rollout in this process."""

    engine: EmbeddedEngine | ServedEngine | ArrayEngine
    rollout: Rollout | AgentRollout
    _published: tuple[int, str] | None = field(default=None, init=False)  # version and fingerprint
    _policy: WeightSource | None = field(default=None, init=False)  # whose weights these are

    @property
    def dtype(self) -> torch.dtype:
        return self.engine.model.dtype

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        return self.rollout.run(jobs, params, retries=retries, timeout_s=timeout_s)

    def publish(self, version: int, policy: WeightSource) -> str:
        """Load the weights at once; the engine must report the fingerprint of what it was given."""
        from stepwell.engines import fingerprint_of  # imports torch

        tensors = policy.model_weights()
        published = fingerprint_of(tensors, self.dtype)
        self.engine.load_weights(version, tensors)
        self._published, self._policy = (version, published), policy
        self.check_weights()
        return published

    def check_weights(self) -> None:
        if self._published is not None:
            check_fingerprint(*self._published, self.engine.fingerprint(), "the engine")
        if self._policy is not None and hasattr(self.engine, "check_rotation"):  # servers show no tables
            self.engine.check_rotation(self._policy.model)

    def forget(self) -> None:
        self.engine.forget()

    def close(self) -> None:
        if hasattr(self.rollout, "close"):
            self.rollout.close()


def check_fingerprint(version: int, published: str, found: str, who: str) -> None:
    """Refuse an engine whose weights are not those that were published."""
    if found != published:
        raise WeightsError(
            f"version {version} was published as {published}, but {who} reports {found}: its weights are "
            "not the trainer's"
        )
