"""Images of a report: videos where they can be made, animations elsewhere, never too many bytes."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.monitors.report_pages import EVIL, Page, board, keep_episodes, make_run

from stepwell.monitors.animations import animate_replay
from stepwell.monitors.replays import Replay, ReplayFrame, save_replays
from stepwell.monitors.report import write_report


def test_an_episode_with_images_is_shown_as_a_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    make_run(tmp_path)
    keep_episodes(tmp_path, num=2)
    html = write_report(tmp_path).read_text()
    films = [attributes for tag, attributes in Page(html).tags if tag == "video"]
    assert [film["aria-label"] for film in films] == [f"{EVIL}, after training: success"] * 2
    assert all("controls" in film for film in films) and "media-src data:" in html
    kind, _, data = (films[0]["src"] or "").partition(",")
    assert kind == "data:video/webm;base64"
    with av.open(io.BytesIO(base64.b64decode(data))) as video:
        (stream,) = video.streams
        assert (stream.codec.name, stream.width, stream.height) == ("vp9", 192, 192)  # 8 pixels, enlarged
        moments = [round(1000 * frame.time) for frame in video.decode(video=0)]
    assert moments == [0, 800, 1600, 2400, 3900]


def test_without_the_video_package_an_episode_is_shown_as_an_animation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    make_run(tmp_path)
    keep_episodes(tmp_path, num=2)
    page = Page(write_report(tmp_path).read_text())
    films = [attributes for tag, attributes in page.tags if tag == "img" and "src" in attributes]
    assert [film["alt"] for film in films] == [f"{EVIL}, after training: success"] * 2
    gif = Image.open(io.BytesIO(base64.b64decode((films[0]["src"] or "").partition(",")[2])))
    assert (gif.format, getattr(gif, "n_frames", 1), gif.info["loop"]) == ("GIF", 4, 0)


def test_many_large_images_leave_the_report_below_five_megabytes(tmp_path: Path) -> None:
    make_run(tmp_path)
    keep_episodes(tmp_path, num=2, num_steps=9, side=256)
    assert (tmp_path / "replays.json").stat().st_size > 5_000_000
    path = write_report(tmp_path)
    page = Page(path.read_text())
    assert path.stat().st_size < 5_000_000 and "Images are smaller here" in page.text
    assert sum(tag in ("img", "video") and "src" in attributes for tag, attributes in page.tags) == 2
    assert all(frame["image"] is not None for frame in json.loads(page.scripts[0])["replays"][0]["frames"])


def test_a_damaged_image_is_named_and_costs_only_the_images(tmp_path: Path) -> None:
    make_run(tmp_path)
    frames = [ReplayFrame("x", "y", [], 0.0, image_png=png) for png in (b"no image", board(1))]
    save_replays(tmp_path / "replays.json", [Replay("t", "", "success", 1.0, frames)])
    page = Page(write_report(tmp_path).read_text())
    assert "not a PNG file" in page.text and "Replays" in page.text and "Learning curve" in page.text


def test_an_animation_that_cannot_be_small_enough_is_left_out() -> None:
    frames = [ReplayFrame("", "", [], 0.0, image_png=board(step, 64)) for step in range(12)]
    replay = Replay("t", "", "success", 1.0, frames)
    assert animate_replay(replay, 100) is None
    small, whole = animate_replay(replay, 20_000), animate_replay(replay, 10**9)
    assert small is not None and whole is not None and len(small) <= 20_000 < len(whole)


def test_text_drawn_as_images_of_different_sizes_is_not_animated() -> None:
    frames = [ReplayFrame("", "", [], 0.0, image_png=png) for png in (board(1, 8), None, board(2, 16))]
    assert animate_replay(Replay("t", "", "success", 1.0, frames), 10**6) is None
