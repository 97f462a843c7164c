"""The replay buffer: successes of earlier updates, read from the pool, and learnt from again.

    pool ─► successes of earlier updates ─► perplexity under the policy ─► band ─► draw ─► update

The buffer has no store of its own. It is a part of the pool: trajectories of this run that were solved (as
judged, else by their status) and learnt from in an earlier update. Its members are tagged
`keep`, so that the pool never removes them.

Perplexities are computed at the start of each period: a phase, or a single update where there are no phases.
Those of a phase are stored (`score_files.py`) before they are used. The draw of an update follows from the
seed, the number of the update and the scores, so that a resumed run draws the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepwell.core import InputError, Scorer, TokenState, Trajectory
from stepwell.curriculum.perplexity import PerplexityBand, ScoredTrajectory, choose_steps, compute_perplexity
from stepwell.curriculum.score_files import ScoreFiles
from stepwell.pool import Channel, Filter, Pool
from stepwell.pool.results import KEEP_TAG, TrajectorySummary

SCORED_UNITS = 16_384
"""Prompt tokens and actions in one forward pass, about."""
READ_AT_ONCE = 256
"""Trajectories that are in memory while the buffer is scored."""


class ReplayedSteps(NamedTuple):
    """What an update replays: whole trajectories, and by id which of their steps the policy learns from."""

    trajectories: list[Trajectory]
    masks: dict[str, tuple[bool, ...]]
    figures: dict[str, float]


@dataclass(eq=False)
class ReplayBuffer:
    """The buffer of one run.

    `is_learnt` says whether an earlier update has learnt from a stored trajectory. `find_period` gives the
    first update of the period of an update; without it every update is a period, and no scores are stored.
    """

    pool: Pool
    run: str
    scorer: Scorer
    files: ScoreFiles
    band: PerplexityBand
    is_learnt: Callable[[TrajectorySummary], bool]
    find_period: Callable[[int], int] | None = None
    max_per_fresh: float = 2.0
    with_failures: bool = False
    max_scored: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        self._period: int | None = None
        self._scored: list[ScoredTrajectory] = []

    def draw_steps(self, update: int, fresh: Sequence[Trajectory]) -> ReplayedSteps:
        """The steps that an update replays beside its `fresh` trajectories."""
        self._load_period(update, {trajectory.id for trajectory in fresh})
        num_fresh = sum(len(trajectory.steps) for trajectory in fresh)
        rng = np.random.default_rng([self.seed, update, 13])
        masks = choose_steps(self._scored, self.band, int(self.max_per_fresh * num_fresh), rng)
        figures = self._measure_buffer() | {
            "replay/trajectories": float(len(masks)),
            "replay/steps": float(sum(sum(mask) for mask in masks.values())),
        }
        return ReplayedSteps(self._read_trajectories(list(masks)), masks, figures)

    def resume_from(self, update: int) -> None:
        """Continue after this update; later periods are scored again."""
        self._period = None
        self.files.remove_scores(update)

    def protect_members(self) -> None:
        """Tag what is or will be in the buffer, so that the pool keeps it."""
        new = [entry.id for entry in self._find_members((KEEP_TAG,))]
        if new:
            self.pool.tag(new, KEEP_TAG)

    def _load_period(self, update: int, fresh: set[str]) -> None:
        first = update if self.find_period is None else self.find_period(update)
        if self._period == first:
            return
        if first < update or first in self.files.list_updates():
            self._scored = self.files.read_scores(first)
        else:
            self._scored = list(self._score_members(fresh, np.random.default_rng([self.seed, update, 17])))
            if self.find_period is not None:
                self.files.write_scores(first, self._scored)
        self._period = first

    def _score_members(self, fresh: set[str], rng: np.random.Generator) -> Iterator[ScoredTrajectory]:
        members = [
            entry.id for entry in self._find_members() if entry.id not in fresh and self.is_learnt(entry)
        ]
        if len(members) > self.max_scored:
            chosen = np.sort(rng.permutation(len(members))[: self.max_scored])
            members = [members[int(place)] for place in chosen]
        waiting: list[Trajectory] = []
        pages = (members[i : i + READ_AT_ONCE] for i in range(0, len(members), READ_AT_ONCE))
        for trajectory in (each for page in pages for each in self._read_trajectories(page)):
            waiting.append(trajectory)
            if sum(_count_units(trajectory) for trajectory in waiting) >= SCORED_UNITS:
                yield from self._score_together(waiting)
                waiting = []
        if waiting:
            yield from self._score_together(waiting)

    def _score_together(self, trajectories: Sequence[Trajectory]) -> Iterator[ScoredTrajectory]:
        logprobs = iter(self.scorer.score([step for t in trajectories for step in t.steps]))
        for trajectory in trajectories:
            yield ScoredTrajectory(
                trajectory.id, tuple(compute_perplexity(next(logprobs)) for _ in trajectory.steps)
            )

    def _read_trajectories(self, ids: Sequence[str]) -> list[Trajectory]:
        """These trajectories, in this order. One query for each would take most of the time of an update."""
        found = {each.id: each for each in self.pool.trajectories(Filter(ids=ids))} if ids else {}
        if missing := [id for id in ids if id not in found]:
            raise InputError(f"trajectory {missing[0]!r} is not in the pool")
        return [found[id] for id in ids]

    def _find_members(self, without_tags: tuple[str, ...] = ()) -> Iterator[TrajectorySummary]:
        """Trajectories of this run that count as buffered, the oldest first."""
        found = self.pool.find(
            Filter(
                channel=Channel.TRAIN,
                tags=(self.run,),
                without_tags=without_tags,
                is_open=False,
                is_success=None if self.with_failures else True,
            )
        )
        return (entry for entry in found if entry.is_served and entry.num_steps)

    def _measure_buffer(self) -> dict[str, float]:
        values = [value for each in self._scored for value in each.perplexities]
        inside = sum(self.band.contains(value) for value in values)
        return {
            "replay/buffer": float(len(self._scored)),
            "replay/in_band": inside / len(values) if values else 0.0,
            "replay/perplexity": float(np.median(values)) if values else 0.0,
        }


def _count_units(trajectory: Trajectory) -> int:
    """About what a forward pass over a trajectory costs: its prompts share their beginnings."""
    longest = max(
        (len(step.state.prompt_ids) for step in trajectory.steps if isinstance(step.state, TokenState)),
        default=0,
    )
    return longest + sum(step.num_units for step in trajectory.steps)
