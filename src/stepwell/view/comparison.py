"""Charts of several runs over one axis: a line per run, or a band per group of seeds.

    entries ─► Track (x and y of one metric) ─► thinned ─► one chart per panel

Runs whose settings differ only in seed, name and folder are one group. As bands, a group is its mean with the
range from the lowest to the highest seed, where all of its seeds have values.

Invariant: thinning keeps the lowest and the highest value of every bucket, so that no spike is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.monitors.base import LogEntry
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.monitors.curves import choose_range
from stepwell.monitors.panel import Panel
from stepwell.monitors.panels import PANELS
from stepwell.view.run_files import ViewedRun

AXES = {
    "update": "updates",
    "env_steps": "environment steps",
    "tokens": "action tokens",
    "time_s": "wall clock, seconds",
}
HELD_OUT = Panel("Held-out success", ("success",), "Success on tasks that are never trained on.", 0.0, 1.0)
_SHOWN = (
    "success",
    "reward",
    "entropy",
    "kl",
    "clip_share",
    "explained_variance",
    "staleness/mean",
    "tokens_per_s",
)
_NUM_BUCKETS = 240
_SMALL_BUCKETS = 110  # of a small chart
_GRID = 160
_MAX_DRAWN = 24


@dataclass(frozen=True, slots=True)
class Track:
    """One metric of one run."""

    name: str
    x: AnyArray
    y: AnyArray
    low: AnyArray | None = None
    high: AnyArray | None = None


@dataclass(frozen=True, slots=True)
class ComparedPanel:
    """One chart of the overview."""

    title: str
    meaning: str
    svg: str
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class RecordedCurves:
    """The entries of one run by kind, with their places on an axis: read once for all of its charts."""

    name: str
    entries: dict[str, list[LogEntry]]
    places: dict[str, list[float]]

    @classmethod
    def read(cls, run: ViewedRun, axis: str) -> RecordedCurves:
        """What the run has recorded so far."""
        record = cls(run.name, {"update": [], "eval": []}, {"update": [], "eval": []})
        num_tokens = 0.0
        for entry in run.entries:
            if entry.kind == "update":
                tokens = entry.values.get("tokens", 0.0)
                num_tokens += tokens if math.isfinite(tokens) else 0.0
            if entry.kind in record.entries:
                record.entries[entry.kind].append(entry)
                place = num_tokens if axis == "tokens" else float(getattr(entry, axis))
                record.places[entry.kind].append(place)
        return record

    def read_track(self, metric: str, kind: str) -> Track | None:
        """One metric; None if it was never recorded."""
        found = [
            (place, entry.values)
            for place, entry in zip(self.places[kind], self.entries[kind], strict=True)
            if metric in entry.values
        ]
        if not found:
            return None
        x, y = np.array([place for place, _ in found]), np.array([values[metric] for _, values in found])
        low, high = (
            np.array([values.get(name, math.nan) for _, values in found]) if kind == "eval" else None
            for name in ("low", "high")
        )
        return Track(self.name, x, y.astype(np.float64), low, high)


_DRAWN: dict[tuple[object, ...], list[ComparedPanel]] = {}


def group_runs(runs: Sequence[ViewedRun]) -> dict[str, list[ViewedRun]]:
    """Runs by group; a group has the name of its first run without its seed."""
    found: dict[str, list[ViewedRun]] = {}
    for run in runs:
        found.setdefault(_describe_group(run), []).append(run)
    return {_name_group(members): members for members in found.values()}


def choose_colors(runs: Sequence[ViewedRun], *, as_bands: bool) -> dict[str, int]:
    """The number of each run's colour, by name; with bands, a group has one."""
    groups = list(group_runs(runs).values()) if as_bands else [[run] for run in runs]
    return {run.name: index for index, members in enumerate(groups) for run in members}


def list_reward_parts(runs: Sequence[ViewedRun]) -> list[str]:
    """The metrics `reward/…` that are not always 0. A part without a weight is always 0."""
    values = (pair for run in runs for entry in run.entries for pair in entry.values.items())
    return sorted({name for name, value in values if value and name.startswith("reward/")})


def draw_comparison(runs: Sequence[ViewedRun], axis: str, *, as_bands: bool) -> list[ComparedPanel]:
    """The panels of the overview: held-out success first. What was drawn of the same entries is kept."""
    key = (tuple(describe_record(run) for run in runs), axis, as_bands)
    if key not in _DRAWN:
        while len(_DRAWN) >= _MAX_DRAWN:
            del _DRAWN[next(iter(_DRAWN))]
        _DRAWN[key] = _draw_panels(runs, axis, as_bands)
    return _DRAWN[key]


def describe_record(run: ViewedRun) -> tuple[str, str, int, float]:
    """Changes when the run has recorded something."""
    entries = run.entries
    return run.name, str(run.folder), len(entries), entries[-1].time_s if entries else 0.0


def _draw_panels(runs: Sequence[ViewedRun], axis: str, as_bands: bool) -> list[ComparedPanel]:
    colors = choose_colors(runs, as_bands=as_bands)
    groups = group_runs(runs) if as_bands else {run.name: [run] for run in runs}
    records = {name: [RecordedCurves.read(run, axis) for run in members] for name, members in groups.items()}
    panels = [_draw_panel(HELD_OUT, "success", "eval", records, colors, axis)]
    for metric in [*_SHOWN, *list_reward_parts(runs)]:
        panels.append(_draw_panel(_find_panel(metric), metric, "update", records, colors, axis))
    return [panel for panel in panels if panel is not None]


def _draw_panel(
    panel: Panel,
    metric: str,
    kind: str,
    groups: dict[str, list[RecordedCurves]],
    colors: dict[str, int],
    axis: str,
) -> ComparedPanel | None:
    is_wide = kind == "eval"
    series = []
    for name, members in groups.items():
        tracks = [track for run in members if (track := run.read_track(metric, kind)) is not None]
        if tracks:
            color = colors[members[0].name]
            has_band = is_wide and len(groups) <= 3
            series.append(_make_series(name, tracks, color, is_eval=is_wide, has_band=has_band))
    if not series:
        return None
    values = [value for one in series for value in one.y if math.isfinite(value)]
    svg = draw_line_chart(
        series,
        title=panel.title,
        x_label=AXES[axis] if is_wide else "",
        width=860 if is_wide else 380,
        height=300 if is_wide else 190,
        y_range=choose_range(panel, [values]),
        legend=is_wide and len(series) > 1,
    )
    title = metric.partition("/")[2] if metric.startswith("reward/") else panel.title
    return ComparedPanel(f"Reward: {title}" if title != panel.title else title, panel.meaning, svg, is_wide)


def _make_series(name: str, tracks: Sequence[Track], color: int, *, is_eval: bool, has_band: bool) -> Series:
    if len(tracks) == 1:
        one = thin_track(tracks[0], _NUM_BUCKETS if is_eval else _SMALL_BUCKETS)
        return Series(
            name,
            one.x.tolist(),
            one.y.tolist(),
            low=one.low.tolist() if has_band and one.low is not None else None,
            high=one.high.tolist() if has_band and one.high is not None else None,
            color=color,
            marks=(is_eval and len(one.x) < 40) or len(one.x) == 1,
        )
    x, rows = align_tracks(tracks)
    return Series(
        f"{name} ({len(tracks)} seeds)",
        x.tolist(),
        rows.mean(0).tolist(),
        low=rows.min(0).tolist(),
        high=rows.max(0).tolist(),
        color=color,
    )


def thin_track(track: Track, num_buckets: int = _NUM_BUCKETS) -> Track:
    """At most two points per bucket of the axis: its lowest and its highest value."""
    if len(track.x) <= 2 * num_buckets:
        return track
    edges = np.linspace(0, len(track.x), num_buckets + 1).astype(int)
    kept: list[int] = []
    finite = track.y[np.isfinite(track.y)]
    filled = np.where(np.isfinite(track.y), track.y, finite.mean() if len(finite) else 0.0)
    for start, stop in pairwise(edges.tolist()):
        part = filled[start:stop]
        kept += sorted({start + int(part.argmin()), start + int(part.argmax())})
    return Track(track.name, track.x[kept], track.y[kept])


def align_tracks(tracks: Sequence[Track]) -> tuple[AnyArray, AnyArray]:
    """Values of all tracks at the same places of the axis, over the range that all of them cover."""
    same = all(np.array_equal(track.x, tracks[0].x) for track in tracks)
    if same and len(tracks[0].x) <= 2 * _NUM_BUCKETS:
        return tracks[0].x, np.stack([track.y for track in tracks])
    start, stop = max(track.x[0] for track in tracks), min(track.x[-1] for track in tracks)
    x = np.linspace(start, max(stop, start), _GRID)
    return x, np.stack([np.interp(x, track.x, track.y) for track in tracks])


def _find_panel(metric: str) -> Panel:
    for panel in PANELS:
        if panel.choose_metrics([metric]):
            return panel
    return Panel(metric, (metric,), "")


def _describe_group(run: ViewedRun) -> str:
    shared = {name: value for name, value in run.config.items() if name not in ("seed", "name", "folder")}
    return json.dumps(shared, sort_keys=True, default=str) if run.config else run.name


def _name_group(members: Sequence[ViewedRun]) -> str:
    if len(members) == 1:
        return members[0].name
    first = members[0].name
    return first.partition("-seed")[0] if "-seed" in first else first
