"""Evaluations kept in folders, and several of them in one table.

    runs/eval-NAME-ENV/  config.toml  evaluation.json  summary.json  metrics.jsonl  pool/
                         replays.json  report.html

`evaluation.json` holds the figures and what they are figures of: the world with all its options, the
ids of the tasks, the decoding. Trained and outside models write the same file, and two of them may be
compared exactly when world and tasks are the same. It is written when an evaluation begins, too
(`status` is then `running`), so that one that was stopped can go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.config.loading import dump_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EncodingError, Status, StepwellError, Trajectory
from stepwell.monitors import jsonl
from stepwell.monitors.base import Entry, RunInfo
from stepwell.monitors.files import atomic_write
from stepwell.monitors.replays import FILE_NAME as REPLAYS
from stepwell.monitors.replays import save_replays
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, Summary, write_summary
from stepwell.runs.evaluation.replays import make_replays

if TYPE_CHECKING:
    from stepwell.runs.build.components import Parts
    from stepwell.runs.evaluation.evaluate import EvalReport

FILE_NAME = "evaluation.json"
FORMAT = "stepwell evaluation 1"
NUM_REPLAYS = 12


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluation.json` says. `how` are settings that may differ between models side by side."""

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


def evaluation_of(
    parts: Parts, model: str, tasks: Sequence[str], temperature: float, samples: int, seed: int
) -> Evaluation:
    """An evaluation that begins."""
    config, options = parts.config, parts.envs.envs[0].options
    how = {
        "temperature": temperature,
        "samples_per_task": samples,
        "max_tokens": config.sampling.max_tokens,
        "strategy": config.agent.strategy,
        "state_form": parts.agent.form.value if parts.has_world and not parts.is_robot else None,
        "memory": config.agent.memory,
        "guide": config.agent.guide,
        "reward_parts": list(parts.recipe.reward_parts or ("task",)),
        "reward_scale": config.rewards.scale,
    }
    return Evaluation(model, config.env.name, options.model_dump(mode="json"), list(tasks), how, seed)


def new_eval_folder(config: RunConfig, name: str) -> Path:
    """A folder for an evaluation of `name`; a number behind it where there is one already."""
    world = config.env.name.rpartition("#")[2]
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{name}-{world}").strip("-.")
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


def is_free(folder: Path) -> bool:
    """Whether nothing is in a folder yet."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def begin_folder(folder: Path, config: RunConfig, evaluation: Evaluation) -> None:
    """What is known before anything is played."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "config.toml", dump_config(config))
    write_evaluation(folder, evaluation)


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write `evaluation.json`, whole or not at all."""
    content = {"format": FORMAT, **asdict(evaluation)}
    atomic_write(folder / FILE_NAME, json.dumps(content, indent=2) + "\n")


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder; refused where there is none, or a damaged one."""
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
    folder: Path, parts: Parts, evaluation: Evaluation, report: EvalReport, wall_s: float, command: str
) -> None:
    """Figures, summary and page of an evaluation, finished or stopped."""
    result = report.result
    values = result.values()
    write_evaluation(folder, replace(evaluation, values=values, num_done=result.num_tasks, more=report.more))
    env_steps = sum(int(t.info.get("num_actions", len(t.steps))) for t in result.trajectories)  # type: ignore[arg-type]
    _write_metrics(folder, parts.config, Entry("eval", 0, wall_s, env_steps, values))
    write_summary(
        folder,
        _summary(parts.config, evaluation, report, env_steps=env_steps, wall_s=wall_s, command=command),
    )
    try:
        replays = make_replays(parts, _worth_seeing(result.trajectories), "after")
        save_replays(folder / REPLAYS, [replace(replay, stage="episode") for replay in replays])
    except StepwellError as error:  # a world that cannot be played again costs the page its replays only
        report.notes.append(f"no replays: {error}")
    write_report(folder)


def _summary(
    config: RunConfig,
    evaluation: Evaluation,
    report: EvalReport,
    *,
    env_steps: int,
    wall_s: float,
    command: str,
) -> Summary:
    from stepwell.runs.run import machine

    low, high = report.result.interval
    score = Score(report.result.success, low, high, report.result.num_tasks, report.model)
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
        machine=machine(),
        command=command,
        more={"kind": "evaluation", "figures": report.figures()},
    )


def _write_metrics(folder: Path, config: RunConfig, entry: Entry) -> None:
    """`metrics.jsonl` with the one entry there is."""
    (folder / jsonl.FILE_NAME).unlink(missing_ok=True)
    monitor = jsonl.JsonlMonitor()
    monitor.start(RunInfo(folder, folder.name, config.title, "", config.seed, 0))
    monitor.record(entry)
    monitor.close()


def _worth_seeing(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Of distinct tasks some that were solved and some that were not, in order."""
    first: dict[str, Trajectory] = {}
    for trajectory in trajectories:
        first.setdefault(trajectory.task.id, trajectory)
    solved = [t for t in first.values() if t.status is Status.SUCCESS]
    others = [t for t in first.values() if t.status is not Status.SUCCESS]
    num_solved = max(NUM_REPLAYS // 2, NUM_REPLAYS - len(others))
    kept = solved[:num_solved]
    kept += others[: NUM_REPLAYS - len(kept)]
    chosen = {t.id for t in kept}
    return [t for t in first.values() if t.id in chosen]


def check_comparable(named: Sequence[tuple[str, Evaluation]]) -> None:
    """Refuse evaluations of different worlds or tasks, and say what differs."""
    (first_name, first), *others = named
    for name, other in others:
        where = f"{first_name} and {name} cannot stand in one table"
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
                f"{where}: they hold other tasks ({len(first.tasks)} and {len(other.tasks)}, "
                f"{len({*first.tasks} & {*other.tasks})} shared); give both the same --num-tasks and "
                "the same CONFIG: a run's folder is one, for an outside model too"
            )
    for name, one in named:
        if one.num_done < len(one.tasks):
            raise ConfigError(
                f"{name} has finished {one.num_done} of {len(one.tasks)} tasks; "
                f"go on with it: stepwell eval --resume {name}"
            )


def comparison(named: Sequence[tuple[str, Evaluation]]) -> tuple[list[str], list[list[str]], list[str]]:
    """Heads, rows and notes of the table in which evaluations stand side by side."""
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
    return ["model", "success", "95 % interval", *shown.values()], rows, _differences(named)


def _differences(named: Sequence[tuple[str, Evaluation]]) -> list[str]:
    """Settings in which the models were not asked alike, one sentence each."""
    keys = dict.fromkeys(key for _, one in named for key in one.how)
    told = []
    for key in keys:
        values = [json.dumps(one.how.get(key)) for _, one in named]
        if len(set(values)) > 1:
            told.append(f"{key} differs: {', '.join(values)}")
    return told
