"""The content of each page, from the files of a run: what a template gets, without any HTML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.core.errors import EncodingError, InputError, StepwellError
from stepwell.monitors.curves import DrawnPanel, draw_learning_curve, draw_training_panels
from stepwell.monitors.films import can_make_video
from stepwell.monitors.phases import read_phases, tabulate_phases
from stepwell.monitors.replays import FILE_NAME as REPLAYS
from stepwell.monitors.replays import load_replays
from stepwell.monitors.timeline import draw_timeline, read_timeline
from stepwell.pool import Filter, Pool
from stepwell.pool.credit_reading import list_credit_updates, read_update_credit
from stepwell.view.comparison import AXES, choose_colors, describe_record, draw_comparison, group_runs
from stepwell.view.credit_chart import draw_credit_chart
from stepwell.view.robot_films import can_simulate
from stepwell.view.run_files import ViewedRun, read_study
from stepwell.view.run_finder import RunIndex
from stepwell.view.trajectory_content import show_trajectory
from stepwell.view.trajectory_list import FIELDS, find_rows
from stepwell.view.tree_chart import build_batch_tree, draw_batch_tree

Page = tuple[str, dict[str, Any]]
RunPage = Callable[[ViewedRun, Any], Page]
_PIPELINE = (
    "simulators/",
    "generators/",
    "trainers/",
    "staleness/",
    "sync/",
    "time/",
    "episodes/",
    "memory/",
    "infra_errors",
)
_TREE_TRAJECTORIES = 32
_MAX_EVENTS = 200
_MAX_DRAWN = 24
_DRAWN: dict[tuple[object, ...], tuple[str, list[DrawnPanel]]] = {}


def show_overview(shelf: RunIndex, query: Any) -> Page:
    """Several runs over one axis."""
    shelf.refresh()
    runs = [run for run in shelf.runs.values() if not run.is_pool_only]
    chosen = [run for run in runs if run.name in query.getlist("run")] or runs
    axis = query.get("x") if query.get("x") in AXES else "update"
    has_seeds = any(len(members) > 1 for members in group_runs(chosen).values())
    as_bands = has_seeds and query.get("seeds") != "lines"
    return "overview", {
        "runs": runs,
        "chosen": chosen,
        "axes": AXES,
        "axis": axis,
        "has_seeds": has_seeds,
        "as_bands": as_bands,
        "panels": draw_comparison(chosen, axis, as_bands=as_bands),
        "rows": [_summarize_run(run) for run in chosen],
        "colors": choose_colors(chosen, as_bands=as_bands),
    }


def _summarize_run(run: ViewedRun) -> dict[str, Any]:
    entries = run.entries
    evals = [entry for entry in entries if entry.kind == "eval" and "success" in entry.values]
    updates = [entry for entry in entries if entry.kind == "update"]
    return {
        "run": run,
        "num_done": updates[-1].update if updates else 0,
        "env_steps": entries[-1].env_steps if entries else 0,
        "time_s": entries[-1].time_s if entries else 0.0,
        "first": evals[0].values if evals else None,
        "last": evals[-1].values if evals else None,
        "best": max((entry.values["success"] for entry in evals), default=None),
        "speed": updates[-1].values.get("tokens_per_s") if updates else None,
    }


def show_run(run: ViewedRun, query: Any) -> Page:
    """One run: its state, its curves, its events, its replays."""
    if run.is_pool_only:
        return show_trajectories(run, query)
    entries = run.entries
    axis = query.get("x") if query.get("x") in ("env_steps", "time_s", "update") else "update"
    curve, panels = _draw_run(run, axis)
    return "run", {
        "run": run,
        "row": _summarize_run(run),
        "axis": axis,
        "axes": {name: AXES[name] for name in ("update", "env_steps", "time_s")},
        "curve": curve,
        "panels": panels,
        "events": [entry for entry in entries if entry.kind == "event"][-_MAX_EVENTS:],
        "replays": _list_replays(run),
        "has_video": can_make_video(),
        "settings": _read_text(run.folder / "config.toml"),
    }


def _draw_run(run: ViewedRun, axis: str) -> tuple[str, list[DrawnPanel]]:
    """The learning curve and the panels of a run; kept until it records something new."""
    key = (*describe_record(run), axis)
    if key not in _DRAWN:
        while len(_DRAWN) >= _MAX_DRAWN:
            del _DRAWN[next(iter(_DRAWN))]
        entries = run.entries
        has_evals = any(entry.kind == "eval" for entry in entries)
        curve = draw_learning_curve(entries, axis, [], 860) if has_evals else ""
        _DRAWN[key] = curve, draw_training_panels(entries)
    return _DRAWN[key]


def _list_replays(run: ViewedRun) -> list[Any]:
    """The replays in which something moves, with their numbers in the file."""
    try:
        replays = load_replays(run.folder / REPLAYS)
    except EncodingError:
        return []
    return [(i, one) for i, one in enumerate(replays) if len({frame.image_png for frame in one.frames}) > 1]


def _read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def show_trajectories(run: ViewedRun, query: Any) -> Page:
    """The list with its filters."""
    problem, rows = "", None
    try:
        pool = _require_pool(run)
        rows = find_rows(pool, query, index=run.texts)
        if query.get("text", "").strip() and run.texts is not None:
            run.texts.start_reading()
    except InputError as error:
        problem = str(error)
    return "trajectories", {
        "run": run,
        "given": {name: query.get(name, "") for name in FIELDS},
        "rows": rows,
        "problem": problem,
        "is_first": not query.get("after"),
    }


def show_one_trajectory(run: ViewedRun, query: Any) -> Page:
    """One trajectory, step by step."""
    pool, id = _require_pool(run), query.get("id", "")
    update = query.get("update", "")
    shown = show_trajectory(run, pool, id, int(update) if update.isdigit() else None)
    film = "seen" if shown.has_camera else "again" if can_simulate(run, shown.stored) else ""
    return "trajectory", {
        "run": run,
        "shown": shown,
        "is_writable": not pool.is_read_only,
        "film": film,
        "is_asked": film == "seen" or bool(query.get("again")),
        "has_video": can_make_video(),
        "credit_svg": draw_credit_chart([step.credit for step in shown.steps if step.credit is not None]),
        **_find_neighbours(pool, id),
    }


def _find_neighbours(pool: Pool, id: str) -> dict[str, str | None]:
    older = next(iter(pool.find(newest_first=True, limit=1, after=id)), None)
    newer = next(iter(pool.find(limit=1, after=id)), None)
    return {"older": older.id if older else None, "newer": newer.id if newer else None}


def show_group(run: ViewedRun, query: Any) -> Page:
    """Siblings of a group side by side."""
    pool, name = _require_pool(run), query.get("name", "")
    rows = list(pool.find(Filter(group=name), limit=16)) if name else []
    if not rows:
        raise InputError("there is no such group, or its trajectories were removed")
    shown = [show_trajectory(run, pool, row.id) for row in rows]
    tree = build_batch_tree([one.stored.trajectory for one in shown])
    return "group", {
        "run": run,
        "name": name,
        "shown": shown,
        "num_steps": max(len(one.steps) for one in shown),
        "tree": tree,
        "svg": draw_batch_tree(tree) if tree else "",
    }


def show_tree(run: ViewedRun, query: Any) -> Page:
    """The prefix tree of an update's batch."""
    pool, updates = _require_pool(run), [] if run.is_pool_only else list_credit_updates(run.folder)
    wanted = query.get("update", "")
    update = (
        int(wanted) if wanted.isdigit() and int(wanted) in updates else (updates[-1] if updates else None)
    )
    ids = _list_batch(run, pool, update)
    found = list(pool.trajectories(Filter(ids=ids[:_TREE_TRAJECTORIES])))
    trajectories = sorted(found, key=lambda trajectory: trajectory.group)
    tree = build_batch_tree(trajectories)
    return "tree", {
        "run": run,
        "updates": updates,
        "update": update,
        "num_all": len(ids),
        "tree": tree,
        "svg": draw_batch_tree(tree) if tree else "",
    }


def _list_batch(run: ViewedRun, pool: Pool, update: int | None) -> list[str]:
    """The trajectories of an update; the newest ones where no update is known."""
    if update is not None:
        return [record.trajectory for record in read_update_credit(run.folder, update)]
    rows = pool.find(Filter(channel="train"), newest_first=True, limit=_TREE_TRAJECTORIES)
    return [row.id for row in rows]


def show_pipeline(run: ViewedRun, query: Any) -> Page:
    """Who worked when, queues, waits, staleness and restarts."""
    try:
        timeline = read_timeline(run.folder)
    except EncodingError:
        timeline = None
    entries = [
        _select_metrics(entry, lambda name: name.startswith(_PIPELINE) or name == "tokens_per_s")
        for entry in run.entries
        if entry.kind == "update"
    ]
    words = ("restart", "died", "worker", "stale", "lost", "refill", "paused", "resumed", "failed")
    events = [e for e in run.entries if e.kind == "event" and any(word in e.text.lower() for word in words)]
    return "pipeline", {
        "run": run,
        "timeline": timeline,
        "svg": draw_timeline(timeline, 860) if timeline else "",
        "panels": draw_training_panels(entries),
        "events": events[-_MAX_EVENTS:],
    }


def _select_metrics(entry: Any, is_wanted: Callable[[str], bool]) -> Any:
    from dataclasses import replace

    return replace(entry, values={name: value for name, value in entry.values.items() if is_wanted(name)})


def show_curriculum(run: ViewedRun, query: Any) -> Page:
    """Tasks by phase, their lineage, what was dropped, and the perplexities of replay."""
    problem, phases = "", []
    try:
        phases = read_phases(run.folder)
    except StepwellError as error:
        problem = str(error)
    tasks = _count_tasks(run)
    return "curriculum", {
        "run": run,
        "problem": problem,
        **tabulate_phases(phases),
        "tasks": tasks,
    }


def _count_tasks(run: ViewedRun, num_read: int = 2000) -> list[dict[str, Any]]:
    """The tasks of the newest trajectories: how often each was played and solved, the hardest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in run.pool.find(newest_first=True, limit=num_read) if run.pool else ():
        task = found.setdefault(row.task_id, {"id": row.task_id, "env": row.env, "played": 0, "solved": 0})
        task["played"] += 1
        task["solved"] += row.is_success
    return sorted(found.values(), key=lambda task: (task["solved"] / task["played"], -task["played"]))[:100]


def show_study(folder: Path) -> Page:
    """A study's table with its paired differences."""
    results = read_study(folder)
    if results is None:
        raise InputError("this study has no results yet")
    if not all("env" in row and "variant" in row for row in results.get("rows", ())):
        raise InputError("results.json is of an older version; write it again with `stepwell study`")
    for row in results["rows"]:
        row.setdefault("compared_with", row.get("beside"))  # its former name
    envs = list(dict.fromkeys(row["env"] for row in results["rows"]))
    return "study", {"results": results, "envs": envs, "name": folder.name}


def _require_pool(run: ViewedRun) -> Pool:
    if run.pool is None:
        raise InputError("this run has no pool: it was deleted, or checkpoint.trajectories_mb is 0")
    return run.pool


RUN_PAGES: dict[str, RunPage] = {
    "": show_run,
    "/trajectories": show_trajectories,
    "/trajectory": show_one_trajectory,
    "/group": show_group,
    "/tree": show_tree,
    "/pipeline": show_pipeline,
    "/curriculum": show_curriculum,
}
