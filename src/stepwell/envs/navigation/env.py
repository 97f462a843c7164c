"""Navigation for language agents: a furnished room in first-person view, as an image, as text, or both.

Reaching the target (its centre within `success_threshold` metres; with `must_face` also faced and in view)
gives 10 and ends the episode. Every other action costs 0.1, also a blocked one, which is reported. The turn
limit ends the episode as a failure. A task's content holds room, start and target. Its instruction names the
target (`instruction = "base"`) or describes its use (`"common"`).

Positions are looked up on a grid, and images are rendered only if they are shown, so a step without an image
takes microseconds.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, InputError, Observation, StateForm, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.navigation.generator import make_arrival_test, make_task
from stepwell.envs.navigation.guide import make_examples, write_guide
from stepwell.envs.navigation.options import NavigationOptions
from stepwell.envs.navigation.room import MOVES, NAMES, read_room
from stepwell.envs.navigation.routes import find_shortest_route
from stepwell.envs.navigation.sight import LineOfSight
from stepwell.envs.navigation.text import write_forms, write_view
from stepwell.envs.navigation.vocabulary import VOCABULARY
from stepwell.envs.tables import StateTable, build_state_table
from stepwell.envs.tiles import Image

ARRIVED, ACTED = 10.0, -0.1


class Navigation(Env):
    """Walk through a room to the thing that the instruction means."""

    name: ClassVar[str] = "navigation"
    Options: ClassVar[type[Settings]] = NavigationOptions
    options: NavigationOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        actions = ActionSpace(NAMES, self.options.max_actions_per_turn)
        examples = make_examples(actions, self.options)
        return EnvDescription(
            self.name, write_guide(self.options), actions, self.options.max_turns, examples, VOCABULARY
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A furnished room whose target can be reached in time."""
        return make_task(cls.name, options, seed)

    def begin(self, task: Task, seed: int) -> None:
        """Place the agent in the task's room."""
        if not task.instruction:
            raise InputError("a task of navigation needs an instruction")
        self.room, self.pose, self.target = read_room(task.content)
        self._instruction, self._feedback = task.instruction, ""
        self._sight = LineOfSight(self.room, self.options.fov)
        self._has_arrived = make_arrival_test(self._sight, self.target, self.options)
        self._num_left = self.options.max_actions

    def act(self, action: str) -> Effect:
        """Move, turn or tilt."""
        before = self.pose
        self.pose = after = self.room.move(before, action)
        self._num_left -= 1
        blocked = "Something was in the way." if action in MOVES else "The view tilts no further."
        self._feedback = blocked if after == before else "The last action was executed."
        if self._has_arrived(after):
            self._feedback = "You have arrived."
            return Effect(ARRIVED, terminated=True, success=True)
        return Effect(ACTED)

    def observe(self) -> Observation:
        """Instruction, result of the last action, and the view."""
        shown = self.options.observation
        lines = [self._feedback] if self._feedback else []
        lines.append(f"Instruction: {self._instruction}")
        if shown != "image":
            lines.append(write_view(self._sight.list_view(self.pose)))
        return Observation("\n".join(lines), () if shown == "text" else (self.render(),))

    def oracle(self) -> list[str]:
        """A shortest path to the target and, if it must be faced, the turns towards it."""
        options = self.options
        if self._has_arrived(self.pose):
            return []
        num_places = 16 * len(self.room.floor) * len(self.room.floor[0])
        return (
            find_shortest_route(self.room, self.pose, self._has_arrived, options.must_face, num_places) or []
        )

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        return write_forms(self._sight, self.pose, self.target)

    def table(self) -> StateTable | None:
        """Poses as states, if they can be enumerated in time."""
        return build_state_table(
            self.pose,
            NAMES,
            move=self.room.move,
            is_over=self._has_arrived,
            is_solved=self._has_arrived,
            max_actions=self._num_left,
        )

    def render(self) -> Image:
        """What the agent sees."""
        from stepwell.envs.navigation.scene import render_view

        return render_view(self.room, self.pose, self.options.image_size, self.options.fov)
