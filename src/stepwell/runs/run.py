"""A training run from settings to report: its folder, its monitors, its end.

    runs/NAME/  config.toml  run.json  metrics.jsonl  eval_episodes.jsonl  summary.json  checkpoints/
                pool/  tensorboard/  replays.json  report.html

A fresh run makes its folder; `resume` goes on in one, from its newest whole checkpoint, with its own
settings or with changes that `config/changing.py` allows. One process trains in a folder at a time
(`run_lock.py`). A start that fails leaves a folder that the next one of that name may use. However a run
ends after its start, what it has is summarised and reported.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch

import stepwell
from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EncodingError, StepwellError
from stepwell.core.user_objects import is_process_bound
from stepwell.monitors.base import Monitor, Monitors, RunInfo
from stepwell.monitors.console import ConsoleMonitor
from stepwell.monitors.files import atomic_write
from stepwell.monitors.jsonl import FILE_NAME as METRICS
from stepwell.monitors.jsonl import JsonlMonitor, read_entries
from stepwell.monitors.notebook import NotebookMonitor, is_notebook
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, Summary, read_summary, write_summary
from stepwell.monitors.tensorboard import TensorboardMonitor
from stepwell.monitors.timeline import write_timeline
from stepwell.monitors.wandb import WandbMonitor
from stepwell.policies.numerics import set_numerics
from stepwell.runs.build.components import Parts
from stepwell.runs.build.worker_groups import placed, start_groups
from stepwell.runs.diagnosis import diagnose
from stepwell.runs.evaluation.replays import keep_replays
from stepwell.runs.interrupts import Terminated
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.training_loop import SyncLoop
from stepwell.runs.run_lock import hold_run_folder
from stepwell.runs.run_record import (
    RunRecord,
    clear_failed_start,
    is_failed_start,
    new_record,
    read_record,
    take_changes,
)
from stepwell.training.checkpoint import Checkpoint, latest_checkpoint

Status = Literal["finished", "stopped_early", "interrupted", "failed"]


def train(
    config: RunConfig | None = None,
    *,
    resume: Path | None = None,
    baselines: list[Score] | None = None,
    expected_s: float | None = None,
) -> Path:
    """Run to the end; returns the run's folder. `expected_s` is how long that should take, if known.

    With `resume` the run of that folder goes on, with its own settings or with those of `config`, which may
    differ where a run can go on with the difference.
    """
    if config is None:
        config = RunConfig() if resume is None else _config_of(resume)
    config = placed(config)
    set_numerics(config.num_threads)
    folder = new_folder(config) if resume is None else resume
    with hold_run_folder(folder):
        loop, saved, notes = _start(config, folder) if resume is None else _go_on(config, folder)
        info = replace(_info(loop, saved, is_resumed=resume is not None), expected_s=expected_s)
        with _finishing(loop, baselines or []):
            loop.monitor.start(info)
            for note in notes:
                loop.monitor.note(note)
            loop.run(saved)
    return folder


def _start(config: RunConfig, folder: Path) -> tuple[SyncLoop, None, list[str]]:
    """A fresh run, ready to begin; where that fails nothing is left."""
    try:
        clear_failed_start(folder)
        record = new_record(folder, config)
        loop = _build(config, folder, record)
        atomic_write(folder / "config.toml", dump_config(config))
        record.write(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return loop, None, []


def _go_on(config: RunConfig, folder: Path) -> tuple[SyncLoop, Checkpoint | None, list[str]]:
    """A run that goes on; its files change only once everything is there to go on with."""
    record = read_record(folder, config)
    changes = take_changes(record, folder, config)
    saved, notes = _resumed(folder)
    loop = _build(config, folder, record)
    if saved is not None:
        loop.state = LoopState.of(saved)
    if changes:
        record.add_changes(changes, config, loop.state.update)
        atomic_write(folder / "config.toml", dump_config(config))
    record.write(folder)
    loop.has_other_measure = any(change.is_measure for change in changes)
    notes += [f"changed from here on: {change} ({change.rule.reason})" for change in changes]
    return loop, saved, notes


def _build(config: RunConfig, folder: Path, record: RunRecord) -> SyncLoop:
    """The loop with all its parts, which are closed again where one of them cannot be built."""
    parts, groups = Parts(config, folder, record.name), None
    try:
        torch.manual_seed(config.seed)
        if config.groups.mode != "off":
            groups = start_groups(config, parts)
        parts.prepare()
        monitors = Monitors(_monitors(config))
    except BaseException:
        parts.close()
        raise
    if groups is not None:
        groups.on_figures = monitors.watch
    return SyncLoop(config, folder, parts, monitors, LoopState(), groups, record=record)


@contextmanager
def _finishing(loop: SyncLoop, baselines: list[Score]) -> Iterator[None]:
    """However the loop ends: summary, report, and everything closed."""
    try:
        yield
    except BaseException as error:
        status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            _finish(loop, status, baselines)
        except (StepwellError, OSError) as second:  # what stopped the run is the news, not this
            error.add_note(f"the summary could not be written either: {second}")
        raise
    else:
        _finish(loop, loop.ending, baselines)
    finally:
        loop.monitor.close()
        loop.parts.close()
    if loop.ending != "interrupted" and loop.config.checkpoint.trajectories_mb == 0:
        shutil.rmtree(loop.folder / "pool", ignore_errors=True)  # the run is over: nothing is left to learn


def raise_if_interrupted(folder: Path) -> None:
    """Raise what the signal would have raised that this run has saved itself and ended for."""
    summary = read_summary(folder)
    if summary is not None and summary.status == "interrupted":
        raise Terminated if summary.interrupted_by == "SIGTERM" else KeyboardInterrupt


def new_folder(config: RunConfig) -> Path:
    """A folder of its own for a fresh run."""
    name = config.name or (
        f"{_make_folder_name(config.title)}-{_make_folder_name(config.recipe.name)}-seed{config.seed}-"
        f"{datetime.now():%Y%m%d-%H%M%S}"
    )
    folder = Path(config.folder) / name
    if folder.exists() and any(folder.iterdir()) and not is_failed_start(folder):
        raise ConfigError(f"{folder} exists already; go on with --resume {folder}, or give another `name`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder: cannot make {folder} ({error.strerror}); choose another `folder`"
        ) from error
    return folder


def _make_folder_name(name: str) -> str:
    """`folder/my_env.py:NumberLine` as a part of a folder's name: `my_env-NumberLine`."""
    where, separator, rest = name.rpartition(":")
    if where.endswith(".py"):
        name = f"{Path(where).stem}{separator}{rest}"
    elif is_process_bound(name):
        name = rest
    return re.sub(r"[^\w.+-]+", "-", name)


def machine() -> dict[str, Any]:
    """Where figures were taken."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stepwell": stepwell.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _config_of(folder: Path) -> RunConfig:
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(f"--resume: {folder} has no config.toml; give the folder of an earlier run")
    return load_config(path)


def _resumed(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from (None: the run was stopped before its first), and what to say of it."""
    notes: list[str] = []
    found = latest_checkpoint(folder / "checkpoints", notes.append)
    if found is None and notes:
        raise EncodingError(
            f"--resume: every checkpoint of {folder} is damaged, there is nothing to go on from; start a new "
            f"run. {notes[0]}"
        )
    return found, notes


def _monitors(config: RunConfig) -> list[Monitor]:
    chosen: list[Monitor] = [JsonlMonitor()]
    if config.monitor.console:
        chosen.append(NotebookMonitor() if is_notebook() else ConsoleMonitor())
    if config.monitor.tensorboard:
        chosen.append(TensorboardMonitor())
    if config.monitor.wandb:
        chosen.append(WandbMonitor())
    return chosen


def _info(loop: SyncLoop, saved: Checkpoint | None, *, is_resumed: bool) -> RunInfo:
    config, folder = loop.config, loop.folder
    return RunInfo(
        folder=folder,
        name=folder.name,
        env=config.title,
        recipe=loop.parts.recipe.name,
        seed=config.seed,
        num_updates=config.train.num_updates,
        config=config.model_dump(mode="json"),
        id="" if loop.record is None else loop.record.id,
        resumed_from=(-1 if saved is None else saved.update) if is_resumed else None,
    )


def _score(values: dict[str, float] | None, name: str) -> Score | None:
    if values is None:
        return None
    return Score(values["success"], values["low"], values["high"], int(values["num_tasks"]), name)


def _diagnosed(loop: SyncLoop) -> list[str]:
    """Why the run learnt nothing, said aloud; nothing where it learnt, or learnt from stored episodes."""
    if loop.config.offline.pool is not None:
        return []
    has_warm_start = loop.config.warm_start.is_wanted
    findings = diagnose(read_entries(loop.folder / METRICS), has_warm_start=has_warm_start)
    for text in findings:
        loop.monitor.note(text)
    return findings


def _agent_errors(loop: SyncLoop) -> dict[str, Any]:
    """The first error of each kind that a user's own agent made, those before a resume included."""
    if loop.failures is None:
        return {}
    before = read_summary(loop.folder)
    known = before.more.get("agent_errors", {}) if before is not None else {}
    return {"agent_errors": {**loop.failures.errors, **known}}


def _finish(loop: SyncLoop, status: Status, baselines: list[Score]) -> None:
    """Summary, replays and report of whatever there is."""
    config, state, folder = loop.config, loop.state, loop.folder
    first, after = _score(state.before, "before"), None
    if state.is_evaluated and (state.update or status in ("finished", "stopped_early")):
        after = _score(state.last, "after")
    changes = [] if loop.record is None else loop.record.changes
    if first is not None and loop.record is not None and loop.record.has_other_measure:
        first.note = "measured with the eval settings of the start, which have changed since"
    temperature = config.eval.temperature
    findings = _diagnosed(loop) if status in ("finished", "stopped_early") else []
    write_summary(
        folder,
        Summary(
            success_before=None if first is None else first.success,
            success_after=None if after is None else after.success,
            env_steps=state.env_steps,
            wall_s=round(loop._time(), 2),
            seed=config.seed,
            recipe=loop.parts.recipe.name,
            env=config.title,
            status=status,
            before=first,
            after=after,
            baselines=baselines,
            decoding={"temperature": temperature, "samples_per_task": config.eval.samples_per_task},
            machine=machine(),
            command=f"stepwell train {folder}/config.toml",
            latest=_score(state.last, f"update {state.evaluated_at}"),
            best=_score(state.best_values, f"update {state.best_update}"),
            changes=changes,
            interrupted_by=loop.stop_signal,
            more={
                "num_updates": state.update,
                "warm_start_s": round(state.warm_start_s, 2),
                **({"diagnosis": findings} if findings else {}),
                **_agent_errors(loop),
            },
        ),
    )
    if loop.groups is not None:
        write_timeline(folder, loop.groups.spans.build_timeline())
    if config.monitor.report:
        if loop.last_eval is not None:
            keep_replays(loop.parts, folder, loop.last_eval.trajectories, "after")
        write_report(folder)
