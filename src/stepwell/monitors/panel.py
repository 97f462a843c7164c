"""One small chart of the report: what it shows, and what that means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart. A metric that ends in `/` stands for all names that begin with it.

    `low` and `high` fix the axis. `labels` replace the end of the metric's name as the name of a line.
    `absent` is the value of an update without the metric: unknown, or 0 if only occurrences are recorded.
    """

    title: str
    metrics: tuple[str, ...]
    meaning: str
    low: float | None = None
    high: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    absent: float = math.nan

    def choose_metrics(self, names: Sequence[str]) -> list[str]:
        """The metrics among `names` that this panel shows, in the panel's order."""
        return [
            name
            for metric in self.metrics
            for name in names
            if name == metric or (metric.endswith("/") and name.startswith(metric))
        ]

    def get_label(self, name: str) -> str:
        """The name of a line in the legend: `time/rollout_s` beside similar names is `rollout`."""
        if name in self.labels:
            return self.labels[name]
        return (
            name.rpartition("/")[2].removesuffix("_s") if len(self.metrics) > 1 else self._shorten_name(name)
        )

    def _shorten_name(self, name: str) -> str:
        prefix = self.metrics[0]
        return name.removeprefix(prefix).removesuffix("_s") if prefix.endswith("/") else name
