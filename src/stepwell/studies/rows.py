"""The rows of a study's tables: each variant over its seeds, and how it stands to the others.

    runs of an environment ─► make_rows ─► mark_best      the best of a table, and who is not told apart
                                       └► difference      to the variant beside it (`differences.py`)

Terms
* `spread` is the standard deviation over seeds (of a sample: n - 1); one seed has none.
* `shared` is success after training over the seeds that all rows of a table have finished. Seeds differ in
  their warm start, so only this column compares rows: `after` is over all seeds of its row.
* `other_starts` are seeds whose two runs solved different shares before training: pairs of different weights,
  as of warm starts made twice. They count as pairs; what a start does to both does not cancel there.
* The best of a table has the highest `shared`. Another row is `close` if the 95 % interval of its paired
  difference to the best contains 0, `behind` if it does not, `unknown` if they share fewer than two seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stepwell.config.study import StudyConfig
from stepwell.config.study_parts import VariantConfig
from stepwell.studies.paired_differences import PairedDifference, compare_pairs

if TYPE_CHECKING:
    from stepwell.studies.results import RunResult


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds with its spread and its range."""

    mean: float
    spread: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figure | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        spread = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), spread, min(known), max(known))


@dataclass(slots=True)
class Row:
    """One variant in one environment, over its finished seeds."""

    env: str
    variant: str
    group: str
    note: str
    num_seeds: int
    num_planned: int
    is_baseline: bool
    before: Figure | None = None
    after: Figure | None = None
    best: Figure | None = None
    area: Figure | None = None
    updates_per_min: Figure | None = None
    env_steps: Figure | None = None
    table: str = ""
    compared_with: str = ""
    elsewhere: dict[str, Figure] = field(default_factory=dict)
    standing: str = ""
    budget_share: float | None = None
    difference: PairedDifference | None = None
    other_starts: list[int] = field(default_factory=list)
    has_learnt: bool = False
    remark: str = ""
    seeds: list[int] = field(default_factory=list)
    shared: Figure | None = None
    to_best: PairedDifference | None = None

    @property
    def height(self) -> float | None:
        """The mean by which rows of a table are compared."""
        figure = self.shared or self.after
        return None if figure is None else figure.mean


def make_rows(study: StudyConfig, env: str, results: Sequence[RunResult], budget: int | None) -> list[Row]:
    """The baseline, then the others from best to worst; those without figures come last."""
    rows = []
    for variant in study.variants:
        mine = [result for result in results if result.variant == variant.name]
        if not mine:  # it does not run in this environment
            continue
        row = _make_row(variant, env, mine, variant.name == study.first)
        row.compared_with = variant.compare_with or study.first
        if row.compared_with != row.variant:
            beside = [result for result in results if result.variant == row.compared_with]
            row.difference = compare_variants(mine, beside)
            row.other_starts = [
                one.seed
                for one, other in _list_pairs(mine, beside)
                if one.success_before != other.success_before
            ]
        if budget is not None and row.env_steps is not None and row.has_learnt:
            row.budget_share = row.env_steps.low / budget
        rows.append(row)
    main = mark_best([row for row in rows if not row.table], results)
    rows = [*main, *(row for row in rows if row.table)]
    return sorted(
        rows, key=lambda row: (not row.is_baseline, -row.height if row.height is not None else math.inf)
    )


def _make_row(variant: VariantConfig, env: str, mine: Sequence[RunResult], is_baseline: bool) -> Row:
    done = [result for result in mine if result.is_done]
    places = dict.fromkeys(name for result in done for name in result.elsewhere)
    elsewhere = {name: Figure.of(result.elsewhere.get(name) for result in done) for name in places}
    return Row(
        env,
        variant.name,
        variant.group,
        variant.note,
        len(done),
        len(mine),
        is_baseline,
        before=Figure.of(result.success_before for result in done),
        after=Figure.of(result.success_after for result in done),
        best=Figure.of(result.best for result in done),
        area=Figure.of(result.area for result in done),
        updates_per_min=Figure.of(result.updates_per_min for result in done),
        env_steps=Figure.of(float(result.env_steps) for result in done),
        table=variant.table,
        elsewhere={name: figure for name, figure in elsewhere.items() if figure},
        remark=next((result.remark for result in done if result.remark), ""),
        has_learnt=any(result.updates for result in done),
        seeds=sorted(result.seed for result in done),
    )


def list_seeds(results: Iterable[RunResult]) -> dict[str, set[int]]:
    """The finished seeds of each variant that has any."""
    seeds: dict[str, set[int]] = {}
    for result in results:
        if _has_ended(result):
            seeds.setdefault(result.variant, set()).add(result.seed)
    return seeds


def share_seeds(results: Iterable[RunResult]) -> list[int]:
    """The seeds that all variants have finished, of those that have finished any."""
    seeds = list_seeds(results)
    return sorted(set.intersection(*seeds.values())) if seeds else []


def select_shared(results: Sequence[RunResult]) -> list[RunResult]:
    """Finished runs of the seeds that all variants have; of all their seeds if they share none."""
    seeds = share_seeds(results)
    return [result for result in results if result.is_done and (not seeds or result.seed in seeds)]


def compare_variants(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> PairedDifference | None:
    """The difference of two variants over the seeds that both have finished; None without any."""
    pairs = _list_pairs(ours, theirs)
    if not pairs:
        return None
    lengths = {len(run.by_task) for pair in pairs for run in pair}
    if len(lengths) == 1 and lengths != {0}:
        return compare_pairs([one.by_task for one, _ in pairs], [other.by_task for _, other in pairs])
    means = [[[run.success_after or 0.0] for run in side] for side in zip(*pairs, strict=True)]
    return compare_pairs(means[0], means[1])


def _list_pairs(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> list[tuple[RunResult, RunResult]]:
    """The finished runs of the seeds that both have."""
    beside = {run.seed: run for run in theirs if _has_ended(run)}
    return [(run, beside[run.seed]) for run in ours if _has_ended(run) and run.seed in beside]


def mark_best(rows: Sequence[Row], results: Sequence[RunResult]) -> list[Row]:
    """The rows of one table with their means over shared seeds, the best, and how others stand to it."""
    mine = {row.variant: [run for run in results if run.variant == row.variant] for row in rows}
    seeds = share_seeds(run for runs in mine.values() for run in runs)
    shared = {
        name: Figure.of(run.success_after for run in runs if _has_ended(run) and run.seed in seeds)
        for name, runs in mine.items()
    }
    heights = {name: figure.mean for name, figure in shared.items() if figure}
    if not heights:
        return list(rows)
    best = max(heights, key=lambda name: heights[name])
    marked = []
    for row in rows:
        to_best = None if row.variant == best else compare_variants(mine[row.variant], mine[best])
        is_best = heights.get(row.variant) == heights[best]
        standing = "best" if is_best else _name_standing(to_best)
        marked.append(replace(row, shared=shared[row.variant], to_best=to_best, standing=standing))
    return marked


def _name_standing(to_best: PairedDifference | None) -> str:
    if to_best is None:
        return ""
    if to_best.num_seeds < 2:
        return "unknown"
    return "behind" if to_best.is_told_apart else "close"


def _has_ended(result: RunResult) -> bool:
    return result.is_done and result.success_after is not None
