"""How many examples a property is tried on: few in the default tier, all of them in the slow one."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("STEPWELL_TESTS") == "thorough"


def examples(thorough: int, quick: int | None = None) -> int:
    """A number for `max_examples`: `quick` (a quarter of `thorough`, if not said) unless all is asked for."""
    return thorough if IS_THOROUGH else quick or max(5, thorough // 4)
