"""The judged outcome of a trajectory: how likely it solved its task, and who says so.

A `Status` is what the environment or the system said when the episode ended; it never changes. An
`Outcome` is a judgement about the same episode. It may come later, from a checker, a model or a person,
and it may be wrong and be corrected: the newest one counts. Where there is no outcome, the status decides
(`Trajectory.is_success`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepwell.core.errors import InputError

SUCCESS_THRESHOLD = 0.5


class OutcomeSource(StrEnum):
    """Who judged: a program with access to the truth, a trained model, a model behind an API, a person."""

    CHECKER = "checker"
    OUTCOME_MODEL = "outcome_model"
    ENDPOINT = "endpoint"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One judgement. `judge` names the checker, model or person; it may be empty.

    >>> Outcome(0.9, "outcome_model", judge="orm-3").is_success
    True
    """

    success_probability: float
    source: OutcomeSource | str
    judge: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.success_probability <= 1.0:
            raise InputError(f"success_probability is {self.success_probability}; give a number from 0 to 1")
        object.__setattr__(self, "success_probability", float(self.success_probability))
        try:
            object.__setattr__(self, "source", OutcomeSource(self.source))
        except ValueError:
            known = ", ".join(each.value for each in OutcomeSource)
            raise InputError(f"outcome source {self.source!r} is unknown; choose one of {known}") from None

    @property
    def is_success(self) -> bool:
        """Whether success is at least as likely as failure."""
        return self.success_probability >= SUCCESS_THRESHOLD
