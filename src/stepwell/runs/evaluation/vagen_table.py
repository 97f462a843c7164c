"""The table of VAGEN's paper: a row per model, columns for five environments, their parts and averages.

    results.json of a study ────┐
    evaluation.json of folders ─┼─► scores[row][env, part] ─► averages ─► overall ─► markdown, JSON
    evaluations made just now ──┘

    FrozenLake, Sokoban     success
    Navigation              success by kind of instruction: base, common
    PrimitiveSkill          success by task: place, stack, drawer, align
    SVG                     likeness of the last drawing: DINO, DreamSim

Invariants
* The average of an environment is the mean of its parts. Where only the whole environment was measured, its
  score is the average. Overall is the mean of the five averages. It is left out if an environment is missing,
  because such rows do not compare.
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

ENVS: dict[str, tuple[str, tuple[str, ...]]] = {
    "frozenlake": ("FrozenLake", ()),
    "sokoban": ("Sokoban", ()),
    "navigation": ("Navigation", ("base", "common")),
    "primitive_skill": ("PrimitiveSkill", ("place", "stack", "drawer", "align")),
    "svg": ("SVG", ("dino", "dreamsim")),
}
PART_OPTIONS = {"navigation": "instruction", "primitive_skill": "task"}
"""The option of an environment that chooses a part of it."""
_LIKENESS = {"dino": "measures/dino", "dreamsim": "measures/similarity"}
Score = dict[tuple[str, str], float]


@dataclass(slots=True)
class VagenTable:
    """Scores by row and (env, part); the part "" is the environment as a whole."""

    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_score(self, row: str, env: str, part: str, score: float) -> None:
        """Add a score; of two for one cell the later counts."""
        self.scores.setdefault(row, {})[env, part] = score

    def add_likeness(self, row: str, figures: Mapping[str, Any], measure: str) -> None:
        """Add the parts of SVG that were measured."""
        for part, name in _LIKENESS.items():
            if isinstance(figures.get(name), int | float):
                self.add_score(row, "svg", part, float(figures[name]))
        note = f"SVG of {row}: likeness by {measure} in the column of DreamSim"
        if measure != "dreamsim" and note not in self.notes:
            self.notes.append(note)

    def average_env(self, row: str, env: str) -> float | None:
        """The mean of an environment's known parts; without any, the environment as a whole."""
        scores = self.scores.get(row, {})
        known = [scores[env, part] for part in ENVS[env][1] if (env, part) in scores]
        return statistics.fmean(known) if known else scores.get((env, ""))

    def average_all(self, row: str) -> float | None:
        """The mean of the five environments; None if one is missing."""
        known = [self.average_env(row, env) for env in ENVS]
        return None if None in known else statistics.fmean(x for x in known if x is not None)

    def list_columns(self) -> list[tuple[str, str, str]]:
        """(title, env, part) of every column but the last; the part "average" is an environment's mean."""
        columns = []
        for env, (title, parts) in ENVS.items():
            columns += [(f"{title} {part}", env, part) for part in parts]
            columns.append((f"{title} average" if parts else title, env, "average"))
        return columns

    def format_markdown(self) -> str:
        """The table and its notes."""
        columns = self.list_columns()
        head = ["model", *(title for title, _, _ in columns), "overall"]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row, scores in self.scores.items():
            cells = [
                self.average_env(row, env) if part == "average" else scores.get((env, part))
                for _, env, part in columns
            ]
            shown = ["–" if x is None else f"{x:.2f}" for x in [*cells, self.average_all(row)]]
            lines.append("| " + " | ".join([row, *shown]) + " |")
        return "\n".join([*lines, "", *(f"* {note}" for note in self.notes)]).rstrip() + "\n"

    def to_json(self) -> str:
        """All scores, averages and notes."""
        rows = {
            row: {
                **{f"{env}/{part}" if part else env: score for (env, part), score in scores.items()},
                **{f"{env}/average": self.average_env(row, env) for env in ENVS},
                "overall": self.average_all(row),
            }
            for row, scores in self.scores.items()
        }
        return json.dumps({"table": "vagen", "rows": rows, "notes": self.notes}, indent=2)


def add_study(table: VagenTable, file: Path) -> None:
    """Add the variants of a study, means over their finished seeds."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        runs = [run for run in content["runs"] if run.get("success_after") is not None]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--table: {file} is not the results.json of a study ({error!r})") from error
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if run["env"] in ENVS:
            cells.setdefault((run["variant"], run["env"]), []).append(run)
    for (variant, env), mine in cells.items():
        table.add_score(variant, env, "", statistics.fmean(run["success_after"] for run in mine))
        for part in ENVS[env][1]:
            known = [run["elsewhere"][part] for run in mine if part in run.get("elsewhere", {})]
            if known:
                table.add_score(variant, env, part, statistics.fmean(known))
        if env == "svg":
            figures = {
                name: statistics.fmean(known)
                for name in _LIKENESS.values()
                if (known := [run["use"][name] for run in mine if name in run.get("use", {})])
            }
            table.add_likeness(variant, figures, "the measure of its settings")


def add_evaluation(table: VagenTable, one: Evaluation, row: str | None = None) -> None:
    """Add one evaluation; the part it measures follows from the options of its environment."""
    row = row or one.model
    if one.env not in ENVS:
        raise ConfigError(f"--table: {one.env} is not an environment of this table ({', '.join(ENVS)})")
    if one.status != "finished":
        table.notes.append(f"{one.env} of {row} is not finished: {one.num_done} of {len(one.tasks)} tasks")
    chosen = str(one.env_options.get(PART_OPTIONS.get(one.env, ""), ""))
    part = chosen if chosen in ENVS[one.env][1] else ""
    table.add_score(row, one.env, part, float(one.values["success"]))
    if one.env == "svg":
        table.add_likeness(row, one.more, str(one.env_options.get("measure", "pixels")))


def list_evaluations(envs: Sequence[str] = tuple(ENVS)) -> list[tuple[str, str, list[str]]]:
    """(env, part, settings) of the evaluations that fill one row."""
    found = []
    for env in envs:
        option = PART_OPTIONS.get(env)
        for part in ENVS[env][1] if option else ("",):
            found.append((env, part, [f"env.options.{option}={part}"] if option else []))
    return found
