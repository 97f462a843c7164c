"""Judges of outcomes: the protocol, and several of them together.

A judge gives the probability that an episode solved its task, or None where it has no answer now. None is not
a NO: the caller keeps the episode and asks again later.

    mean       the mean of the probabilities given
    majority   the share of judges that say YES; a tie counts as the mean says
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from stepwell.core import OutcomeSource, Trajectory
from stepwell.core.errors import InputError
from stepwell.core.outcome import SUCCESS_THRESHOLD

Combination = Literal["mean", "majority"]


class OutcomeJudge(Protocol):
    """Judges whole episodes."""

    @property
    def name(self) -> str:
        """Its name in the record."""

    @property
    def source(self) -> OutcomeSource:
        """What kind of judge it is."""

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """The probability of success of each episode, in order; None without an answer."""


class JudgeEnsemble:
    """Several judges as one. It answers if at least one of them does."""

    def __init__(self, judges: Sequence[OutcomeJudge], combine: Combination = "mean") -> None:
        if not judges:
            raise InputError("an ensemble needs at least one judge")
        self.judges, self.combine = tuple(judges), combine

    @property
    def name(self) -> str:
        return f"{self.combine} of {', '.join(judge.name for judge in self.judges)}"

    @property
    def source(self) -> OutcomeSource:
        """An outcome model's, if one of them is; else the first one's."""
        kinds = [judge.source for judge in self.judges]
        return OutcomeSource.OUTCOME_MODEL if OutcomeSource.OUTCOME_MODEL in kinds else kinds[0]

    @property
    def last_failure(self) -> str:
        """Why judges gave no answer, of those that say so."""
        reasons = [(judge.name, getattr(judge, "last_failure", "")) for judge in self.judges]
        return "; ".join(f"{name}: {reason}" for name, reason in reasons if reason)

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """The combined probability of each episode."""
        columns = [judge.judge(trajectories) for judge in self.judges]
        return [combine_answers(row, self.combine) for row in zip(*columns, strict=True)]


def combine_answers(answers: Sequence[float | None], combine: Combination) -> float | None:
    """The probability that several answers give together; None without any.

    >>> combine_answers([0.9, None, 0.4], "mean"), combine_answers([0.9, 0.4, 0.3], "majority")
    (0.65, 0.3333333333333333)
    """
    given = [answer for answer in answers if answer is not None]
    if not given:
        return None
    mean = float(np.mean(given))
    if combine == "mean":
        return mean
    share = sum(answer >= SUCCESS_THRESHOLD for answer in given) / len(given)
    if share != 0.5:
        return share
    return 0.5 if mean >= SUCCESS_THRESHOLD else float(np.nextafter(0.5, 0.0))
