"""Images of a room through the agent's eyes, rendered by MuJoCo off screen.

One model holds every kind of furniture, four walls and a floor; an image puts them where the room has them
(what the room lacks waits far below the floor), dresses walls and colours, places the eye, and renders.
Nothing is simulated. Each thread has one stage, and an image depends on room, pose and field of view only.
"""

from __future__ import annotations

import math
import threading

from stepwell.envs.navigation.room import EYE_HEIGHT, TURN, NavigationRoom, Pose
from stepwell.envs.navigation.things import KINDS, PALETTE, Part
from stepwell.envs.robots import cameras, models
from stepwell.envs.tiles import Image

EXTRA = "navigation"
FAR = (0.0, 0.0, -50.0)
WALL_HEIGHT, HALF_WALL = 2.6, 8.0
WALLS = (  # pattern, two colours, how often it repeats per metre along and up
    ("flat", "0.85 0.82 0.74", "0.85 0.82 0.74", "1 1"),
    ("checker", "0.58 0.69 0.78", "0.7 0.79 0.86", "2 0.001"),
    ("checker", "0.72 0.5 0.42", "0.62 0.4 0.33", "2 3"),
    ("checker", "0.78 0.86 0.76", "0.66 0.75 0.64", "0.8 0.8"),
)
FLOORS = (
    ("checker", "0.5 0.37 0.25", "0.43 0.31 0.2", "0.5 3"),
    ("checker", "0.78 0.78 0.76", "0.62 0.62 0.61", "1 1"),
    ("flat", "0.42 0.44 0.47", "0.42 0.44 0.47", "1 1"),
)
_THREAD = threading.local()


def render_view(room: NavigationRoom, pose: Pose, size: int, fov: float) -> Image:
    """What the agent sees, [size, size, 3]."""
    stage: RenderStage | None = getattr(_THREAD, "stage", None)
    if stage is None:
        stage = _THREAD.stage = RenderStage()
    return stage.render_view(room, pose, size, fov)


class RenderStage:
    """The model and where its bodies are now."""

    def __init__(self) -> None:
        cameras.choose_gl_backend()  # before MuJoCo, which else imports a windowing library as well
        mujoco = models.import_mujoco(EXTRA)
        self.model = mujoco.MjModel.from_xml_string(write_model_xml())
        self.data = mujoco.MjData(self.model)
        self._room: NavigationRoom | None = None

    def render_view(self, room: NavigationRoom, pose: Pose, size: int, fov: float) -> Image:
        """Furnish, place the eye, render."""
        if room is not self._room:
            self._furnish_room(room)
            self._room = room
        eye = (pose.column * room.step, pose.row * room.step, EYE_HEIGHT)
        self._put_body(
            "eye", eye, _multiply_rotations(_rotate_about_z(pose.heading), _rotate_about_x(90 + pose.pitch))
        )
        self.model.cam_fovy[0] = fov
        cameras.update_positions(self.model, self.data)
        return cameras.render_image(EXTRA, self.model, self.data, "eye", size)

    def _furnish_room(self, room: NavigationRoom) -> None:
        for kind in KINDS:
            self._put_body(kind.name, FAR, _rotate_about_z(0))
        for thing in room.things:
            self._put_body(thing.kind.name, (thing.x, thing.y, 0.0), _rotate_about_z(thing.turn))
            for number, part in enumerate(thing.kind.parts):
                if part.colour is None:
                    geom = self.model.geom(f"{thing.kind.name} {number}").id
                    self.model.geom_rgba[geom, :3] = PALETTE[thing.colour]
        middle = WALL_HEIGHT / 2
        x, y = room.width / 2, room.depth / 2
        for turn, (name, at) in enumerate(
            (
                ("north", (x, room.depth, middle)),
                ("east", (room.width, y, middle)),
                ("south", (x, 0.0, middle)),
                ("west", (0.0, y, middle)),
            )
        ):
            self._put_body(
                name, at, _multiply_rotations(_rotate_about_z(turn), _rotate_about_x(90))
            )  # upright, its face to the room
            self.model.geom_matid[self.model.geom(name).id] = self.model.material(f"wall {room.looks[0]}").id
        self.model.geom_matid[self.model.geom("floor").id] = self.model.material(f"floor {room.looks[1]}").id

    def _put_body(self, body: str, at: tuple[float, float, float], turned: tuple[float, ...]) -> None:
        number = self.model.body(body).mocapid[0]
        self.data.mocap_pos[number], self.data.mocap_quat[number] = at, turned


def write_model_xml() -> str:
    """The model file: all that a room can hold."""
    assets, bodies = [], []
    for name, looks in (("wall", WALLS), ("floor", FLOORS)):
        for number, (pattern, one, two, repeat) in enumerate(looks):
            assets.append(
                f'<texture name="{name} {number}" type="2d" builtin="{pattern}" rgb1="{one}" rgb2="{two}" '
                f'width="128" height="128"/><material name="{name} {number}" texture="{name} {number}" '
                f'texrepeat="{repeat}" texuniform="true" specular="0" shininess="0"/>'
            )
    for name in ("north", "south", "east", "west"):
        size = f"{HALF_WALL} {WALL_HEIGHT / 2} 0.1"
        bodies.append(
            _write_body(name, f'<geom name="{name}" type="plane" size="{size}" material="wall 0"/>')
        )
    for kind in KINDS:
        bodies.append(
            _write_body(kind.name, "".join(_write_geom(kind.name, *item) for item in enumerate(kind.parts)))
        )
    bodies.append(_write_body("eye", '<camera name="eye"/>'))
    return (
        "<mujoco><visual>"
        '<headlight ambient="0.45 0.45 0.45" diffuse="0.5 0.5 0.5" specular="0 0 0"/>'
        '<map znear="0.005" zfar="20"/></visual>'
        '<statistic center="0 0 0" extent="5"/>'
        f"<asset>{''.join(assets)}</asset><worldbody>"
        '<light directional="true" pos="0 0 5" dir="0.3 0.5 -1" diffuse="0.3 0.3 0.3" castshadow="false"/>'
        '<geom name="floor" type="plane" size="20 20 0.1" material="floor 0"/>'
        f'<geom name="ceiling" type="box" pos="0 0 {WALL_HEIGHT + 0.1}" size="20 20 0.1" rgba=".9 .9 .9 1"/>'
        f"{''.join(bodies)}</worldbody></mujoco>"
    )


def _write_body(name: str, inside: str) -> str:
    return f'<body name="{name}" mocap="true" pos="{_write_numbers(FAR)}">{inside}</body>'


def _write_geom(kind: str, number: int, part: Part) -> str:
    along, across, up = part.half
    size = {"box": (along, across, up), "cylinder": (along, up), "sphere": (min(part.half),)}[part.shape]
    colour = part.colour or PALETTE["red"]
    return (
        f'<geom name="{kind} {number}" type="{part.shape}" pos="{_write_numbers(part.middle)}" '
        f'size="{_write_numbers(size)}" '
        f'rgba="{_write_numbers(colour)} 1"/>'
    )


def _write_numbers(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _rotate_about_z(quarter_turns: int) -> tuple[float, ...]:
    """Clockwise, as headings count."""
    half = math.radians(-quarter_turns * TURN) / 2
    return math.cos(half), 0.0, 0.0, math.sin(half)


def _rotate_about_x(degrees: float) -> tuple[float, ...]:
    half = math.radians(degrees) / 2
    return math.cos(half), math.sin(half), 0.0, 0.0


def _multiply_rotations(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """Of a turn about z and one about x."""
    return a[0] * b[0], a[0] * b[1], a[3] * b[1], a[3] * b[0]
