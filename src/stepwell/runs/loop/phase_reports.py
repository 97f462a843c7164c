"""Reports of finished phases: read from the pool and the run's files, printed once, stored for the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.curriculum import PhaseFiles, ScoreFiles
from stepwell.curriculum.phase_summary import describe_summary, summarize_phase, write_phase_summary
from stepwell.envs.base import Env
from stepwell.envs.registry import find_env_type
from stepwell.pool import Filter
from stepwell.runs.build.components import Components
from stepwell.runs.build.phases import find_phase_length
from stepwell.runs.loop import replay, task_feeds


def report_phase(
    components: Components, folder: Path, run: str, update: int, note: Callable[[str], None]
) -> None:
    """Report the phase of this update, its last so far. Does nothing in a run without phases."""
    length = find_phase_length(components.config, components.recipe)
    if length is None or update == 0:
        return
    phase = (update - 1) // length + 1
    first = (phase - 1) * length + 1
    files, scores = PhaseFiles(folder / task_feeds.FOLDER), ScoreFiles(folder / replay.FOLDER)
    if not files.has_phase(phase):  # an asynchronous run learns in it from episodes of the phase before
        return
    updates = range(first, update + 1)
    played = task_feeds.find_played(components, run, updates)
    summary = summarize_phase(
        phase,
        updates,
        files.read_phase(phase),
        files.read_dropped(phase),
        components.pool.trajectories(Filter(ids=[entry.id for entry in played])),
        scores.read_scores(first) if first in scores.list_updates() else (),
        **_find_namers(components),
        max_turns=components.backend.horizon,
    )
    write_phase_summary(folder, summary)
    note(describe_summary(summary))


def _find_namers(components: Components) -> dict[str, Any]:
    """What tells the family of a task, and its requirements."""
    if components.has_env and issubclass(kind := find_env_type(components.config.env.name), Env):
        return {"name_family": kind.name_family, "count_requirements": kind.count_requirements}
    return {"name_family": lambda task: task.tags[0] if task.tags else task.env}
