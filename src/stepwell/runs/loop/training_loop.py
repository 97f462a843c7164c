"""The training loop: play, learn, publish, and evaluate on held-out tasks.

    TrainingLoop.run
      ├─ _warm_start    chats, demonstrations ─► imitation      (once, before update 1)
      ├─ _evaluate      held-out tasks, the same every time     (before, at intervals, after)
      └─ _update        source.batch ─► learner.learn_from ─► publish ─► checkpoint

Invariants
* What happens in update u is a function of the weights before it, the settings and u: tasks and
  seeds are drawn from (seed, u), and the engine starts each rollout with an empty cache. So a run
  that resumes from a checkpoint repeats, bit for bit, what it would have done.
* Trajectories are in the pool before they are learnt from (`sources.py`), and everything about update u is
  reported before its checkpoint is written.
* Weights reach the engine with a version and a fingerprint; in every update the trainer's logprobs
  of fresh samples are compared with the engine's, and a difference that is not rounding stops the run.
* A limit that ends the run (updates, environment steps, time, an agent that stopped acting) is followed
  by an evaluation, and that by the last checkpoint: the final checkpoint of a run has been evaluated.
* With workers (`workers.mode`) the same loop learns from another source, whose episodes continue in the
  background; what an update gets then depends on time, and a resumed run does not repeat bit for bit.
* Ctrl-C or SIGTERM lets the present update finish and writes a checkpoint, without an extra evaluation;
  a second one stops at once, and so does the first one in the warm start, which may last for minutes.
* Checkpoints are written beside training, from a copy (`checkpoint_saver.py`); the end waits for the last.
* What is learnt does not depend on the clock (`run_clock.py`), only when a checkpoint is written.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepwell.config.run import RunConfig
from stepwell.core import AgentError, Split, Task, Trajectory
from stepwell.core.statistics import count_independent
from stepwell.curriculum import TaskFeed
from stepwell.monitors import LogEntry, Monitor
from stepwell.monitors.timeline import write_timeline
from stepwell.runs.build.components import Components
from stepwell.runs.build.phases import find_phase_end
from stepwell.runs.evaluation.episodes_file import write_episodes
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.runs.evaluation.replays import save_first_replays
from stepwell.runs.evaluation.result import EvalResult
from stepwell.runs.interrupts import Terminated, describe_stop, handle_first_stop
from stepwell.runs.loop import references
from stepwell.runs.loop.agent_failures import AgentFailures
from stepwell.runs.loop.batch_learning import BatchLearner
from stepwell.runs.loop.checkpoint_saver import CheckpointSaver
from stepwell.runs.loop.control_channel import ControlChannel, obey_requests
from stepwell.runs.loop.credit_recorder import CreditRecorder
from stepwell.runs.loop.differences import list_differences
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.outcome_judging import build_judging
from stepwell.runs.loop.parity_check import ParityCheck
from stepwell.runs.loop.phase_reports import report_phase
from stepwell.runs.loop.replay import build_replay
from stepwell.runs.loop.resumable_parts import ResumableParts
from stepwell.runs.loop.rollout_metrics import measure_rollout
from stepwell.runs.loop.run_clock import RunClock, is_multiple, measure_times
from stepwell.runs.loop.source_choice import choose_source
from stepwell.runs.loop.sources import Source
from stepwell.runs.loop.success_guard import guard_success
from stepwell.runs.loop.task_feeds import build_feed
from stepwell.runs.loop.time_left import TimeLeft
from stepwell.runs.loop.warm_start import WarmStart
from stepwell.training import checkpoint

if TYPE_CHECKING:
    from stepwell.runs.build.runner import EpisodeRunner
    from stepwell.runs.build.worker_groups import WorkerGroups
    from stepwell.runs.run_record import RunRecord

Ending = Literal["finished", "stopped_early", "interrupted"]


@dataclass(eq=False)
class TrainingLoop:
    """One run, from its start or from a checkpoint."""

    config: RunConfig
    folder: Path
    components: Components
    monitor: Monitor
    state: LoopState = field(default_factory=LoopState)
    workers: WorkerGroups | None = None  # of an asynchronous run
    last_eval: EvalResult | None = None
    ending: Ending = "finished"
    record: RunRecord | None = None
    has_other_measure: bool = False  # success is measured differently from here on
    stop_signal: str = ""  # the signal that asked the run to stop

    def __post_init__(self) -> None:
        self._tasks: list[Task] = []
        self._held_out: list[Task] = []
        self._feed: TaskFeed
        self._feed_notes: list[str] = []  # a feed may be asked in a worker's thread
        self._source: Source
        self._clock = RunClock()
        self._time_left = TimeLeft(self.config)
        self.saver = CheckpointSaver(self.folder, self.monitor.note)
        self._parity = ParityCheck(self.config.parity, lambda: self.runner, self.monitor.note)
        self._is_imitating = False  # in the warm start, which writes no checkpoints
        own, folder = self.config.own_agent, str(self.folder)
        self.failures = AgentFailures(own, folder, self.monitor.note) if own.function is not None else None
        self._credit = CreditRecorder(self.folder, self.config.checkpoint.credit_mb, self.monitor.note)
        self._control = ControlChannel(
            self.folder, lambda: self.state.describe_progress(self.config.train), self.monitor.note
        )
        self._learner = BatchLearner(
            self.config, self.components, self.monitor.note, self.failures, credit=self._credit
        )
        if self.components.trainer.ranks is not None:
            self.components.trainer.ranks.note = self.monitor.note

    @property
    def runner(self) -> EpisodeRunner:
        """Who plays the episodes: the workers, or this process."""
        return self.components.runner if self.workers is None else self.workers

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run so far, those before it was resumed included."""
        return self._clock.elapsed_s

    @property
    def _run_name(self) -> str:
        return self.components.run_name or self.folder.name

    @property
    def _parts(self) -> ResumableParts:
        learner = self._learner
        return ResumableParts(
            self.components, self._run_name, self._feed, self._source, learner.replay, learner.judging
        )

    # --- the run --------------------------------------------------------------------------

    def run(self, resume: checkpoint.Checkpoint | None = None) -> None:
        """Train to the end, an early stop or an interrupt."""
        is_offline, has_eval = self.config.offline.pool is not None, self.config.eval.num_tasks > 0
        if not is_offline or self.config.warm_start.is_wanted:
            self._tasks = self.components.tasks(Split.TRAIN, self.config.train.num_tasks, self.config.seed)
        self._held_out = self.components.list_held_out_tasks() if has_eval else []
        self._feed = build_feed(
            self.components, self._tasks, self.folder, self._run_name, self._feed_notes.append
        )
        self._source = self._make_source()
        replay = build_replay(self.components, self.folder, self._run_name, lambda: self.state.update)
        recipe, has_replay, self._learner.replay = self.components.recipe, replay is not None, replay
        self._learner.judging = build_judging(self.components, self.monitor.note)
        told: dict[str, Any] = {"num_tasks": len(self._tasks), "num_held_out": len(self._held_out)}
        told |= {"has_replay": has_replay, "has_words": not self.components.is_robot}
        for difference in list_differences(self.config, recipe, **told):
            self.monitor.note(difference)
        with handle_first_stop(self._ask_to_stop), closing(self._control), self.saver:
            self._control.open()
            is_over = self._start_run() if resume is None else self._resume_from(resume)
            while not is_over:
                is_over = self._finish_update() if self._update() else self._stop_here()
            self._drain_workers()

    def _start_run(self) -> bool:
        checkpoint.sweep_leftovers(self.folder / "checkpoints")
        self._source.resume_from(0)
        self._credit.rewind(0)
        self._warm_start()
        references.freeze_reference(self.components)
        references.save_reference(self.components.policy, self.folder)
        self._publish()
        before = self._evaluate()
        self.state.before = self.state.last
        if self.config.monitor.report and before is not None:
            seen = self.components, self.folder, before.trajectories, self.monitor.note
            self._time_left.count_end(save_first_replays(*seen))
        return self._finish_update()

    def _resume_from(self, saved: checkpoint.Checkpoint) -> bool:
        checkpoint.sweep_leftovers(saved.path.parent, after=saved.update)
        checkpoint.load_checkpoint(saved, self.components.policy, self.components.trainer)
        self.state = LoopState.of(saved)
        if self.has_other_measure:
            self.state.forget_best()
        self._parts.restore(saved)
        self._credit.rewind(self.state.update)
        self._clock.set_elapsed(self.state.time_s)
        self._time_left.restore(self.state.pace)
        references.freeze_reference(self.components)
        references.load_reference(
            self.components.policy, self.folder, references.find_reference(self.components, self.state.update)
        )
        self._publish()
        is_over = self._reaches_limit() or self.state.stops_early(self.config.eval)
        if is_over:
            self.monitor.note(f"nothing is left to do: the run ended after {self.state.update} updates")
            if not self.state.is_evaluated and self._evaluate() is not None:
                self._save_checkpoint()
        return is_over

    def _finish_update(self) -> bool:
        """Evaluate and save a checkpoint where they are due. True: the run is over."""
        self.saver.check()
        update, is_first, is_last = self.state.update, self.state.update == 0, self._reaches_limit()
        asked = set() if is_first or is_last else self._obey_controls()
        is_wanted = is_last or is_multiple(self.config.eval.every, update) or "evaluate" in asked
        has_news = not is_first and not self.state.is_evaluated and is_wanted
        if has_news and self._evaluate() is not None:
            self._guard_success(is_last=is_last)
        is_early = not is_last and self.state.stops_early(self.config.eval)
        if is_early:
            self.ending = "stopped_early"
        elif self.stop_signal and not is_last:
            self.ending = "interrupted"
        is_over = is_last or is_early or bool(self.stop_signal)
        if is_over or update == find_phase_end(self.config, self.components.recipe, update):
            report_phase(self.components, self.folder, self._run_name, update, self.monitor.note)
        if is_first and self.state.is_evaluated:
            self.state.good_update = update
        is_late = self._clock.is_checkpoint_due(self.config.checkpoint, update)
        is_due = is_first or "checkpoint" in asked or is_late
        is_numbered = is_due or is_over or (has_news and self._may_roll_back)
        self._save_checkpoint(is_numbered=is_numbered, waits="checkpoint" in asked)
        return is_over

    def _obey_controls(self) -> set[str]:
        """Wait while the run is paused; returns what else was asked (`runs/control.py`)."""
        asked, paused_s = obey_requests(
            self._control, self._act_in_pause, lambda: bool(self.stop_signal), self.monitor.note
        )
        self._clock.leave_out(paused_s)
        if "stop" in asked and not self.stop_signal:
            self.stop_signal = "control"
            self.monitor.note("asked to stop: saving")
        return asked

    def _act_in_pause(self, request: str) -> None:
        if request == "evaluate" and not self.state.is_evaluated:
            self._evaluate()
        self._save_checkpoint(waits=True)

    @property
    def _may_roll_back(self) -> bool:
        return self.config.train.guard.on_fall == "roll_back"

    def _guard_success(self, *, is_last: bool) -> None:
        """Report a fall of held-out success that chance does not explain; roll back if settings ask."""
        policy, trainer, state = self.components.policy, self.components.trainer, self.state
        if self._may_roll_back:
            self.saver.wait()  # it may be the one to roll back to
        note = guard_success(state, self.config.train.guard, self.folder / "checkpoints", policy, trainer)
        if note is None:
            return
        self.monitor.note(f"update {state.update}: {note}")
        if not state.is_evaluated:
            self._publish()
            if is_last:  # the final weights of a run have been evaluated
                self._evaluate()

    def _reaches_limit(self) -> bool:
        if reached := self.state.limit_reached(self.config.train, self._clock.elapsed_s):
            self.monitor.note(reached)
        return reached is not None

    # --- its steps ------------------------------------------------------------------------

    def _warm_start(self) -> None:
        if not self.config.warm_start.is_wanted:
            return
        self._is_imitating = True
        means = self._tasks, self._publish, partial(self._record, "warm_start"), self._time_left
        WarmStart(self.components, self.runner, self.monitor, *means).run()
        self._is_imitating = False
        self.state.warm_start_s = self._clock.elapsed_s

    def _update(self) -> bool:
        """One update; False if a stop was requested while waiting for its episodes."""
        began = time.perf_counter()
        references.renew_reference(self.components, self.folder, self.state.update + 1)
        batch = self._source.batch(self.state.update + 1)
        while self._feed_notes:
            self.monitor.note(self._feed_notes.pop(0))
        if batch is None:
            return False
        played = time.perf_counter()
        checks = self._parity.start_update(self.state.update + 1) if self._source.is_fresh else None
        metrics = self._learner.learn_from(self.state.update + 1, batch, checks)
        if self._may_roll_back:
            metrics["guard/rollbacks"] = float(self.state.num_rollbacks)
        learnt = time.perf_counter()
        self.state.count_update(batch.num_actions, len(batch.trajectories), is_fresh=self._source.is_fresh)
        self._publish()
        times = measure_times(batch, played, learnt, time.perf_counter()) | self.saver.take_times()
        self._time_left.count_update(time.perf_counter() - began + times["time/checkpoint_s"])
        figures = measure_rollout(batch.trajectories, self.config.rewards)
        self._record("update", figures | metrics | times | batch.metrics)
        self._watch_agent(f"update {self.state.update}", batch.trajectories, is_update=True)
        if self.workers is not None and self._clock.is_timeline_due():
            write_timeline(self.folder, self.workers.spans.build_timeline())  # for a live view
        return True

    def _watch_agent(self, place: str, trajectories: Sequence[Trajectory], *, is_update: bool) -> None:
        """Report failures of a user's own agent, and stop if there are too many."""
        if self.failures is None:
            return
        if (reason := self.failures.watch(place, trajectories, is_update=is_update)) is not None:
            if is_update:  # so that a resumed run plays the next update, not this one again
                self._save_checkpoint()
            raise AgentError(reason)

    def _stop_here(self) -> bool:
        """Save after an interrupt between two updates; what was played is in the pool already."""
        self.ending = "interrupted"
        self._save_checkpoint()
        return True

    def _drain_workers(self) -> None:
        """Start no new episodes; keep finished ones, and count the others as not played."""
        if self.workers is None:
            return
        if self.workers.tuner is not None:
            self.monitor.note(self.workers.tuner.describe())
        if num_left := self.workers.drain():
            self.monitor.note(f"{num_left} episodes were under way at the end and count as not played")
        self._note_versions()

    def _make_source(self) -> Source:
        parts = self.components, self._run_name, self._feed, self.workers
        return choose_source(*parts, is_stopping=lambda: bool(self.stop_signal), note=self.monitor.note)

    def _publish(self) -> None:
        """Give the weights to the engine, or to the generators, which may take them later."""
        published = self.runner.publish(self.state.update, self.components.policy)
        if self.workers is not None:
            self._note_versions()
        elif self._source.is_fresh and published is not None:
            self.components.pool.publish_version(self.state.update, published, {"run": self._run_name})

    def _note_versions(self) -> None:
        """Write down the versions that all generators have by now."""
        assert self.workers is not None
        for version, fingerprint in self.workers.publisher.take_versions():
            self.components.pool.publish_version(version, fingerprint, {"run": self._run_name})

    def _evaluate(self) -> EvalResult | None:
        config = self.config.eval
        if config.num_tasks == 0:
            return None
        self.monitor.phase("evaluating")
        began = time.perf_counter()
        result = evaluate(
            self.components,
            self._held_out,
            temperature=config.temperature,
            samples_per_task=config.samples_per_task,
            runner=self.runner,
        )
        write_episodes(self.folder, result.trajectories)
        self._time_left.count_eval(time.perf_counter() - began)
        values = result.values()
        self._record("eval", values)
        self._watch_agent("held-out evaluation", result.trajectories, is_update=False)
        self.last_eval = result
        counts = {"num_tasks": float(result.num_tasks), "num_independent": count_independent(result.outcomes)}
        self.saver.is_best_due |= self.state.count_eval(values | counts)
        return result

    def close(self) -> None:
        """Stop workers and components."""
        self._credit.close()
        try:
            if self.workers is not None:
                self.workers.close()
        finally:
            self.components.close()

    def _save_checkpoint(self, *, is_numbered: bool = True, waits: bool = False) -> None:
        """Save a checkpoint, or only the best weights if they are due; `waits` until it is on disk."""
        self.state.time_s, self.state.pace = self._clock.elapsed_s, self._time_left.as_dict()
        self.saver.save(self._parts, self.state, is_numbered=is_numbered)
        if is_numbered:
            self._clock.note_checkpoint()
        if waits:
            self.saver.wait()

    def _record(self, kind: Literal["warm_start", "update", "eval"], values: dict[str, float]) -> None:
        state, elapsed_s = self.state, self._clock.elapsed_s
        left_s = self._time_left.estimate_s(state, elapsed_s, is_judged=kind == "eval")
        self.monitor.record(LogEntry(kind, state.update, elapsed_s, state.env_steps, values, left_s=left_s))

    def _ask_to_stop(self, asked: signal.Signals) -> None:
        self.stop_signal = asked.name
        if self._is_imitating:
            self.monitor.note(f"interrupted by {asked.name} in the warm start, which is not kept")
            raise Terminated if asked == signal.SIGTERM else KeyboardInterrupt
        present = "this update" if self.state.before is not None else "the start"
        self.monitor.note(describe_stop(asked, present))
