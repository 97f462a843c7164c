"""Limits per key: a token bucket for the rate, a counter for concurrent calls.

There are no locks and no timers: everything runs on one event loop, and a bucket is refilled when it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_FORGET_AFTER = 10_000


@dataclass(slots=True)
class _KeyUsage:
    tokens: float
    filled_s: float
    num_running: int = 0


class ServiceLimits:
    """The same limits for every key. `rate_per_s` = 0 means no rate limit."""

    def __init__(
        self, rate_per_s: float, burst: int, max_concurrent: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._uses: dict[str, _KeyUsage] = {}

    def start_call(self, key_name: str) -> tuple[str, float] | None:
        """Count a call as running. Otherwise return the reason, and in how many seconds to retry."""
        use = self._uses.get(key_name)
        if use is None or self._rate_per_s or use.num_running >= self._max_concurrent:
            reason = self.explain_refusal(key_name)
            if reason is not None:
                return reason
            use = self._uses[key_name]
            use.tokens -= self._rate_per_s > 0
        use.num_running += 1
        return None

    def explain_refusal(self, key_name: str) -> tuple[str, float] | None:
        """Why a call cannot run now, and in how many seconds to retry. Counts nothing."""
        now = self._clock()
        use = self._uses.get(key_name)
        if use is None:
            self._forget_idle()
            use = self._uses[key_name] = _KeyUsage(float(self._burst), now)
        if use.num_running >= self._max_concurrent:
            return (
                f"{use.num_running} calls of this key are running (max_concurrent); wait for one to finish",
                1.0,
            )
        if self._rate_per_s > 0:
            use.tokens = min(float(self._burst), use.tokens + (now - use.filled_s) * self._rate_per_s)
            use.filled_s = now
            if use.tokens < 1.0:
                return f"more than {self._rate_per_s:g} calls per second (rate_per_s)", (
                    1.0 - use.tokens
                ) / self._rate_per_s
        return None

    def end_call(self, key_name: str) -> None:
        self._uses[key_name].num_running -= 1

    def _forget_idle(self) -> None:
        if len(self._uses) >= _FORGET_AFTER:
            self._uses = {name: use for name, use in self._uses.items() if use.num_running}
