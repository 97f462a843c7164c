"""A training run from settings to report.

    runs/NAME/  config.toml  run.json  metrics.jsonl  eval_episodes.jsonl  summary.json  checkpoints/
                pool/  tensorboard/  replays.json  report.html

A fresh run makes its folder. `resume` continues in an existing folder from its newest whole checkpoint, with
the same settings or with changes that `config/changing.py` allows. One process trains in a folder at a time
(`run_lock.py`). The folder of a failed start may be used again. However a run ends after its start, it
writes a summary and a report of what it has.
"""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch

from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EncodingError, StepwellError
from stepwell.core.disk import atomic_write
from stepwell.core.user_objects import is_process_bound
from stepwell.monitors.base import Monitor, Monitors, RunInfo
from stepwell.monitors.console import ConsoleMonitor
from stepwell.monitors.jsonl import FILE_NAME as METRICS
from stepwell.monitors.jsonl import JsonlMonitor, read_entries
from stepwell.monitors.mlflow import MlflowMonitor
from stepwell.monitors.notebook import NotebookMonitor, is_notebook
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import SuccessScore, Summary, read_summary, write_repeat_command, write_summary
from stepwell.monitors.tensorboard import TensorboardMonitor
from stepwell.monitors.timeline import write_timeline
from stepwell.monitors.trackio import TrackioMonitor
from stepwell.monitors.wandb import WandbMonitor
from stepwell.policies.numerics import set_numerics
from stepwell.runs.build.components import Components
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.build.worker_plan import place_policy
from stepwell.runs.diagnosis import diagnose
from stepwell.runs.evaluation.replays import save_run_replays
from stepwell.runs.interrupts import Terminated
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.training_loop import TrainingLoop
from stepwell.runs.machine import describe_machine
from stepwell.runs.run_lock import hold_run_folder
from stepwell.runs.run_record import (
    RunRecord,
    check_changes,
    clear_failed_start,
    is_failed_start,
    make_record,
    read_record,
)
from stepwell.training.checkpoint import Checkpoint, find_latest_checkpoint

Status = Literal["finished", "stopped_early", "interrupted", "failed"]


def train(
    config: RunConfig | None = None,
    *,
    resume: Path | None = None,
    baselines: list[SuccessScore] | None = None,
) -> Path:
    """Run to the end; returns the run's folder.

    With `resume` the run in that folder continues, with its own settings or with those of `config`. They may
    differ in settings that a run can change.
    """
    if config is None:
        config = RunConfig() if resume is None else _read_config(resume)
    config = place_policy(config)
    set_numerics(config.num_threads)
    folder = make_run_folder(config) if resume is None else resume
    with hold_run_folder(folder):
        loop, saved, notes = _start_fresh(config, folder) if resume is None else _resume_run(config, folder)
        info = _describe_run(loop, saved, is_resumed=resume is not None)
        with _spare_collections(), _finish_always(loop, baselines or []):
            loop.monitor.start(info)
            for note in notes:
                loop.monitor.note(note)
            loop.run(saved)
    return folder


def _start_fresh(config: RunConfig, folder: Path) -> tuple[TrainingLoop, None, list[str]]:
    """A fresh run, ready to start; if that fails, nothing is left behind."""
    try:
        clear_failed_start(folder)
        record = make_record(folder, config)
        loop = _build_loop(config, folder, record)
        atomic_write(folder / "config.toml", dump_config(config))
        record.write(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return loop, None, []


def _resume_run(config: RunConfig, folder: Path) -> tuple[TrainingLoop, Checkpoint | None, list[str]]:
    """A run that resumes; its files change only after everything is built."""
    record = read_record(folder, config)
    changes = check_changes(record, folder, config)
    saved, notes = _find_checkpoint(folder)
    if changes and saved is not None and config.train.num_updates < saved.update:
        raise ConfigError(
            f"--resume: train.num_updates is {config.train.num_updates}, but {folder} has made "
            f"{saved.update} updates; give more, or leave it out"
        )
    loop = _build_loop(config, folder, record)
    if saved is not None:
        loop.state = LoopState.of(saved)
    if changes:
        record.add_changes(changes, config, loop.state.update)
        atomic_write(folder / "config.toml", dump_config(config))
    record.write(folder)
    loop.has_other_measure = any(change.is_measure for change in changes)
    notes += [f"changed from here on: {change} ({change.rule.reason})" for change in changes]
    return loop, saved, notes


def _build_loop(config: RunConfig, folder: Path, record: RunRecord) -> TrainingLoop:
    """The loop with all its components, which are closed again if one of them cannot be built."""
    components, workers = Components(config, folder, record.name), None
    try:
        torch.manual_seed(config.seed)
        if config.workers.mode != "off":
            workers = WorkerGroups.start(config, components)
        components.prepare(plays_here=workers is None)
        monitors = Monitors(_make_monitors(config))
    except BaseException:
        if workers is not None:
            workers.close()
        components.close()
        raise
    if workers is not None:
        workers.on_figures = monitors.watch
    return TrainingLoop(config, folder, components, monitors, LoopState(), workers, record=record)


@contextmanager
def _spare_collections() -> Iterator[None]:
    """Leave what exists now out of garbage collections.

    Libraries and components are half a million objects that stay. A full collection walks through all of
    them, every few updates, for a third of a second on a slow CPU.
    """
    if gc.get_freeze_count():  # by the caller, who also ends it
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _finish_always(loop: TrainingLoop, baselines: list[SuccessScore]) -> Iterator[None]:
    """However the loop ends: write summary and report, and close everything."""
    try:
        yield
    except BaseException as error:
        status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            _write_results(loop, status, baselines)
        except (StepwellError, OSError) as second:  # what stopped the run is more important
            error.add_note(f"the summary could not be written either: {second}")
        raise
    else:
        _write_results(loop, loop.ending, baselines)
    finally:
        loop.monitor.close()
        loop.close()
    if loop.ending != "interrupted" and loop.config.checkpoint.trajectories_mb == 0:
        shutil.rmtree(
            loop.folder / "pool", ignore_errors=True
        )  # the run is over: nothing will be learnt from it


def raise_if_interrupted(folder: Path) -> None:
    """Raise the interrupt that made this run save and stop."""
    summary = read_summary(folder)
    if summary is not None and summary.status == "interrupted":
        raise Terminated if summary.interrupted_by == "SIGTERM" else KeyboardInterrupt


def make_run_folder(config: RunConfig) -> Path:
    """Make the folder of a fresh run. Runs that start in the same second get folders of their own."""
    if not config.name:
        return _make_unnamed_folder(config)
    folder = Path(config.folder) / config.name
    if folder.exists() and any(folder.iterdir()) and not is_failed_start(folder):
        raise ConfigError(f"{folder} exists already; continue with --resume {folder}, or give another `name`")
    _make_folder(folder, exist_ok=True)
    return folder


def _make_unnamed_folder(config: RunConfig) -> Path:
    title, recipe = _make_folder_name(config.title), _make_folder_name(config.recipe.name)
    name = f"{title}-{recipe}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = Path(config.folder) / name, 1
    while True:
        try:
            _make_folder(folder, exist_ok=False)
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")
        else:
            return folder


def _make_folder(folder: Path, *, exist_ok: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if isinstance(error, FileExistsError) and not exist_ok:
            raise
        raise ConfigError(
            f"folder: cannot make {folder} ({error.strerror}); choose another `folder`"
        ) from error


def _make_folder_name(name: str) -> str:
    """`folder/my_env.py:NumberLine` as a part of a folder's name: `my_env-NumberLine`."""
    where, separator, rest = name.rpartition(":")
    if where.endswith(".py"):
        name = f"{Path(where).stem}{separator}{rest}"
    elif is_process_bound(name):
        name = rest
    return re.sub(r"[^\w.+-]+", "-", name)


def _read_config(folder: Path) -> RunConfig:
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(f"--resume: {folder} has no config.toml; give the folder of an earlier run")
    return load_config(path)


def _find_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to resume from (None: the run stopped before its first one), and notes about it."""
    notes: list[str] = []
    found = find_latest_checkpoint(folder / "checkpoints", notes.append)
    if found is None and notes:
        raise EncodingError(
            f"--resume: every checkpoint of {folder} is damaged, so the run cannot continue; start a new "
            f"one. {notes[0]}"
        )
    return found, notes


def _make_monitors(config: RunConfig) -> list[Monitor]:
    chosen: list[Monitor] = [JsonlMonitor()]
    if config.monitor.console:
        chosen.append(NotebookMonitor() if is_notebook() else ConsoleMonitor())
    if config.monitor.tensorboard:
        chosen.append(TensorboardMonitor())
    if config.monitor.wandb:
        chosen.append(WandbMonitor())
    if config.monitor.trackio:
        chosen.append(TrackioMonitor())
    if config.monitor.mlflow:
        chosen.append(MlflowMonitor())
    return chosen


def _describe_run(loop: TrainingLoop, saved: Checkpoint | None, *, is_resumed: bool) -> RunInfo:
    config, folder = loop.config, loop.folder
    return RunInfo(
        folder=folder,
        name=folder.name,
        env=config.title,
        recipe=loop.components.recipe.name,
        seed=config.seed,
        num_updates=config.train.num_updates,
        config=config.model_dump(mode="json"),
        id="" if loop.record is None else loop.record.id,
        resumed_from=(-1 if saved is None else saved.update) if is_resumed else None,
    )


def _read_score(values: dict[str, float] | None, name: str) -> SuccessScore | None:
    if values is None:
        return None
    return SuccessScore(values["success"], values["low"], values["high"], int(values["num_tasks"]), name)


def _report_diagnosis(loop: TrainingLoop) -> list[str]:
    """Report why the run learnt nothing; empty if it learnt, or learnt from stored episodes."""
    if loop.config.offline.pool is not None:
        return []
    config, train = loop.config, loop.config.train
    findings = diagnose(
        read_entries(loop.folder / METRICS),
        has_warm_start=config.has_warm_start,
        agent_episodes=train.tasks_per_update * train.group_size if config.own_agent.function else 0,
    )
    for text in findings:
        loop.monitor.note(text)
    return findings


def _collect_agent_errors(loop: TrainingLoop) -> dict[str, Any]:
    """The first error of each kind of a user's own agent, including those before a resume."""
    if loop.failures is None:
        return {}
    before = read_summary(loop.folder)
    known = before.more.get("agent_errors", {}) if before is not None else {}
    return {"agent_errors": {**loop.failures.errors, **known}}


def _write_results(loop: TrainingLoop, status: Status, baselines: list[SuccessScore]) -> None:
    """Write summary, replays and report of what there is."""
    config, state, folder = loop.config, loop.state, loop.folder
    first, after = _read_score(state.before, "before"), None
    if state.is_evaluated and (state.update or status in ("finished", "stopped_early")):
        after = _read_score(state.last, "after")
    changes = [] if loop.record is None else loop.record.changes
    if first is not None and loop.record is not None and loop.record.has_other_measure:
        first.note = "measured with the eval settings at the start, which have changed since"
    temperature = config.eval.temperature
    findings = _report_diagnosis(loop) if status in ("finished", "stopped_early") else []
    write_summary(
        folder,
        Summary(
            success_before=None if first is None else first.success,
            success_after=None if after is None else after.success,
            env_steps=state.env_steps,
            wall_s=round(loop.elapsed_s, 2),
            seed=config.seed,
            recipe=loop.components.recipe.name,
            env=config.title,
            status=status,
            before=first,
            after=after,
            baselines=baselines,
            decoding={"temperature": temperature, "samples_per_task": config.eval.samples_per_task},
            machine=describe_machine(),
            command=write_repeat_command(folder, config.name),
            latest=_read_score(state.last, f"update {state.evaluated_at}"),
            best=_read_score(state.best_values, f"update {state.best_update}"),
            changes=changes,
            interrupted_by=loop.stop_signal,
            more={
                "num_updates": state.update,
                "warm_start_s": round(state.warm_start_s, 2),
                "checkpoint_wait_s": round(loop.saver.waited_s, 2),
                **({"num_rollbacks": state.num_rollbacks} if state.num_rollbacks else {}),
                **({"diagnosis": findings} if findings else {}),
                **_collect_agent_errors(loop),
            },
        ),
    )
    if loop.workers is not None:
        write_timeline(folder, loop.workers.spans.build_timeline())
    if config.monitor.report:
        loop.monitor.phase("report")
        if loop.last_eval is not None:
            save_run_replays(loop.components, folder, loop.last_eval.trajectories, "after", loop.monitor.note)
        write_report(folder)
