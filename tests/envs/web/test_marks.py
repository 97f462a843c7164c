"""Marks on screenshots: every box has its id beside it, and what is in a box can be read."""

from __future__ import annotations

import numpy as np

from stepwell.envs.web.marks import draw_marks

WHITE = np.full((120, 200, 3), 255, np.uint8)


def find_changed(boxes: dict[str, tuple[float, float, float, float]]) -> np.ndarray:
    """Which pixels marks have changed."""
    return (draw_marks(WHITE, boxes) != WHITE).any(-1)


def test_text_in_a_box_stays_readable() -> None:
    changed = find_changed({"1": (20, 40, 60, 20), "2": (20, 90, 60, 20)})
    assert not changed[41:60, 21:80].any() and not changed[91:110, 21:80].any()
    assert changed[25:40, 20:30].any() and changed[75:90, 20:30].any()


def test_an_id_stands_to_the_left_where_there_is_no_room_above() -> None:
    changed = find_changed({"1": (60, 0, 60, 20), "2": (60, 21, 60, 20)})
    assert not changed[1:20, 61:120].any() and not changed[22:41, 61:120].any()
    assert changed[:20, 40:60].any() and changed[21:41, 40:60].any()


def test_a_box_without_any_room_has_its_id_in_its_corner() -> None:
    changed = find_changed({"1": (0, 0, 60, 20)})
    assert changed[1:15, 1:10].any()


def test_boxes_that_are_not_on_the_screen_have_no_mark() -> None:
    outside = {"1": (-50, 0, 40, 20), "2": (0, 130, 40, 20), "3": (210, 5, 9, 9), "4": (5, 5, 0, 9)}
    assert not find_changed(dict(outside)).any()
