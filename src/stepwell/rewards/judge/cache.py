"""Cache of a judging model's answers, by the hash of the question.

In memory, and in a JSONL file if one is given. Each answer is one line, appended in one write, so
that several runs may share the file. A line that a kill cut short is ignored.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def make_question_key(model: str, messages: list[dict[str, str]]) -> str:
    """A key that is equal exactly if model and messages are."""
    return hashlib.sha256(json.dumps([model, messages], sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """YES and NO by key."""

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._answers: dict[str, bool] = {}
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(errors="replace").split("\n"):
                self._parse_line(line)

    def _parse_line(self, line: str) -> None:
        try:
            entry: Any = json.loads(line)
        except ValueError:
            return  # a line that was cut short when its run was killed
        if isinstance(entry, dict) and isinstance(entry.get("yes"), bool):
            self._answers[str(entry.get("key"))] = entry["yes"]

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> bool | None:
        """The answer, if the question was asked before."""
        return self._answers.get(key)

    def put(self, key: str, is_yes: bool) -> None:
        """Store an answer."""
        if key in self._answers:
            return
        self._answers[key] = is_yes
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "yes": is_yes}) + "\n")
