"""The results of a study, read from its run folders: figures per run, then per variant.

    run folder ─► summary.json, metrics.jsonl ─► RunResult ─┐     (more figures: `measures.py`)
                                                            ├─► results.json ─► table, plots, page
    env, variant, seeds ───────────────────────► Row ───────┘

Terms
* `curve` is held-out success at every evaluation, over environment steps.
* `area` is the mean of that curve, joined by straight lines, from 0 to the horizon of its
  environment: the budget, or without one the steps that every finished run has used. After a run's last
  evaluation its last value counts. It rewards learning early; `success_after` does not. A run that learns
  without playing has no area and does not count for the horizon.
* The figures of a variant, and how it stands to the others, are made in `rows.py`.

Only finished runs count; a row says how many there are. A run that was stopped (`STOPPED_BY`) after its last
evaluations had found no success, where there was some at first, has `collapsed`: a result, 0.00, that counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.config.study import PlannedRun, StudyConfig
from stepwell.core.errors import ConfigError, EncodingError
from stepwell.monitors import jsonl
from stepwell.monitors.summary import Summary
from stepwell.studies.measures import Track, measure_run
from stepwell.studies.rows import Row, list_seeds, make_rows
from stepwell.studies.run_status import DONE, ERROR_FILE, read_status, read_whole_summary

_NUM_POINTS = 200  # of a mean curve
COLLAPSED = "collapsed"
STOPPED_BY = ("ParityError", "DivergenceError")
"""Errors that end a run whose policy has fallen apart; any other failure says nothing about the policy."""


@dataclass(slots=True)
class RunResult:
    """One run. `status` is one of DONE, `collapsed` or `failed` (see `error`), `unfinished` or `waiting`.

    `remark` is for readers of a kept results file, such as that a fault was found since; tables repeat it.
    """

    name: str
    env: str
    variant: str
    seed: int
    status: str
    error: str = ""
    remark: str = ""
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
        return self.status in (*DONE, COLLAPSED)

    def mark_collapse(self) -> RunResult:
        """Count a failed run as collapsed if its errors and evaluations say so; returns itself."""
        if self.status != "failed" or not self.error.startswith(STOPPED_BY) or len(self.curve) < 3:
            return self
        first, *_, before_last, last = (height for _, height in self.curve)
        if first > 0 == before_last == last:
            self.status, self.success_after = COLLAPSED, 0.0
            self.remark = f"collapsed: 0.00 at update {self.updates}, then stopped"
        return self


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

    def has_equal_seeds(self, env: str) -> bool:
        """Whether all variants of an environment have finished the same seeds."""
        seeds = list(list_seeds(run for run in self.runs if run.env == env).values())
        return all(mine == seeds[0] for mine in seeds)

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


def join(
    study: StudyConfig,
    runs: Sequence[PlannedRun],
    files: Sequence[Path],
    chosen: Sequence[PlannedRun] | None = None,
) -> Results:
    """The figures of a study that ran in parts, from the results file of each part; of all or of the chosen.

    If several parts have finished a run, the last file counts: the order of the files decides, for all runs
    alike. A run that no part has started may be gone from the study since.
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
            if result.is_done or (result.status != "waiting" and result.name not in found):
                found[result.name] = result
    if len(kinds) > 1:
        raise ConfigError(
            "--join: some parts are of the short form (--quick) and some are not; join parts of one form"
        )
    if unknown := sorted(found.keys() - {run.name for run in runs}):
        raise ConfigError(f"--join: the study has no run {unknown[0]}; are the files of another one?")
    shown = runs if chosen is None else chosen
    results = [
        found.get(run.name) or RunResult(run.name, run.env, run.variant, run.seed, "waiting") for run in shown
    ]
    return _make_results(study, shown, results, kinds.pop(), machines, sessions)


def _restore_result(values: dict[str, Any]) -> RunResult:
    """A run of a results file; earlier versions called its environment `world`."""
    env = values.get("env") or values["world"]
    rest = {name: value for name, value in values.items() if name != "world"}
    curve = [(int(x), y) for x, y in values["curve"]]
    return RunResult(**rest | {"env": env, "curve": curve}).mark_collapse()


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
        steps = [result.env_steps for result in here if result.is_done and result.env_steps]
        horizons[env] = float(budgets[env] or min(steps, default=0))
        for result in here:
            result.area = _find_area(result, horizons[env])
        rows[env] = make_rows(study, env, here, budgets[env])
    distinct = [machine for index, machine in enumerate(machines) if machine not in machines[:index]]
    return Results(study, is_quick, results, rows, horizons, distinct, sessions)


def _find_area(result: RunResult, horizon: float) -> float | None:
    """None for a run that learnt without playing: its curve has no length."""
    learnt_offline = result.updates > 0 and not result.env_steps
    return area(result.curve, horizon) if result.is_done and horizon and not learnt_offline else None


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


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> dict[str, list[float]]:
    """x, mean, low and high of several curves, up to the end of the shortest."""
    whole = [curve for curve in curves if curve]
    if not whole:
        return {"x": [], "mean": [], "low": [], "high": []}
    end = min(curve[-1][0] for curve in whole)
    grid = np.array(sorted({x for curve in whole for x, _ in curve if x <= end}), dtype=np.float64)
    if len(grid) > _NUM_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, _NUM_POINTS).astype(int)]
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
    return result.mark_collapse()


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
