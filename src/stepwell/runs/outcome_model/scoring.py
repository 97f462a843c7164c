"""`stepwell orm eval` and `score`: a judge measured against checkers, and used where there are none.

`evaluate_judge` compares probabilities with what checkers said. `score_source` writes outcomes into a pool.

Invariants of `score_source`
* The outcomes of episodes that were judged together are one commit. A command that was killed continues, and
  judges the others in the same company, so that they get the same probabilities to the last bit.
* An episode whose newest outcome is this judge's is not judged again, and a second run changes nothing.
* An outcome of a person (`human`) is never covered by a model's, unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

from stepwell.core import Outcome, OutcomeSource, Trajectory
from stepwell.core.errors import InfraError
from stepwell.pool import Pool
from stepwell.rewards.outcome_model.judges import OutcomeJudge
from stepwell.rewards.outcome_model.measures import (
    JudgeScore,
    group_by_family,
    list_reliability,
    measure_baselines,
    measure_judge,
)
from stepwell.runs.outcome_model.rollouts import LabelledRollout, iter_judgeable

_TOGETHER = 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """A judge on labelled episodes: as a whole, by family, beside trivial judges, and its calibration."""

    judge: str
    score: JudgeScore
    families: dict[str, JudgeScore]
    baselines: dict[str, JudgeScore]
    reliability: list[dict[str, float]]
    num_unjudged: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a file."""
        return asdict(self)


@dataclass(slots=True)
class ScoreCounts:
    """What `score_source` did."""

    num_judged: int = 0
    num_yes: int = 0
    num_known: int = 0  # judged by this judge before
    num_human: int = 0  # kept from a person
    num_unjudged: int = 0  # the judge gave no answer


def evaluate_judge(
    judge: OutcomeJudge,
    rollouts: Sequence[LabelledRollout],
    tell: Callable[[int], None] = lambda num_done: None,
) -> JudgeReport:
    """Judge episodes whose truth is known; those without an answer are counted and left out."""
    answers: list[float | None] = []
    for part in _iter_parts(rollouts):
        answers += judge.judge([one.trajectory for one in part])
        tell(len(answers))
    judged = [(one, p) for one, p in zip(rollouts, answers, strict=True) if p is not None]
    if not judged:
        raise InfraError(f"{judge.name} gave no answer to any of {len(rollouts)} episodes")
    kept, labels = [one.trajectory for one, _ in judged], [one.is_success for one, _ in judged]
    probabilities = [p for _, p in judged]
    families = {
        name: measure_judge([probabilities[i] for i in places], [labels[i] for i in places])
        for name, places in group_by_family(kept).items()
    }
    return JudgeReport(
        judge=judge.name,
        score=measure_judge(probabilities, labels),
        families=families,
        baselines=measure_baselines(kept, labels),
        reliability=[asdict(one) for one in list_reliability(probabilities, labels)],
        num_unjudged=len(rollouts) - len(judged),
    )


def score_source(
    judge: OutcomeJudge,
    pool: Pool,
    *,
    channel: str | None = None,
    tags: Sequence[str] = (),
    over_human: bool = False,
    tell: Callable[[int], None] = lambda num_done: None,
) -> ScoreCounts:
    """Assign this judge's outcome to every finished episode of a pool that does not have it."""
    counts, num_done = ScoreCounts(), 0
    open_ = _iter_open(judge, iter_judgeable(pool, channel=channel, tags=tags), counts, over_human)
    for part in _iter_parts(open_):
        judged = {
            trajectory.id: Outcome(probability, judge.source, judge.name)
            for trajectory, probability in zip(part, judge.judge(part), strict=True)
            if probability is not None
        }
        pool.assign_outcomes(judged)
        counts.num_judged += len(judged)
        counts.num_yes += sum(outcome.is_success for outcome in judged.values())
        counts.num_unjudged += len(part) - len(judged)
        num_done += len(part)
        tell(num_done)
    return counts


def _iter_parts(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, _TOGETHER)):
        yield part


def _iter_open(
    judge: OutcomeJudge, trajectories: Iterable[Trajectory], counts: ScoreCounts, over_human: bool
) -> Iterator[Trajectory]:
    """The episodes that this judge has still to judge."""
    for trajectory in trajectories:
        known = trajectory.outcome
        if known is not None and known.source is OutcomeSource.HUMAN and not over_human:
            counts.num_human += 1
        elif known is not None and (known.source, known.judge) == (judge.source, judge.name):
            counts.num_known += 1
        else:
            yield trajectory
