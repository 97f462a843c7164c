"""A small environment with tools, for tests: linked notes, read by `look`, ended by `answer`."""

from __future__ import annotations

import itertools
import random
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import (
    ActionSpace,
    EnvDescription,
    InputError,
    Observation,
    StateForm,
    Task,
    ToolCall,
    ToolSchema,
    find_call_problem,
    read_call,
)
from stepwell.envs import Effect, Env

LOOK = ToolSchema(
    "look",
    "Reads a note.",
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
    },
)
ANSWER = ToolSchema(
    "answer",
    "Ends it.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
LETTERS = "abcdefghijklmnop"


class NotesOptions(Settings):
    """Which of the two ways to end there are."""

    max_turns: int = 5
    with_answer: bool = True


class Notes(Env):
    """Two chains of notes; the task names where they begin and asks for the last letter of both."""

    name: ClassVar[str] = "notes"
    Options = NotesOptions
    tells_golden = True

    @property
    def description(self) -> EnvDescription:
        actions = ActionSpace(
            tools=(LOOK, ANSWER), max_per_turn=3, answer="answer" if self.options.with_answer else ""
        )
        guide = "Each note names the next. Say the last names of both chains, as in: xy."
        return EnvDescription(self.name, guide, actions, self.options.max_turns)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        rng = random.Random(seed)
        names = rng.sample(LETTERS, 8)
        length = rng.randint(2, 4)
        return Task(cls.name, {"chains": [names[:length], names[4 : 3 + length]]}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.chains: list[list[str]] = task.content["chains"]  # type: ignore[assignment]
        self.ends = {a: b for chain in self.chains for a, b in itertools.pairwise(chain)}
        self.seen: dict[str, str] = {}
        self.told: list[str] = []

    def begin_turn(self) -> None:
        self.told = []

    def act(self, action: str) -> Effect:
        try:
            call = read_call(action)
        except InputError as error:
            self.told.append(f"No call: {error}.")
            return Effect()
        problem = find_call_problem(self.description.actions.tools, call)
        if problem:
            self.told.append(f"Not done: {problem}.")
            return Effect()
        if call.name == "answer":
            right = call.arguments["word"] == "".join(chain[-1] for chain in self.chains)
            return Effect(float(right), terminated=True, success=right)
        name = str(call.arguments["name"])
        self.seen[name] = self.ends.get(name, "")
        self.told.append(f"{name}: {self.ends.get(name) or 'the end' if self._is_note(name) else 'no note'}")
        return Effect(0.1 if name in self.ends else 0.0)

    def _is_note(self, name: str) -> bool:
        return any(name in chain for chain in self.chains)

    def observe(self) -> Observation:
        first = f"Begin at {self.chains[0][0]} and {self.chains[1][0]}."
        return Observation("\n".join([first, *self.told]))

    def state(self) -> dict[StateForm, str]:
        chains = "; ".join(" ".join(chain) for chain in self.chains)
        return {StateForm.NATURAL_LANGUAGE: f"{chains}. Read: {' '.join(sorted(self.seen)) or 'none'}."}

    def result(self) -> str:
        return "; ".join(self.told)

    def oracle(self) -> list[str]:
        """What is not known yet and can be asked for: one note of each chain in a turn."""
        wanted = []
        for chain in self.chains:
            unread = [name for name in chain[:-1] if name not in self.seen]
            if unread:
                wanted.append(ToolCall("look", {"name": unread[0]}).text)
        ends = "".join(chain[-1] for chain in self.chains)
        return wanted or [ToolCall("answer", {"word": ends}).text]

    def golden_steps(self) -> int:
        return max(len(chain) for chain in self.chains)

    def random_action(self, rng: random.Random) -> str:
        if rng.random() < 0.2:
            return ToolCall("answer", {"word": "".join(rng.sample(LETTERS, 2))}).text
        return ToolCall("look", {"name": rng.choice(LETTERS)}).text
