"""What a study can tell apart, said before it runs; and the paired differences it found.

    planned runs ──► describe_power        seeds, held-out tasks, attempts ─► smallest difference
    results ───────► describe_differences  each variant against the one beside it, over shared seeds and tasks

Held-out tasks are the same for all runs of an environment, so runs of one seed are compared task by task
(`core/statistics.py`). Where success by task is not known (older results), means by seed are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.config.study import PlannedRun
from stepwell.core.statistics import SEED_SPREAD, compute_detectable_difference
from stepwell.studies.results import Results, Row


def describe_power(runs: Sequence[PlannedRun]) -> list[str]:
    """One sentence per environment: the smallest difference between two variants that it can detect."""
    sentences = []
    for env in dict.fromkeys(run.env for run in runs):
        mine = [run for run in runs if run.env == env]
        counts = [len({run.seed for run in mine if run.variant == v}) for v in {run.variant for run in mine}]
        num_seeds = min(counts)
        held_out = min((run.config.eval for run in mine), key=lambda e: e.num_tasks * e.samples_per_task)
        size = (num_seeds, held_out.num_tasks, held_out.samples_per_task)
        size_text = f"{env}: {size[0]} seeds × {size[1]} held-out tasks × {size[2]} attempts"
        smallest, floor = (
            compute_detectable_difference(*size),
            compute_detectable_difference(*size, seed_spread=0.0),
        )
        if smallest is None or floor is None or smallest >= 1:
            sentences.append(f"{size_text}: no difference between methods can be told from chance")
            continue
        sentences.append(
            f"{size_text}: finds differences in success from {smallest:.2f} on (80 % of such studies, 95 % "
            f"confidence, runs of one method {SEED_SPREAD:g} apart); held-out attempts alone hide {floor:.2f}"
        )
    return sentences


def describe_differences(results: Results) -> list[str]:
    """One line per variant and environment: success against the variant beside it."""
    return [f"{env}: {line}" for env, rows in results.rows.items() for line in describe_rows(rows)]


def describe_rows(rows: Sequence[Row]) -> list[str]:
    """The differences of one environment."""
    lines = []
    for row in rows:
        if row.difference is not None:
            verdict = "" if row.difference.is_told_apart else ", not told apart"
            lines.append(f"{row.variant} against {row.beside}: {row.difference}{verdict}")
    return lines
