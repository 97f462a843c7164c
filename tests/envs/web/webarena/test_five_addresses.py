"""Published tasks run from start to verdict on five addresses, where our own sites stand in."""

from __future__ import annotations

import pytest
from benchmarks.webarena_path import group_entries, play_entries


@pytest.mark.slow
def test_every_group_of_tasks_is_started_logged_in_kept_inside_and_judged() -> None:
    """One task of each group; `benchmarks/webarena_path.py` plays all 812, and some in Chromium."""
    entries = group_entries(1)
    found = play_entries("light", entries)
    assert found["errors"] == [] and found["tasks"] == len(entries) == 28
    assert found["judged"] == found["start_page_is_the_task's"] == found["refused_elsewhere"] == 28
    assert found["begin_logged_in"] == found["need_login"] >= 20
    assert found["calls_elsewhere"] == 0 and 0 < found["successes"] < 28
    assert found["by_evaluator"].keys() == {"string_match", "url_match", "program_html"}
