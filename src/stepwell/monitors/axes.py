"""Axes of a chart: ticks, their labels, and the mapping of values to pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

CHAR_WIDTH = 6.1  # of the 11 px type of tick labels, in pixels


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` linearly to pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def attribute(self) -> str:
        """For the page's script, which reads values back from pixels."""
        return f"{self.low:.15g} {self.high:.15g} {self.start:.6g} {self.stop:.6g}"


def find_extent(values: Iterable[float]) -> tuple[float, float] | None:
    """Lowest and highest finite value; None if there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


def widen_range(low: float, high: float, *, is_start: bool = False) -> tuple[float, float]:
    """A range that is not empty: a constant gets space around it; where something starts, behind it only."""
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-300):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room * (not is_start), high + room


def choose_ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """About `count` round values (1, 2 or 5 times a power of ten apart) within [low, high].

    `whole` allows only whole numbers: there is no update 1.5.
    """
    low, high = widen_range(low, high)
    step = _choose_step(low, high, count)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def round_range(low: float, high: float, count: int = 5) -> tuple[float, float]:
    """`[low, high]` widened to the round values around it, so that an axis ends on ticks."""
    low, high = widen_range(low, high)
    step = _choose_step(low, high, count)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _choose_step(low: float, high: float, count: int) -> float:
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return min(
        (factor * power for factor in (1.0, 2.0, 5.0, 10.0)), key=lambda step: abs(math.log(step / raw))
    )


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Labels with just enough digits to distinguish neighbours: 0, 0.5, 1 or 0, 20k, 40k."""
    if not ticks:
        return []
    largest = max(abs(tick) for tick in ticks)
    step = min((abs(b - a) for a, b in pairwise(ticks)), default=largest) or 1.0
    if largest >= 1e15 or (step < 1e-4 and largest < 1e-2):
        return [_format_power(tick, step) for tick in ticks]
    for limit, sign in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if largest >= limit:
            unit = {"B": 1e9, "M": 1e6, "k": 1e3}[sign]
            places = _count_decimals(step / unit)
            return ["0" if tick == 0 else f"{tick / unit:.{places}f}{sign}" for tick in ticks]
    return [f"{tick:.{_count_decimals(step)}f}" if abs(tick) >= step / 2 else "0" for tick in ticks]


def _format_power(tick: float, step: float) -> str:
    """`1.2e-5`: as many digits as the step needs at this height."""
    if abs(tick) < step / 2:
        return "0"
    digits = max(0, math.floor(math.log10(abs(tick)) + 1e-9) - math.floor(math.log10(step) + 1e-9))
    mantissa, _, power = f"{tick:.{digits}e}".partition("e")
    return f"{mantissa}e{int(power)}"


def _count_decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))
