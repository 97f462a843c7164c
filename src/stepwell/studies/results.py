"""The results of a study, read from its run folders: figures per run, then per variant.

    run folder ─► summary.json, metrics.jsonl ─► RunResult ─┐     (more figures: `measures.py`)
                                                            ├─► results.json ─► table, plots, page
    env, variant, seeds ───────────────────────► Row ───────┘

Terms
* `curve` is held-out success at every evaluation, over environment steps.
* `area` is the mean of that curve, joined by straight lines, from 0 to the horizon of its
  environment: the budget, or without one the steps that every finished run has used. After a run's last
  evaluation its last value counts. It rewards learning early; `success_after` does not.
* `spread` is the standard deviation over seeds (of a sample: n - 1); one seed has none.
* A variant is `close` to the best of its environment if the two intervals mean ± spread overlap: so few
  seeds do not tell them apart. Without a spread nothing is called close.
* `difference` is that of success to the variant beside it, pair by pair over the seeds that both have
  finished (`differences.py`).

Only finished runs count in a row; a row says how many there are.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.config.study import PlannedRun, StudyConfig
from stepwell.core.errors import ConfigError, EncodingError
from stepwell.core.statistics import PairedDifference, compare_pairs
from stepwell.monitors import jsonl
from stepwell.monitors.summary import Summary
from stepwell.studies.measures import Track, measure_run
from stepwell.studies.run_status import DONE, ERROR_FILE, read_status, read_whole_summary


@dataclass(slots=True)
class RunResult:
    """One run. `status` is one of DONE, `failed` (see `error`), `unfinished` or `waiting`."""

    name: str
    env: str
    variant: str
    seed: int
    status: str
    error: str = ""
    success_before: float | None = None
    success_after: float | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    best: float | None = None
    area: float | None = None
    env_steps: int = 0
    updates: int = 0
    wall_s: float = 0.0
    updates_per_min: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    by_task: list[float] = field(default_factory=list)
    use: dict[str, float] = field(default_factory=dict)
    golden: list[dict[str, Any]] = field(default_factory=list)
    tracks: dict[str, Track] = field(default_factory=dict)
    credit: dict[str, float] = field(default_factory=dict)
    gate: dict[str, float] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    elsewhere: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.status in DONE


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

    def overlaps(self, other: Figure) -> bool:
        """Whether mean ± spread of the two overlap."""
        if self.spread is None or other.spread is None:
            return False
        return abs(self.mean - other.mean) <= self.spread + other.spread


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
    beside: str = ""
    elsewhere: dict[str, Figure] = field(default_factory=dict)
    standing: str = ""
    budget_share: float | None = None
    difference: PairedDifference | None = None


@dataclass(slots=True)
class Results:
    """The figures of a study; `as_json` is the content of `results.json`."""

    study: StudyConfig
    is_quick: bool
    runs: list[RunResult]
    rows: dict[str, list[Row]]
    horizons: dict[str, float]
    machines: list[dict[str, Any]]
    sessions: list[dict[str, Any]]

    @property
    def num_done(self) -> int:
        return sum(run.is_done for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.study.name,
            "title": self.study.title,
            "note": self.study.note,
            "is_quick": self.is_quick,
            "num_runs": len(self.runs),
            "num_done": self.num_done,
            "baseline": self.study.first,
            "horizons": self.horizons,
            "sessions": self.sessions,
            "machines": self.machines,
            "rows": [asdict(row) for rows in self.rows.values() for row in rows],
            "runs": [{k: v for k, v in asdict(run).items() if k != "machine"} for run in self.runs],
        }


def collect_results(
    study: StudyConfig, runs: Sequence[PlannedRun], *, is_quick: bool, sessions: list[dict[str, Any]]
) -> Results:
    """Read every run folder and compute the figures."""
    results = [_read_result(run) for run in runs]
    machines = [result.machine for result in results if result.machine]
    return _make_results(study, runs, results, is_quick, machines, sessions)


def join(study: StudyConfig, runs: Sequence[PlannedRun], files: Sequence[Path]) -> Results:
    """The figures of a study that ran in parts, from the results file of each part.

    If several parts have finished a run, the last file counts: the order of the files decides, for all runs
    alike.
    """
    found: dict[str, RunResult] = {}
    machines, sessions, kinds = [], [], set()
    for file in files:
        part = _read_results(file, study)
        kinds.add(bool(part["is_quick"]))
        machines += part["machines"]
        sessions += part.get("sessions", part.get("sittings", []))
        for values in part["runs"]:
            result = _restore_result(values)
            if result.is_done or result.name not in found:
                found[result.name] = result
    if len(kinds) > 1:
        raise ConfigError(
            "--join: some parts are of the short form (--quick) and some are not; join parts of one form"
        )
    if unknown := sorted(found.keys() - {run.name for run in runs}):
        raise ConfigError(f"--join: the study has no run {unknown[0]}; are the files of another one?")
    results = [
        found.get(run.name) or RunResult(run.name, run.env, run.variant, run.seed, "waiting") for run in runs
    ]
    return _make_results(study, runs, results, kinds.pop(), machines, sessions)


def _restore_result(values: dict[str, Any]) -> RunResult:
    """A run of a results file; earlier versions called its environment `world`."""
    env = values.get("env") or values["world"]
    rest = {name: value for name, value in values.items() if name != "world"}
    return RunResult(**rest | {"env": env, "curve": [(int(x), y) for x, y in values["curve"]]})


def _read_results(file: Path, study: StudyConfig) -> dict[str, Any]:
    try:
        part: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        name = part["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--join: {file} is not the results.json of a study ({error!r})") from error
    if name != study.name:
        raise ConfigError(f"--join: {file} is of the study {name!r}, not of {study.name!r}")
    return part


def _make_results(
    study: StudyConfig,
    runs: Sequence[PlannedRun],
    results: list[RunResult],
    is_quick: bool,
    machines: Sequence[dict[str, Any]],
    sessions: list[dict[str, Any]],
) -> Results:
    envs = list(dict.fromkeys(run.env for run in runs))
    budgets = {run.env: run.config.train.max_env_steps for run in runs}
    horizons, rows = {}, {}
    for env in envs:
        here = [result for result in results if result.env == env]
        steps = [result.env_steps for result in here if result.is_done and result.updates]
        horizons[env] = float(budgets[env] or min(steps, default=0))
        for result in here:
            result.area = area(result.curve, horizons[env]) if result.is_done else None
        rows[env] = _make_rows(study, env, here, budgets[env])
    distinct = [machine for index, machine in enumerate(machines) if machine not in machines[:index]]
    return Results(study, is_quick, results, rows, horizons, distinct, sessions)


def area(curve: Sequence[tuple[float, float]], horizon: float) -> float | None:
    """The mean height of a curve of straight lines from 0 to `horizon`; its last value continues.

    >>> area([(0, 0.0), (10, 1.0)], 20)
    0.75
    """
    if not curve:
        return None
    x, y = (np.array(values, dtype=np.float64) for values in zip(*curve, strict=True))
    if horizon <= 0:
        return float(y[0])
    inside = x[(x > 0) & (x < horizon)]
    at = np.concatenate([[0.0], inside, [horizon]])
    return float(np.trapezoid(np.interp(at, x, y), at) / horizon)


def mean_curve(
    curves: Sequence[Sequence[tuple[float, float]]], num_points: int = 200
) -> dict[str, list[float]]:
    """x, mean, low and high of several curves, up to the end of the shortest."""
    whole = [curve for curve in curves if curve]
    if not whole:
        return {"x": [], "mean": [], "low": [], "high": []}
    end = min(curve[-1][0] for curve in whole)
    grid = np.array(sorted({x for curve in whole for x, _ in curve if x <= end}), dtype=np.float64)
    if len(grid) > num_points:
        grid = grid[np.linspace(0, len(grid) - 1, num_points).astype(int)]
    values = np.array([np.interp(grid, [x for x, _ in c], [y for _, y in c]) for c in whole])
    return {
        "x": grid.tolist(),
        "mean": values.mean(axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }


def _read_result(run: PlannedRun) -> RunResult:
    folder = Path(run.config.folder) / run.name
    result = RunResult(run.name, run.env, run.variant, run.seed, read_status(folder))
    if result.status == "failed":
        result.error = (folder / ERROR_FILE).read_text(encoding="utf-8").strip()
    entries = _read_entries(folder)
    evals = [entry for entry in entries if entry.kind == "eval" and "success" in entry.values]
    result.curve = [(entry.env_steps, entry.values["success"]) for entry in evals]
    result.best = max((height for _, height in result.curve), default=None)
    if entries:
        result.env_steps, result.updates = entries[-1].env_steps, max(entry.update for entry in entries)
        result.wall_s = entries[-1].time_s
    if result.curve:
        result.success_before = result.curve[0][1]
    summary = read_whole_summary(folder)
    if summary is not None and result.is_done:
        _add_summary(result, summary)
        for name, value in measure_run(folder, entries).items():
            setattr(result, name, value)
    return result


def _add_summary(result: RunResult, summary: Summary) -> None:
    result.success_before, result.success_after = summary.success_before, summary.success_after
    result.before = _read_bounds(summary.before)
    result.after = _read_bounds(summary.after)
    result.env_steps, result.wall_s, result.machine = summary.env_steps, summary.wall_s, summary.machine
    result.updates = int(summary.more.get("num_updates", result.updates))
    training_s = summary.wall_s - float(summary.more.get("warm_start_s", 0.0))
    result.updates_per_min = 60 * result.updates / training_s if training_s > 0 else None


def _read_bounds(score: Any) -> dict[str, Any] | None:
    return None if score is None else {name: getattr(score, name) for name in ("low", "high", "num_tasks")}


def _read_entries(folder: Path) -> list[Any]:
    try:
        return jsonl.read_entries(folder / jsonl.FILE_NAME)
    except EncodingError:  # the run itself reports it when it resumes
        return []


def _make_rows(study: StudyConfig, env: str, results: Sequence[RunResult], budget: int | None) -> list[Row]:
    """The baseline, then the others from best to worst; those without figures come last."""
    rows = []
    for variant in study.variants:
        mine = [result for result in results if result.variant == variant.name]
        if not mine:  # it does not run in this environment
            continue
        done = [result for result in mine if result.is_done]
        row = Row(
            env,
            variant.name,
            variant.group,
            variant.note,
            len(done),
            len(mine),
            variant.name == study.first,
            before=Figure.of(result.success_before for result in done),
            after=Figure.of(result.success_after for result in done),
            best=Figure.of(result.best for result in done),
            area=Figure.of(result.area for result in done),
            updates_per_min=Figure.of(result.updates_per_min for result in done),
            env_steps=Figure.of(float(result.env_steps) for result in done),
            table=variant.table,
            beside=variant.beside or study.first,
            elsewhere=_mean_elsewhere(done),
        )
        if row.beside != row.variant:
            beside = [result for result in results if result.variant == row.beside]
            row.difference = compare_variants(mine, beside)
        if budget is not None and row.env_steps is not None and any(result.updates for result in done):
            row.budget_share = row.env_steps.low / budget
        rows.append(row)
    rows = [*mark_best([row for row in rows if not row.table]), *(row for row in rows if row.table)]
    return sorted(rows, key=lambda row: (not row.is_baseline, -row.after.mean if row.after else math.inf))


def compare_variants(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> PairedDifference | None:
    """The difference of two variants over the seeds that both have finished; None without any."""
    beside = {run.seed: run for run in theirs if run.is_done and run.success_after is not None}
    pairs = [
        (run, beside[run.seed])
        for run in ours
        if run.is_done and run.success_after is not None and run.seed in beside
    ]
    if not pairs:
        return None
    lengths = {len(run.by_task) for pair in pairs for run in pair}
    if len(lengths) == 1 and lengths != {0}:
        return compare_pairs([one.by_task for one, _ in pairs], [other.by_task for _, other in pairs])
    means = [[[run.success_after or 0.0] for run in side] for side in zip(*pairs, strict=True)]
    return compare_pairs(means[0], means[1])


def _mean_elsewhere(done: Sequence[RunResult]) -> dict[str, Figure]:
    names = dict.fromkeys(name for result in done for name in result.elsewhere)
    figures = {name: Figure.of(result.elsewhere.get(name) for result in done) for name in names}
    return {name: figure for name, figure in figures.items() if figure}


def mark_best(rows: Sequence[Row]) -> list[Row]:
    """The rows of one table, with the best marked and those that cannot be told apart from it."""
    best = max((row for row in rows if row.after), key=lambda row: row.after.mean, default=None)  # type: ignore[union-attr]
    if best is None or best.after is None:
        return list(rows)
    return [replace(row, standing=_compare_to_best(row.after, best.after)) for row in rows]


def _compare_to_best(figure: Figure | None, best: Figure) -> str:
    if figure is None:
        return ""
    return "best" if figure.mean == best.mean else "close" if figure.overlaps(best) else ""
