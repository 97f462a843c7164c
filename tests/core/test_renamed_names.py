"""Old public names work for one release, with a warning that says the new one."""

from __future__ import annotations

import importlib

import pytest

from stepwell.core import ImageStore
from stepwell.rendering import Renderer
from stepwell.rendering.tiny import build_tokenizer


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("stepwell.core", "World", "EnvDescription"),
        ("stepwell.core", "Actions", "ActionSpace"),
        ("stepwell.core", "Pictures", "ImageStore"),
        ("stepwell.core", "new_id", "make_id"),
        ("stepwell.core", "content_hash", "hash_content"),
        ("stepwell.core", "problem_with", "find_call_problem"),
        ("stepwell.core", "random_call", "draw_random_call"),
        ("stepwell.envs", "distinct_tasks", "list_distinct_tasks"),
        ("stepwell.envs.robots", "Moved", "ActionEffect"),
        ("stepwell.curriculum", "FedTask", "SourcedTask"),
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


@pytest.mark.parametrize(
    ("package", "name", "old", "new"),
    [
        ("stepwell.pool", "read_credit", "credit_store", "credit_reading"),
        ("stepwell.pool", "list_step_credit", "credit_records", "credit_reading"),
        ("stepwell.rewards.outcome_model", "fit_calibration", "calibration", "calibration_fit"),
    ],
)
def test_a_name_is_found_where_it_was_with_a_warning(package: str, name: str, old: str, new: str) -> None:
    before, now = (importlib.import_module(f"{package}.{module}") for module in (old, new))
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} is now {package}.{new}.{name}"):
        assert getattr(before, name) is getattr(now, name)
    with pytest.raises(AttributeError, match="nothing"):
        before.nothing  # noqa: B018


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("stepwell.core").nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "owner", "old", "new"),
    [
        ("stepwell.rendering", "Renderer", "text_of", "read_text"),
        ("stepwell.rendering", "Conversation", "sampled", "record_action"),
        ("stepwell.policies.vla", "VLAPolicy", "fresh", "from_shape"),
        ("stepwell.algos.segments", "Segments", "discounted_sum", "sum_discounted"),
        ("stepwell.rewards", "BatchJudge", "most_repeated", "find_most_repeated"),
        ("stepwell.rewards", "Verdict", "num_told", "num_described"),
    ],
)
def test_an_old_member_is_the_new_one_with_a_warning(module: str, owner: str, old: str, new: str) -> None:
    found = getattr(importlib.import_module(module), owner)
    with pytest.warns(DeprecationWarning, match=f"{owner}.{old} is now {owner}.{new}"):
        assert getattr(found, old) == getattr(found, new)


def test_an_old_argument_is_passed_on_with_a_warning_and_never_beside_the_new_one() -> None:
    tokenizer, store = build_tokenizer(), ImageStore()
    with pytest.warns(DeprecationWarning, match=r"Renderer.__init__\(pictures=\) is now image_store="):
        renderer = Renderer(tokenizer, pictures=store)  # type: ignore[call-arg]
    assert renderer.image_store is store
    with pytest.raises(TypeError, match="pictures= is the old name of image_store="):
        Renderer(tokenizer, pictures=store, image_store=store)  # type: ignore[call-arg]
