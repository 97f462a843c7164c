"""Plays a generated household: state, text commands, plans and observations.

Differences in case, spaces and `put X in Y` for `move X to Y` are accepted. Any other text that is not one of
the possible commands does nothing.
"""

from __future__ import annotations

import re

from stepwell.core import StateForm, Task
from stepwell.envs.base import NOTHING, Effect
from stepwell.envs.household.explorer import ExplorerNotes, choose_command
from stepwell.envs.household.generator import read_household
from stepwell.envs.household.goals import is_goal_met
from stepwell.envs.household.house import Command
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.planner import find_shortest_plan
from stepwell.envs.household.text import (
    MAX_CHARS,
    describe_result,
    explain_failure,
    write_observation,
    write_sentences,
    write_structured,
)

WON = 1.0
_PUT = re.compile(r"put (.+?) (?:in/on|into|onto|in|on) (?:the )?(.+)")


class GeneratedHousehold:
    """One task in a generated household."""

    def __init__(self, options: HouseholdOptions, task: Task) -> None:
        self._explores = options.oracle == "explorer"
        self.house, self.goal, self.state = read_household(task.content)
        self._instruction, self._result = task.instruction, ""
        self._notes = ExplorerNotes()
        self._update_commands()

    def act(self, action: str) -> Effect:
        """Execute one command, if it is possible; reaching the goal ends the episode."""
        text = read_command(action)
        command = self._possible.get(text)
        if command is None:
            self._result = explain_failure(self.house, self.state, text)
            return NOTHING
        self.state = self.house.apply_command(self.state, command)
        self._result = describe_result(self.house, self.state, command)
        self._update_commands()
        if is_goal_met(self.house, self.goal, self.state):
            return Effect(WON, terminated=True, success=True)
        return NOTHING

    def write_text(self) -> str:
        """Task, result, view, hand and commands."""
        return write_observation(
            self._instruction, self._result, self.house, self.state, self.list_commands()
        )

    def list_commands(self) -> list[str]:
        """The commands that are possible now."""
        return list(self._possible)

    def oracle(self) -> list[str]:
        """The plan or the explorer's next command, depending on the options."""
        if not self._explores:
            return self.plan()
        command = choose_command(self.house, self.goal, self._notes)
        return [] if command is None else [self.house.write_command(command)]

    def plan(self) -> list[str]:
        """A shortest plan from the current state, with full knowledge."""
        return [
            self.house.write_command(command)
            for command in find_shortest_plan(self.house, self.goal, self.state)
        ]

    def golden_steps(self) -> int:
        """Commands of a shortest plan."""
        return len(self.plan())

    def describe_state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        truth = self._instruction, self.house, self.state
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(*truth),
            StateForm.STRUCTURED: write_structured(*truth),
        }

    def close(self) -> None:
        """Nothing to release."""

    def _update_commands(self) -> None:
        """Record what is visible and possible now."""
        self._notes.note_view(self.house, self.state)
        commands = self.house.list_commands(self.state)
        self._possible: dict[str, Command] = {
            self.house.write_command(command): command for command in commands
        }


def read_command(text: str) -> str:
    """Normalise a command; texts too long to be a command are returned unchanged.

    >>> read_command(" Put mug 1 in/on the desk 2. ")
    'move mug 1 to desk 2'
    """
    if len(text) > MAX_CHARS:
        return text
    plain = " ".join(text.lower().split()).removesuffix(".")
    put = _PUT.fullmatch(plain)
    return f"move {put[1]} to {put[2]}" if put else plain
