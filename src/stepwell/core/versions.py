"""Policy versions: the weights that produced a step.

Versions count up from 0 (the untrained policy). A step that was sampled while new
weights arrived spans several versions; its staleness is measured from the oldest.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.core.errors import InputError


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """First and last policy version that produced one step.

    >>> VersionSpan(3, 4).staleness(current=6)
    3
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise InputError(f"policy_version must have 0 <= first <= last, got {self.first}..{self.last}")

    @classmethod
    def at(cls, version: int) -> VersionSpan:
        """The span of a step sampled under one version."""
        return cls(version, version)

    def merge(self, other: VersionSpan) -> VersionSpan:
        """The smallest span that covers both."""
        return VersionSpan(min(self.first, other.first), max(self.last, other.last))

    def staleness(self, current: int) -> int:
        """The number of versions between the oldest weights used and `current`."""
        if current < self.last:
            raise InputError(f"current version {current} is older than the step's own version {self.last}")
        return current - self.first
