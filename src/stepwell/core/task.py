"""The task: one problem to solve, and the split it belongs to.

A task is plain data. Its identity is the hash of its content. Two seeds that make the
same board are therefore the same task and can never be on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stepwell.core.errors import InputError
from stepwell.core.ids import hash_content
from stepwell.core.step import JSON

UNCHECKED_TAG = "unchecked"


class Split(StrEnum):
    """The split of a task."""

    TRAIN = "train"
    HELD_OUT = "held_out"


class TaskRelation(StrEnum):
    """How a task that was made from another compares with it."""

    EASIER = "easier"
    SIBLING = "sibling"
    HARDER = "harder"


@dataclass(frozen=True, slots=True)
class Task:
    """One task of one environment.

    The tag `unchecked` says that its environment cannot tell whether it was done: only a judge can.

    >>> Task("frozenlake", {"board": "SF/FG"}).id == Task("frozenlake", {"board": "SF/FG"}, seed=9).id
    True
    """

    env: str
    content: dict[str, JSON]
    instruction: str = ""
    seed: int = 0
    tags: tuple[str, ...] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.env:
            raise InputError("task.env is empty; name the environment the task belongs to")
        object.__setattr__(self, "id", hash_content([self.env, self.content, self.instruction]))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """What `to_json` gave; other keys are not read."""
        return cls(value["env"], value["content"], value["instruction"], value["seed"], tuple(value["tags"]))

    def to_json(self) -> dict[str, JSON]:
        """Everything but the id, which follows from it."""
        return {
            "env": self.env,
            "content": self.content,
            "instruction": self.instruction,
            "seed": self.seed,
            "tags": list(self.tags),
        }

    @property
    def has_checker(self) -> bool:
        """Whether its environment can tell when it is done."""
        return UNCHECKED_TAG not in self.tags

    def split(self, held_out_share: float = 0.1) -> Split:
        """The split of this content: the same on every machine and in every run."""
        if not 0.0 <= held_out_share <= 1.0:
            raise InputError(f"held_out_share must be between 0 and 1, got {held_out_share}")
        bucket = int(self.id[:12], 16) / 16**12
        return Split.HELD_OUT if bucket < held_out_share else Split.TRAIN
