"""What is chosen for each variant before variants are compared: a learning rate, say.

    stepwell study FILE --select ─► variants x choices x other seeds ─► selected.json ─► stepwell study FILE

A comparison of methods with one learning rate for all compares them at the rate of one. `[select]` of a study
names choices, and seeds that the comparison does not use. Each environment and variant gets the choice with
the highest mean success on training tasks in the last quarter of updates; held-out tasks are not looked at.
Where training tasks change with the policy, or none are played, that figure says little: `score = "held_out"`
takes the last evaluation instead. A variant with `choice_of` takes what was chosen for another.

Invariants
* The comparison never runs with half a selection: `selected.json` is written when every run has finished.
* A choice at the edge of its range is reported: beyond it may be a better one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.config.renamed import merge_tables
from stepwell.config.study import StudyConfig
from stepwell.config.study_parts import VariantConfig
from stepwell.core.disk import atomic_write
from stepwell.core.errors import ConfigError
from stepwell.studies.results import Results, RunResult

SELECTED_FILE = "selected.json"
TRACK = "train_success"


def make_selection(study: StudyConfig) -> StudyConfig:
    """The study that `--select` runs: every variant with an own choice, once with each choice."""
    select = study.select
    if select is None:
        raise ConfigError(f"study {study.name} has no [select], or its short form leaves it out")
    variants = [
        VariantConfig(
            name=f"{variant.name}.{choice.name}",
            environments=variant.environments,
            settings=merge_tables(merge_tables(variant.settings, choice.settings), select.settings),
        )
        for variant in _list_choosers(study)
        for choice in select.choices
    ]
    chosen = study.replace_variants("what is chosen for each variant", select.seeds, variants)
    return chosen.model_copy(update={"baseline": None})


def choose_best(study: StudyConfig, results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """By environment and variant: the chosen name, its score and that of the others."""
    assert study.select is not None
    names = [choice.name for choice in study.select.choices]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for env in results.rows:
        for variant in (item.name for item in _list_choosers(study)):
            scores = {
                name: _score_runs(results, env, f"{variant}.{name}", study.select.score) for name in names
            }
            known = {name: score for name, score in scores.items() if score is not None}
            if known:
                best = max(known, key=lambda name: known[name])
                found.setdefault(env, {})[variant] = {"choice": best, "scores": known}
    return found


def describe_choices(study: StudyConfig, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per environment and variant."""
    assert study.select is not None
    edges = study.select.choices[0].name, study.select.choices[-1].name
    lines = []
    for env, variants in found.items():
        for variant, entry in variants.items():
            scores = ", ".join(f"{name} {score:.3f}" for name, score in entry["scores"].items())
            edge = "; at the edge of the range" if entry["choice"] in edges else ""
            lines.append(f"{env}: {variant} takes {entry['choice']} ({scores}{edge})")
    return lines


def write_choices(folder: Path, study: StudyConfig, found: Mapping[str, Any]) -> None:
    """Write `selected.json`, which the comparison reads."""
    content = {"study": study.name, "selected": found}
    atomic_write(folder / SELECTED_FILE, json.dumps(content, indent=1) + "\n")


def read_choices(study: StudyConfig, file: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Settings by environment and variant, as `plan_runs` takes them."""
    assert study.select is not None
    if not file.exists():
        raise ConfigError(
            f"{file} does not exist: study {study.name} chooses settings for each variant first. "
            "Run the same command with --select, or name the file of an earlier choice with --selected"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        name, found = content["study"], content["selected"]
        chosen = {env: {v: entry["choice"] for v, entry in some.items()} for env, some in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--selected: {file} holds no choices ({error!r})") from error
    if name != study.name:
        raise ConfigError(f"--selected: {file} is of the study {name!r}, not of {study.name!r}")
    return {env: _find_settings(study, env, some, file) for env, some in chosen.items()}


def _find_settings(
    study: StudyConfig, env: str, chosen: Mapping[str, str], file: Path
) -> dict[str, dict[str, Any]]:
    assert study.select is not None
    choices = {choice.name: choice.settings for choice in study.select.choices}
    found = {}
    for variant in study.variants:
        if not _is_trained(variant) or env not in (variant.environments or (env,)):
            continue
        name = chosen.get(variant.choice_of or variant.name)
        if name not in choices:
            raise ConfigError(
                f"--selected: {file} has no choice for {variant.name} on {env}; "
                "run the study with --select again"
            )
        found[variant.name] = choices[name]
    return found


def _list_choosers(study: StudyConfig) -> list[VariantConfig]:
    return [variant for variant in study.variants if variant.choice_of is None and _is_trained(variant)]


def _is_trained(variant: VariantConfig) -> bool:
    return bool(variant.settings.get("train", {}).get("num_updates") != 0)


def _score_runs(results: Results, env: str, variant: str, score_by: str) -> float | None:
    runs = [run for run in results.runs if (run.env, run.variant) == (env, variant) and run.is_done]
    found = (_mean_last_quarter(run) if score_by == "train" else run.success_after for run in runs)
    scores = [score for score in found if score is not None]
    return round(statistics.fmean(scores), 4) if scores else None


def _mean_last_quarter(run: RunResult) -> float | None:
    heights = [height for _, height in run.tracks.get(TRACK, ())]
    return statistics.fmean(heights[-max(1, len(heights) // 4) :]) if heights else None
