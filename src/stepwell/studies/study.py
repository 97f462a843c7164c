"""Studies: many runs, side by side, over as many sittings as it takes, compared in one table.

    run_study
      ├─ plan_runs, _check       worlds x variants x seeds; refused before anything runs
      ├─ hold                    one sitting at a time in a folder
      ├─ adopt                   the folder's earlier sittings must have had the same runs
      ├─ _work                   a process per run until all are done, the time is over, or Ctrl-C
      └─ collect, write_pages    results.json, table.md, curves-WORLD.svg, study.html

    FOLDER/  plan.json  runs/WORLD-VARIANT-seedN/  warm/ (shared warm starts)  logs/  and the outputs

Invariants
* A folder holds one study. Runs may be added to it; a run that is there keeps its settings, and a
  study file that says otherwise is refused with the difference (`restart` throws the runs away).
* A sitting can end at any moment, by Ctrl-C, by its time limit or by kill -9: the next one skips
  what is finished and goes on with the rest from their checkpoints.
* A run that fails is told and does not stop the others. The next sitting tries it again.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from stepwell.config.run import RunConfig
from stepwell.config.study import PlannedRun, StudyConfig, load_study, plan_runs
from stepwell.core.errors import ConfigError, InfraError, StepwellError
from stepwell.monitors.summary import describe_success, read_summary
from stepwell.runs.interrupts import counted_signals
from stepwell.studies.folder import adopt, earlier_sittings, hold, known_runs
from stepwell.studies.pages import write_pages
from stepwell.studies.processes import Ended, WorkerPool
from stepwell.studies.progress import StudyProgress
from stepwell.studies.results import DONE, Results, collect, join, status_of

GRACE_S = 60.0  # how long interrupted runs may take to save before they are killed
LOOK_EVERY_S = 0.2
WRITE_EVERY_S = 30.0


@dataclass(slots=True)
class Sitting:
    """How a sitting ended: `complete`, `failed` (some runs did), `limit` or `interrupted`."""

    folder: Path
    ending: str
    num_done: int
    num_runs: int
    failed: list[str]


@dataclass(slots=True)
class _Plan:
    study: StudyConfig
    runs: list[PlannedRun]
    chosen: list[PlannedRun]
    folder: Path
    is_quick: bool
    sittings: list[dict[str, Any]] = field(default_factory=list)

    def results(self) -> Results:
        return collect(self.study, self.runs, is_quick=self.is_quick, sittings=self.sittings)


def run_study(
    file: Path,
    *,
    quick: bool = False,
    workers: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    folder: Path | None = None,
    only: Sequence[str] = (),
    limit_s: float | None = None,
    restart: bool = False,
    command: str = "",
    console: Console | None = None,
) -> Sitting:
    """One sitting of the study in `file`; its folder is `folder` or `runs/study-NAME`."""
    study = load_study(file)
    study = study.shortened() if quick else study
    folder = folder or Path("runs") / f"study-{study.name}{'-quick' if quick else ''}"
    runs = plan_runs(study, file.parent, folder / "runs", device)
    chosen = _chosen(runs, only)
    _check([run for run in runs if run.name not in ({} if restart else known_runs(folder))])
    num_cores = _num_cores()
    size = max(1, min(workers or num_cores, len(chosen)))
    threads = threads or max(1, num_cores // size)
    with hold(folder, console) as lock:
        adopt(folder, runs, quick, restart)
        plan = _Plan(study, runs, chosen, folder, quick, earlier_sittings(folder))
        pool = WorkerPool(folder, size, threads, study.keep, lock)
        sitting = {"command": command, "started": datetime.now(UTC).isoformat(timespec="seconds")}
        plan.sittings.append(
            sitting | {"workers": size, "threads": threads, "wall_s": 0.0, "ending": "at work"}
        )
        return _sit(plan, pool, limit_s, console)


def join_study(
    file: Path, parts: Sequence[Path], *, quick: bool = False, folder: Path | None = None
) -> Sitting:
    """Bring parts that were run apart (on several machines, say) into one table; runs nothing."""
    study = load_study(file)
    study = study.shortened() if quick else study
    folder = folder or Path("runs") / f"study-{study.name}-joined"
    folder.mkdir(parents=True, exist_ok=True)
    results = join(study, plan_runs(study, file.parent, folder / "runs"), parts)
    write_pages(folder, results)
    failed = [run.name for run in results.runs if run.status == "failed"]
    num_runs = len(results.runs)
    return Sitting(
        folder, "complete" if results.num_done == num_runs else "failed", results.num_done, num_runs, failed
    )


def _sit(plan: _Plan, pool: WorkerPool, limit_s: float | None, console: Console | None) -> Sitting:
    began = time.monotonic()
    total, done = len(plan.chosen), len(plan.chosen) - len(_queue(plan))
    write_pages(plan.folder, plan.results())
    progress = StudyProgress(total, done, console)
    say = f"{plan.study.name}: {total} runs, {done} done before, {pool.size} side by side, in {plan.folder}"
    progress.say(say)
    try:
        is_over = _work(plan, pool, progress, began, limit_s)
    finally:
        pool.let_go()
        progress.close()
    failed = [run.name for run in plan.chosen if status_of(_folder(run)) == "failed"]
    num_done = sum(status_of(_folder(run)) in DONE for run in plan.chosen)
    ending = is_over or ("complete" if num_done == total else "failed")
    plan.sittings[-1] |= {"wall_s": round(time.monotonic() - began, 1), "ending": ending}
    write_pages(plan.folder, plan.results())
    return Sitting(plan.folder, ending, num_done, total, failed)


def _work(plan: _Plan, pool: WorkerPool, progress: StudyProgress, began: float, limit_s: float | None) -> str:
    """Run the queue; says `limit` or `interrupted` where that cut it short."""
    queue, over, asked_at, written = _queue(plan), "", 0.0, began
    with counted_signals() as asked:
        while pool.workers or (queue and not over):
            now = time.monotonic()
            if not over and asked.times:
                over = "interrupted"
            elif not over and limit_s is not None and now - began >= limit_s:
                over = "limit"
            if over and not pool.is_interrupted:
                progress.say(f"{_why(over)}: {len(pool.workers)} runs save and stop")
                asked_at = now
                pool.interrupt()
            if over and (asked.times > 1 or now - asked_at > GRACE_S):
                pool.kill()
            while queue and pool.has_room and not over:
                pool.start(queue.pop(0))
            for ended in pool.poll():
                _tell(progress, ended)
                if now - written > WRITE_EVERY_S:
                    written = now
                    _write_so_far(plan, progress, now - began)
            progress.tick(pool.workers)
            time.sleep(LOOK_EVERY_S)
    return over


def _write_so_far(plan: _Plan, progress: StudyProgress, wall_s: float) -> None:
    """Outputs of a study that goes on; a disk that is full now is told, and may have room at the end."""
    plan.sittings[-1]["wall_s"] = round(wall_s, 1)
    try:
        write_pages(plan.folder, plan.results())
    except InfraError as error:
        progress.say(str(error))


def _why(over: str) -> str:
    return "the time is over" if over == "limit" else "interrupted (Ctrl-C again stops at once)"


def _tell(progress: StudyProgress, ended: Ended) -> None:
    folder = _folder(ended.run)
    if ended.problem or status_of(folder) not in DONE:
        progress.ended(ended, "saved, to be gone on with", "")
        return
    summary = read_summary(folder)
    assert summary is not None
    told = describe_success(summary).removeprefix("held-out success ")
    progress.ended(ended, "", f"{told}  {summary.env_steps:,} steps in {ended.wall_s:.0f} s")


def _queue(plan: _Plan) -> list[PlannedRun]:
    """Runs still to do: those begun, then one of each warm start, then in the order of the plan.

    Whoever comes second would wait for the first to have made it.
    """
    status = {run.name: status_of(_folder(run)) for run in plan.chosen}
    left = [run for run in plan.chosen if status[run.name] not in DONE]
    groups = {variant.name: variant.group for variant in plan.study.variants}
    firsts: dict[str, str] = {}
    for run in left:
        firsts.setdefault(_start(run.config, groups[run.variant]), run.name)
    return sorted(left, key=lambda run: (status[run.name] == "waiting", run.name not in firsts.values()))


def _start(config: RunConfig, group: str) -> str:
    """Equal where runs share a warm start; recipes may add a critic, on which a group mostly agrees."""
    named = {"seed", "env", "agent", "policy", "sampling", "rewards", "warm_start"}
    by_recipe = group if config.policy.critic == "none" else ""
    return config.model_dump_json(include=named) + by_recipe


def _folder(run: PlannedRun) -> Path:
    return Path(run.config.folder) / run.name


def _chosen(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs whose names match one of the patterns; all where there is none."""
    matches = {pattern: set(fnmatch.filter((run.name for run in runs), f"*{pattern}*")) for pattern in only}
    for pattern, found in matches.items():
        if not found:
            names = ", ".join(run.name for run in runs[:6])
            raise ConfigError(f"--only: no run's name matches {pattern!r}; names are such as {names}")
    chosen = set().union(*matches.values())
    return [run for run in runs if run.name in chosen or not only]


def _check(runs: Sequence[PlannedRun]) -> None:
    """Let the parts that know refuse what is wrong, before the first process starts.

    Runs of an earlier sitting were checked then: the import is worth seconds.
    """
    if not runs:
        return
    from stepwell.runs.build.components import Parts

    seen: set[tuple[str, str]] = set()
    for run in runs:
        if (run.world, run.variant) in seen:
            continue
        seen.add((run.world, run.variant))
        parts = Parts(run.config)
        try:
            if not parts.is_robot:  # whose settings that question has checked
                _ = parts.agent
            parts.close()
        except StepwellError as error:
            raise ConfigError(f"variant {run.variant} on {run.world}: {error}") from error


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
