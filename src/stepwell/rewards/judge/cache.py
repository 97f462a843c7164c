"""Answers of a judging model by the hash of the question: asked once, answered for ever.

In memory, and in a JSONL file if one is named: one line per answer, appended as a whole, so that
several runs may share the file and a line cut short by a kill is left out when it is read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def question_key(model: str, messages: list[dict[str, str]]) -> str:
    """Equal exactly where model and messages are."""
    return hashlib.sha256(json.dumps([model, messages], sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """YES and NO by key."""

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._answers: dict[str, bool] = {}
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(errors="replace").split("\n"):
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            entry: Any = json.loads(line)
        except ValueError:
            return  # the end of a line that was being written when its run was killed
        if isinstance(entry, dict) and isinstance(entry.get("yes"), bool):
            self._answers[str(entry.get("key"))] = entry["yes"]

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> bool | None:
        """The answer, if the question was asked before."""
        return self._answers.get(key)

    def put(self, key: str, is_yes: bool) -> None:
        """Keep an answer."""
        if key in self._answers:
            return
        self._answers[key] = is_yes
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "yes": is_yes}) + "\n")
