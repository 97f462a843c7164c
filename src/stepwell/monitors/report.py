"""The report: one HTML file that shows what a run did, and needs only a browser.

Everything comes from the files of the run folder. So a report can be written again at any time,
for a run that finished, was interrupted, or is still running. Missing parts are left out and listed;
a torn replay file does not affect the curves.

Invariants
* Self-contained: styles, script, charts and images are inside. A content security policy in
  the page forbids it to load anything, so opening a report never touches a network.
* Text from models and environments is never markup. The template escapes by default, the charts
  escape their own text, and replays are JSON in which `<`, `>` and `&` are escaped and which the
  script shows only as text.
* Without JavaScript, everything can be read except the step-by-step replays.
* Images take at most 4.5 MB, whatever their number and size.
"""

from __future__ import annotations

import base64
import json
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.config.writing import flatten_tables
from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError, InputError
from stepwell.monitors import jsonl, replays
from stepwell.monitors.animations import bound_images, drop_images
from stepwell.monitors.base import LogEntry
from stepwell.monitors.charts import Bar, ReferenceLine, draw_bar_chart
from stepwell.monitors.console import FAILURES
from stepwell.monitors.curves import draw_learning_curve, draw_training_panels, draw_warm_start_panels
from stepwell.monitors.films import make_film
from stepwell.monitors.phases import read_phases, tabulate_phases
from stepwell.monitors.plain_text import show_controls
from stepwell.monitors.progress import format_duration
from stepwell.monitors.summary import (
    SuccessScore,
    Summary,
    describe_changes,
    describe_success,
    read_summary,
    write_repeat_command,
)
from stepwell.monitors.timeline import draw_timeline, read_timeline

FILE_NAME = "report.html"
WIDE, NARROW = 860, 360
MAX_STILL_BYTES, MAX_FILM_BYTES = 1_500_000, 1_800_000  # in total; base64 adds a third
AXES = {"env_steps": "environment steps", "time_s": "wall time", "update": "updates"}


@dataclass(slots=True)
class RunFolder:
    """What could be read from a run folder; `problems` lists what could not."""

    path: Path
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    entries: list[LogEntry] = field(default_factory=list)
    summary: Summary | None = None
    replays: list[replays.Replay] = field(default_factory=list)
    films: list[dict[str, Any]] = field(default_factory=list)
    has_smaller_images: bool = False
    timeline: dict[str, Any] | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def evals(self) -> list[LogEntry]:
        return [entry for entry in self.entries if entry.kind == "eval"]

    @property
    def is_evaluation(self) -> bool:
        """Whether this is the folder of an evaluation, without training."""
        return self.summary is not None and self.summary.more.get("kind") == "evaluation"

    @property
    def last_update(self) -> int:
        return max((entry.update for entry in self.entries if entry.kind == "update"), default=0)


def write_report(folder: Path) -> Path:
    """Write `report.html` of a run folder and return its path."""
    if not (folder / jsonl.FILE_NAME).exists():
        raise InputError(f"{folder} is not a run folder: it has no {jsonl.FILE_NAME}; give a run's folder")
    path = folder / FILE_NAME
    atomic_write(path, render(read_run(folder)))
    return path


def time_films(shown: Sequence[replays.Replay]) -> float:
    """Seconds that the films of a report take if it shows as many episodes again. They are most of its time.

    Two films are made, since the first call also loads the encoder.
    """
    took_s, count = 0.0, 2 * len(shown)
    for replay in shown[:2]:
        began = time.perf_counter()
        make_film(replay, MAX_FILM_BYTES // count)
        took_s = time.perf_counter() - began
    return count * took_s


def read_run(folder: Path) -> RunFolder:
    """Read every file of a run folder that exists and is intact."""
    run = RunFolder(folder)
    for read in (
        _read_config,
        _read_entries,
        _read_summary,
        _read_replays,
        _make_images,
        _read_timeline,
        _read_phases,
    ):
        try:
            read(run)
        except EncodingError as error:
            run.problems.append(str(error))
    return run


def render(run: RunFolder) -> str:
    """The HTML page of a run."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent / "page")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["plain"] = show_controls
    return environment.get_template("report.html.jinja").render(**_build_content(run))


def _read_config(run: RunFolder) -> None:
    path = run.path / "config.toml"
    if path.exists():
        run.config_text = path.read_text(errors="replace")
        try:
            run.config = tomllib.loads(run.config_text)
        except tomllib.TOMLDecodeError as error:
            raise EncodingError(f"{path} is not TOML ({error})") from error


def _read_entries(run: RunFolder) -> None:
    run.entries = jsonl.read_entries(run.path / jsonl.FILE_NAME)


def _read_summary(run: RunFolder) -> None:
    run.summary = read_summary(run.path)


def _read_replays(run: RunFolder) -> None:
    run.replays = replays.load_replays(run.path / replays.FILE_NAME)


def _make_images(run: RunFolder) -> None:
    """Make films, and stills that keep the page small; damaged images are dropped."""
    try:
        run.films = _film_all(run.replays)
        bounded = bound_images(run.replays, MAX_STILL_BYTES)
    except EncodingError:
        run.films, run.replays = [], drop_images(run.replays)
        raise
    run.has_smaller_images, run.replays = bounded != run.replays, bounded


def _film_all(shown: list[replays.Replay]) -> list[dict[str, Any]]:
    """One film per replay that moves, replays of one task side by side; each gets its share of the bytes."""
    made, left = [], MAX_FILM_BYTES
    tasks = list(dict.fromkeys(replay.task_id for replay in shown))
    ordered = sorted(shown, key=lambda one: (tasks.index(one.task_id), one.stage != "before"))
    for index, replay in enumerate(ordered):
        if film := make_film(replay, left // (len(ordered) - index)):
            left -= len(film.data)
            data = base64.b64encode(film.data).decode("ascii")
            words = {"title": replay.title or replay.task_id, "stage": replay.stage, "status": replay.status}
            made.append({**words, "is_video": film.is_video, "src": f"data:{film.kind};base64,{data}"})
    return made


def _read_timeline(run: RunFolder) -> None:
    run.timeline = read_timeline(run.path)


def _read_phases(run: RunFolder) -> None:
    run.phases = read_phases(run.path)


def _build_content(run: RunFolder) -> dict[str, Any]:
    bars, summary = _make_bars(run), run.summary
    levels = [ReferenceLine(score.name, score.success) for score in _list_baselines(run)]
    evals = [] if run.is_evaluation else [{"entry": entry, **entry.values} for entry in run.evals]
    return {
        "title": _build_title(run),
        "run": run,
        "summary": summary,
        "state": _describe_state(run),
        "after_word": "after" if summary else "so far",
        "before": _find_scores(run)[0],
        "after": _find_scores(run)[1],
        "decoding": _format_settings(summary.decoding) if summary else "",
        "facts": _list_facts(run),
        "bars": [
            (size, draw_bar_chart(bars, title="held-out success", width=width, high=1.0))
            for size, width in _SIZES
        ],
        "has_bars": bool(levels) and len(bars) > 1 and not run.is_evaluation,
        "figures": summary.more.get("figures", []) if summary and run.is_evaluation else [],
        "curves": [
            (
                axis,
                label,
                [(size, draw_learning_curve(run.entries, axis, levels, width)) for size, width in _SIZES],
            )
            for axis, label in AXES.items()
            if len({getattr(row["entry"], axis) for row in evals}) > 1  # else all points lie on one line
        ],
        "evals": evals,
        "timelines": [(size, draw_timeline(run.timeline, width)) for size, width in _SIZES]
        if run.timeline
        else [],
        **tabulate_phases(run.phases),
        "agent_failures": _count_agent_failures(run),
        "warm_span": _describe_warm_start(run),
        "num_warm": sum(entry.kind == "warm_start" for entry in run.entries),
        "num_updates": sum(entry.kind == "update" for entry in run.entries),
        "panels": draw_training_panels(run.entries),
        "warm_panels": draw_warm_start_panels(run.entries),
        "events": [entry for entry in run.entries if entry.kind == "event"],
        "has_replies": _has_replies(run),
        "replays_json": _encode_script_json(replays.encode_replays(run.replays)),
        "machine": _flatten_settings(summary.machine) if summary else [],
        "command": (summary.command if summary else "")
        or write_repeat_command(_shorten_path(run.path), run.config.get("name")),
        "duration": format_duration,
    }


def _count_agent_failures(run: RunFolder) -> list[dict[str, Any]]:
    """Failures of a user's own agent: kind, count, first update, and first error."""
    rows: dict[str, dict[str, Any]] = {}
    errors = run.summary.more.get("agent_errors", {}) if run.summary else {}
    for entry in run.entries:
        for name, value in entry.values.items():
            kind = name.removeprefix(FAILURES)
            if kind != name and value:
                fresh = {"kind": kind, "count": 0, "first": entry.update, "error": errors.get(kind, "")}
                rows.setdefault(kind, fresh)["count"] += round(value)
    return list(rows.values())


_SIZES = (("wide", WIDE), ("narrow", NARROW))


def _build_title(run: RunFolder) -> dict[str, str]:
    config, summary = run.config, run.summary
    env = summary.env if summary else config.get("env", {}).get("name", "")
    recipe = summary.recipe if summary else config.get("recipe", {}).get("name", "")
    return {"env": str(env), "recipe": str(recipe), "name": run.path.resolve().name}


def _shorten_path(path: Path) -> str:
    """A folder as a person would type it; a shared page must not reveal a home directory."""
    return f"{path.parent.name}/{path.name}" if path.is_absolute() else str(path)


def _describe_state(run: RunFolder) -> str:
    """A sentence for a run that did not finish; empty for one that did."""
    if run.is_evaluation and run.summary is not None and run.summary.status != "finished":
        return "This evaluation was interrupted: the figures cover the tasks that were finished by then."
    planned = run.config.get("train", {}).get("num_updates")
    reached = f"update {run.last_update}" + (f" of {planned}" if planned else "")
    if run.summary is None:
        return f"This run has not finished: it was interrupted or still runs. The record ends at {reached}."
    if run.summary.status in ("interrupted", "failed"):
        word = "was interrupted" if run.summary.status == "interrupted" else "failed"
        sentence = f"This run {word} at {reached}. The results below are from that point."
        return f"{sentence} {_write_sentence(run.summary)}" if run.summary.success_after is None else sentence
    return _write_sentence(run.summary) if run.summary.success_after is None else ""


def _write_sentence(summary: Summary) -> str:
    sentence = describe_success(summary)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _find_scores(run: RunFolder) -> tuple[SuccessScore | None, SuccessScore | None]:
    """Success before and after: from the summary, else from the first and last evaluation."""
    if run.summary is not None:
        before, after = run.summary.before, run.summary.after
        before = before or _make_score(run.summary.success_before)
        return before, after or _make_score(run.summary.success_after)
    scores = [
        SuccessScore(entry.values["success"], entry.values.get("low"), entry.values.get("high"))
        for entry in run.evals
        if "success" in entry.values
    ]
    return (scores[0] if scores else None), (scores[-1] if len(scores) > 1 else None)


def _make_score(success: float | None) -> SuccessScore | None:
    return None if success is None else SuccessScore(success)


def _list_baselines(run: RunFolder) -> list[SuccessScore]:
    return run.summary.baselines if run.summary else []


def _make_bars(run: RunFolder) -> list[Bar]:
    bars = [Bar(item.name, item.success, item.low, item.high, item.note) for item in _list_baselines(run)]
    names = ("before training", "after training" if run.summary else "so far")
    for name, item, color in zip(names, _find_scores(run), (1, 2), strict=True):
        if item is not None:
            bars.append(Bar(name, item.success, item.low, item.high, item.note, color=color, strong=True))
    return bars


def _list_facts(run: RunFolder) -> list[tuple[str, str]]:
    last = run.entries[-1] if run.entries else None
    steps = run.summary.env_steps if run.summary else last.env_steps if last else 0
    seconds = run.summary.wall_s if run.summary else last.time_s if last else 0.0
    seed = run.summary.seed if run.summary else run.config.get("seed", "")
    facts = [("environment steps", f"{steps:,}"), ("wall time", format_duration(seconds))]
    if run.is_evaluation:
        facts[0] = ("actions carried out", f"{steps:,}" if steps else "none: no reply named one")
    facts += [] if run.is_evaluation else [("updates", f"{run.last_update:,}")]
    facts += [("seed", str(seed))] if seed != "" else []
    facts += [("changed", change) for change in describe_changes(run.summary)] if run.summary else []
    agent = run.config.get("agent", {}).get("strategy")
    is_own = bool(run.config.get("own_agent", {}).get("function"))
    writes = not run.replays or _has_replies(run)  # a robot has no style of reasoning
    if not agent or is_own or not writes:
        return facts
    return [*facts, ("replies", _REPLIES.get(agent, str(agent)))]


_REPLIES = {  # strategies, in words
    "no_think": "the answer alone",
    "free_think": "thoughts, answer",
    "grounding": "what it sees, thoughts, answer",
    "world_modeling": "thoughts, what comes next, answer",
    "grounding_world_modeling": "what it sees, thoughts, what comes next, answer",
}


def _describe_warm_start(run: RunFolder) -> str:
    """How far the warm start went: `80 of at most 300`; empty where that was not recorded."""
    last = next((e.values for e in reversed(run.entries) if e.kind == "warm_start"), {})
    if "step" not in last or "num_steps" not in last:
        return ""
    return f"{last['step']:.0f} of at most {last['num_steps']:.0f}"


def _has_replies(run: RunFolder) -> bool:
    return any(frame.reply for replay in run.replays for frame in replay.frames)


def _format_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in _flatten_settings(settings))


def _flatten_settings(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Nested settings as rows of names and values, without unset ones."""
    return [
        (".".join(path), str(value)) for path, value in flatten_tables(content) if value not in (None, {})
    ]


def _encode_script_json(content: dict[str, Any]) -> str:
    """JSON for a script element: nothing in it can end that element."""
    text = json.dumps(content, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
