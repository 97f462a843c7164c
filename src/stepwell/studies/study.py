"""Studies: many runs, side by side, in as many sessions as needed, compared in one table.

    run_study
      ├─ plan_study, _check_runs       environments x variants x seeds; refused before anything runs
      ├─ lock_folder                   one session at a time in a folder
      ├─ adopt_folder                  earlier sessions of the folder must have had the same runs
      ├─ _run_queue                    a process per run until all are done, the time is up, or Ctrl-C
      └─ collect_results, write_pages  results.json, table.md, curves-ENV.svg, study.html

    FOLDER/  plan.json  runs/ENV-VARIANT-seedN/  warm/ (shared warm starts)  logs/  and the outputs

Invariants
* A folder holds one study. Runs may be added to it; an existing run keeps its settings. A study file with
  other settings is refused with the difference (`restart` deletes the runs).
* A session can end at any moment, by Ctrl-C, by its time limit or by kill -9. The next one skips finished
  runs and resumes the others from their checkpoints.
* A run that fails is reported and does not stop the others. The next session tries it again.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stepwell.config.run import RunConfig
from stepwell.config.study import PlannedRun, StudyConfig, load_study, plan_runs
from stepwell.core.errors import ConfigError, InfraError, StepwellError
from stepwell.monitors.summary import describe_success, read_summary
from stepwell.runs.interrupts import count_signals
from stepwell.studies.differences import describe_differences, describe_power
from stepwell.studies.folder import adopt_folder, lock_folder, read_sessions
from stepwell.studies.gate import list_failures, make_gate
from stepwell.studies.pages import write_pages
from stepwell.studies.processes import EndedRun, WorkerPool
from stepwell.studies.progress import StudyProgress
from stepwell.studies.results import Results, collect_results, join
from stepwell.studies.run_status import DONE, read_status
from stepwell.studies.selection import (
    SELECTED_FILE,
    choose_best,
    describe_choices,
    make_selection,
    read_choices,
    write_choices,
)

if TYPE_CHECKING:
    from stepwell.studies.ray_runs import RayRuns

GRACE_S = 60.0  # how long interrupted runs may take to save before they are killed
LOOK_EVERY_S = 0.2
WRITE_EVERY_S = 30.0


@dataclass(slots=True)
class StudySession:
    """How a session ended: `complete`, `failed` (some runs did), `limit` or `interrupted`."""

    folder: Path
    ending: str
    num_done: int
    num_runs: int
    failed: list[str]
    differences: list[str] = field(default_factory=list)
    power: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StudyPlan:
    """What one session of a study has to do: its runs, and those of them that were asked for."""

    whole: StudyConfig
    study: StudyConfig  # `whole`, or its choice of settings or its gate
    runs: list[PlannedRun]
    chosen: list[PlannedRun]
    folder: Path
    is_quick: bool
    sessions: list[dict[str, Any]] = field(default_factory=list)

    def results(self) -> Results:
        return collect_results(self.study, self.runs, is_quick=self.is_quick, sessions=self.sessions)

    def describe_power(self) -> list[str]:
        """What the study can detect once the runs that were asked for have joined those that are done."""
        earlier = self.results().runs
        wanted = {run.name for run in self.chosen} | {run.name for run in earlier if run.is_done}
        return describe_power([run for run in self.runs if run.name in wanted], earlier)


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
    select: bool = False,
    gate: bool = False,
    selected: Path | None = None,
    address: str | None = None,
    command: str = "",
    console: Console | None = None,
) -> StudySession:
    """One session of the study in `file`; its folder is `folder` or `runs/study-NAME`.

    With `address`, its runs go to the nodes of a Ray cluster, which must share that folder.

    With `gate`, only the first updates are run, to see whether variants may be compared. With `select`,
    settings are chosen for each variant; without it, a study that has such choices reads them
    from `selected`, by default where `select` wrote them.
    """
    plan = plan_study(
        file,
        quick=quick,
        device=device,
        folder=folder,
        only=only,
        select=select,
        gate=gate,
        selected=selected,
    )
    folder, runs, chosen_runs = plan.folder, plan.runs, plan.chosen
    _check_runs([run for run in chosen_runs if restart or not (folder / "runs" / run.name).exists()])
    cluster = None if address is None else _open_cluster(address, threads, chosen_runs)
    threads = threads if cluster is None else cluster.num_threads
    num_cores = _count_cores() if cluster is None else cluster.num_places
    size = max(1, min(workers or num_cores, len(chosen_runs)))
    threads = threads or max(1, num_cores // size)
    with lock_folder(folder, console) as lock:
        adopt_folder(folder, runs, quick, restart)
        plan.sessions = read_sessions(folder)
        pool = WorkerPool(folder, size, threads, plan.study.keep, lock, cluster)
        session = {"command": command, "started": datetime.now(UTC).isoformat(timespec="seconds")}
        plan.sessions.append(
            session | {"workers": size, "threads": threads, "wall_s": 0.0, "ending": "running"}
        )
        done = _run_session(plan, pool, limit_s, console)
        results = plan.results()
        if select and results.num_done == len(runs):
            found = choose_best(plan.whole, results)
            write_choices(folder, plan.whole, found)
            done.choices = describe_choices(plan.whole, found)
        done.failures = list_failures(results)
        return done


def plan_study(
    file: Path,
    *,
    quick: bool = False,
    device: str | None = None,
    folder: Path | None = None,
    only: Sequence[str] = (),
    select: bool = False,
    gate: bool = False,
    selected: Path | None = None,
) -> StudyPlan:
    """The runs that `run_study` would start with these arguments; settings are read, nothing is opened."""
    whole = load_study(file)
    whole = whole.shorten() if quick else whole
    if select and gate:
        raise ConfigError("--select chooses settings, --gate checks the start; give one of them")
    study = make_selection(whole) if select else make_gate(whole) if gate else whole
    home = Path("runs") / f"study-{study.name}{'-quick' if quick else ''}"
    choices = home.with_name(f"{home.name}-select")
    folder = folder or (choices if select else home.with_name(f"{home.name}-gate") if gate else home)
    chosen = None if study.select is None else read_choices(study, selected or choices / SELECTED_FILE)
    runs = plan_runs(study, file.parent, folder / "runs", device, chosen=chosen)
    return StudyPlan(whole, study, runs, _choose_runs(runs, only), folder, quick)


def describe_plan(plan: StudyPlan) -> list[str]:
    """What the study can detect, and one line for each run: its recipe, its length, and how far it is."""
    width = max(len(run.name) for run in plan.chosen)
    lines = [f"{plan.study.name}: {len(plan.chosen)} of {len(plan.runs)} runs, in {plan.folder}"]
    lines += [f"  {sentence}" for sentence in plan.describe_power()]
    for run in plan.chosen:
        length = f"{run.config.train.num_updates} updates"
        status = read_status(_find_folder(run))
        lines.append(f"  {run.name:{width}}  {run.config.recipe.name}, {length}, {status}")
    return lines


def _open_cluster(address: str, threads: int | None, runs: Sequence[PlannedRun]) -> RayRuns:
    from stepwell.studies.ray_runs import RayRuns

    return RayRuns(address, threads or 1, any(run.config.policy.device != "cpu" for run in runs))


def join_study(
    file: Path,
    parts: Sequence[Path],
    *,
    quick: bool = False,
    folder: Path | None = None,
    only: Sequence[str] = (),
) -> StudySession:
    """Join the results of parts that ran elsewhere (on several machines, say) in one table; runs nothing."""
    study = load_study(file)
    study = study.shorten() if quick else study
    folder = folder or Path("runs") / f"study-{study.name}-joined"
    folder.mkdir(parents=True, exist_ok=True)
    planned = plan_runs(study, file.parent, folder / "runs")
    runs = _choose_runs(planned, only)
    results = join(study, planned, parts, runs)
    write_pages(folder, results)
    failed = [run.name for run in results.runs if run.status == "failed"]
    ending = "complete" if results.num_done == len(runs) else "failed"
    told = describe_differences(results), _describe_power_now(runs, results)
    return StudySession(folder, ending, results.num_done, len(runs), failed, *told)


def _describe_power_now(runs: Sequence[PlannedRun], results: Results) -> list[str]:
    """What the finished runs can detect, by what they show themselves."""
    done = {run.name for run in results.runs if run.is_done}
    return describe_power([run for run in runs if run.name in done], results.runs)


def _run_session(
    plan: StudyPlan, pool: WorkerPool, limit_s: float | None, console: Console | None
) -> StudySession:
    began = time.monotonic()
    total, done = len(plan.chosen), len(plan.chosen) - len(_order_runs(plan))
    write_pages(plan.folder, plan.results())
    progress = StudyProgress(total, done, console)
    say = f"{plan.study.name}: {total} runs, {done} done before, {pool.size} side by side, in {plan.folder}"
    progress.say(say)
    for sentence in plan.describe_power():
        progress.say(sentence)
    try:
        is_over = _run_queue(plan, pool, progress, began, limit_s)
    finally:
        pool.release_all()
        progress.close()
    failed = [run.name for run in plan.chosen if read_status(_find_folder(run)) == "failed"]
    num_done = sum(read_status(_find_folder(run)) in DONE for run in plan.chosen)
    ending = is_over or ("complete" if num_done == total else "failed")
    plan.sessions[-1] |= {"wall_s": round(time.monotonic() - began, 1), "ending": ending}
    results = plan.results()
    write_pages(plan.folder, results)
    told = describe_differences(results), _describe_power_now(plan.runs, results)
    return StudySession(plan.folder, ending, num_done, total, failed, *told)


def _run_queue(
    plan: StudyPlan, pool: WorkerPool, progress: StudyProgress, began: float, limit_s: float | None
) -> str:
    """Run the queue; returns `limit` or `interrupted` if that cut it short, else an empty text."""
    queue, over, asked_at, written = _order_runs(plan), "", 0.0, began
    with count_signals() as asked:
        while pool.workers or (queue and not over):
            now = time.monotonic()
            if not over and asked.times:
                over = "interrupted"
            elif not over and limit_s is not None and now - began >= limit_s:
                over = "limit"
            if over and not pool.is_interrupted:
                progress.say(f"{_explain_stop(over)}: {len(pool.workers)} runs save and stop")
                asked_at = now
                pool.interrupt()
            if over and (asked.times > 1 or now - asked_at > GRACE_S):
                pool.kill()
            while queue and pool.has_room and not over:
                pool.start(queue.pop(0))
            for ended in pool.poll():
                if ended.is_lost and not over:
                    progress.say(f"{ended.run.name}: its node was lost; it is started again")
                    queue.append(ended.run)
                    continue
                _report_end(progress, ended)
                if now - written > WRITE_EVERY_S:
                    written = now
                    _write_so_far(plan, progress, now - began)
            progress.tick(pool.workers)
            time.sleep(LOOK_EVERY_S)
    return over


def _write_so_far(plan: StudyPlan, progress: StudyProgress, wall_s: float) -> None:
    """Write the results so far. A full disk is reported: it may have room at the end."""
    plan.sessions[-1]["wall_s"] = round(wall_s, 1)
    try:
        write_pages(plan.folder, plan.results())
    except InfraError as error:
        progress.say(str(error))


def _explain_stop(over: str) -> str:
    return "the time is up" if over == "limit" else "interrupted (Ctrl-C again stops at once)"


def _report_end(progress: StudyProgress, ended: EndedRun) -> None:
    folder = _find_folder(ended.run)
    if ended.problem or read_status(folder) not in DONE:
        progress.report_end(ended, "saved, to be resumed", "")
        return
    summary = read_summary(folder)
    assert summary is not None
    success = describe_success(summary).removeprefix("held-out success ")
    progress.report_end(ended, "", f"{success}  {summary.env_steps:,} steps in {ended.wall_s:.0f} s")


def _order_runs(plan: StudyPlan) -> list[PlannedRun]:
    """Unfinished runs: those that have started, then one of each warm start, then as they were chosen.

    Any other run with the same warm start would only wait for the first to make it.
    """
    status = {run.name: read_status(_find_folder(run)) for run in plan.chosen}
    left = [run for run in plan.chosen if status[run.name] not in DONE]
    groups = {variant.name: variant.group for variant in plan.study.variants}
    firsts: dict[str, str] = {}
    for run in left:
        firsts.setdefault(_make_start_key(run.config, groups[run.variant]), run.name)
    return sorted(left, key=lambda run: (status[run.name] == "waiting", run.name not in firsts.values()))


def _make_start_key(config: RunConfig, group: str) -> str:
    """A key that is equal for runs that share a warm start.

    Recipes may add a critic; the variants of one group mostly agree on it.
    """
    named = {"seed", "env", "agent", "policy", "sampling", "rewards", "warm_start"}
    by_recipe = group if config.policy.critic == "none" else ""
    return config.model_dump_json(include=named) + by_recipe


def _find_folder(run: PlannedRun) -> Path:
    return Path(run.config.folder) / run.name


def _choose_runs(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs whose names match, pattern after pattern; all runs if there is no pattern."""
    named = {run.name: run for run in runs}
    matches = {pattern: fnmatch.filter(named, f"*{pattern}*") for pattern in only}
    for pattern, found in matches.items():
        if not found:
            names = ", ".join(run.name for run in runs[:6])
            raise ConfigError(f"--only: no run's name matches {pattern!r}; names are such as {names}")
    return [named[name] for name in dict.fromkeys(itertools.chain(*matches.values()) if only else named)]


def _check_runs(runs: Sequence[PlannedRun]) -> None:
    """Refuse wrong settings before the first process starts.

    Runs that an earlier session began were checked then; skipping them saves seconds of imports. Runs that
    this session leaves out may need what this machine does not have.
    """
    if not runs:
        return
    from stepwell.runs.build.components import Components

    seen: set[tuple[str, ...]] = set()
    for run in runs:
        if (run.env, run.variant) in seen:
            continue
        seen.add((run.env, run.variant))
        try:
            components = Components(run.config)
            if not components.is_robot:  # which has checked a robot's settings
                _ = components.language.agent
            components.close()
            for place, config in run.elsewhere.items():
                if (run.env, place, "elsewhere") not in seen:
                    seen.add((run.env, place, "elsewhere"))
                    _check_place(place, config)
        except StepwellError as error:
            raise ConfigError(f"variant {run.variant} on {run.env}: {error}") from error


def _check_place(place: str, config: RunConfig) -> None:
    """Refuse a place of `elsewhere` that has nothing to evaluate on: it is needed when training is over."""
    from stepwell.runs.build.components import Components

    components = Components(config)
    try:
        components.list_held_out_tasks(1)
    except StepwellError as error:
        raise ConfigError(f"elsewhere.{place}: {error}") from error
    finally:
        components.close()


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
