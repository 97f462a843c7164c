"""Differences between shares."""

from __future__ import annotations

import math

import pytest

from stepwell.core.statistics import compare_shares


def test_a_fall_of_success_is_measured_in_standard_errors() -> None:
    assert compare_shares(0.5, 100, 0.5, 100) == 0.0
    assert compare_shares(0.8, 100, 0.2, 100) == pytest.approx(0.6 / math.sqrt(0.5 * 0.5 * 0.02))
    assert compare_shares(1.0, 10, 1.0, 10) == 0.0
