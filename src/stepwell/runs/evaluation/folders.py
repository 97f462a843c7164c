"""Evaluations kept in folders, and several of them in one table.

    runs/eval-NAME-ENV/  config.toml  evaluation.json  summary.json  metrics.jsonl  pool/
                         replays.json  report.html

`evaluation.json` holds the figures and what was evaluated: the environment with all its options, the ids of
the tasks, the decoding. Evaluations of trained and outside models write the same file. Two of them can be
compared if environment and tasks are the same. The file is also written at the start (`status` is then
`running`), so that an interrupted evaluation can resume.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepwell.config.loading import dump_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EncodingError, Trajectory
from stepwell.core.disk import atomic_write
from stepwell.monitors import jsonl
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.replays import FILE_NAME as REPLAYS
from stepwell.monitors.replays import save_replays
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import SuccessScore, Summary, write_summary
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.replays import make_replays
from stepwell.runs.evaluation.result import EvalReport
from stepwell.runs.machine import describe_machine

FILE_NAME = "evaluation.json"
FORMAT = "stepwell evaluation 1"
NUM_REPLAYS = 12


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The content of `evaluation.json`. `how` holds settings that may differ between compared models."""

    model: str
    env: str
    env_options: dict[str, Any]
    tasks: list[str]
    how: dict[str, Any]
    seed: int
    status: str = "running"
    num_done: int = 0
    values: dict[str, float] = field(default_factory=dict)
    endpoint: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


def start_evaluation(
    components: Components, model: str, tasks: Sequence[str], temperature: float, samples: int, seed: int
) -> Evaluation:
    """An evaluation that has just started."""
    config, options = components.config, components.envs.envs[0].options
    how = {
        "temperature": temperature,
        "samples_per_task": samples,
        "max_tokens": config.sampling.max_tokens,
        "strategy": config.agent.strategy,
        "state_form": components.backend.state_form,
        "context": config.agent.context,
        "guide": config.agent.guide,
        "reward_parts": list(components.recipe.reward_parts or ("task",)),
        "reward_scale": config.rewards.scale,
    }
    return Evaluation(model, config.env.name, options.model_dump(mode="json"), list(tasks), how, seed)


def make_eval_folder(config: RunConfig, name: str) -> Path:
    """Make a folder for an evaluation of `name`; a number is appended if it exists already."""
    env = config.env.name.rpartition("#")[2]
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{name}-{env}").strip("-.")
    base = Path(config.folder) / f"eval-{plain}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"folder: cannot make {folder} ({error.strerror}); choose another `folder`"
        ) from error
    return folder


def is_empty(folder: Path) -> bool:
    """Whether a folder does not exist or is empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def start_folder(folder: Path, config: RunConfig, evaluation: Evaluation) -> None:
    """Write what is known before anything is played."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "config.toml", dump_config(config))
    write_evaluation(folder, evaluation)


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write `evaluation.json`, whole or not at all."""
    content = {"format": FORMAT, **asdict(evaluation)}
    atomic_write(folder / FILE_NAME, json.dumps(content, indent=2) + "\n")


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder; refused if there is none, or a damaged one."""
    path = folder / FILE_NAME
    if not path.exists():
        raise ConfigError(
            f"{folder} holds no evaluation (no {FILE_NAME}); make one by `stepwell eval {folder} --report` "
            "or `stepwell eval --endpoint URL --model NAME`"
        )
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        return Evaluation(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EncodingError(f"{path} is damaged ({error}); evaluate again") from error


def finish_folder(
    folder: Path,
    components: Components,
    evaluation: Evaluation,
    report: EvalReport,
    wall_s: float,
    command: str,
) -> None:
    """Write figures, summary and page of an evaluation, finished or interrupted."""
    result = report.result
    values = result.values()
    more = report.more | measure_ends(result.trajectories)
    write_evaluation(folder, replace(evaluation, values=values, num_done=result.num_tasks, more=more))
    env_steps = sum(int(t.info.get("num_actions", len(t.steps))) for t in result.trajectories)  # type: ignore[arg-type, misc]
    _write_metrics(folder, components.config, LogEntry("eval", 0, wall_s, env_steps, values))
    write_summary(
        folder,
        _make_summary(
            components.config, evaluation, report, env_steps=env_steps, wall_s=wall_s, command=command
        ),
    )
    replays = make_replays(components, _choose_replays(result.trajectories), "after", report.notes.append)
    save_replays(folder / REPLAYS, [replace(replay, stage="episode") for replay in replays])
    write_report(folder)


def measure_ends(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means of what the environment measures at the end of episodes: `measures/NAME`."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        measured = trajectory.steps[-1].info.get("measures") if trajectory.steps else None
        for name, value in (measured if isinstance(measured, dict) else {}).items():
            if isinstance(value, int | float):
                found.setdefault(f"measures/{name}", []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}


def _make_summary(
    config: RunConfig,
    evaluation: Evaluation,
    report: EvalReport,
    *,
    env_steps: int,
    wall_s: float,
    command: str,
) -> Summary:
    low, high = report.result.interval
    score = SuccessScore(report.result.success, low, high, report.result.num_tasks, report.model)
    is_whole = evaluation.status == "finished"
    return Summary(
        success_before=None,
        success_after=report.result.success,
        env_steps=env_steps,
        wall_s=round(wall_s, 2),
        seed=report.seed,
        recipe=report.model,
        env=config.title,
        status="finished" if is_whole else "interrupted",
        after=score,
        decoding={key: evaluation.how[key] for key in ("temperature", "samples_per_task")},
        machine=describe_machine(),
        command=command,
        more={"kind": "evaluation", "figures": report.figures()},
    )


def _write_metrics(folder: Path, config: RunConfig, entry: LogEntry) -> None:
    """`metrics.jsonl` with the one entry there is."""
    (folder / jsonl.FILE_NAME).unlink(missing_ok=True)
    monitor = jsonl.JsonlMonitor()
    monitor.start(RunInfo(folder, folder.name, config.title, "", config.seed, 0))
    monitor.record(entry)
    monitor.close()


def _choose_replays(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Episodes of distinct tasks, some solved and some not, in order."""
    first: dict[str, Trajectory] = {}
    for trajectory in trajectories:
        first.setdefault(trajectory.task.id, trajectory)
    solved = [t for t in first.values() if t.is_success]
    others = [t for t in first.values() if not t.is_success]
    num_solved = max(NUM_REPLAYS // 2, NUM_REPLAYS - len(others))
    kept = solved[:num_solved]
    kept += others[: NUM_REPLAYS - len(kept)]
    chosen = {t.id for t in kept}
    return [t for t in first.values() if t.id in chosen]


def check_comparable(named: Sequence[tuple[str, Evaluation]]) -> None:
    """Refuse evaluations of different environments or tasks, and say what differs."""
    (first_name, first), *others = named
    for name, other in others:
        where = f"{first_name} and {name} cannot be compared"
        if other.env != first.env:
            raise ConfigError(f"{where}: they are of {first.env} and of {other.env}")
        keys = sorted({*first.env_options, *other.env_options})
        missing = object()
        for key in keys:
            one, two = first.env_options.get(key, missing), other.env_options.get(key, missing)
            if one != two:
                shown = [("unset" if value is missing else repr(value)) for value in (one, two)]
                raise ConfigError(
                    f"{where}: env.options.{key} is {shown[0]} in one and {shown[1]} in the other"
                )
        if other.tasks != first.tasks:
            raise ConfigError(
                f"{where}: their tasks differ ({len(first.tasks)} and {len(other.tasks)}, "
                f"{len({*first.tasks} & {*other.tasks})} shared); give both the same --num-tasks and "
                "the same CONFIG: a run's folder is one, for an outside model too"
            )
    for name, one in named:
        if one.num_done < len(one.tasks):
            raise ConfigError(
                f"{name} has finished {one.num_done} of {len(one.tasks)} tasks; "
                f"continue it: stepwell eval --resume {name}"
            )


def compare_evaluations(
    named: Sequence[tuple[str, Evaluation]],
) -> tuple[list[str], list[list[str]], list[str]]:
    """Heads, rows and notes of the table that compares evaluations."""
    check_comparable(named)
    passes = [key for key in named[0][1].values if re.fullmatch(r"pass@\d+", key) and key != "pass@1"]
    passes = [key for key in passes if all(key in one.values for _, one in named)]
    columns = {
        **{key: key for key in passes},
        "reward": "reward",
        "turns": "turns",
        "format_share": "format",
        "response_tokens": "tokens",
    }
    shown = {key: head for key, head in columns.items() if any(key in one.values for _, one in named)}
    models, rows = [one.model for _, one in named], []
    for folder, one in named:
        values = one.values
        name = one.model if models.count(one.model) == 1 else f"{one.model} ({folder})"
        row = [name, f"{values['success']:.3f}", f"{values['low']:.3f} to {values['high']:.3f}"]
        rows.append(row + [f"{values[key]:.3f}" if key in values else "" for key in shown])
    return ["model", "success", "95 % interval", *shown.values()], rows, _list_differences(named)


def _list_differences(named: Sequence[tuple[str, Evaluation]]) -> list[str]:
    """Settings that differ between the models, one sentence each."""
    keys = dict.fromkeys(key for _, one in named for key in one.how)
    sentences = []
    for key in keys:
        values = [json.dumps(one.how.get(key)) for _, one in named]
        if len(set(values)) > 1:
            sentences.append(f"{key} differs: {', '.join(values)}")
    return sentences
