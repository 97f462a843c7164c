"""Many variants of one mechanism: some in the default tier, the others marked slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def keep_quick(values: Iterable[Any], is_quick: Callable[[Any], object]) -> list[Any]:
    """The values as parameters; those that are not quick are marked slow. A tuple is several parameters."""
    parts = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*part, marks=() if is_quick(value) else pytest.mark.slow) for value, part in parts]
