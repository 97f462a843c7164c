"""PrimitiveSkill for language agents: a table, a hand, and one of four tasks.

An answer is one text of up to `max_actions_per_turn` primitives (`skills.py`). Solving the task gives 10 and
ends the episode. Until then every primitive costs 0.1, even a useless one, and so does an unreadable text.
Reaching a new highest subgoal gives (stage + 1) x 2, with stages counted from 0. The turn limit ends the
episode as a failure.

With an image, positions are listed without names in a task-specific order, so the agent must look at the
image to tell them apart. Without an image they have names. The true state is available as natural language
and structured; agents write the structured form by default (`agent.state_form`). `simulator` selects the
simulator: our own hand in MuJoCo (`scene.py`), or a Panda in ManiSkill (`maniskill_scene.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, EnvDescription, Observation, StateForm, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.primitive_skill.guide import make_examples, write_guide
from stepwell.envs.primitive_skill.maniskill_scene import TASKS as MANISKILL_TASKS
from stepwell.envs.primitive_skill.maniskill_scene import ManiSkillScene
from stepwell.envs.primitive_skill.options import PrimitiveSkillOptions
from stepwell.envs.primitive_skill.scene import MujocoScene
from stepwell.envs.primitive_skill.skills import Skill, read_skills, write_skills
from stepwell.envs.primitive_skill.table import (
    HIGH,
    INSTRUCTIONS,
    NAMES,
    TableLayout,
    find_solution,
    is_in_reach,
    list_stages,
    make_layout,
    read_layout,
)
from stepwell.envs.primitive_skill.text import list_positions, write_forms
from stepwell.envs.primitive_skill.vocabulary import VOCABULARY
from stepwell.envs.tiles import Image

SOLVED, ACTED, PER_STAGE = 10.0, -0.1, 2.0


class PrimitiveSkill(Env):
    """Pick, place and push things on a table until they are where the instruction wants them."""

    name: ClassVar[str] = "primitive_skill"
    Options: ClassVar[type[Settings]] = PrimitiveSkillOptions
    options: PrimitiveSkillOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        examples = make_examples(self.options)
        return EnvDescription(
            self.name, write_guide(self.options), ActionSpace(), self.options.max_turns, examples, VOCABULARY
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A table of the configured task, or of one of the four."""
        rng = random.Random(seed)
        tasks = tuple(NAMES) if options.simulator == "mujoco" else MANISKILL_TASKS
        task = rng.choice(tasks) if options.task == "any" else options.task
        layout = make_layout(task, rng)
        places: dict[str, JSON] = {name: list(at) for name, at in layout.places.items()}
        content: dict[str, JSON] = {"task": task, "places": places, "order": list(layout.order)}
        return Task(cls.name, content, instruction=INSTRUCTIONS[task], seed=seed, tags=(task,))

    def begin(self, task: Task, seed: int) -> None:
        """Set up the table."""
        self._layout = read_layout(task.content)
        self._scene: MujocoScene | ManiSkillScene = self._lay_table(self._layout)
        self._instruction = task.instruction or INSTRUCTIONS[self._layout.task]
        self._best = self._count_reached()
        self._num_done = 0
        self._feedback = ""

    def act(self, action: str) -> Effect:
        """Execute all primitives of one text, in order, until the task is solved."""
        skills = read_skills(action)
        if skills is None or len(skills) > self.options.max_actions_per_turn:
            self._feedback = "The last answer was no list of actions, or too long a one."
            return Effect(ACTED)
        reward, failed = 0.0, []
        for skill in skills:
            if not self._do_skill(skill):
                failed.append(str(skill))
            self._num_done += 1
            gained, is_solved = self._judge_state()
            reward += gained
            if is_solved:
                self._feedback = "The task is solved."
                return Effect(reward, terminated=True, success=True)
        self._feedback = f"Without effect: {', '.join(failed)}." if failed else "The last actions were done."
        return Effect(reward)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn; `num_actions` counts primitives."""
        before = self._num_done if self._task is not None else 0
        observation, reward, terminated, truncated, info = super().step(actions)
        info["num_actions"] = self._num_done - before
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """Instruction, results of the last actions, positions, and optionally an image."""
        shown = self.options.observation
        lines = [self._feedback] if self._feedback else []
        lines.append(f"Instruction: {self._instruction}")
        places = list_positions(self._scene.list_places(), self._layout.order, named=shown == "text")
        lines.append(f"Positions: {places}" if shown == "text" else f"Object positions: {places}")
        if self._scene.held is not None:
            lines.append("The hand holds something.")
        return Observation("\n".join(lines), () if shown == "text" else (self.render(),))

    def oracle(self) -> list[str]:
        """The remaining primitives, one turn per text."""
        skills = find_solution(self._layout.task, self._scene.list_places(), self._scene.held)
        size = self.options.max_actions_per_turn
        return [write_skills(skills[start : start + size]) for start in range(0, len(skills), size)]

    def random_action(self, rng: random.Random) -> str:
        """One thing is put where another one is; within the primitives of one turn."""
        places = self._scene.list_places()
        thing, other = rng.sample(sorted(places), 2)
        place = Skill("place", (*places[other][:2], HIGH))
        skills = [place] if self._scene.held is not None else [Skill("pick", places[thing]), place]
        return write_skills(skills[: self.options.max_actions_per_turn])

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        return write_forms(self._scene.list_places(), self._scene.held)

    def render(self) -> Image:
        """The table from the front."""
        return self._scene.render_image(self.options.image_size)

    def close(self) -> None:
        """Close the simulator, if it needs it."""
        if isinstance(scene := getattr(self, "_scene", None), ManiSkillScene):
            scene.close()

    def _lay_table(self, layout: TableLayout) -> MujocoScene | ManiSkillScene:
        if self.options.simulator == "mujoco":
            return MujocoScene(layout)
        self.close()
        return ManiSkillScene(layout, self.options.image_size)

    def _do_skill(self, skill: Skill) -> bool:
        x, y, z, *end = skill.numbers
        points = [(x, y, z), *([(end[0], end[1], end[2])] if end else [])]
        if not all(map(is_in_reach, points)):
            return False
        if skill.name == "push":
            return self._scene.push_thing(points[0], points[1])
        return (
            self._scene.pick_thing(points[0]) if skill.name == "pick" else self._scene.place_thing(points[0])
        )

    def _judge_state(self) -> tuple[float, bool]:
        """The reward of the state after a primitive, and whether it solves the task."""
        reached = self._count_reached()
        if reached == len(self._list_stages()):
            return SOLVED, True
        gained = PER_STAGE * reached if reached > self._best else 0.0
        self._best = max(self._best, reached)
        return ACTED + gained, False

    def _count_reached(self) -> int:
        """Number of stages done; the highest one counts, including those before it."""
        return max((number for number, done in enumerate(self._list_stages(), 1) if done), default=0)

    def _list_stages(self) -> list[bool]:
        return list_stages(self._layout.task, self._scene.list_places(), self._scene.held)
