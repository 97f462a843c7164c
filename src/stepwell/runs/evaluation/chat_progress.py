"""What a person sees while an outside model is evaluated: a bar at a terminal, now and then a line elsewhere.

Everything goes to the error stream: the standard output is the report's.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stepwell.core import Status, Trajectory
from stepwell.rollout.chat_model import ChatModel

PLAIN_EVERY_S = 30.0


class ChatProgress:
    """Counts finished episodes, successes, tokens and failures."""

    def __init__(self, label: str, console: Console | None = None) -> None:
        self._label = label
        self._console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._total = self._num_done = self._num_solved = self._num_failed = 0
        self._told_at = time.monotonic()

    def start(self, total: int, known: int) -> None:
        """So many episodes are to be played, of which some are there already."""
        self._total, self._num_known = total, known
        self._task = self._bar.add_task(self._label, total=total, completed=known, figures="")
        if self._console.is_terminal:
            self._bar.start()

    def done(self, trajectory: Trajectory, model: ChatModel) -> None:
        """One more episode is over."""
        if trajectory.status is Status.INFRA_ERROR:
            self._num_failed += 1
        else:
            self._num_done += 1
            self._num_solved += trajectory.status is Status.SUCCESS
        figures = self._figures(model)
        self._bar.update(self._task, completed=self._num_known + self._num_done, figures=figures)
        if not self._console.is_terminal and time.monotonic() - self._told_at > PLAIN_EVERY_S:
            self._told_at = time.monotonic()
            count = f"{self._num_known + self._num_done}/{self._total}"
            self._console.print(f"{self._label}  {count}  {figures}", markup=False, soft_wrap=True)

    def _figures(self, model: ChatModel) -> str:
        spent = model.counts.summarize(model.config)
        told = [f"solved {self._num_solved / max(self._num_done, 1):.2f}"]
        told.append(f"{model.counts.prompt_tokens + model.counts.completion_tokens:,} tokens")
        told += [f"cost {spent['cost']:.3f}"] if "cost" in spent else []
        told += [f"{model.counts.num_retries} retries"] if model.counts.num_retries else []
        told += [f"{self._num_failed} failed"] if self._num_failed else []
        return ", ".join(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()
