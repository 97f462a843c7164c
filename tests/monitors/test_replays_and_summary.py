"""Replays and summaries come back as they were saved; damage is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from stepwell.core.errors import EncodingError, InputError
from stepwell.monitors.replays import Replay, ReplayFrame, encode_png, load_replays, save_replays
from stepwell.monitors.summary import SuccessScore, Summary, read_summary, write_summary

images = hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 5), st.just(3)))
finite = st.floats(allow_nan=False, allow_infinity=False)
png_files = st.none() | st.binary(max_size=8)
frames = st.builds(
    ReplayFrame,
    observation=st.text(max_size=20),
    reply=st.text(max_size=20),
    actions=st.lists(st.text(max_size=5), max_size=3),
    reward=finite,
    reward_parts=st.dictionaries(st.text(max_size=5), finite, max_size=2),
    image_png=png_files,
    value=st.none() | finite,
    advantage=st.none() | finite,
    problem=st.text(max_size=5),
)
replays = st.builds(
    Replay,
    task_id=st.text(max_size=5),
    title=st.text(max_size=5),
    status=st.sampled_from(["success", "failure"]),
    total_reward=finite,
    frames=st.lists(frames, max_size=3),
    stage=st.sampled_from(["before", "after"]),
    final_observation=st.text(max_size=5),
    final_image_png=png_files,
)
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@shared_folder
@given(st.lists(replays, max_size=3))
def test_replays_come_back_as_saved(tmp_path: Path, saved: list[Replay]) -> None:
    path = tmp_path / "replays.json"
    save_replays(path, saved)
    assert load_replays(path) == saved


def test_an_image_seen_twice_is_kept_once(tmp_path: Path) -> None:
    board = encode_png(np.full((8, 8, 3), 200, np.uint8))
    frame = ReplayFrame("", "", [], 0.0, image_png=board)
    path = tmp_path / "replays.json"
    save_replays(path, [Replay("t", "", "success", 1.0, [frame, frame], final_image_png=board)] * 2)
    assert len(json.loads(path.read_text())["images"]) == 1


@given(images)
def test_a_png_holds_the_pixels(image: np.ndarray) -> None:
    back = np.asarray(Image.open(io.BytesIO(encode_png(image))))
    assert back.shape == image.shape and (back == image).all()


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"uint8 RGB \[H, W, 3\]"):
        encode_png(np.zeros((4, 4, 3)))


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', '{"format": "stepwell replays 1"}'])
def test_damaged_replays_are_refused_with_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "replays.json"
    path.write_text(content)
    with pytest.raises(EncodingError, match=r"replays\.json is damaged"):
        load_replays(path)


def test_a_summary_comes_back_with_what_this_version_does_not_know(tmp_path: Path) -> None:
    summary = Summary(0.25, 0.875, 7680, 61.5, 3, "steppo", "frozenlake")
    summary.before = SuccessScore(0.25, 0.2, 0.31, 256, more={"pass@4": 0.5})
    summary.after = SuccessScore(0.875, 0.83, 0.91, 256)
    summary.baselines = [SuccessScore(0.1, name="random play", note="uniform actions")]
    summary.more = {"num_parameters": 250_000}
    write_summary(tmp_path, summary)
    content = json.loads((tmp_path / "summary.json").read_text())
    assert (content["success_before"], content["success_after"], content["env_steps"]) == (0.25, 0.875, 7680)
    assert (content["before"]["pass@4"], content["num_parameters"]) == (0.5, 250_000)
    assert read_summary(tmp_path) == summary


def test_a_run_without_a_summary_has_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"success_before": 0.2}')
    with pytest.raises(EncodingError, match=r"summary\.json is damaged"):
        read_summary(tmp_path)
