"""TextWorldExpress: eight fast text games (cooking, coin, common sense, maps, sums and others).

The package `textworld_express` simulates them in Java. A task is a game, its parameters and one of the
package's seeds; the seeds that its makers set aside for development or testing are held out (`held_out`).

Rewards are changes of the game's score, from 0 to 1. Success and failure are the game's own word. Every
observation shows the task, what the last command did, the room, the inventory and the commands that are
valid; any other text is answered by the game. The oracle follows the package's gold path as long as the agent
has; gold paths look around first and are not proven to be shortest.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, EnvDescription, InputError, Observation, Split, StateForm, Task
from stepwell.envs import java
from stepwell.envs.base import NOTHING, Effect, Env
from stepwell.envs.fixed_splits import assign_split

Game = Literal[
    "cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder"
]
SEEDS = {"train": range(1000), "dev": range(10_000, 11_000), "test": range(20_000, 21_000)}
HELD_OUT_SHARE = 0.2
GUIDE = """You play a game of words and have a task.
Each turn, answer with one of the commands that are listed. Points are given for progress, 1 in all."""


class TextWorldExpressOptions(Settings):
    """Game, its parameters, which seeds are held out, and the limit."""

    game: Game = Field("cookingworld", description="which game")
    params: str = Field(
        "", max_length=1000, description="the game's parameters, such as 'numLocations=5, includeDoors=0'"
    )
    held_out: Literal["dev", "test"] = Field("dev", description="the package's seeds that are held out")
    max_turns: int = Field(
        100, ge=1, le=10_000, description="turns of an episode; reaching them unsolved is a failure"
    )


class TextWorldExpress(Env):
    """Play a text game: cook, find the coin, tidy up, read a map, do sums."""

    name: ClassVar[str] = "textworld_express"
    Options: ClassVar[type[Settings]] = TextWorldExpressOptions
    options: TextWorldExpressOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._engine: Any = None
        self._loaded: tuple[str, str] | None = None

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        return EnvDescription(self.name, GUIDE, ActionSpace(), self.options.max_turns)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A seed of the package's, on the side that it says."""
        rng = random.Random(seed)
        side = options.held_out if rng.random() < HELD_OUT_SHARE else "train"
        content: dict[str, JSON] = {
            "game": options.game,
            "params": options.params,
            "fold": side,
            "seed": rng.choice(SEEDS[side]),
        }
        task = Task(cls.name, content, seed=seed, tags=(options.game, side))
        return assign_split(task, Split.TRAIN if side == "train" else Split.HELD_OUT)

    def begin(self, task: Task, seed: int) -> None:
        """Start the game."""
        content: dict[str, Any] = task.content
        if not {"game", "params", "fold", "seed"} <= set(content):
            raise InputError("a task of textworld_express holds a 'game', 'params', 'fold' and 'seed'")
        with self._translate_java_errors():
            self._load_game(content["game"], content["params"])
            _, shown = self._engine.reset(
                seed=content["seed"], gameFold=content["fold"], generateGoldPath=True
            )
            self._gold = [str(step) for step in self._engine.getGoldActionSequence()]
        self._history: list[str] = []
        self._result = ""
        self._take_state(shown)

    def act(self, action: str) -> Effect:
        """Send one command; the change of the score is its reward."""
        text = " ".join(action.split()) if len(action) <= java.MAX_CHARS else action
        text = self._by_lower_case.get(text.lower(), text)
        self._result = java.explain_refusal(text)
        if self._result:
            return NOTHING
        before = self._score
        with self._translate_java_errors():
            result, _, _, shown = self._engine.step(text)
        self._history.append(text)
        self._result = str(result).strip()
        self._take_state(shown)
        success = bool(shown["tasksuccess"])
        return Effect(self._score - before, terminated=success or bool(shown["taskfailure"]), success=success)

    def observe(self) -> Observation:
        """Task, result, room, inventory and commands."""
        lines = [f"Task: {self._said}", self._result, self._room, self._inventory]
        lines.append(f"Commands: {', '.join(self._commands)}")
        return Observation("\n".join(dict.fromkeys(filter(None, lines))))  # a look is not shown twice

    def list_commands(self) -> list[str]:
        """The commands that are valid now."""
        return list(self._commands)

    def random_action(self, rng: random.Random) -> str:
        """One of the valid commands."""
        return rng.choice(self._commands)

    def oracle(self) -> list[str]:
        """What is left of the gold path; [] for an agent that has left it."""
        return java.find_remaining_plan(self._gold, self._history)

    def state(self) -> dict[StateForm, str]:
        """What is shown, and the gold path from the start: the package's word on what is hidden."""
        shown = self.observe().text
        return {StateForm.NATURAL_LANGUAGE: f"{shown}\nA way from the start: {', '.join(self._gold)}"}

    def golden_steps(self) -> int | None:
        """Not known: gold paths are not shortest."""
        return None

    def close(self) -> None:
        """End the Java process."""
        if self._engine is not None:
            java.stop_engine(self._engine)
        self._engine = self._loaded = None

    def _load_game(self, game: str, params: str) -> None:
        if self._engine is None:
            self._engine = java.start_engine(
                "textworld_express", "TextWorldExpressEnv", env=self.name, extra="textworld_express"
            )
        if self._loaded != (game, params):
            try:
                self._engine.load(game, params)
            except ValueError as error:  # the package's word on parameters it does not know
                raise InputError(f"env.options.params of {game}: {error}") from error
            self._loaded = game, params

    def _take_state(self, shown: dict[str, Any]) -> None:
        self._said = " ".join(str(shown["taskDescription"]).split())
        self._room = str(shown["look"]).strip()
        self._inventory = str(shown["inventory"]).strip()
        self._commands = sorted(map(str, shown["validActions"]))
        self._by_lower_case = {command.lower(): command for command in self._commands}
        self._score = float(shown["score"])

    def _translate_java_errors(self) -> Any:
        return java.translate_java_errors(self)
