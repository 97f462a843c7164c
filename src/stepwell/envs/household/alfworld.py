"""ALFWorld's games as the same environment, with ALFWorld's engine, texts and commands.

    env.name = "household"
    env.options.games = "alfworld_data/json_2.1.1"

Every `*.tw-pddl` file below the folder is a game. Games in a folder `train` are for training; those in
`valid_seen` or `valid_unseen` are held out (`held_out` selects one of the two). Without such folders, the
content decides. Games that are known to be unsolvable are left out, and so are games with movable receptacles
or slices, which the engine does not support.

The oracle calls the engine's planner from the current state. Its plans are good but not proven to be
shortest, so there are no golden steps. One engine plays one game at a time and is reused for the next,
because each loading of its planner leaves a copy behind. `write_game` writes a generated household as such a
game.
"""

from __future__ import annotations

import json
import random
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from stepwell.core import JSON, ConfigError, InputError, Split, StateForm, Task, hash_bytes
from stepwell.envs.base import NOTHING, Effect
from stepwell.envs.fixed_splits import assign_split
from stepwell.envs.household.generated_household import WON, read_command
from stepwell.envs.household.generator import SEEN_GOALS, read_household
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.pddl import write_problem
from stepwell.envs.household.text import MAX_SHOWN, NOTHING_HAPPENS
from stepwell.envs.robots.packages import import_simulator

TRAIN, SEEN, UNSEEN, UNSORTED = "train", "valid_seen", "valid_unseen", ""
NOT_PLAYED = ("movable", "Sliced")
_TASK = re.compile(r"Your task is to: (.+?)\.?(?:\\n|\n|\"|$)")
_idle_engines: list[Any] = []


class PublishedGame:
    """One game in progress."""

    def __init__(self, options: HouseholdOptions, task: Task) -> None:
        if options.games is None:
            raise ConfigError(
                f"task {task.id} is a game of ALFWorld's; env.options.games must name the folder that holds "
                f"{task.content['game']}"
            )
        folder, game = Path(options.games), str(task.content["game"])
        path = folder / game
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise InputError(f"there is no game {game!r} in the folder of env.options.games")
        if hash_bytes(path.read_bytes()) != task.content["hash"]:
            raise InputError(f"game {game!r} in env.options.games is not the file of task {task.id}")
        self._instruction = task.instruction
        self._engine: Any = _idle_engines.pop() if _idle_engines else _start_engine()
        try:
            self._engine.load(str(path))
        except SystemExit as error:  # its parser reports invalid problems this way
            raise InputError(f"env.options.games: the engine refuses {path}: {error}") from error
        self._result = ""
        self._take_reply(self._engine.reset())
        self._result = _strip_frame(self._result)

    def act(self, action: str) -> Effect:
        """Execute one command; the engine decides whether it won."""
        text = read_command(action)
        if text not in self._commands:
            shown_text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
            self._result = f"{NOTHING_HAPPENS} {shown_text!r} is not one of the commands."
            return NOTHING
        state, _, _ = self._engine.step(text)
        self._take_reply(state)
        return Effect(WON, terminated=True, success=True) if state["won"] else NOTHING

    def write_text(self) -> str:
        """The task, the engine's text, and the commands."""
        lines = [f"Task: {self._instruction}.", self._result, f"Commands: {', '.join(self._commands)}"]
        return "\n".join(filter(None, lines))

    def list_commands(self) -> list[str]:
        """The commands that are possible now."""
        return list(self._commands)

    def oracle(self) -> list[str]:
        """A plan of the engine's planner from the current state."""
        engine = self._engine
        return [str(command).strip() for command in engine._pddl_state.replan(engine._entity_infos)]

    def golden_steps(self) -> None:
        """Unknown: the planner does not prove its plans."""

    def describe_state(self) -> dict[StateForm, str]:
        """The observation; the engine does not describe the rest of the state."""
        return {StateForm.NATURAL_LANGUAGE: self.write_text()}

    def close(self) -> None:
        """Release the engine for the next game."""
        if self._engine is not None:
            _idle_engines.append(self._engine)
        self._engine = None

    def _take_reply(self, state: Any) -> None:
        self._result = " ".join(str(state["feedback"]).split())
        self._commands = [command.strip() for command in state["admissible_commands"] if command != "help"]


def make_game_task(env: str, options: HouseholdOptions, seed: int) -> Task:
    """A random game of the split of its folder."""
    rng, folder = random.Random(seed), str(options.games)
    sides = find_games(folder)
    held_out = SEEN if options.held_out == "seen" else UNSEEN
    if not sides[TRAIN] and not sides[held_out]:
        return _draw_game(env, folder, sides[UNSORTED], rng, seed, "unsorted")
    for name in (TRAIN, held_out):
        if not sides[name]:
            raise ConfigError(f"env.options.games: {folder} has no games in a folder named {name!r}")
    side = held_out if rng.random() < SEEN_GOALS else TRAIN
    task = _draw_game(env, folder, sides[side], rng, seed, side)
    return assign_split(task, Split.TRAIN if side == TRAIN else Split.HELD_OUT)


def _draw_game(env: str, folder: str, games: list[str], rng: random.Random, seed: int, side: str) -> Task:
    """The first game of a random order that is not known to be unsolvable."""
    for game in rng.sample(games, len(games)):
        data = (Path(folder) / game).read_bytes()
        found = json.loads(data)
        if found.get("solvable") is False:
            continue
        said = _TASK.search(found["grammar"])
        content: dict[str, JSON] = {"game": game, "hash": hash_bytes(data)}
        return Task(env, content, said[1] if said else "", seed, ("game", Path(game).parts[0], side))
    raise ConfigError(f"env.options.games: none of {len(games)} games below {folder} can be solved")


@lru_cache(maxsize=16)
def find_games(folder: str) -> dict[str, list[str]]:
    """Paths of games below a folder, by split."""
    root = Path(folder)
    sides: dict[str, list[str]] = {TRAIN: [], SEEN: [], UNSEEN: [], UNSORTED: []}
    for path in sorted(root.rglob("*.tw-pddl")):
        game = path.relative_to(root)
        if any(word in str(game) for word in NOT_PLAYED):
            continue
        sides[next((part for part in game.parts if part in sides), UNSORTED)].append(game.as_posix())
    if not any(sides.values()):
        raise ConfigError(f"env.options.games: there is no .tw-pddl file below {folder!r}")
    return sides


def write_game(task: Task, path: Path) -> None:
    """Write a generated household as a game for ALFWorld's engine."""
    data = Path(import_simulator("alfworld", env="household", extra="alfworld").__file__).parent / "data"
    game = {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", task.instruction),
        "pddl_problem": write_problem(*read_household(task.content)),
        "solvable": True,
        "walkthrough": None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(game))


def _start_engine() -> Any:
    textworld = import_simulator("textworld", env="household", extra="alfworld")
    theirs = import_simulator("alfworld.agents.environment.alfred_tw_env", env="household", extra="alfworld")
    pddl = import_simulator("textworld.envs", env="household", extra="alfworld")
    asked = textworld.EnvInfos(won=True, admissible_commands=True)
    return theirs.AlfredDemangler(pddl.PddlEnv(asked), shuffle=False)


def _strip_frame(intro: str) -> str:
    """The first text without its title and without the task, which every observation repeats."""
    return intro.rpartition("=-")[2].partition("Your task is to:")[0].strip()
