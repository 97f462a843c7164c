"""Playing episodes: many at once in step with each other, and demonstrations by the oracle."""

from stepwell.rollout.demonstrations import OracleSampler, demonstrate
from stepwell.rollout.episodes import BlockingSampler, Job, Rolled, Rollout

__all__ = ["BlockingSampler", "Job", "OracleSampler", "Rolled", "Rollout", "demonstrate"]
