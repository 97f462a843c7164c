"""The table in MuJoCo: things fall, slide and stack by physics; the hand follows its commands.

This is a custom model: a hand with two fingers on an arm of two links, instead of a Panda's seven joints. The
hand is placed directly and the links are drawn to it (`mocap`); neither has mass or collides with anything. A
grasped thing moves with the hand; everything else obeys physics. Per primitive:

    pick    the thing whose centre lies within GRASP of the point is grasped and lifted
    place   the held thing is moved over the point, lowered until it touches something (never below the
            point's z), and released
    push    the closed fingers go down at the first point and along the line to the second

Then the simulation runs until everything lies still. The finger's contacts are stiff, because it has no
velocity in the solver, and with soft contacts it would pass through a thin handle.

Invariants
* The same layout and primitives lead to the same positions in any copy, whatever it did before.
* Settling time is sufficient: no resting thing overlaps another one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from stepwell.core import EnvError
from stepwell.envs.primitive_skill.table import (
    CUBE,
    DRAWER_CLOSED,
    DRAWER_OPEN,
    DRAWER_Y,
    DRAWER_Z,
    HANDLE,
    RADIUS,
    Point,
    TableLayout,
)
from stepwell.envs.robots import cameras, models
from stepwell.envs.tiles import Image

EXTRA = "primitive_skill"
CAMERA = "table"
SHOULDER, REST = np.array([-0.42, 0.0, 0.33]), np.array([-0.22, 0.0, 0.3])  # in metres, as below
LINK, WRIST = 0.4, 0.12
GRASP = 25  # mm between the point of a pick and the centre of the grasped thing
HOVER = 0.22  # metres above the table, the resting height of the hand
PUSH_STEP, DWELL = 0.0005, 50  # metres of a push per step of the simulation; steps at its end
STILL, MAX_SETTLE = 2e-3, 500  # metres per second; steps
COLOURS = {
    "red cube": "0.85 0.12 0.1 1",
    "green cube": "0.1 0.65 0.2 1",
    "purple cube": "0.5 0.15 0.7 1",
    "apple": "0.9 0.15 0.12 1",
}


class MujocoScene:
    """One table."""

    def __init__(self, layout: TableLayout) -> None:
        self.task = layout.task
        self.model = _compile_model(layout.task)
        self.data = self._mujoco.MjData(self.model)
        self.held: str | None = None
        self._names = tuple(name for name in layout.places if name in COLOURS)
        self._lay_out(layout)

    @property
    def _mujoco(self) -> Any:
        return models.import_mujoco(EXTRA)  # not stored: scenes are copied, and modules cannot be

    def list_places(self) -> dict[str, Point]:
        """The current position of everything."""
        found = {name: _to_mm(self._get_position(name)) for name in self._names}
        if self.task == "drawer":
            x = DRAWER_OPEN - round(1000 * float(self.data.joint("slide").qpos[0]))
            found |= {"drawer": (x, DRAWER_Y, DRAWER_Z), "handle": (x + HANDLE, DRAWER_Y, DRAWER_Z)}
        if self.task == "place":
            for name in ("left target", "right target"):
                x, y, _ = _to_mm(self.data.mocap_pos[self._find_mocap(name)])
                found[name] = (x, y, 0)
        return found

    def pick_thing(self, at: Point) -> bool:
        """Grasp the thing at a point, if there is one and the hand is free."""
        if self.held is not None:
            return False
        point = np.array(at) / 1000
        near = min(self._names, key=lambda name: float(np.linalg.norm(self._get_position(name) - point)))
        if np.linalg.norm(self._get_position(near) - point) > GRASP / 1000:
            return False
        self.held = near
        self._lift_held()
        self._settle_things()
        return True

    def place_thing(self, at: Point) -> bool:
        """Lower the held thing over a point until it touches, and release it."""
        if self.held is None:
            return False
        x, y = at[0] / 1000, at[1] / 1000
        height, lowest = HOVER, max(at[2] / 1000, self._get_half_size(self.held))
        while height > lowest:
            self._hold_at((x, y, height))
            if self._is_touching(self.held):
                height += 0.002
                break
            height -= 0.002
        self._hold_at((x, y, max(height, lowest)))
        self.held = None
        self._rest_hand()
        self._settle_things()
        return True

    def push_thing(self, start: Point, end: Point) -> bool:
        """Move the closed fingers along a line."""
        if self.held is not None:
            return False
        one, other = np.array(start) / 1000, np.array(end) / 1000
        one[2], other[2] = max(one[2], 0.015), max(other[2], 0.015)
        finger = self._find_mocap("finger")
        num_steps = 1 + math.ceil(float(np.linalg.norm(other - one)) / PUSH_STEP)
        for step in range(num_steps + DWELL):
            self.data.mocap_pos[finger] = one + min(1.0, step / num_steps) * (other - one)
            self._mujoco.mj_step(self.model, self.data)
        self._rest_hand()
        self._settle_things()
        return True

    def render_image(self, size: int) -> Image:
        """The table from the front, [size, size, 3]."""
        self._draw_links()
        cameras.update_positions(self.model, self.data)
        return cameras.render_image(f"{EXTRA}/{self.task}", self.model, self.data, CAMERA, size)

    def _lay_out(self, layout: TableLayout) -> None:
        self._mujoco.mj_resetData(self.model, self.data)
        for name, at in layout.places.items():
            if name in COLOURS:
                self._put_thing(name, np.array(at) / 1000)
            elif name.endswith("target"):
                self.data.mocap_pos[self._find_mocap(name)] = (at[0] / 1000, at[1] / 1000, 0.0005)
        self._rest_hand()
        self._mujoco.mj_forward(self.model, self.data)

    def _settle_things(self) -> None:
        """Run the simulation until everything that is not held lies still."""
        for step in range(MAX_SETTLE):
            self._mujoco.mj_step(self.model, self.data)
            if self.held is not None:
                self._put_thing(self.held, (*self._get_position(self.held)[:2], HOVER))
            if step > 20 and float(np.abs(self.data.qvel).max()) < STILL:
                break
        self.data.qvel[:] = 0.0
        if self.task == "drawer":  # pushed against its stop, which gives way a little
            slide = self.data.joint("slide").qpos
            slide[0] = min(max(slide[0], 0.0), (DRAWER_OPEN - DRAWER_CLOSED) / 1000)
        if self.held is not None:
            self._lift_held()
        self._mujoco.mj_forward(self.model, self.data)
        if not np.isfinite(self.data.qpos).all():
            raise EnvError("primitive_skill: the simulation diverged")

    def _lift_held(self) -> None:
        assert self.held is not None
        x, y, _ = self._get_position(self.held)
        self._hold_at((float(x), float(y), HOVER))

    def _hold_at(self, at: tuple[float, float, float]) -> None:
        """Move hand and thing to a point, upright."""
        assert self.held is not None
        self._put_thing(self.held, np.array(at))
        self.data.mocap_pos[self._find_mocap("hand")] = (at[0], at[1], at[2] + self._get_half_size(self.held))
        self._mujoco.mj_forward(self.model, self.data)

    def _rest_hand(self) -> None:
        self.data.mocap_pos[self._find_mocap("hand")] = self.data.mocap_pos[self._find_mocap("finger")] = REST

    def _draw_links(self) -> None:
        """Place the links between the shoulder and the hand, elbow up; only for images."""
        wrist = self.data.mocap_pos[self._find_mocap("hand")] + np.array([0.0, 0.0, WRIST])
        way = wrist - SHOULDER
        across = np.cross(way, (0.0, 0.0, 1.0))
        up = np.cross(across, way)
        bend = math.sqrt(max(0.0, LINK**2 - float(way @ way) / 4))
        elbow = SHOULDER + way / 2 + bend * up / np.linalg.norm(up)
        for name, start, end in (("upper link", SHOULDER, elbow), ("lower link", elbow, wrist)):
            x, y, z = (end - start) / np.linalg.norm(end - start)
            turned = np.array([1.0 + z, -y, x, 0.0])  # from the z-axis to the link's direction
            number = self._find_mocap(name)
            self.data.mocap_pos[number] = (start + end) / 2
            self.data.mocap_quat[number] = turned / np.linalg.norm(turned)

    def _put_thing(self, name: str, at: Any) -> None:
        joint = self.data.joint(name)
        joint.qpos[:3], joint.qpos[3:] = at, (1.0, 0.0, 0.0, 0.0)
        joint.qvel[:] = 0.0

    def _get_position(self, name: str) -> Any:
        return self.data.joint(name).qpos[:3].copy()

    def _find_mocap(self, name: str) -> int:
        return int(self.model.body(name).mocapid[0])

    def _get_half_size(self, name: str) -> float:
        return (RADIUS if name == "apple" else CUBE / 2) / 1000

    def _is_touching(self, name: str) -> bool:
        contact, geom = self.data.contact, self.model.geom(name).id
        return bool(np.any((contact.geom == geom).any(axis=1) & (contact.dist < 0)))


def _to_mm(at: Any) -> Point:
    x, y, z = (round(1000 * float(number)) for number in at)
    return x, y, z


@lru_cache(maxsize=8)
def _compile_model(task: str) -> Any:
    """One model per task for all copies: positions are in the data, not in the model."""
    return models.import_mujoco(EXTRA).MjModel.from_xml_string(write_model_xml(task))


def write_model_xml(task: str) -> str:
    """The model file of a task."""
    half = CUBE / 2000
    bodies = {
        "place": f"{_write_cube('red cube', half)}{_write_cube('green cube', half)}"
        f"{_write_target('left', '0.2 0.3 0.9 1')}{_write_target('right', '0.95 0.8 0.2 1')}",
        "stack": "".join(_write_cube(name, half) for name in ("red cube", "green cube", "purple cube")),
        "align": f"{_write_cube('red cube', half)}{_write_cube('green cube', half)}{_LINE}",
        "drawer": f"{_APPLE}{_write_drawer()}",
    }[task]
    return (
        '<mujoco><option timestep="0.002" integrator="implicitfast" cone="elliptic" impratio="5"/>'
        '<visual><headlight ambient="0.45 0.45 0.45" diffuse="0.5 0.5 0.5" specular="0 0 0"/>'
        '<map znear="0.01" zfar="10"/></visual><statistic center="0 0 0" extent="1"/>'
        '<asset><texture name="wood" type="2d" builtin="checker" rgb1="0.72 0.62 0.48" rgb2="0.69 0.59 0.45" '
        'width="128" height="128"/><material name="wood" texture="wood" texrepeat="10 10" specular="0"/>'
        "</asset><worldbody>"
        '<light directional="true" pos="0 0 3" dir="-0.3 0.2 -1" diffuse="0.4 0.4 0.4" castshadow="false"/>'
        '<geom name="table" type="plane" size="2 2 0.1" material="wood" friction="1 0.02 0.005"/>'
        f'<camera name="{CAMERA}" pos="0.6 0 0.44" xyaxes="0 1 0 -0.48 0 0.877" fovy="42"/>'
        f"{_HAND}{_LINKS}{bodies}</worldbody></mujoco>"
    )


_HAND = (
    '<body name="hand" mocap="true"><geom type="box" size="0.035 0.06 0.02" pos="0 0 0.07" '
    'rgba="0.9 0.9 0.92 1" contype="0" conaffinity="0"/>'
    '<geom type="box" size="0.008 0.006 0.035" pos="0 0.028 0.02" '
    'rgba="0.3 0.3 0.33 1" contype="0" conaffinity="0"/><geom type="box" size="0.008 0.006 0.035" '
    'pos="0 -0.028 0.02" rgba="0.3 0.3 0.33 1" contype="0" conaffinity="0"/></body>'
    '<geom type="cylinder" size="0.06 0.165" pos="-0.42 0 0.165" rgba="0.85 0.85 0.88 1" contype="0" '
    'conaffinity="0"/>'
    '<body name="finger" mocap="true"><geom name="finger" type="cylinder" size="0.012 0.015" '
    'rgba="0.3 0.3 0.33 1" priority="1" solref="0.004 1" friction="0.5"/></body>'
)
_LINKS = "".join(
    f'<body name="{name} link" mocap="true"><geom type="capsule" size="{radius} {LINK / 2}" '
    'rgba="0.92 0.92 0.94 1" contype="0" conaffinity="0"/></body>'
    for name, radius in (("upper", 0.045), ("lower", 0.035))
)
_LINE = (
    '<geom type="box" size="0.25 0.0015 0.0005" pos="0 0 0.0015" rgba="0.1 0.1 0.1 1" contype="0" '
    'conaffinity="0"/>'
)
_APPLE = (
    f'<body name="apple" pos="0 0 {RADIUS / 1000}"><freejoint name="apple"/><geom name="apple" type="sphere" '
    f'size="{RADIUS / 1000}" mass="0.08" rgba="{COLOURS["apple"]}" condim="6" friction="1 0.05 0.02"/></body>'
)


def _write_cube(name: str, half: float) -> str:
    return (
        f'<body name="{name}" pos="0 0 {half}"><freejoint name="{name}"/><geom name="{name}" type="box" '
        f'size="{half} {half} {half}" mass="0.06" rgba="{COLOURS[name]}" friction="1 0.02 0.005" '
        'condim="4"/></body>'
    )


def _write_target(side: str, colour: str) -> str:
    return (
        f'<body name="{side} target" mocap="true"><geom type="cylinder" size="0.035 0.0005" rgba="{colour}" '
        'contype="0" conaffinity="0"/></body>'
    )


def _write_drawer() -> str:
    """A box without a lid that slides into a cabinet; the joint's zero is the open drawer."""
    x, travel = DRAWER_OPEN / 1000, (DRAWER_OPEN - DRAWER_CLOSED) / 1000
    walls = "".join(
        f'<geom type="box" size="{size}" pos="{pos}" rgba="0.55 0.38 0.22 1" mass="0.1"/>'
        for size, pos in (
            ("0.055 0.055 0.003", "0 0 0.006"),
            ("0.003 0.055 0.022", "0.052 0 0.03"),
            ("0.003 0.055 0.022", "-0.052 0 0.03"),
            ("0.055 0.003 0.022", "0 0.052 0.03"),
            ("0.055 0.003 0.022", "0 -0.052 0.03"),
        )
    )
    handle = f'<geom type="box" size="0.006 0.025 0.008" pos="{HANDLE / 1000} 0 0.03" rgba="0.2 0.2 0.2 1" '
    cabinet = "".join(
        f'<geom type="box" size="{size}" pos="{pos}" rgba="0.62 0.45 0.28 1" contype="0" conaffinity="0"/>'
        for size, pos in (
            ("0.07 0.07 0.004", f"{DRAWER_CLOSED / 1000} 0 0.11"),
            ("0.07 0.004 0.055", f"{DRAWER_CLOSED / 1000} 0.068 0.055"),
            ("0.07 0.004 0.055", f"{DRAWER_CLOSED / 1000} -0.068 0.055"),
        )
    )
    return (
        f'<body name="drawer" pos="{x} {DRAWER_Y / 1000} 0"><joint name="slide" type="slide" axis="-1 0 0" '
        f'range="0 {travel}" limited="true" damping="20" frictionloss="1" solreflimit="0.02 4"/>'
        f'{walls}{handle}mass="0.05"/></body>{cabinet}'
    )
