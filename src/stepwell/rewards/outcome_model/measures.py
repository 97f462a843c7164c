"""How good a judge of outcomes is, beside judges that know nothing.

Truth is the environment's checker (`Trajectory.status`). `measure_judge` gives accuracy, precision and recall
of YES, F1, the area under the ROC curve, expected calibration error and Brier score. The trivial judges:

    majority      the more frequent answer, for all
    always_yes    every episode counts as a success, as in imitation of everything
    short         a success if it has at most as many turns as the median success; the median is fitted on the
                  very data that are judged, in favour of this baseline
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import Task, Trajectory
from stepwell.core.errors import InputError
from stepwell.core.outcome import SUCCESS_THRESHOLD
from stepwell.rewards.outcome_model.calibration import Floats

_NUM_BINS = 10
_FAMILY_KEYS = ("family", "site", "kind", "type", "template")


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """The quality of probabilities against the truth. `auc` is None if only one class is there."""

    count: int
    success_share: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    auc: float | None
    calibration_error: float
    brier: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Predictions between two probabilities: their number, mean, and the share that was a success."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def measure_judge(probabilities: npt.ArrayLike, labels: Sequence[bool]) -> JudgeScore:
    """Compare probabilities with the truth; a YES is a probability from 0.5 on."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=bool)
    if p.shape != y.shape or p.size == 0:
        raise InputError(f"a judge is measured on as many answers as labels; got {p.shape} and {y.shape}")
    said = p >= SUCCESS_THRESHOLD
    hits = float((said & y).sum())
    precision = hits / said.sum() if said.any() else 0.0
    recall = hits / y.sum() if y.any() else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return JudgeScore(
        count=int(p.size),
        success_share=float(y.mean()),
        accuracy=float((said == y).mean()),
        precision=float(precision),
        recall=float(recall),
        f1=float(f1),
        auc=compute_auc(p, y),
        calibration_error=measure_calibration_error(p, labels),
        brier=measure_brier(p, labels),
    )


def compute_auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float | None:
    """The chance that a random success scores higher than a random failure; ties count half."""
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    if y.all() or not y.any():
        return None
    _, places, counts = np.unique(s, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[places]  # mean rank, from 1, of equal scores
    num_yes, num_no = int(y.sum()), int((~y).sum())
    return float((ranks[y].sum() - num_yes * (num_yes + 1) / 2.0) / (num_yes * num_no))


def list_reliability(probabilities: npt.ArrayLike, labels: Sequence[bool]) -> list[ReliabilityBin]:
    """Predictions in ten equal ranges of probability; empty ranges are left out."""
    p, y = check_pairs(probabilities, labels)
    places = np.minimum((p * _NUM_BINS).astype(int), _NUM_BINS - 1)
    found = []
    for place in range(_NUM_BINS):
        inside = places == place
        if inside.any():
            found.append(
                ReliabilityBin(
                    place / _NUM_BINS,
                    (place + 1) / _NUM_BINS,
                    int(inside.sum()),
                    float(p[inside].mean()),
                    float(y[inside].mean()),
                )
            )
    return found


def measure_calibration_error(probabilities: npt.ArrayLike, labels: Sequence[bool]) -> float:
    """The expected calibration error: mean distance of predicted and observed shares, by bin sizes."""
    bins = list_reliability(probabilities, labels)
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.predicted - each.observed) for each in bins) / total


def measure_brier(probabilities: npt.ArrayLike, labels: Sequence[bool]) -> float:
    """The mean squared difference of probability and truth."""
    p, y = check_pairs(probabilities, labels)
    return float(np.mean((p - y) ** 2))


def check_pairs(values: npt.ArrayLike, labels: Sequence[bool]) -> tuple[Floats, Floats]:
    """Finite values with their labels, one at least, as two arrays of the same length."""
    x, y = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.size == 0:
        raise InputError(
            f"calibration needs as many values as labels, and one at least; got {x.shape}, {y.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError("calibration: a value is not finite")
    return x, y


def measure_baselines(trajectories: Sequence[Trajectory], labels: Sequence[bool]) -> dict[str, JudgeScore]:
    """The trivial judges on the same episodes."""
    y = np.asarray(labels, dtype=bool)
    turns = np.array([trajectory.num_turns for trajectory in trajectories], dtype=float)
    most = float(np.median(turns[y])) if y.any() else 0.0
    answers = {
        "majority": np.full(y.shape, float(y.mean() >= 0.5)),
        "always_yes": np.ones(y.shape),
        "short": (turns <= most).astype(float),
    }
    return {name: measure_judge(given, labels) for name, given in answers.items()}


def find_family(task: Task) -> str:
    """The family of a task, for figures by family: the environment and what its content names."""
    goal = task.content.get("goal")
    places: list[Any] = [task.content, goal if isinstance(goal, dict) else {}]
    for key in _FAMILY_KEYS:
        for place in places:
            if isinstance(place.get(key), str):
                return f"{task.env}/{place[key]}"
    return task.env


def group_by_family(trajectories: Sequence[Trajectory]) -> dict[str, list[int]]:
    """The places of the trajectories of each family, sorted by name."""
    found: dict[str, list[int]] = {}
    for place, trajectory in enumerate(trajectories):
        found.setdefault(find_family(trajectory.task), []).append(place)
    return dict(sorted(found.items()))
