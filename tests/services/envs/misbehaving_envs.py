"""Environments that misbehave, to be hosted."""

from __future__ import annotations

import sys
import threading

from stepwell.core import Observation, StateForm, Task
from stepwell.envs.base import Effect
from stepwell.envs.frozenlake.env import FrozenLake


class Stubborn(FrozenLake):
    """A lake whose Up never returns and whose Down raises."""

    name = "stubborn"
    may_go_on = threading.Event()

    @classmethod
    def make_task(cls, options: object, seed: int) -> Task:
        task = FrozenLake.make_task(options, seed)  # type: ignore[arg-type]
        return Task(cls.name, task.content, seed=seed)

    def act(self, action: str) -> Effect:
        if action == "Up":
            self.may_go_on.wait()
        if action == "Down":
            raise OSError("the simulator is gone")
        return super().act(action)


class Odd(Stubborn):
    """A lake whose Up exits, and whose texts hold half of a character."""

    name = "odd"

    def act(self, action: str) -> Effect:
        if action == "Up":
            sys.exit("no licence")
        return FrozenLake.act(self, action)

    def observe(self) -> Observation:
        return Observation("half \ud83d, whole \ud83d\ude00")

    def result(self) -> str:
        return "lost \ude00"

    def state(self) -> dict[StateForm, str]:
        return {StateForm.NATURAL_LANGUAGE: "half \ud83d"}


class Unseen(Stubborn):
    """A lake that exits when it is looked at."""

    name = "unseen"

    def observe(self) -> Observation:
        sys.exit("no licence")


class Untold(Stubborn):
    """A lake that exits when it is asked for its true state."""

    name = "untold"

    def state(self) -> dict[StateForm, str]:
        sys.exit("no licence")


class Exits(FrozenLake):
    """An environment that cannot even be made."""

    name = "exits"

    def __init__(self, options: object = None) -> None:
        sys.exit(3)


class Interrupted(Stubborn):
    """A lake that raises what Ctrl-C raises, wherever it is asked to."""

    name = "interrupted"
    is_quick = True  # its turns are taken on the event loop

    @classmethod
    def make_task(cls, options: object, seed: int) -> Task:
        if seed == 1:
            raise KeyboardInterrupt("no licence")
        task = FrozenLake.make_task(options, seed)  # type: ignore[arg-type]
        return Task(cls.name, task.content, seed=seed)

    def act(self, action: str) -> Effect:
        if action == "Up":
            raise KeyboardInterrupt("no licence")
        return FrozenLake.act(self, action)

    def state(self) -> dict[StateForm, str]:
        raise KeyboardInterrupt("no licence")

    def close(self) -> None:
        raise KeyboardInterrupt("no licence")
