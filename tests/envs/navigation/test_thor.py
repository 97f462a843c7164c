"""The adapter of AI2-THOR against a stand-in of its published interface; the package itself was never run."""

from __future__ import annotations

import json
import math
import sys
import types

import numpy as np
import pytest

from stepwell.core import ConfigError, EnvError, InputError, StateForm, Task
from stepwell.envs import make_env

NAME = "stepwell.envs.navigation.thor_env:ThorNavigation"
OBJECTS = {"Sofa": (0.0, 3.0), "Fridge": (2.0, -1.0), "Chair": (1.0, 1.0), "Mug": (0.5, 2.0)}
WAYS = {"MoveAhead": 0, "MoveRight": 90, "MoveBack": 180, "MoveLeft": 270}


class Controller:
    """A floor from -1 to 3 m without furniture; objects in front are visible."""

    def __init__(self, **settings: object) -> None:
        self.settings, self.stopped = settings, False

    def reset(self, scene: str) -> object:
        self.scene, self.x, self.z, self.yaw, self.horizon = scene, 0.0, 0.0, 0.0, 0.0
        return self._event(True)

    def step(self, action: str, **arguments: object) -> object:
        grid = self.settings["gridSize"]
        if action == "GetReachablePositions":
            places = [{"x": x * grid, "y": 0.9, "z": z * grid} for x in range(-4, 9) for z in range(-4, 13)]
            return self._event(True, places)
        if action == "Teleport":
            self.x, self.z = arguments["position"]["x"], arguments["position"]["z"]
            self.yaw = arguments["rotation"]["y"]
        elif action in WAYS:
            angle = math.radians(self.yaw + WAYS[action])
            x, z = self.x + grid * math.sin(angle), self.z + grid * math.cos(angle)
            if not (-1.01 < x < 3.01 and -1.01 < z < 3.01):
                return self._event(False)
            self.x, self.z = x, z
        elif action.startswith("Rotate"):
            self.yaw = (self.yaw + (90 if action == "RotateRight" else -90)) % 360
        else:
            self.horizon += -30 if action == "LookUp" else 30
        return self._event(True)

    def stop(self) -> None:
        self.stopped = True

    def _event(self, success: bool, answer: object = None) -> object:
        ahead = (math.sin(math.radians(self.yaw)), math.cos(math.radians(self.yaw)))
        objects = [
            {
                "objectType": kind,
                "position": {"x": x, "y": 0.5, "z": z},
                "visible": (x - self.x) * ahead[0] + (z - self.z) * ahead[1] > 0.1,
            }
            for kind, (x, z) in OBJECTS.items()
        ]
        agent = {
            "position": {"x": self.x, "y": 0.9, "z": self.z},
            "rotation": {"x": 0.0, "y": self.yaw, "z": 0.0},
            "cameraHorizon": self.horizon,
        }
        metadata = {"lastActionSuccess": success, "actionReturn": answer, "objects": objects, "agent": agent}
        frame = np.full((self.settings["height"], self.settings["width"], 3), 7, dtype=np.uint8)
        self.last_event = types.SimpleNamespace(metadata=metadata, frame=frame)
        return self.last_event


@pytest.fixture
def thor(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("ai2thor.controller")
    module.Controller = Controller
    monkeypatch.setitem(sys.modules, "ai2thor", types.ModuleType("ai2thor"))
    monkeypatch.setitem(sys.modules, "ai2thor.controller", module)


def task_of(**changes: object) -> Task:
    content = {"scene": "FloorPlan1", "target": "Sofa", "position": {"x": 0, "y": 0.9, "z": 0}, "rotation": 0}
    return Task("thor_navigation", content | changes, "Go to the sofa.")


def test_a_walk_to_the_target(thor: None) -> None:
    env = make_env(NAME, {"image_size": 16, "observation": "both"})
    observation, _ = env.reset(options={"task": task_of()})
    assert observation.images[0].shape == (16, 16, 3)
    assert observation.text.splitlines() == [
        "Instruction: Go to the sofa.",
        "The chair is to the right of the robot, 1.41 m away. The Mug is ahead of the robot, 2.06 m away. "
        "The sofa is ahead of the robot, 3.00 m away.",
    ]
    state = json.loads(env.state()[StateForm.STRUCTURED])
    assert (state["target_obj_type"], state["target_distance_to_player"]) == ("sofa", 3.0)
    assert state["player"] == {"position": [0.0, 0.0], "heading": 0, "pitch": 0}
    assert env.step(["moveahead"] * 5)[1:3] == (pytest.approx(-0.5), False)
    _, reward, terminated, _, info = env.step(["moveahead"] * 3)
    assert (reward, terminated, info["success"]) == (pytest.approx(9.8), True, True)
    env.close()


def test_facing_is_asked_for_only_where_set(thor: None) -> None:
    for must_face, expected in ((False, True), (True, False)):
        env = make_env(NAME, {"image_size": 16, "must_face": must_face})
        env.reset(options={"task": task_of(position={"x": 0, "y": 0.9, "z": 1.75}, rotation=180)})
        assert env.step(["moveback"])[4]["success"] is expected
    assert env.step(["rotateleft", "rotateleft"])[4]["success"]


def test_a_blocked_move_is_told(thor: None) -> None:
    env = make_env(NAME, {"image_size": 16})
    env.reset(options={"task": task_of(rotation=180)})
    observation, *_ = env.step(["moveahead"] * 5)
    assert observation.text.startswith("The last action was not possible.")


def test_drawn_tasks_repeat_and_say_what_is_meant(thor: None) -> None:
    for how, word in (("base", "the"), ("common", "something")):
        env = make_env(NAME, {"image_size": 16, "instruction": how, "observation": "text"})
        texts = [env.reset(seed=seed)[0].text for seed in (1, 2, 3, 1)]
        assert texts[0] == texts[3] and len(set(texts)) > 1
        assert all(word in text.split("Instruction: ")[1] for text in texts)
        assert env.state()[StateForm.NATURAL_LANGUAGE].startswith("The target is the ")


def test_what_the_scene_lacks_is_said(thor: None) -> None:
    env = make_env(NAME)
    with pytest.raises(InputError, match="no 'Boat'"):
        env.reset(options={"task": task_of(target="Boat")})
    with pytest.raises(InputError, match="either a 'draw' or a 'target'"):
        env.reset(options={"task": Task("thor_navigation", {"scene": "FloorPlan1"})})
    with pytest.raises(InputError, match="instruction of its own"):
        env.reset(options={"task": Task("thor_navigation", task_of(target="Mug").content)})


def test_a_scene_without_targets_is_an_error_of_the_system(thor: None, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OBJECTS", {"Mug": (0.5, 2.0)})
    with pytest.raises(EnvError, match="choose other"):
        make_env(NAME).reset(seed=0)


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ai2thor", None)
    env = make_env(NAME)
    assert "You are a robot" in env.description.guide
    with pytest.raises(ConfigError, match=r'pip install "stepwell\[ai2thor\]"'):
        env.reset(seed=0)
