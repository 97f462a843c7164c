"""Small untrained vision-language models, written and opened once for all tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.policies.vlm.made import Scene, make_directory


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a family's small model, written once."""

    @functools.cache
    def of(family: str) -> Path:
        return make_directory(family, tmp_path_factory.mktemp(family))

    return of


@pytest.fixture(scope="session")
def scene_of(directory_of: Callable[[str], Path]) -> Callable[..., Scene]:
    """A family's scene with its policy in float64, opened once; treat the policy as read-only."""

    @functools.cache
    def of(family: str, **options: Any) -> Scene:
        return Scene(directory_of(family), **options)

    return of
