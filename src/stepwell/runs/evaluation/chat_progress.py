"""Progress of an evaluation of an outside model: a bar at a terminal, plain lines elsewhere.

Everything goes to standard error; standard output is for the report.
"""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stepwell.core import Status, Trajectory
from stepwell.rollout.chat_model import ChatModel

PLAIN_EVERY_S = 30.0


class ChatProgress:
    """Counts finished episodes, successes, tokens and failures."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._total = self._num_done = self._num_solved = self._num_failed = 0
        self._printed_at = time.monotonic()

    def start(self, total: int, known: int) -> None:
        """`total` episodes are to be played; `known` of them are stored already."""
        self._total, self._num_known = total, known
        self._task = self._bar.add_task(self._label, total=total, completed=known, figures="")
        if self._console.is_terminal:
            self._bar.start()

    def count_episode(self, trajectory: Trajectory, model: ChatModel) -> None:
        """Count one more episode that has ended."""
        if trajectory.status is Status.INFRA_ERROR:
            self._num_failed += 1
        else:
            self._num_done += 1
            self._num_solved += trajectory.is_success
        figures = self._format_figures(model)
        self._bar.update(self._task, completed=self._num_known + self._num_done, figures=figures)
        if not self._console.is_terminal and time.monotonic() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            count = f"{self._num_known + self._num_done}/{self._total}"
            self._console.print(f"{self._label}  {count}  {figures}", markup=False, soft_wrap=True)

    def _format_figures(self, model: ChatModel) -> str:
        spent = model.counts.summarize(model.config)
        words = [f"solved {self._num_solved / max(self._num_done, 1):.2f}"]
        words.append(f"{model.counts.prompt_tokens + model.counts.completion_tokens:,} tokens")
        words += [f"cost {spent['cost']:.3f}"] if "cost" in spent else []
        words += [f"{model.counts.num_retries} retries"] if model.counts.num_retries else []
        words += [f"{self._num_failed} failed"] if self._num_failed else []
        return ", ".join(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
