"""The table of VAGEN's paper: models in rows; five worlds, their parts and averages in columns; overall.

    results.json of a study ────┐
    evaluation.json of folders ─┼─► scores[row][world, part] ─► averages ─► overall ─► markdown, JSON
    evaluations made just now ──┘

    FrozenLake, Sokoban     success
    Navigation              success by kind of instruction: base, common
    PrimitiveSkill          success by task: place, stack, drawer, align
    SVG                     likeness of the last drawing: DINO, DreamSim

Invariants
* A world's average is the mean of its parts; where only the whole world was measured, it is that. Overall is
  the mean of the five averages, and is left out if a world is missing: such rows do not compare.
* Nothing is filled in: a part that was not measured is shown as missing. Likeness by another measure than
  DreamSim is in DreamSim's column, with a note that says so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.runs.evaluation.folders import Evaluation

WORLDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "frozenlake": ("FrozenLake", ()),
    "sokoban": ("Sokoban", ()),
    "navigation": ("Navigation", ("base", "common")),
    "primitive_skill": ("PrimitiveSkill", ("place", "stack", "drawer", "align")),
    "svg": ("SVG", ("dino", "dreamsim")),
}
PART_OPTIONS = {"navigation": "instruction", "primitive_skill": "task"}
"""The option of an environment that chooses a part of its world."""
_LIKENESS = {"dino": "measures/dino", "dreamsim": "measures/similarity"}
Score = dict[tuple[str, str], float]


@dataclass(slots=True)
class VagenTable:
    """Scores by row and (world, part); the part "" is the world as a whole."""

    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_score(self, row: str, world: str, part: str, score: float) -> None:
        """Add a score; of two for one cell the later counts."""
        self.scores.setdefault(row, {})[world, part] = score

    def add_likeness(self, row: str, figures: Mapping[str, Any], measure: str) -> None:
        """Add the parts of SVG that were measured."""
        for part, name in _LIKENESS.items():
            if isinstance(figures.get(name), int | float):
                self.add_score(row, "svg", part, float(figures[name]))
        note = f"SVG of {row}: likeness by {measure} in the column of DreamSim"
        if measure != "dreamsim" and note not in self.notes:
            self.notes.append(note)

    def average_world(self, row: str, world: str) -> float | None:
        """The mean of a world's known parts; without any, the world as a whole."""
        scores = self.scores.get(row, {})
        known = [scores[world, part] for part in WORLDS[world][1] if (world, part) in scores]
        return statistics.fmean(known) if known else scores.get((world, ""))

    def average_all(self, row: str) -> float | None:
        """The mean of the five worlds; None if one is missing."""
        known = [self.average_world(row, world) for world in WORLDS]
        return None if None in known else statistics.fmean(x for x in known if x is not None)

    def list_columns(self) -> list[tuple[str, str, str]]:
        """(title, world, part) of every column but the last; the part "average" is a world's mean."""
        columns = []
        for world, (title, parts) in WORLDS.items():
            columns += [(f"{title} {part}", world, part) for part in parts]
            columns.append((f"{title} average" if parts else title, world, "average"))
        return columns

    def format_markdown(self) -> str:
        """The table and its notes."""
        columns = self.list_columns()
        head = ["model", *(title for title, _, _ in columns), "overall"]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row, scores in self.scores.items():
            cells = [
                self.average_world(row, world) if part == "average" else scores.get((world, part))
                for _, world, part in columns
            ]
            shown = ["–" if x is None else f"{x:.2f}" for x in [*cells, self.average_all(row)]]
            lines.append("| " + " | ".join([row, *shown]) + " |")
        return "\n".join([*lines, "", *(f"* {note}" for note in self.notes)]).rstrip() + "\n"

    def to_json(self) -> str:
        """All scores, averages and notes."""
        rows = {
            row: {
                **{f"{world}/{part}" if part else world: score for (world, part), score in scores.items()},
                **{f"{world}/average": self.average_world(row, world) for world in WORLDS},
                "overall": self.average_all(row),
            }
            for row, scores in self.scores.items()
        }
        return json.dumps({"table": "vagen", "rows": rows, "notes": self.notes}, indent=2)


def add_study(table: VagenTable, file: Path) -> None:
    """Add the variants of a study, means over their finished seeds; environments are named as worlds."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        runs = [run for run in content["runs"] if run.get("success_after") is not None]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--table: {file} is not the results.json of a study ({error!r})") from error
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if run["env"] in WORLDS:
            cells.setdefault((run["variant"], run["env"]), []).append(run)
    for (variant, world), mine in cells.items():
        table.add_score(variant, world, "", statistics.fmean(run["success_after"] for run in mine))
        for part in WORLDS[world][1]:
            known = [run["elsewhere"][part] for run in mine if part in run.get("elsewhere", {})]
            if known:
                table.add_score(variant, world, part, statistics.fmean(known))
        if world == "svg":
            figures = {
                name: statistics.fmean(known)
                for name in _LIKENESS.values()
                if (known := [run["use"][name] for run in mine if name in run.get("use", {})])
            }
            table.add_likeness(variant, figures, "the measure of its settings")


def add_evaluation(table: VagenTable, one: Evaluation, row: str | None = None) -> None:
    """Add one evaluation; the part it measures follows from the options of its environment."""
    row = row or one.model
    if one.env not in WORLDS:
        raise ConfigError(f"--table: {one.env} is not an environment of this table ({', '.join(WORLDS)})")
    if one.status != "finished":
        table.notes.append(f"{one.env} of {row} is not finished: {one.num_done} of {len(one.tasks)} tasks")
    chosen = str(one.env_options.get(PART_OPTIONS.get(one.env, ""), ""))
    part = chosen if chosen in WORLDS[one.env][1] else ""
    table.add_score(row, one.env, part, float(one.values["success"]))
    if one.env == "svg":
        table.add_likeness(row, one.more, str(one.env_options.get("measure", "pixels")))


def list_evaluations(worlds: Sequence[str] = tuple(WORLDS)) -> list[tuple[str, str, list[str]]]:
    """(world, part, settings) of the evaluations that fill one row."""
    found = []
    for world in worlds:
        option = PART_OPTIONS.get(world)
        for part in WORLDS[world][1] if option else ("",):
            found.append((world, part, [f"env.options.{option}={part}"] if option else []))
    return found
