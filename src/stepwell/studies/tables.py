"""More tables and plots of a study; its file names those it wants (`tables`, `sweeps`).

    use        how agents worked: turns, tokens, tool calls, score, what else environments measure
    golden     success and extra turns by the length of the shortest plan
    dynamics   training reward and critic loss over updates
    time       seconds of an update: rollout, actor, critic
    sweeps     one setting at several values, and the effect of its change

Everything is made from `Results` alone. A figure is the mean over finished seeds. A table without figures for
an environment is left out. Where variants have finished different seeds, only those that all
have count. Sums over seeds, where a table says so, count every episode alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.config.study_parts import SweepConfig
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.studies.results import Results, RunResult, mean_curve
from stepwell.studies.rows import Figure, select_shared

PER_PANEL = 6
WIDTH, HEIGHT = 860, 300
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Plot:
    """An SVG image with the name of its file (without the suffix)."""

    name: str
    title: str
    svg: str


@dataclass(slots=True)
class StudyTable:
    """One table of one environment; `head` is empty if there are only plots."""

    title: str
    note: str
    head: list[str]
    rows: list[list[str]]
    plots: list[Plot] = field(default_factory=list)


def make_tables(results: Results, env: str) -> list[StudyTable]:
    """All tables that the study asks for and this environment has figures for, in the order of its file."""
    made = [_TABLES[name](results, env) for name in results.study.tables]
    made += [_make_sweep(results, env, sweep) for sweep in results.study.sweeps]
    return [table for table in made if table is not None]


def _select_finished(results: Results, env: str) -> dict[str, list[RunResult]]:
    """Finished runs of the seeds that all variants have, by variant, in the order of the study."""
    shared = select_shared([run for run in results.runs if run.env == env])
    names = [variant.name for variant in results.study.variants]
    found = {name: [run for run in shared if run.variant == name] for name in names}
    return {name: runs for name, runs in found.items() if runs}


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _format_number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


# --- how agents worked -------------------------------------------------------------------

_USE = {"turns": "turns", "tokens": "response tokens", "score": "score", "lost_calls": "calls not done"}


def _make_use(results: Results, env: str) -> StudyTable | None:
    runs = _select_finished(results, env)
    names = list(dict.fromkeys(name for mine in runs.values() for run in mine for name in run.use))
    if not names:
        return None
    order = sorted(names, key=lambda name: (name.startswith("measures/"), names.index(name)))
    head = ["variant"]
    for name in order:
        title = _USE.get(name) or name.removeprefix("measures/")
        head.append(f"{title}, where known" if title in head else title)
    rows = [
        [variant, *[_format_number(_mean_known(run.use.get(name) for run in mine)) for name in order]]
        for variant, mine in runs.items()
        if any(run.use for run in mine)
    ]
    note = "Means per held-out episode after training; response tokens are those of all turns together."
    return StudyTable("How agents worked", note, head, rows)


# --- by the length of the shortest plan ---------------------------------------------------------


def _make_golden(results: Results, env: str) -> StudyTable | None:
    runs = _select_finished(results, env)
    pooled = {variant: _pool_seeds(mine) for variant, mine in runs.items() if any(run.golden for run in mine)}
    lengths = sorted({length for found in pooled.values() for length in found})
    if not lengths:
        return None
    head = ["variant", *[f"{length} turns" for length in lengths]]
    rows = [
        [variant, *[_format_golden_cell(found.get(length)) for length in lengths]]
        for variant, found in pooled.items()
    ]
    nums = {
        length: max(found[length][0] for found in pooled.values() if length in found) for length in lengths
    }
    counts = ", ".join(f"{num} of {length}" for length, num in nums.items())
    note = (
        "Success by the turns of the shortest plan, proven; in brackets the turns of solved episodes beyond "
        f"it. Episodes of all seeds together: {counts} turns."
    )
    lines: dict[str, dict[str, list[Any]]] = {
        "success": {v: [(n, found[n][1]) for n in lengths if n in found] for v, found in pooled.items()},
        "extra turns": {
            v: [(n, found[n][2]) for n in lengths if n in found and found[n][2] is not None]
            for v, found in pooled.items()
        },
    }
    plots = [
        plot
        for what, points in lines.items()
        for plot in _make_panels(
            results, env, f"golden-{what.split()[0]}", what, "turns of the shortest plan", points
        )
    ]
    return StudyTable("By the shortest plan", note, head, rows, plots)


def _pool_seeds(runs: Sequence[RunResult]) -> dict[int, tuple[int, float, float | None]]:
    """Episodes, share solved and mean extra turns by length, over all seeds."""
    found = {}
    for length in sorted({row["golden"] for run in runs for row in run.golden}):
        rows = [row for run in runs for row in run.golden if row["golden"] == length]
        num = sum(row["num"] for row in rows)
        wins = [row["success"] * row["num"] for row in rows]
        extra = sum(
            win * row["extra"] for win, row in zip(wins, rows, strict=True) if row["extra"] is not None
        )
        found[length] = (num, sum(wins) / num, extra / sum(wins) if sum(wins) else None)
    return found


def _format_golden_cell(found: tuple[int, float, float | None] | None) -> str:
    if found is None:
        return NOTHING
    _, success, extra = found
    return f"{success:.2f}" + ("" if extra is None else f" (+{extra:.1f})")


# --- training ----------------------------------------------------------------------------

_DYNAMICS = {"reward": "training reward", "critic_loss": "critic loss", "explained": "explained variance"}


def _make_dynamics(results: Results, env: str) -> StudyTable | None:
    runs = _select_finished(results, env)
    tracks = {v: [run for run in mine if run.tracks] for v, mine in runs.items()}
    tracks = {v: mine for v, mine in tracks.items() if mine}
    if not tracks:
        return None
    names = [
        name for name in _DYNAMICS if any(name in run.tracks for mine in tracks.values() for run in mine)
    ]
    head = ["variant"]
    for name in names:
        head += [f"{_DYNAMICS[name]}, first quarter", "last quarter"]
    rows = [
        [variant, *[cell for name in names for cell in _mean_quarters(mine, name)]]
        for variant, mine in tracks.items()
    ]
    plots = []
    for name in names:
        points = {
            v: [run.tracks[name] for run in mine if name in run.tracks]
            for v, mine in tracks.items()
            if any(name in run.tracks for run in mine)
        }
        means = {v: _join_points(mean_curve(curves)) for v, curves in points.items()}
        plots += _make_panels(
            results, env, f"dynamics-{name.replace('_', '-')}", _DYNAMICS[name], "updates", means
        )
    note = (
        "Training reward is the reward of training episodes; critic loss is the mean squared error; "
        "explained variance is the share of the targets' variance that the critic predicts."
    )
    return StudyTable("Training", note, head, rows, plots)


def _join_points(curve: dict[str, list[float]]) -> list[tuple[float, float]]:
    return list(zip(curve["x"], curve["mean"], strict=True))


def _mean_quarters(runs: Sequence[RunResult], name: str) -> list[str]:
    """Means of the first and of the last quarter of the points."""
    ends: list[tuple[float, float]] = []
    for run in runs:
        heights = [height for _, height in run.tracks.get(name, ())]
        if heights:
            size = max(1, len(heights) // 4)
            ends.append((statistics.fmean(heights[:size]), statistics.fmean(heights[-size:])))
    return [_format_number(_mean_known(end[side] for end in ends), 4) for side in (0, 1)]


# --- credit ----------------------------------------------------------------------------


def _make_credit(results: Results, env: str) -> StudyTable | None:
    """Clip share, what the critic explains by site, and the size of advantages by step."""
    runs = {
        v: [run.credit for run in mine if run.credit] for v, mine in _select_finished(results, env).items()
    }
    runs = {variant: found for variant, found in runs.items() if found}
    if not runs:
        return None
    names = sorted({name for found in runs.values() for one in found for name in one})
    sites = [f"explained/{site}" for site in ("state", "inside", "end") if f"explained/{site}" in names]
    sizes = [name for name in names if name.startswith("advantage/")]
    shown = ["clip_share", *({"update_kl"} & set(names)), "explained_variance", *sites, *sizes]
    titles = {"clip_share": "clipped", "explained_variance": "explained", "update_kl": "KL of an update"}
    head = ["variant", *[titles.get(name) or _title_credit(name) for name in shown]]
    rows = [
        [variant, *[_format_credit(name, [one.get(name) for one in found]) for name in shown]]
        for variant, found in runs.items()
    ]
    plots = []
    for what, title in (("advantage", "mean |A|"), ("explained", "explained variance")):
        lines = {variant: _average_steps(found, what) for variant, found in runs.items()}
        plots += _make_panels(results, env, f"credit-{what}", f"{title} by step", "step", lines)
    note = (
        "Means over the updates that change the policy. Clipped: share of terms whose ratio was cut. KL: how "
        "far an update moves the policy from the one that sampled, per token. Explained: share of the "
        "variance of returns that the critic predicts, at all its sites; before the first token of a reply "
        "(state), before later ones (inside) and after the last (end). |A|: mean size of advantages before "
        "whitening, by step of the episode."
    )
    return StudyTable("Credit", note, head, rows, plots)


def _format_credit(name: str, figures: Sequence[float | None]) -> str:
    return _format_number(_mean_known(figures), 5 if name == "update_kl" else 3)


def _title_credit(name: str) -> str:
    """`explained/state` as `explained, state`; `advantage/step_03` as `|A| step 3`."""
    what, _, place = name.partition("/")
    return f"|A| step {int(place[5:])}" if what == "advantage" else f"{what}, {place}"


def _average_steps(found: Sequence[dict[str, float]], what: str) -> list[tuple[int, float]]:
    """(step, mean over seeds) of one kind of figure."""
    names = sorted({name for one in found for name in one if name.startswith(f"{what}/step_")})
    points = [(int(name[-2:]), _mean_known(one.get(name) for one in found)) for name in names]
    return [(step, height) for step, height in points if height is not None]


# --- time ------------------------------------------------------------------------------


def _make_time(results: Results, env: str) -> StudyTable | None:
    runs = {v: [run.times for run in mine if run.times] for v, mine in _select_finished(results, env).items()}
    rows = []
    for variant, times in runs.items():
        if times:
            parts = [_mean_known(one.get(name) for one in times) for name in ("rollout", "actor", "critic")]
            rows.append(
                [
                    variant,
                    *[_format_number(part, 3) for part in parts],
                    _format_number(sum(part or 0 for part in parts), 3),
                ]
            )
    if not rows:
        return None
    note = (
        "Seconds of one update (medians over updates). The critic's time is that of its own passes; a critic "
        "that shares the actor's backbone is part of the actor's time. Runs side by side slow each other "
        "down: compare within a column, not with other machines."
    )
    return StudyTable("Time of an update", note, ["variant", "rollout", "actor", "critic", "together"], rows)


# --- one setting at several values --------------------------------------------------------------


def _make_sweep(results: Results, env: str, sweep: SweepConfig) -> StudyTable | None:
    runs = _select_finished(results, env)
    if not any(variant in runs for names in sweep.lines.values() for variant in names[1:]):
        return None
    head = [sweep.name, "value", "success", "score", "response tokens", "turns"]
    rows, lines = [], {}
    for line, variants in sweep.lines.items():
        figures = [_sweep_figures(runs.get(variant, [])) for variant in variants]
        rows += [
            [line, f"{value:g}", *_sweep_cells(found)]
            for value, found in zip(sweep.values, figures, strict=True)
        ]
        rows.append([line, "change", *[_format_change(column) for column in zip(*figures, strict=True)]])
        heights = zip(sweep.values, (found[0] for found in figures), strict=True)
        lines[line] = [(value, height) for value, height in heights if height is not None]
    series = _make_lines(lines)
    svg = draw_line_chart(
        series, title=f"{env}: success by {sweep.name}", x_label=sweep.name, width=WIDTH, height=HEIGHT
    )
    plots = [Plot(f"sweep-{sweep.name}-{env}", f"success by {sweep.name}", svg)]
    note = f"{sweep.note} Change: from the first value to the last, as a share of the first.".strip()
    return StudyTable(f"Sensitivity to {sweep.name}", note, head, rows, plots)


def _sweep_figures(runs: Sequence[RunResult]) -> list[float | None]:
    success = Figure.of(run.success_after for run in runs)
    named = [_mean_known(run.use.get(name) for run in runs) for name in ("score", "tokens", "turns")]
    return [None if success is None else success.mean, *named]


def _sweep_cells(found: Sequence[float | None]) -> list[str]:
    return [_format_number(value, digits) for value, digits in zip(found, (3, 3, 1, 2), strict=True)]


def _format_change(column: Sequence[float | None]) -> str:
    first, last = column[0], column[-1]
    return NOTHING if not first or last is None else f"{100 * (last / first - 1):+.1f} %"


# --- plots --------------------------------------------------------------------------------------


def _make_panels(
    results: Results, env: str, name: str, title: str, x_label: str, lines: dict[str, list[Any]]
) -> list[Plot]:
    """Lines in panels of at most `PER_PANEL`: the main variants by group, the baseline in each."""
    groups: dict[str, list[str]] = {}
    for variant in results.study.variants:
        if not variant.table and lines.get(variant.name):
            groups.setdefault(variant.group, []).append(variant.name)
    plots: list[Plot] = []
    for group, names in groups.items():
        for start in range(0, len(names), PER_PANEL):
            chosen = {v: lines[v] for v in names[start : start + PER_PANEL]}
            first = results.study.first
            guest = {first: lines[first]} if lines.get(first) and first not in chosen else {}
            svg = draw_line_chart(
                [*_make_lines(chosen), *_make_lines(guest, dashed=True)],
                title=f"{env}: {title}",
                x_label=x_label,
                width=WIDTH,
                height=HEIGHT,
                legend=True,
            )
            number = f"-{len(plots) + 1}" if plots else ""
            plots.append(Plot(f"{name}-{env}{number}", f"{title}, {group}" if group else title, svg))
    return plots


def _make_lines(lines: dict[str, list[Any]], *, dashed: bool = False) -> list[Series]:
    return [
        Series(
            name,
            [float(x) for x, _ in points],
            [float(y) for _, y in points],
            color=5 if dashed else index,
            dashed=dashed,
            marks=len(points) <= 12,
        )
        for index, (name, points) in enumerate(lines.items())
    ]


_TABLES: dict[str, Callable[[Results, str], StudyTable | None]] = {
    "use": _make_use,
    "golden": _make_golden,
    "dynamics": _make_dynamics,
    "credit": _make_credit,
    "time": _make_time,
}
