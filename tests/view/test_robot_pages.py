"""The pages of a robot's episodes: videos of its cameras, or the episode played again."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.view.made_runs import read_page, write_run

from stepwell.core import ArrayAction, ArrayState, Status, Step, Task, Trajectory
from stepwell.pool import open_pool
from stepwell.view.app import ViewApp


@pytest.fixture
def robot_run(tmp_path: Path) -> Path:
    """A folder of runs with one of a robot with a camera."""
    steps = []
    for number in range(3):
        image = np.full((16, 16, 3), 80 * number, np.uint8)
        state = ArrayState({"camera": image, "joints": np.zeros(2, np.float32)}, "push the block")
        step = Step(state, ArrayAction(np.ones((2, 3), np.float32), 6), np.full(6, -1.0, np.float32))
        step.assign_reward({"task": 0.5})
        steps.append(step)
    run = write_run(tmp_path, "robot", 0)
    (run / "pool").mkdir()
    with open_pool(run / "pool") as pool:
        pool.add([Trajectory(Task("arm", {"n": 1}), steps, Status.SUCCESS, id="moves")], group_sizes=1)
    return tmp_path


def test_a_robot_with_cameras_has_a_video(robot_run: Path) -> None:
    av = pytest.importorskip("av")
    view = ViewApp([str(robot_run)], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read_page(client, "/run/robot/trajectory", id="moves")
        assert '<video class="film"' in page and ">WebM</a>" in page and ">GIF</a>" in page
        film = client.get("/run/robot/film", params={"id": "moves"})
        assert film.headers["content-type"] == "video/webm" and film.headers["accept-ranges"] == "bytes"
        with av.open(io.BytesIO(film.content)) as video:
            shades = [
                round(float(frame.to_ndarray(format="rgb24").mean())) for frame in video.decode(video=0)
            ]
        assert shades == pytest.approx([0, 80, 160, 160], abs=4)  # the last one stays
        part = client.get("/run/robot/film", params={"id": "moves"}, headers={"range": "bytes=4-9"})
        assert part.status_code == 206 and part.content == film.content[4:10]
        assert part.headers["content-range"] == f"bytes 4-9/{len(film.content)}"
        beyond = client.get("/run/robot/film", params={"id": "moves"}, headers={"range": "bytes=9999999-"})
        assert beyond.status_code == 200 and beyond.content == film.content
        gif = client.get("/run/robot/film", params={"id": "moves", "form": "gif"})
        assert gif.headers["content-type"] == "image/gif" and gif.content.startswith(b"GIF8")
        assert 'poster="/run/robot/film?id=moves&amp;form=still"' in page
        still = client.get("/run/robot/film", params={"id": "moves", "form": "still"})
        assert still.headers["content-type"] == "image/png" and still.content.startswith(b"\x89PNG")
    view.close()


def test_without_the_video_package_a_robot_has_an_animation(
    robot_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    view = ViewApp([str(robot_run)], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read_page(client, "/run/robot/trajectory", id="moves")
        assert 'alt="the whole episode"' in page and "<video" not in page
        assert "16×16×3 uint8" in page and "push the block" in page
        film = client.get("/run/robot/film", params={"id": "moves"})
        assert film.headers["content-type"] == "image/gif" and film.content.startswith(b"GIF8")
        frame = client.get("/run/robot/frame", params={"id": "moves", "step": "2"})
        assert frame.content.startswith(b"\x89PNG")
        assert client.get("/run/robot/frame", params={"id": "moves", "step": "9"}).status_code == 404
        assert client.get("/run/robot/image", params={"name": "../x"}).status_code == 404
    view.close()


def test_a_robot_without_cameras_is_played_again_on_request(tmp_path: Path) -> None:
    for name, env in (("arm", "metaworld"), ("other", "my_module:Robot")):
        run = write_run(tmp_path, name, 0)
        config = run / "config.toml"
        config.write_text(config.read_text().replace('"lake"', f'"{env}"'))
        state, action = ArrayState({"proprio": np.zeros(2, np.float32)}), np.ones((1, 4), np.float32)
        step = Step(state, ArrayAction(action, 4), np.full(4, -1.0, np.float32))
        step.assign_reward({"task": 0.0})
        made = Trajectory(Task(env, {"n": 1}), [step], Status.FAILURE, id="moves", info={"seed": 3})
        (run / "pool").mkdir()
        with open_pool(run / "pool") as pool:
            pool.add([made], group_sizes=1)
    view = ViewApp([str(tmp_path)], token=None)
    with TestClient(view.app, base_url="http://127.0.0.1") as client:
        page = read_page(client, "/run/arm/trajectory", id="moves")
        assert "Play it again in the simulator" in page and "/film?" not in page
        asked = read_page(client, "/run/arm/trajectory", id="moves", again="1")
        assert "/run/arm/film?id=moves&amp;again=1" in asked and "with the recorded actions" in asked
        assert "poster=" not in asked  # it would play the episode once more
        assert "in the simulator" not in read_page(client, "/run/other/trajectory", id="moves", again="1")
        refused = client.get("/run/other/film", params={"id": "moves", "again": "1"})
        assert refused.status_code == 404 and "cannot be played again" in refused.text
    view.close()
