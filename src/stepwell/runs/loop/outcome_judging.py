"""Outcomes of an update's episodes by a judge in the checker's place.

    batch ─► judge ─► outcome in the pool and in the trajectory ─► rewards follow it
               └─ no answer ─► kept, reported, asked again in the next update

Invariants
* No episode is lost: one without an answer stays in the pool, protected from `gc` and tagged `unjudged`, and
  waits. It is learnt from in the first update in which it has an outcome. A checkpoint lists those that wait.
* No episode is learnt from without this judge's outcome (nor a sibling of one, where siblings are compared).
  If a judge answers nothing at all, the run stops with an error, and `--resume` asks again.
* The checker's verdict stays in `Trajectory.status`. How often the judge differs from it is a figure of every
  update. Tasks without a checker do not count there: they end as failures whatever was done.
* Tasks without a checker are judged from the first update on, whatever `from_update`.
* The outcomes of an update are one commit, so that a run that was killed while it judged asks again about the
  same episodes together: a model's probabilities depend, in their last bits, on what is computed with them.
* An episode that has an outcome already, because its run was resumed, is not judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepwell.core import ConfigError, InfraError, Outcome, Status, Trajectory
from stepwell.pool import Pool
from stepwell.pool.results import KEEP_TAG, UNJUDGED_TAG
from stepwell.rewards.outcome_model.judges import OutcomeJudge
from stepwell.runs.build.components import Components
from stepwell.runs.build.outcome_judges import build_judge
from stepwell.runs.build.phases import find_phase_length
from stepwell.runs.loop.sources import Batch


@dataclass(eq=False)
class OutcomeJudging:
    """Judges the episodes of updates from `from_update` on; earlier ones only where there is no checker."""

    judge: OutcomeJudge
    pool: Pool
    note: Callable[[str], None]
    from_update: int = 1
    compares_siblings: bool = False
    waiting: list[Trajectory] = field(default_factory=list)

    def judge_batch(self, update: int, batch: Batch) -> dict[str, float]:
        """Give the batch its outcomes; what has none leaves it. Returns figures of the judge."""
        waited, fresh = self.waiting, batch.trajectories
        if not any(self._is_judged(update, each) for each in (*waited, *fresh)):
            return {}
        self._assign_outcomes(self._list_unjudged(update, [*waited, *fresh]))
        ready = self._hold_back(update, [*waited, *fresh])
        late = {each.id for each in waited}
        batch.is_mixed = batch.is_mixed or any(each.id in late for each in ready)
        batch.trajectories = ready
        return measure_agreement(ready) | {"outcome/unjudged": float(len(self.waiting))}

    def list_waiting(self) -> list[str]:
        """The ids of episodes that wait for an outcome, for a checkpoint."""
        return [each.id for each in self.waiting]

    def restore_waiting(self, ids: Sequence[str]) -> None:
        """Continue with the episodes of a checkpoint."""
        self.waiting = [self.pool.get(id).trajectory for id in ids]

    def _is_judged(self, update: int, trajectory: Trajectory) -> bool:
        return update >= self.from_update or not trajectory.task.has_checker

    def _list_unjudged(self, update: int, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        return [each for each in trajectories if each.outcome is None and self._is_judged(update, each)]

    def _assign_outcomes(self, trajectories: Sequence[Trajectory]) -> None:
        if not trajectories:
            return
        answers = self.judge.judge(trajectories)
        judged: dict[str, Outcome] = {}
        for trajectory, probability in zip(trajectories, answers, strict=True):
            if probability is not None:
                trajectory.outcome = Outcome(probability, self.judge.source, self.judge.name)
                judged[trajectory.id] = trajectory.outcome
        self.pool.assign_outcomes(judged)

    def _hold_back(self, update: int, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes that can be learnt from; the others wait."""
        held = self._list_unjudged(update, trajectories)
        if self.compares_siblings:
            groups = {each.group or each.id for each in held}
            held = [each for each in trajectories if (each.group or each.id) in groups]
        before, now = set(self.list_waiting()), {each.id for each in held}
        for ids, change in ((now - before, self.pool.tag), (before - now, self.pool.untag)):
            for tag in (UNJUDGED_TAG, KEEP_TAG) if ids else ():
                change(sorted(ids), tag)
        self.waiting = held
        if len(held) == len(trajectories):
            raise InfraError(
                f"update {update}: the judge {self.judge.name} gave no answer for any of {len(held)} episodes"
                f"{self._describe_failure()}. They are kept; check the judge, then --resume"
            )
        if held:
            self.note(
                f"update {update}: {len(held)} of {len(trajectories)} episodes are unjudged"
                f"{self._describe_failure()}; they are kept and asked about again in the next update"
            )
        return [each for each in trajectories if each.id not in now]

    def _describe_failure(self) -> str:
        reason = getattr(self.judge, "last_failure", "")
        return f" ({self.judge.name}: {reason})" if reason else ""


def measure_agreement(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How often judged outcomes and the checker's verdicts are the same, and how they differ."""
    pairs = [
        (each.is_success, each.status is Status.SUCCESS)
        for each in trajectories
        if each.outcome is not None and each.status is not Status.INFRA_ERROR and each.task.has_checker
    ]
    if not pairs:
        return {}
    count = len(pairs)
    return {
        "outcome/agreement": sum(said == true for said, true in pairs) / count,
        "outcome/false_yes": sum(said and not true for said, true in pairs) / count,
        "outcome/false_no": sum(true and not said for said, true in pairs) / count,
        "outcome/checker_success": sum(true for _, true in pairs) / count,
    }


def build_judging(components: Components, note: Callable[[str], None]) -> OutcomeJudging | None:
    """The judge that replaces the checker; None if settings name none."""
    outcome = components.config.outcome
    if (judge := build_judge(outcome)) is None:
        return None
    return OutcomeJudging(
        judge,
        components.pool,
        note,
        from_update=max(outcome.from_update, _find_first_update(components)),
        compares_siblings=components.recipe.needs_groups,
    )


def _find_first_update(components: Components) -> int:
    """The first update of the phase from which the judge judges."""
    phase = components.config.outcome.from_phase
    length = find_phase_length(components.config, components.recipe)
    if length is None and phase > 1:
        raise ConfigError(
            f"outcome.from_phase={phase} needs a run with phases: set curriculum.updates_per_phase, or use "
            "outcome.from_update"
        )
    return (phase - 1) * (length or 1) + 1
