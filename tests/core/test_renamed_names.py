"""Old public names work for one release, with a warning that says the new one."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("stepwell.core", "World", "EnvDescription"),
        ("stepwell.core", "Actions", "ActionSpace"),
        ("stepwell.core", "Pictures", "ImageStore"),
        ("stepwell.agents", "Past", "PastTurn"),
        ("stepwell.rewards", "compose", "select_parts"),
        ("stepwell.monitors", "Entry", "LogEntry"),
        ("stepwell.monitors.charts", "line_chart", "draw_line_chart"),
    ],
)
def test_an_old_name_gives_the_new_object_with_a_warning(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {package}.{new}"):
        assert getattr(module, old) is getattr(module, new)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("stepwell.core").nothing  # noqa: B018
