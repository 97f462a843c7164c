"""A training run from settings to report: its folder, its monitors, its end.

    runs/NAME/  config.toml  metrics.jsonl  summary.json  checkpoints/  trajectories/
                tensorboard/  replays.json  report.html

A fresh run makes its folder; `resume` goes on in one, from its newest whole checkpoint, with the
settings it was started with. However a run ends, what it has is summarised and reported.
"""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

import stepwell
from stepwell.config.loading import dump_config, load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError
from stepwell.monitors.base import Monitor, Monitors, RunInfo
from stepwell.monitors.console import ConsoleMonitor
from stepwell.monitors.files import write_whole
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.replays import save_replays
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, Summary, write_summary
from stepwell.monitors.tensorboard import TensorboardMonitor
from stepwell.monitors.wandb import WandbMonitor
from stepwell.pipeline.evaluation import EvalResult
from stepwell.pipeline.loop import SyncLoop
from stepwell.pipeline.parts import Parts
from stepwell.pipeline.replays import make_replays
from stepwell.training.checkpoint import Checkpoint, latest_checkpoint

NUM_REPLAYS = 6


def train(
    config: RunConfig | None = None, *, resume: Path | None = None, baselines: list[Score] | None = None
) -> Path:
    """Run to the end; returns the run's folder."""
    if resume is None:
        config = config or RunConfig()
        folder = new_folder(config)
        write_whole(folder / "config.toml", dump_config(config))
    else:
        folder = resume
        config = _config_of(folder)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    parts = Parts(config)
    monitors = Monitors(_monitors(config))
    loop = SyncLoop(config, folder, parts, monitors)
    status = "failed"
    try:
        saved = _resumed(folder, monitors) if resume is not None else None
        monitors.start(_info(config, folder, parts, saved, is_resumed=resume is not None))
        if saved is not None and saved.update >= config.train.num_updates:
            monitors.note(f"{folder} has had all its {config.train.num_updates} updates")
        torch.manual_seed(config.seed)
        loop.run(saved)
        status = loop.ending
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        _finish(loop, folder, status, baselines or [])
        monitors.close()
        parts.close()
    return folder


def new_folder(config: RunConfig) -> Path:
    """A folder of its own for a fresh run."""
    name = config.name or (
        f"{config.env.name.replace(':', '-')}-{config.recipe.name}-seed{config.seed}-"
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


def _resumed(folder: Path, monitor: Monitor) -> Checkpoint | None:
    """The checkpoint to go on from; None when the run was stopped before its first one."""
    notes: list[str] = []
    found = latest_checkpoint(folder / "checkpoints", notes.append)
    for note in notes:
        print(note)
    if found is None and (folder / "checkpoints").exists() and notes:
        raise ConfigError(f"--resume: every checkpoint of {folder} is damaged; start a new run")
    return found


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


def _score(result: EvalResult, name: str) -> Score:
    low, high = result.interval
    return Score(result.success, low, high, result.num_tasks, name)


def _finish(loop: SyncLoop, folder: Path, status: Any, baselines: list[Score]) -> None:
    """Summary, replays and report of whatever there is."""
    config, state = loop.config, loop.state
    before = state.before
    first = None
    if before is not None:
        first = Score(before["success"], before["low"], before["high"], config.eval.num_tasks, "before")
    after = None if loop.last_eval is None else _score(loop.last_eval, "after")
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
    if not config.monitor.report:
        return
    replays = []
    for stage, result in (("before", loop.before), ("after", loop.last_eval)):
        if result is not None:
            replays += make_replays(loop.parts, result.trajectories[:NUM_REPLAYS], stage)
    save_replays(folder / "replays.json", replays)
    write_report(folder)
