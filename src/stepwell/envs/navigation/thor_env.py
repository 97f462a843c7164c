"""Navigation in AI2-THOR's houses: the same actions, instructions, rewards and words in another simulator.

Opened by its import path, `stepwell.envs.navigation.thor_env:ThorNavigation`. Written against AI2-THOR's
published interface (`Controller`, `reset`, `step`, `last_event.metadata`) and tested with a stand-in,
never with the package itself, whose simulator could not be downloaded where this was written.

A task is a scene and a number, from which a free start and a target in the scene are drawn. Or it is a scene
with a given `target` (an object type), `position`, `rotation` and instruction. Distances are measured on the
floor, from the agent to the object's position. An object is in view if THOR calls it visible. There is no
oracle.
"""

from __future__ import annotations

import math
import random
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ActionSpace,
    EnvDescription,
    EnvError,
    InputError,
    Observation,
    StateForm,
    Task,
)
from stepwell.envs.base import Effect, Env
from stepwell.envs.navigation.env import ACTED, ARRIVED
from stepwell.envs.navigation.generator import write_instruction
from stepwell.envs.navigation.guide import write_guide
from stepwell.envs.navigation.options import NavigationOptions
from stepwell.envs.navigation.room import NAMES
from stepwell.envs.navigation.sight import VisibleThing, compute_bearing, name_direction
from stepwell.envs.navigation.text import write_sentences, write_structured_view, write_view
from stepwell.envs.navigation.things import BY_NAME
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.tiles import Image

THOR_ACTIONS = dict(
    zip(
        NAMES,
        ("MoveAhead", "MoveBack", "MoveRight", "MoveLeft", "RotateRight", "RotateLeft", "LookUp", "LookDown"),
        strict=True,
    )
)
TARGETS = {  # object types of THOR that are kinds of ours, so that what they are good for can be said
    "Sofa": "sofa",
    "Bed": "bed",
    "DiningTable": "dining table",
    "Chair": "chair",
    "Fridge": "fridge",
    "Television": "television",
    "FloorLamp": "floor lamp",
    "HousePlant": "plant",
    "GarbageCan": "garbage can",
    "WashingMachine": "washing machine",
    "Toilet": "toilet",
    "Bathtub": "bathtub",
    "Desk": "desk",
}
FAR = 20.0  # THOR calls nothing beyond this visible


class ThorOptions(NavigationOptions):
    """Those of the rooms that are built here, and the scenes."""

    scenes: tuple[str, ...] = Field(
        tuple(f"FloorPlan{number}" for first in (1, 201, 301, 401) for number in range(first, first + 30)),
        description="scenes of iTHOR that tasks are drawn from",
    )
    observation: Literal["text", "image", "both"] = Field("image", description="what the agent is shown")


class ThorNavigation(Env):
    """Walk through a house of AI2-THOR to the thing that the instruction means."""

    name: ClassVar[str] = "thor_navigation"
    Options: ClassVar[type[Settings]] = ThorOptions
    has_oracle: ClassVar[bool] = False
    options: ThorOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._controller: Any = None

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        actions = ActionSpace(NAMES, self.options.max_actions_per_turn)
        return EnvDescription(self.name, write_guide(self.options), actions, self.options.max_turns)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A scene and the number that start and target are drawn from."""
        rng = random.Random(seed)
        content: dict[str, JSON] = {"scene": rng.choice(options.scenes), "draw": rng.getrandbits(31)}
        return Task(cls.name, content, seed=seed, tags=(options.instruction,))

    def begin(self, task: Task, seed: int) -> None:
        """Load the scene, choose a target where the task leaves it open, and stand at the start."""
        content: dict[str, Any] = task.content
        if "scene" not in content or not ({"draw", "target"} & set(content)):
            raise InputError("a task of thor_navigation holds a 'scene' and either a 'draw' or a 'target'")
        self._open_controller().reset(scene=content["scene"])
        rng = random.Random(content.get("draw", 0))
        self._target = content.get("target") or rng.choice(self._list_candidates())
        places = self._step_controller("GetReachablePositions")["actionReturn"]
        far = [place for place in places if self._measure_distance(place) > self.options.success_threshold]
        if not far:
            raise EnvError(f"scene {content['scene']} has no free place far from its {self._target}")
        start = content.get("position") or rng.choice(sorted(far, key=lambda place: (place["x"], place["z"])))
        rotation = {"x": 0, "y": content.get("rotation", 90 * rng.randrange(4)), "z": 0}
        self._step_controller("Teleport", position=start, rotation=rotation, horizon=0, standing=True)
        self._feedback = ""
        self._instruction = task.instruction or self._write_instruction(rng)

    def act(self, action: str) -> Effect:
        """Move, turn or tilt."""
        metadata = self._step_controller(THOR_ACTIONS[action], is_needed=False)
        done = metadata["lastActionSuccess"]
        self._feedback = "The last action was executed." if done else "The last action was not possible."
        if self._has_arrived():
            self._feedback = "You have arrived."
            return Effect(ARRIVED, terminated=True, success=True)
        return Effect(ACTED)

    def observe(self) -> Observation:
        """Instruction, what became of the last action, and the view."""
        lines = [line for line in (self._feedback, f"Instruction: {self._instruction}") if line]
        shown = self.options.observation
        if shown != "image":
            lines.append(write_view(self._list_view()))
        return Observation("\n".join(lines), () if shown == "text" else (self.render(),))

    def oracle(self) -> list[str]:
        """There is none."""
        return []

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON, from THOR's metadata."""
        target, seen, agent = (
            self._locate_thing(self._find_object()),
            self._list_view(),
            self._get_metadata()["agent"],
        )
        player: dict[str, JSON] = {
            "position": [round(agent["position"]["x"], 2), round(agent["position"]["z"], 2)],
            "heading": round(agent["rotation"]["y"]) % 360,
            "pitch": -round(agent["cameraHorizon"]),
        }
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(target, seen),
            StateForm.STRUCTURED: write_structured_view(target, seen, player),
        }

    def render(self) -> Image:
        """What the agent sees."""
        frame: Image = self._controller.last_event.frame
        return frame.copy()

    def close(self) -> None:
        """Stop the simulator."""
        if self._controller is not None:
            self._controller.stop()
        self._controller = None

    def _open_controller(self) -> Any:
        if self._controller is None:
            thor = import_simulator("ai2thor.controller", env=self.name, extra="ai2thor")
            self._controller = thor.Controller(
                agentMode="default",
                visibilityDistance=FAR,
                scene=self.options.scenes[0],
                gridSize=self.options.step_length,
                snapToGrid=True,
                rotateStepDegrees=90,
                width=self.options.image_size,
                height=self.options.image_size,
                fieldOfView=self.options.fov,
            )
        return self._controller

    def _step_controller(self, action: str, is_needed: bool = True, **arguments: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = self._controller.step(action=action, **arguments).metadata
        if is_needed and not metadata["lastActionSuccess"]:
            raise EnvError(f"AI2-THOR refused {action}: {metadata.get('errorMessage', '')}")
        return metadata

    def _get_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self._controller.last_event.metadata
        return metadata

    def _list_candidates(self) -> list[str]:
        """Types that occur once, so that a name leaves no doubt."""
        types = [thing["objectType"] for thing in self._get_metadata()["objects"]]
        found = sorted(kind for kind in TARGETS if types.count(kind) == 1)
        if not found:
            raise EnvError(
                f"the scene has none of {', '.join(TARGETS)} exactly once; choose other env.options.scenes"
            )
        return found

    def _find_object(self) -> dict[str, Any]:
        for thing in self._get_metadata()["objects"]:
            if thing["objectType"] == self._target:
                return dict(thing)
        raise InputError(f"the scene has no {self._target!r}")

    def _write_instruction(self, rng: random.Random) -> str:
        if self._target not in TARGETS:
            raise InputError(f"a task with the target {self._target!r} needs an instruction of its own")
        return write_instruction(rng, BY_NAME[TARGETS[self._target]], self.options.instruction)

    def _has_arrived(self) -> bool:
        thing, agent = self._find_object(), self._get_metadata()["agent"]
        if self._measure_distance(agent["position"]) > self.options.success_threshold:
            return False
        faces = thing["visible"] and abs(self._find_bearing(thing)) <= 45
        return bool(faces) or not self.options.must_face

    def _find_bearing(self, thing: dict[str, Any]) -> float:
        agent, at = self._get_metadata()["agent"], thing["position"]
        east, north = at["x"] - agent["position"]["x"], at["z"] - agent["position"]["z"]
        return compute_bearing(east, north, agent["rotation"]["y"])

    def _measure_distance(self, place: dict[str, float]) -> float:
        at = self._find_object()["position"]
        return math.hypot(at["x"] - place["x"], at["z"] - place["z"])

    def _list_view(self) -> list[VisibleThing]:
        things = [self._locate_thing(thing) for thing in self._get_metadata()["objects"] if thing["visible"]]
        return sorted(things, key=lambda seen: (seen.distance, seen.name))

    def _locate_thing(self, thing: dict[str, Any]) -> VisibleThing:
        agent, at, kind = self._get_metadata()["agent"]["position"], thing["position"], thing["objectType"]
        distance = math.hypot(at["x"] - agent["x"], at["z"] - agent["z"])
        return VisibleThing(TARGETS.get(kind, kind), name_direction(self._find_bearing(thing)), distance)
