"""A lake whose simulator talks, for a test that ends its process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

from stepwell.config.base import Settings
from stepwell.core import Task
from stepwell.envs.frozenlake.env import FrozenLake
from stepwell.envs.frozenlake.options import FrozenLakeOptions

SAID = "the ice is thin here"


class TalkingOptions(FrozenLakeOptions):
    """Where it tells which process it lives in."""

    file: str = ""


class TalkingLake(FrozenLake):
    """A lake that writes a line to the log of its process at every reset, and its process to a file."""

    name: ClassVar[str] = "talking"
    Options: ClassVar[type[Settings]] = TalkingOptions
    options: TalkingOptions

    def begin(self, task: Task, seed: int) -> None:
        super().begin(task, seed)
        print(SAID, file=sys.stderr, flush=True)
        file = Path(self.options.file)
        file.with_suffix(f".{os.getpid()}").write_text(str(os.getpid()))
        file.with_suffix(f".{os.getpid()}").replace(file)
