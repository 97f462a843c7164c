"""What a study can tell apart, said before it runs; and the paired differences it found.

    planned runs, earlier runs ──► describe_power     seeds, held-out tasks, attempts ─► smallest difference
    results ───────► describe_differences  each variant against the one beside it, over shared seeds and tasks

Held-out tasks are the same for all runs of an environment, so runs of one seed are compared task by task
(`paired_differences.py`). Where success by task is not known (older results), means by seed are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepwell.config.study import PlannedRun
from stepwell.studies.paired_differences import SEED_SPREAD, compute_detectable_difference, pool_spread
from stepwell.studies.results import Results, RunResult
from stepwell.studies.rows import Row


def describe_power(runs: Sequence[PlannedRun], earlier: Sequence[RunResult] = ()) -> list[str]:
    """One sentence per environment: the smallest difference between two variants that it can detect.

    How differently seeds move variants is taken from `earlier`, the finished runs of this study, if they are
    enough to tell; otherwise it is that of our own studies.
    """
    sentences = []
    for env in dict.fromkeys(run.env for run in runs):
        mine = [run for run in runs if run.env == env]
        counts = [len({run.seed for run in mine if run.variant == v}) for v in {run.variant for run in mine}]
        num_seeds = min(counts)
        held_out = min((run.config.eval for run in mine), key=lambda e: e.num_tasks * e.samples_per_task)
        size = (num_seeds, held_out.num_tasks, held_out.samples_per_task)
        seeds, attempts = (
            f"{n} {word}{'s' * (n != 1)}" for n, word in ((size[0], "seed"), (size[2], "attempt"))
        )
        size_text = f"{env}: {seeds} × {size[1]} held-out tasks × {attempts}"
        found = _measure_spread(earlier, env, size[1] * size[2])
        spread = SEED_SPREAD if found is None else found
        source = "as a careful guess from our own studies" if found is None else "as the finished runs show"
        smallest = compute_detectable_difference(*size, seed_spread=spread)
        floor = compute_detectable_difference(*size, seed_spread=0.0)
        if smallest is None or floor is None or smallest >= 1:
            sentences.append(f"{size_text}: no difference between methods can be told from chance")
            continue
        sentences.append(
            f"{size_text}: finds differences in success from {smallest:.2f} on (80 % of such studies, 95 % "
            f"confidence, seeds move methods apart by {spread:.2f}, {source}); held-out attempts alone hide "
            f"{floor:.2f}"
        )
    return sentences


def _measure_spread(earlier: Sequence[RunResult], env: str, num_attempts: int) -> float | None:
    """The spread of finished runs without the share of finite held-out attempts."""
    methods: dict[str, dict[int, float]] = {}
    for run in earlier:
        if run.env == env and run.is_done and run.updates and run.success_after is not None:
            methods.setdefault(run.variant, {})[run.seed] = run.success_after
    spread = pool_spread(list(methods.values()))
    return None if spread is None else math.sqrt(max(spread**2 - 0.25 / num_attempts, 0.0))


def describe_differences(results: Results) -> list[str]:
    """One line per variant and environment: success against the variant beside it."""
    return [f"{env}: {line}" for env, rows in results.rows.items() for line in describe_rows(rows)]


def describe_rows(rows: Sequence[Row]) -> list[str]:
    """The differences of one environment."""
    lines = []
    for row in rows:
        if (found := row.difference) is not None:
            seeds = "1 seed" if found.num_seeds == 1 else f"{found.num_seeds} seeds"
            verdict = "" if found.is_told_apart else ", not told apart"
            if found.num_seeds == 1:
                verdict = ": the interval is over tasks and says nothing about other seeds"
            if row.other_starts:
                verdict += f"; other starts at seed {', '.join(map(str, row.other_starts))}"
            lines.append(f"{row.variant} against {row.compared_with}: {found}, {seeds}{verdict}")
    return lines
