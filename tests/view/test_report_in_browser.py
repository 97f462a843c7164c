"""The report's replay viewer in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.replays import Replay, ReplayFrame, encode_png, save_replays
from stepwell.monitors.report import write_report


def open_report(browser: Any, folder: Path, *, advantage: float | None) -> Any:
    """The report of a run with one episode, whose images are four times as wide as high."""
    folder.mkdir(exist_ok=True)
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, "r", "web", "steppo", 5, 8))
    monitor.record(LogEntry("update", 1, 1.0, 1, {"reward": 0.0}))
    monitor.close()
    image = encode_png(np.full((100, 400, 3), 90, np.uint8))
    frame = ReplayFrame("a page", "look", ["look"], 0.0, {"task": 0.0}, image, None, advantage)
    save_replays(folder / "replays.json", [Replay("t", "t", "failure", 0.0, [frame, frame])])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report(folder).as_uri())
    return page


def test_columns_of_steps_that_hold_nothing_are_left_out(browser: Any, tmp_path: Path) -> None:
    for advantage, last in ((None, []), (0.5, ["advantage"])):
        page = open_report(browser, tmp_path / str(advantage), advantage=advantage)
        heads = page.locator(".steps th:visible").all_inner_texts()
        page.close()
        assert heads == ["step", "actions", "reward", *last]  # no part of the reward, no value of a critic


def test_replies_of_an_agent_of_ones_own_stand_where_others_have_actions(
    browser: Any, tmp_path: Path
) -> None:
    monitor = JsonlMonitor()
    monitor.start(RunInfo(tmp_path, "r", "mine:agent", "grpo", 5, 8))
    monitor.record(LogEntry("update", 1, 1.0, 1, {"reward": 0.0}))
    monitor.close()
    save_replays(
        tmp_path / "replays.json",
        [Replay("t", "t", "success", 1.0, [ReplayFrame("Larger: 3 or 4?", "4", [], 1.0)])],
    )
    page = browser.new_page()
    page.goto(write_report(tmp_path).as_uri())
    heads, cells = (page.locator(f".steps {tag}:visible").all_inner_texts() for tag in ("th", "td"))
    outcome, observation = (
        page.locator(f".viewer .{name}").inner_text() for name in ("outcome", "observation")
    )
    page.close()
    assert heads == ["step", "writes", "reward"] and cells[1] == "4"
    assert observation == "Larger: 3 or 4?" and "actions" not in outcome


def test_the_box_of_a_wide_image_has_its_shape(browser: Any, tmp_path: Path) -> None:
    page = open_report(browser, tmp_path, advantage=None)
    box = page.locator(".board img").bounding_box()
    page.close()
    assert abs(box["width"] / box["height"] - 4) < 0.1
