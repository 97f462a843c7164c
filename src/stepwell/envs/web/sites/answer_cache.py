"""Answers that the sites gave, kept by state and request.

Pages are pure: the same database and the same request give the same answer and leave the same database. A
state is a number that stands for a content of the database. State 0 is the world as it was seeded; a request
that changes the database leads to a new number, and the same request in the same state leads to the same one
again. So an episode that does what another has done needs no database at all.

Invariants
* Two databases under the same number are equal. (Equal ones may have different numbers.)
* At most `MAX_ANSWERS` answers are kept; the ones that were not asked for longest are forgotten. A forgotten
  answer is made again, at worst under a new number.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from stepwell.envs.web.exchange import SiteAnswer
from stepwell.envs.web.recent import RecentTable

MAX_ANSWERS = 4096


class KeptAnswer(NamedTuple):
    """An answer, and the state after it."""

    answer: SiteAnswer | None
    state: int


class SiteAnswers:
    """The answers of one world."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: RecentTable[KeptAnswer] = RecentTable(MAX_ANSWERS)

    def make_state(self) -> int:
        """A number that nothing is known about."""
        return next(self._numbers)

    def find(self, state: int, request: Any) -> KeptAnswer | None:
        """The answer in a state, if it is kept."""
        return self._answers.find((state, request))

    def keep(self, state: int, request: Any, answer: SiteAnswer | None, *, is_changed: bool) -> KeptAnswer:
        """Keep an answer; `is_changed`: the database is another one now."""
        after = self.make_state() if is_changed else state
        return self._answers.keep((state, request), KeptAnswer(answer, after))
