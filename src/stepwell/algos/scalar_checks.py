"""Checks of numbers and names. They need no torch, because recipes are checked without it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepwell.core.errors import InputError


def check_fraction(name: str, value: float) -> None:
    """`value` lies in [0, 1]: discounts, trace parameters, shares."""
    if not 0.0 <= value <= 1.0:  # false for NaN too
        raise InputError(f"{name}: {value} is outside [0, 1]")


def check_positive(name: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(f"{name}: {value} must be a finite number above 0")


def check_not_negative(name: str, value: float) -> None:
    if not (value >= 0.0 and math.isfinite(value)):
        raise InputError(f"{name}: {value} must be a finite number of at least 0")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise InputError(f"{name}: {value!r} is unknown; choose one of {', '.join(map(repr, choices))}")
