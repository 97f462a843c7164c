"""The verdict on one description: precision, recall, and the score that becomes a reward.

`score` is F1 if no claim is wrong. One wrong claim (a false one, two that contradict each other, one
repeated again and again) multiplies it by `ERROR_FACTOR`, whatever else is right: a long list of
true relations must not pay for a false one, and a single wrong relation describes a state that does
not exist. With the threshold of 0.7, a description with an error is never accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR_FACTOR = 0.5
THRESHOLD = 0.7


@dataclass(frozen=True, slots=True)
class Verdict:
    """`num_right` and `num_wrong` count claims, `num_described` and `num_facts` true relations."""

    precision: float
    recall: float
    f1: float
    score: float
    num_right: int = 0
    num_wrong: int = 0
    num_described: int = 0
    num_facts: int = 0

    def is_yes(self, threshold: float = THRESHOLD) -> bool:
        """Whether the description is accepted."""
        return self.score >= threshold


def make_verdict(num_right: int, num_wrong: int, num_described: int, num_facts: int) -> Verdict:
    """The verdict for counted claims; a text without a right claim scores 0.

    >>> make_verdict(2, 0, 2, 4).score, make_verdict(4, 1, 4, 4).score
    (0.6666666666666666, 0.4444444444444445)
    """
    precision = num_right / (num_right + num_wrong) if num_right + num_wrong else 0.0
    recall = num_described / num_facts if num_facts else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    score = f1 * ERROR_FACTOR if num_wrong else f1
    return Verdict(precision, recall, f1, score, num_right, num_wrong, num_described, num_facts)


NOTHING = make_verdict(0, 0, 0, 0)
