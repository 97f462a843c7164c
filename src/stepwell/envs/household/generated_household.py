"""Playing a household that was made here: state, commands in words, plans, and what is shown.

Commands are read kindly (case, blanks, `put X in Y` for `move X to Y`) and otherwise exactly: a text is one
of the possible commands or it does nothing.
"""

from __future__ import annotations

import re

from stepwell.core import StateForm, Task
from stepwell.envs.base import NOTHING, Effect
from stepwell.envs.household.explorer import Notes, next_command
from stepwell.envs.household.generator import read_household
from stepwell.envs.household.goals import is_met
from stepwell.envs.household.house import Command
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.planner import shortest_plan
from stepwell.envs.household.text import MAX_CHARS, in_words, shown, structured, told, why_not

WON = 1.0
_PUT = re.compile(r"put (.+?) (?:in/on|into|onto|in|on) (?:the )?(.+)")


class MadeHousehold:
    """One task in a household of ours."""

    def __init__(self, options: HouseholdOptions, task: Task) -> None:
        self._explores = options.oracle == "explorer"
        self.house, self.goal, self.state = read_household(task.content)
        self._instruction, self._result = task.instruction, ""
        self._notes = Notes()
        self._arrive()

    def act(self, action: str) -> Effect:
        """Do one command, if it is possible; meeting the goal ends it."""
        text = read_command(action)
        command = self._possible.get(text)
        if command is None:
            self._result = why_not(self.house, self.state, text)
            return NOTHING
        self.state = self.house.after(self.state, command)
        self._result = told(self.house, self.state, command)
        self._arrive()
        if is_met(self.house, self.goal, self.state):
            return Effect(WON, terminated=True, success=True)
        return NOTHING

    def text(self) -> str:
        """Task, result, view, hand and commands."""
        return shown(self._instruction, self._result, self.house, self.state, self.commands())

    def commands(self) -> list[str]:
        """What is possible now."""
        return list(self._possible)

    def oracle(self) -> list[str]:
        """The plan, or the explorer's next command, as the options say."""
        if not self._explores:
            return self.plan()
        command = next_command(self.house, self.goal, self._notes)
        return [] if command is None else [self.house.text(command)]

    def plan(self) -> list[str]:
        """A shortest plan from here, all known."""
        return [self.house.text(command) for command in shortest_plan(self.house, self.goal, self.state)]

    def golden_steps(self) -> int:
        """Commands of a shortest plan."""
        return len(self.plan())

    def truth(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        truth = self._instruction, self.house, self.state
        return {StateForm.NATURAL_LANGUAGE: in_words(*truth), StateForm.STRUCTURED: structured(*truth)}

    def close(self) -> None:
        """Nothing is held."""

    def _arrive(self) -> None:
        """Note what can be seen and done now."""
        self._notes.see(self.house, self.state)
        commands = self.house.commands(self.state)
        self._possible: dict[str, Command] = {self.house.text(command): command for command in commands}


def read_command(text: str) -> str:
    """A command without differences that do not matter; texts too long to be one are left as they are.

    >>> read_command(" Put mug 1 in/on the desk 2. ")
    'move mug 1 to desk 2'
    """
    if len(text) > MAX_CHARS:
        return text
    plain = " ".join(text.lower().split()).removesuffix(".")
    put = _PUT.fullmatch(plain)
    return f"move {put[1]} to {put[2]}" if put else plain
