"""The parts of a loop that a checkpoint contains besides weights and optimizer.

    collect ─► checkpoint ─► restore

Each part is in the same place after `restore` as it was at `collect`: the judge of batches, the task feed,
the episodes that wait for an outcome, the source and the replay buffer. The source and the replay buffer keep
their state in the pool and need only the number of the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell.curriculum import ReplayBuffer, TaskFeed
from stepwell.runs.build.components import Components
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.outcome_judging import OutcomeJudging
from stepwell.runs.loop.sources import Source
from stepwell.runs.loop.task_feeds import protect_phase
from stepwell.training import checkpoint


@dataclass(frozen=True, slots=True)
class ResumableParts:
    """What continues in a resumed run where it was."""

    components: Components
    run: str
    feed: TaskFeed
    source: Source
    replay: ReplayBuffer | None
    judging: OutcomeJudging | None

    def collect(self, state: LoopState) -> dict[str, Any]:
        """The loop's part of a checkpoint."""
        loop: dict[str, Any] = {"update": state.update, "state": state.as_dict()}
        if self.components.backend.batch_judge is not None:
            loop["judge"] = self.components.backend.batch_judge.state()
        if tasks := self.feed.state():
            loop["tasks"] = tasks
        if self.judging is not None:
            loop["unjudged"] = self.judging.list_waiting()
        return loop

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue after a checkpoint."""
        if self.components.backend.batch_judge is not None and (judged := saved.loop.get("judge")):
            self.components.backend.batch_judge.restore(judged)
        if tasks := saved.loop.get("tasks"):
            self.feed.restore(tasks)
        if self.judging is not None:
            self.judging.restore_waiting(saved.loop.get("unjudged", []))
        update = saved.loop["state"]["update"]
        self.source.resume_from(update)
        if self.replay is not None:
            self.replay.resume_from(update)

    def acknowledge(self, update: int) -> None:
        """Tell the pool what the checkpoint of this update will contain, before it is written."""
        protect_phase(self.components, self.run, update)
        if self.replay is not None:
            self.replay.protect_members()
        self.source.acknowledge(update)
