"""A training run from settings to report: its folder, its monitors, its end.

    runs/NAME/  config.toml  metrics.jsonl  eval_episodes.jsonl  summary.json  checkpoints/  pool/
                tensorboard/  replays.json  report.html

A fresh run makes its folder; `resume` goes on in one, from its newest whole checkpoint, with the
settings it was started with. What settings get wrong is refused before a folder is made. However
a run ends after that, what it has is summarised and reported.
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
from stepwell.monitors.base import Monitor, Monitors, RunInfo
from stepwell.monitors.console import ConsoleMonitor
from stepwell.monitors.files import write_whole
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, Summary, write_summary
from stepwell.monitors.tensorboard import TensorboardMonitor
from stepwell.monitors.timeline import write_timeline
from stepwell.monitors.wandb import WandbMonitor
from stepwell.pipeline.groups import placed, start_groups
from stepwell.pipeline.loop import SyncLoop
from stepwell.pipeline.loop_state import LoopState
from stepwell.pipeline.parts import Parts
from stepwell.pipeline.replays import keep_replays
from stepwell.policies.numerics import set_numerics
from stepwell.training.checkpoint import Checkpoint, latest_checkpoint

Status = Literal["finished", "stopped_early", "interrupted", "failed"]


def train(
    config: RunConfig | None = None,
    *,
    resume: Path | None = None,
    baselines: list[Score] | None = None,
    expected_s: float | None = None,
) -> Path:
    """Run to the end; returns the run's folder. `expected_s` is how long that should take, if known."""
    config = (config or RunConfig()) if resume is None else _config_of(resume)
    config = placed(config)
    set_numerics(config.num_threads)
    folder = new_folder(config) if resume is None else resume
    parts, groups = Parts(config, folder), None
    try:
        saved, notes = (None, []) if resume is None else _resumed(resume)
        torch.manual_seed(config.seed)
        if config.groups.mode != "off":
            groups = start_groups(config, parts)
        parts.prepare()
        if resume is None:
            write_whole(folder / "config.toml", dump_config(config))
    except BaseException:
        parts.close()
        if resume is None:  # nothing has begun: the name stays free for another try
            shutil.rmtree(folder, ignore_errors=True)
        raise
    monitors = Monitors(_monitors(config))
    loop = SyncLoop(
        config, folder, parts, monitors, LoopState() if saved is None else LoopState.of(saved), groups
    )
    if groups is not None:
        groups.on_figures = monitors.watch
    info = _info(config, folder, parts, saved, is_resumed=resume is not None)
    info = replace(info, expected_s=expected_s)
    with _finishing(loop, baselines or []):
        monitors.start(info)
        for note in notes:
            monitors.note(note)
        loop.run(saved)
    return folder


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


def new_folder(config: RunConfig) -> Path:
    """A folder of its own for a fresh run."""
    name = config.name or (
        f"{_name_of_env(config.env.name)}-{config.recipe.name}-seed{config.seed}-"
        f"{datetime.now():%Y%m%d-%H%M%S}"
    )
    folder = Path(config.folder) / name
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists already; go on with --resume {folder}, or give another `name`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder: cannot make {folder} ({error.strerror}); choose another `folder`"
        ) from error
    return folder


def _name_of_env(name: str) -> str:
    """`folder/my_env.py:NumberLine` as a part of a folder's name: `my_env-NumberLine`."""
    where, separator, rest = name.rpartition(":")
    is_file = where.endswith(".py")
    return re.sub(r"[^\w.-]+", "-", f"{Path(where).stem}{separator}{rest}" if is_file else name)


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
        chosen.append(ConsoleMonitor())
    if config.monitor.tensorboard:
        chosen.append(TensorboardMonitor())
    if config.monitor.wandb:
        chosen.append(WandbMonitor())
    return chosen


def _info(
    config: RunConfig, folder: Path, parts: Parts, saved: Checkpoint | None, *, is_resumed: bool
) -> RunInfo:
    return RunInfo(
        folder=folder,
        name=folder.name,
        env=config.env.name,
        recipe=parts.recipe.name,
        seed=config.seed,
        num_updates=config.train.num_updates,
        config=config.model_dump(mode="json"),
        resumed_from=(-1 if saved is None else saved.update) if is_resumed else None,
    )


def _score(values: dict[str, float] | None, name: str) -> Score | None:
    if values is None:
        return None
    return Score(values["success"], values["low"], values["high"], int(values["num_tasks"]), name)


def _finish(loop: SyncLoop, status: Status, baselines: list[Score]) -> None:
    """Summary, replays and report of whatever there is."""
    config, state, folder = loop.config, loop.state, loop.folder
    first, after = _score(state.before, "before"), _score(state.last, "after")
    temperature = config.eval.temperature
    write_summary(
        folder,
        Summary(
            success_before=None if first is None else first.success,
            success_after=None if after is None else after.success,
            env_steps=state.env_steps,
            wall_s=round(loop._time(), 2),
            seed=config.seed,
            recipe=loop.parts.recipe.name,
            env=config.env.name,
            status=status,
            before=first,
            after=after,
            baselines=baselines,
            decoding={"temperature": temperature, "samples_per_task": config.eval.samples_per_task},
            machine=machine(),
            command=f"stepwell train {folder}/config.toml",
            more={"num_updates": state.update, "warm_start_s": round(state.warm_start_s, 2)},
        ),
    )
    if loop.groups is not None:
        write_timeline(folder, loop.groups.spans.timeline())
    if config.monitor.report:
        if loop.last_eval is not None:
            keep_replays(loop.parts, folder, loop.last_eval.trajectories, "after")
        write_report(folder)
