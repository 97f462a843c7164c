"""ScienceWorld: thirty kinds of elementary school experiments in a house with a workshop and a greenhouse.

The package `scienceworld` simulates it in Java. A task is one of its tasks with one of its variations; the
variations that its makers set aside for development or testing are held out (`held_out`).

Rewards are changes of ScienceWorld's score, from 0 to 1; a score of 1 is the success, and what it counts as
a failure ends the episode with a total of -1. Observations show the task, what the last command did, the room
and the inventory, and either the forms of commands with the things in reach or every command that would be
understood (hundreds).

The oracle follows the package's gold path as long as the agent has. It is long rather than shortest, and
takes from half a second to a minute to make, after which what was played is played again to come back to the
present state. The environment is deterministic except where living things move; there the gold path can fail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, EnvDescription, InputError, Observation, Split, StateForm, Task
from stepwell.envs import java
from stepwell.envs.base import NOTHING, Effect, Env
from stepwell.envs.fixed_splits import assign_split

VARIATIONS = {  # of each task, as the package has them
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "grow-plant": 126,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "use-thermometer": 540,
}
HELD_OUT_SHARE = 0.2
FIRST = "look around"  # what the package itself does first
RESET = "reset task"  # a command that takes back points already given
GUIDE = """You are in a house with a workshop and a greenhouse, and have an experiment to do.
A command is one of the forms shown, with things that are in reach in place of OBJ.
Focusing on the wrong thing ends the experiment. If a command could mean several things, you are asked to
answer with a number. Each turn, answer with one command. Points are given for progress, 1 in all."""


class ScienceWorldOptions(Settings):
    """Tasks, what is made simpler, limits, and what is shown."""

    tasks: tuple[str, ...] = Field(
        tuple(VARIATIONS), min_length=1, description="names of tasks, each with the same chance"
    )
    simplifications: str = Field(
        "easy", max_length=1000, description="as the package takes them; 'easy' is all, '' is none"
    )
    held_out: Literal["dev", "test"] = Field("dev", description="the package's variations that are held out")
    max_turns: int = Field(
        100, ge=1, le=10_000, description="turns of an episode; reaching them unsolved is a failure"
    )
    commands: Literal["forms", "all"] = Field(
        "forms", description="what is listed: forms of commands and things in reach, or every valid command"
    )

    @field_validator("tasks")
    @classmethod
    def _check_tasks(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in tasks if name not in VARIATIONS]
        if unknown:
            raise ValueError(f"there is no task {unknown[0]!r}; known: {', '.join(VARIATIONS)}")
        return tasks


class ScienceWorld(Env):
    """Do an experiment in a house with a workshop and a greenhouse."""

    name: ClassVar[str] = "scienceworld"
    Options: ClassVar[type[Settings]] = ScienceWorldOptions
    options: ScienceWorldOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._engine: Any = None
        self._gold: tuple[str, list[str]] = "", []  # of the task with this id

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        return EnvDescription(self.name, GUIDE, ActionSpace(), self.options.max_turns)

    @property
    def is_deterministic(self) -> bool:
        """Animals move by chance."""
        return False

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A task and a variation, on the side that the package says."""
        rng = random.Random(seed)
        name = rng.choice(options.tasks)
        side = options.held_out if rng.random() < HELD_OUT_SHARE else "train"
        variation = rng.choice(list_variations(name, side))
        content: dict[str, JSON] = {
            "task": name,
            "variation": variation,
            "simplifications": options.simplifications,
        }
        task = Task(cls.name, content, seed=seed, tags=(name, side))
        return assign_split(task, Split.TRAIN if side == "train" else Split.HELD_OUT)

    def begin(self, task: Task, seed: int) -> None:
        """Set the experiment up."""
        content: dict[str, Any] = task.content
        if not {"task", "variation", "simplifications"} <= set(content) or content["task"] not in VARIATIONS:
            raise InputError("a task of scienceworld holds a known 'task', a 'variation', 'simplifications'")
        if not 0 <= content["variation"] < VARIATIONS[content["task"]]:
            raise InputError(f"{content['task']} has variations 0 to {VARIATIONS[content['task']] - 1}")
        self._content, self._id = content, task.id
        self._history: list[str] = []
        self._result = ""
        with self._translate_java_errors():
            self._load_game(with_gold=False)
            self._score = self._present_score()
            description: str = self._engine.taskdescription()
            self._note_view()
        self._said = " ".join(description.removeprefix("Task Description:").split())

    def act(self, action: str) -> Effect:
        """Send one command; the change of the score is its reward."""
        text = " ".join(action.split()) if len(action) <= java.MAX_CHARS else action
        self._result = java.explain_refusal(text)
        if text.lower() == RESET:
            self._result = f"Nothing happens. {RESET!r} is not allowed."
        if self._result:
            return NOTHING
        self._history.append(text)
        with self._translate_java_errors():
            self._result = str(self._engine.server.step(text)).strip()
            before, self._score = self._score, self._present_score()
            completed = bool(self._engine.server.getCompleted())
            self._note_view()
        is_over = completed or self._score < 0
        return Effect((self._score - before) / 100, terminated=is_over, success=self._score >= 100)

    def observe(self) -> Observation:
        """Task, result, room, inventory and commands."""
        lines = [f"Task: {self._said}", self._result, self._room, self._inventory, self._listed]
        return Observation("\n".join(filter(None, lines)))

    def list_commands(self) -> list[str]:
        """Every command that would be understood now."""
        with self._translate_java_errors():
            found = self._engine.get_valid_action_object_combinations()
        return sorted(set(map(str, found)) - {RESET})

    def random_action(self, rng: random.Random) -> str:
        """One of the commands that would be understood."""
        return rng.choice(self.list_commands())

    def oracle(self) -> list[str]:
        """What is left of the gold path; [] for an agent that has left it."""
        if self._gold[0] != self._id:
            with self._translate_java_errors():
                self._load_game(with_gold=True)
                self._gold = self._id, [str(step) for step in self._engine.get_gold_action_sequence()]
                self._load_game(with_gold=False)
                for text in self._history:
                    self._engine.server.step(text)
        return java.find_remaining_plan(self._gold[1], self._history)

    def state(self) -> dict[StateForm, str]:
        """What is shown, and the variation, from which all that is hidden follows."""
        named = f"{self._content['task']}, variation {self._content['variation']}"
        return {StateForm.NATURAL_LANGUAGE: f"{self.observe().text}\nThis is {named}."}

    def golden_steps(self) -> int | None:
        """Not known: gold paths are not shortest."""
        return None

    def close(self) -> None:
        """End the Java process."""
        if self._engine is not None:
            java.stop_engine(self._engine)
        self._engine = None

    def _load_game(self, *, with_gold: bool) -> None:
        if self._engine is None:
            self._engine = java.start_engine(
                "scienceworld", "ScienceWorldEnv", env=self.name, extra="scienceworld"
            )
        content = self._content
        self._engine.load(content["task"], content["variation"], content["simplifications"], with_gold)
        self._engine.server.reset()
        self._engine.server.step(FIRST)  # until then the score is that of the episode before

    def _present_score(self) -> int:
        return round(100 * float(self._engine.server.getScore()))

    def _note_view(self) -> None:
        """Note what an observation shows; looking costs no move."""
        self._room = str(self._engine.look()).strip()
        self._inventory = str(self._engine.inventory()).strip()
        if self.options.commands == "all":
            found: Sequence[Any] = self._engine.get_valid_action_object_combinations()
            self._listed = f"Commands: {', '.join(sorted(set(map(str, found)) - {RESET}))}"
        else:
            forms = [str(form) for form in self._engine.get_possible_actions() if form != RESET]
            things = map(str, self._engine.get_possible_objects())
            self._listed = f"Commands: {', '.join(forms)}\nOBJ: {', '.join(things)}"

    def _translate_java_errors(self) -> Any:
        return java.translate_java_errors(self)


def list_variations(task: str, side: str) -> range:
    """The numbers of a task's variations on a side: half of them train, a quarter dev, the rest test."""
    count = VARIATIONS[task]
    quarter = count // 4
    bounds = {"train": (0, 2 * quarter), "dev": (2 * quarter, 3 * quarter), "test": (3 * quarter, count)}
    return range(*bounds[side])
