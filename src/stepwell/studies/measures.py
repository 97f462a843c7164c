"""What a run of a study shows besides success: how its agent worked, and what it cost.

    eval_episodes.jsonl ─► by_task  success on each held-out task, in the order of their ids
                        └► use      means per episode at the end: turns, tokens, score, calls/TOOL, …
                        └► golden   success and extra turns by the length of the shortest plan
    metrics.jsonl ───────► tracks   training success, reward, critic loss, explained variance over updates
                        ├► credit   sizes of advantages, what the critic explains by site, share clipped, KL
                        └► times    seconds of an update: rollout, actor, critic
    elsewhere.json ──────► elsewhere  success on held-out tasks of other settings

Everything is small enough for `results.json`, so that parts of a study that ran on several machines can be
joined without their run folders.

Terms
* Extra turns are those of solved episodes beyond the shortest plan; the length of a failed episode says
  nothing.
* Times are medians over updates, so the first one, which fills caches, hardly counts. `critic` is there if
  the critic has a backbone of its own; the time of a shared one is part of `actor`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.core.errors import EncodingError
from stepwell.runs.evaluation.episodes_file import EvalEpisode, read_episodes
from stepwell.studies.run_status import ELSEWHERE_FILE

TRACKS = {
    "train_success": "success",
    "reward": "reward",
    "critic_loss": "loss/value",
    "explained": "explained_variance",
}
CREDIT = ("advantage/", "explained/", "clip_share", "explained_variance", "update_kl")
GATE = {"explained": "explained_variance", "grounding": "grounding_share"}
MAX_POINTS = 60
Track = list[tuple[int, float]]


def measure_run(folder: Path, entries: Sequence[Any]) -> dict[str, Any]:
    """Fields of a `RunResult` from a run's folder; empty if it has no such files."""
    try:
        episodes = read_episodes(folder)
    except EncodingError:  # an older evaluation's success is known without it
        episodes = []
    updates = [entry for entry in entries if entry.kind == "update"]
    return {
        "by_task": list_success_by_task(episodes),
        "use": summarize_use(episodes),
        "golden": summarize_golden(episodes),
        "tracks": read_tracks(updates),
        "credit": summarize_credit(updates),
        "gate": measure_gate(updates),
        "times": measure_times(updates),
        "elsewhere": _read_elsewhere(folder),
    }


def list_success_by_task(episodes: Sequence[EvalEpisode]) -> list[float]:
    """The share of solved attempts on each task, by the order of task ids: equal in all runs of a study."""
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        found.setdefault(episode.task, []).append(episode.success)
    return [round(statistics.fmean(found[task]), 4) for task in sorted(found)]


def summarize_use(episodes: Sequence[EvalEpisode]) -> dict[str, float]:
    """Means over episodes. A figure that some episodes lack is the mean of those that have it."""
    if not episodes:
        return {}
    found: dict[str, list[float]] = {}
    tools = sorted({name for episode in episodes for name in episode.calls or ()})
    for episode in episodes:
        figures: dict[str, float | None] = {
            "turns": episode.turns,
            "tokens": episode.tokens,
            "score": episode.score,
            **{f"measures/{name}": value for name, value in episode.measures.items()},
        }
        if tools:
            calls = episode.calls or {}
            figures |= {f"calls/{name}": calls.get(name, 0) for name in tools}
            figures["lost_calls"] = episode.lost_calls
        for name, value in figures.items():
            if value is not None:
                found.setdefault(name, []).append(float(value))
    return {name: statistics.fmean(values) for name, values in found.items()}


def summarize_golden(episodes: Sequence[EvalEpisode]) -> list[dict[str, Any]]:
    """Per length of the shortest plan: number of episodes, share solved, mean of their extra turns."""
    rows = []
    for golden in sorted({episode.golden for episode in episodes if episode.golden is not None}):
        mine = [episode for episode in episodes if episode.golden == golden]
        extra = [episode.turns - golden for episode in mine if episode.success]
        rows.append(
            {
                "golden": golden,
                "num": len(mine),
                "success": len(extra) / len(mine),
                "extra": statistics.fmean(extra) if extra else None,
            }
        )
    return rows


def read_tracks(updates: Sequence[Any]) -> dict[str, Track]:
    """Figures over updates, where the run has them."""
    tracks = {}
    for name, key in TRACKS.items():
        points = [(entry.update, entry.values[key]) for entry in updates if key in entry.values]
        if points:
            tracks[name] = thin_track(points)
    return tracks


def summarize_credit(updates: Sequence[Any]) -> dict[str, float]:
    """Means over the updates that change the policy; by step and site with `train.measure_credit`."""
    found: dict[str, list[float]] = {}
    for entry in updates:
        if "loss/policy" not in entry.values:
            continue
        for name, value in entry.values.items():
            if name.startswith(CREDIT):
                found.setdefault(name, []).append(value)
    return {name: round(statistics.fmean(values), 6) for name, values in sorted(found.items())}


def measure_gate(updates: Sequence[Any]) -> dict[str, float]:
    """What the first update that changes the policy says of critic and descriptions."""
    first: dict[str, float] = next((one.values for one in updates if "loss/policy" in one.values), {})
    return {name: round(first[key], 4) for name, key in GATE.items() if key in first}


def thin_track(track: Track, most: int = MAX_POINTS) -> Track:
    """At most this many points: means of neighbours, at the last update of each.

    >>> thin_track([(1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0)], 2)
    [(2, 0.5), (4, 3.0)]
    """
    pieces = np.array_split(np.arange(len(track)), min(most, len(track)))
    return [
        (track[piece[-1]][0], statistics.fmean(track[index][1] for index in piece))
        for piece in (list(map(int, piece)) for piece in pieces)
    ]


def measure_times(updates: Sequence[Any]) -> dict[str, float]:
    """Seconds of one update; empty for a run that has made none."""

    def median(name: str) -> float | None:
        values = [entry.values[name] for entry in updates if name in entry.values]
        return statistics.median(values) if values else None

    rollout, update, critic = (median(f"time/{name}_s") for name in ("rollout", "update", "critic"))
    if rollout is None or update is None:
        return {}
    return {
        "rollout": rollout,
        "actor": update - (critic or 0.0),
        **({} if critic is None else {"critic": critic}),
    }


def _read_elsewhere(folder: Path) -> dict[str, float]:
    path = folder / ELSEWHERE_FILE
    try:
        content: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:  # torn by a full disk; shown as a run without it
        return {}
    return content
