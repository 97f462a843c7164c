"""Cache of a judging model's answers, by the hash of the question.

In memory, and in a JSONL file if one is given. Each answer is one line, appended in one write, so
that several runs may share the file. A line that a kill cut short is ignored.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

Answer = TypeVar("Answer", bool, str)


def make_question_key(model: str, messages: list[dict[str, str]]) -> str:
    """A key that is equal exactly if model and messages are."""
    return hashlib.sha256(json.dumps([model, messages], sort_keys=True).encode()).hexdigest()


class AnswerCache(Generic[Answer]):
    """Answers by key: YES or NO, or a text. The kind of answer follows from the question."""

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._answers: dict[str, Answer] = {}
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(errors="replace").split("\n"):
                self._parse_line(line)

    def _parse_line(self, line: str) -> None:
        try:
            entry: Any = json.loads(line)
        except ValueError:
            return  # a line that was cut short when its run was killed
        if not isinstance(entry, dict):
            return
        answer = entry.get("yes", entry.get("text"))
        if isinstance(answer, bool | str):
            self._answers[str(entry.get("key"))] = cast("Answer", answer)

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> Answer | None:
        """The answer, if the question was asked before."""
        return self._answers.get(key)

    def put(self, key: str, answer: Answer) -> None:
        """Store an answer."""
        if key in self._answers:
            return
        self._answers[key] = answer
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                name = "yes" if isinstance(answer, bool) else "text"
                file.write(json.dumps({"key": key, name: answer}) + "\n")
