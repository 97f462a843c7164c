"""What benchmarks share that kill runs: processes that die with their whole group, and two runs compared."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stepwell.config.run import RunConfig
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.run import train
from stepwell.training import list_checkpoints


def start_or_resume(config: RunConfig) -> None:
    """Start the run, or go on with it."""
    folder = Path(config.folder) / str(config.name)
    if (folder / "config.toml").exists():
        train(resume=folder)
    else:
        train(config)


def start_process(target: Callable[..., object], *args: object) -> Any:
    """A forked process in a group of its own: it shares what is imported, and nothing that was computed."""
    child = multiprocessing.get_context("fork").Process(target=_run_in_own_group, args=(target, *args))
    child.start()
    with suppress(PermissionError, ProcessLookupError):  # it was faster, or it has ended
        os.setpgid(child.pid, child.pid)  # type: ignore[arg-type]
    return child


def _run_in_own_group(target: Callable[..., object], *args: object) -> None:
    os.setpgid(0, 0)
    target(*args)


def kill_group(child: Any) -> bool:
    """Kill a process and all that it started, with SIGKILL; False if it had ended by itself."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return bool(child.exitcode == -signal.SIGKILL)


def newest_update(folder: Path) -> int:
    """The update of the newest checkpoint; -1 while there is none."""
    return max((int(path.name[-6:]) for path in list_checkpoints(folder / "checkpoints")), default=-1)


def list_differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs: weights, optimizer state, record."""
    found = []
    ends = [list_checkpoints(folder / "checkpoints")[-1] for folder in (one, other)]
    if ends[0].name != ends[1].name:
        return [f"one ends at {ends[0].name}, the other at {ends[1].name}"]
    for path in sorted(ends[0].rglob("*.safetensors")):
        weights = [load_file(path), load_file(ends[1] / path.relative_to(ends[0]))]
        found += [f"{path.name}: {key}" for key in weights[0] if not torch.equal(*(w[key] for w in weights))]
    states = [torch.utils._pytree.tree_leaves(torch.load(end / "trainer.pt")) for end in ends]
    for index, (a, b) in enumerate(zip(*states, strict=True)):
        is_equal = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        found += [] if is_equal else [f"trainer.pt: entry {index}"]
    if read_record(one) != read_record(other):
        found.append("metrics.jsonl")
    return found


def read_record(folder: Path) -> list[Any]:
    """The record without what depends on the clock."""
    return [
        (e.kind, e.update, e.env_steps, {k: v for k, v in e.values.items() if not _is_clock(k)})
        for e in read_entries(folder / "metrics.jsonl")
        if e.kind != "event"
    ]


def _is_clock(name: str) -> bool:
    return name.startswith("time/") or name == "tokens_per_s"
