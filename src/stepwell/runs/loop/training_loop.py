"""The loop: play, learn, publish, and now and then look at held-out tasks.

    SyncLoop.run
      ├─ _warm_start    chats, demonstrations ─► imitation      (once, before update 1)
      ├─ _evaluate      held-out tasks, the same every time     (before, every so often, after)
      └─ _update        source.batch ─► trainer.update ─► publish ─► checkpoint

Invariants
* What happens in update u is a function of the weights before it, the settings and u: tasks and
  seeds are drawn from (seed, u), and the engine starts each rollout with an empty cache. So a run
  that goes on from a checkpoint repeats, bit for bit, what it would have done.
* Trajectories are in the pool before they are learnt from (`sources.py`), and everything told about
  update u is told before its checkpoint is written.
* Weights reach the engine with a version and a fingerprint; in every update the trainer's logprobs
  of fresh samples are compared with the engine's, and a difference that is not rounding stops the run.
* A limit that ends the run (updates, environment steps, time, an agent that ceased to act) is
  followed by an evaluation, and that by the last checkpoint: a checkpoint at which a run is over
  has been evaluated.
* With resource groups (`groups.mode`) the same loop learns from another source, whose episodes go on in
  the background; what an update then gets depends on time, and a resumed run goes on without repeating.
* Ctrl-C or SIGTERM lets the update at hand finish and writes a checkpoint, without an evaluation that
  the run would otherwise not have made; a second one stops at once.
* When a checkpoint is written depends on the clock too (`checkpoint.every_minutes`); nothing that is learnt
  depends on when it is written.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepwell.config.run import RunConfig, WarmStartConfig
from stepwell.core import (
    AgentError,
    LogprobErrors,
    LogprobGaps,
    ParityError,
    Split,
    Status,
    Task,
    Trajectory,
    WeightsError,
)
from stepwell.engines import fingerprint_of
from stepwell.engines.parity import ParityMonitor
from stepwell.monitors import Entry, Monitor
from stepwell.runs.build.components import Parts
from stepwell.runs.build.warm_starts import describe_goal, has_goal, is_warm, take_or_make
from stepwell.runs.evaluation.episodes_file import write_episodes
from stepwell.runs.evaluation.evaluate import EvalResult, evaluate, held_out_tasks
from stepwell.runs.evaluation.replays import keep_replays
from stepwell.runs.interrupts import first_stop_request
from stepwell.runs.loop.agent_failures import AgentFailures
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.references import keep_reference, restore_reference
from stepwell.runs.loop.rollout_metrics import num_tokens, rollout_metrics
from stepwell.runs.loop.sources import PlayedSource, Source, StoredSource
from stepwell.runs.plan.reward_balance import describe_imbalance
from stepwell.runs.sft.chats import read_chats
from stepwell.training import checkpoint, imitate, num_batches

if TYPE_CHECKING:
    from stepwell.runs.build.worker_groups import Groups
    from stepwell.runs.run_record import RunRecord

Ending = Literal["finished", "stopped_early", "interrupted"]


@dataclass(eq=False)
class SyncLoop:
    """One run, from its start or from a checkpoint."""

    config: RunConfig
    folder: Path
    parts: Parts
    monitor: Monitor
    state: LoopState = field(default_factory=LoopState)
    groups: Groups | None = None  # of an asynchronous run
    last_eval: EvalResult | None = None
    ending: Ending = "finished"
    record: RunRecord | None = None
    has_other_measure: bool = False  # success is from here on measured otherwise than before
    stop_signal: str = ""  # the signal that asked the run to stop

    def __post_init__(self) -> None:
        self._tasks: list[Task] = []
        self._held_out: list[Task] = []
        self._source: Source
        self._clock = time.perf_counter()
        self._parity: ParityMonitor | None = None
        self._saved_at = self._clock
        own = self.config.own_agent
        self.failures = (
            AgentFailures(own, str(self.folder), self.monitor.note) if own.function is not None else None
        )

    @property
    def _stop_asked(self) -> bool:
        return bool(self.stop_signal)

    @property
    def _run_name(self) -> str:
        return self.parts.run_name or self.folder.name

    # --- the whole ------------------------------------------------------------------------

    def run(self, resume: checkpoint.Checkpoint | None = None) -> None:
        """Train to the end, an early stop or an interrupt."""
        is_offline, has_eval = self.config.offline.pool is not None, self.config.eval.num_tasks > 0
        if not is_offline or self.config.warm_start.is_wanted:
            self._tasks = self.parts.tasks(Split.TRAIN, self.config.train.num_tasks, self.config.seed)
        self._held_out = held_out_tasks(self.parts) if has_eval else []
        self._source = self._make_source()
        self._tell_what_differs()
        with first_stop_request(self._ask_to_stop):
            is_over = self._begin() if resume is None else self._go_on_from(resume)
            while not is_over:
                is_over = self._settle() if self._update() else self._stop_here()
            self._drain()

    def _begin(self) -> bool:
        checkpoint.sweep(self.folder / "checkpoints")
        self._source.go_on_from(0)
        self._warm_start()
        self.parts.trainer.freeze_reference()
        keep_reference(self.parts.policy, self.folder)
        self._publish()
        before = self._evaluate()
        self.state.before = self.state.last
        if self.config.monitor.report and before is not None:
            keep_replays(self.parts, self.folder, before.trajectories, "before")
        return self._settle()

    def _go_on_from(self, saved: checkpoint.Checkpoint) -> bool:
        checkpoint.sweep(saved.path.parent, after=saved.update)
        checkpoint.load_checkpoint(saved, self.parts.policy, self.parts.trainer)
        self.state = LoopState.of(saved)
        if self.has_other_measure:
            self.state.forget_best()
        if self.parts.batch_judge is not None and (told := saved.loop.get("judge")):
            self.parts.batch_judge.restore(told)
        self._source.go_on_from(self.state.update)
        self._clock = time.perf_counter() - self.state.time_s
        self.parts.trainer.freeze_reference()
        restore_reference(self.parts.policy, self.folder)
        self._publish()
        is_over = self._reaches_limit() or self.state.stops_early(self.config.eval)
        if is_over:
            self.monitor.note(f"nothing is left to do: the run was over after {self.state.update} updates")
            if not self.state.is_evaluated and self._evaluate() is not None:
                self._save()
        return is_over

    def _settle(self) -> bool:
        """What follows an update: evaluation and checkpoint where they are due. True: the run is over."""
        update, is_first = self.state.update, self.state.update == 0
        is_last = self._reaches_limit()
        if not is_first and (is_last or _is_due(self.config.eval.every, update)):
            self._evaluate()
        is_early = not is_last and self.state.stops_early(self.config.eval)
        if is_early:
            self.ending = "stopped_early"
        elif self._stop_asked and not is_last:
            self.ending = "interrupted"
        is_over = is_last or is_early or self._stop_asked
        if is_first or is_over or self._checkpoint_is_due(update):
            self._save()
        return is_over

    def _checkpoint_is_due(self, update: int) -> bool:
        config = self.config.checkpoint
        waited_s = time.perf_counter() - self._saved_at
        is_late = config.every_minutes > 0 and waited_s >= 60 * config.every_minutes
        return is_late or _is_due(config.every, update)

    def _reaches_limit(self) -> bool:
        reached = self.state.limit_reached(self.config.train, self._time())
        if reached:
            self.monitor.note(reached)
        return reached is not None

    def _tell_what_differs(self) -> None:
        """Say aloud where the run does not do what its settings may be read to promise."""
        recipe = self.parts.recipe
        if recipe.replay or recipe.curriculum:
            named = " and ".join(name for name in ("replay", "curriculum") if getattr(recipe, name))
            self.monitor.note(
                f"recipe {recipe.name} asks for {named}, which this loop does not have: every update "
                "learns from its own rollouts on tasks drawn evenly"
            )
        for asked, found, name in (
            (self.config.train.num_tasks, len(self._tasks), "train.num_tasks"),
            (self.config.eval.num_tasks, len(self._held_out), "eval.num_tasks"),
        ):
            if 0 < found < asked:
                self.monitor.note(f"{name} is {asked}, but this world has {found}; all of them are used")

    # --- its parts ------------------------------------------------------------------------

    def _warm_start(self) -> None:
        warm = self.config.warm_start
        if not warm.is_wanted:
            return
        if warm.cache is None:
            self._imitate()
        else:
            take_or_make(self.parts, Path(warm.cache), self._imitate, self.monitor.note)
        self.state.warm_start_s = self._time()

    def _imitate(self) -> None:
        """Learn the user's chats, then the oracle's demonstrations, as far as settings ask for them."""
        warm = self.config.warm_start
        if warm.chats is not None:
            self.monitor.phase("chats")
            chats = read_chats(warm.chats, self.parts.renderer, "warm_start.chats")
            self.monitor.note(f"warm start: {len(chats)} chats of {warm.chats}")
            # what a chat is worth is not known: the critic learns nothing from it
            self._learn_from(chats, warm.model_copy(update={"value_coef": 0.0}))
        if warm.num_demos:
            self._learn_from(self._demonstrate(), warm)

    def _demonstrate(self) -> list[Trajectory]:
        warm = self.config.warm_start
        self.monitor.phase("demonstrations")
        shown = self.parts.demonstrations(warm.num_demos, warm.noise, self.config.seed, warm.demos_per_task)
        wins = np.mean([t.status is Status.SUCCESS for t in shown])
        self.monitor.note(f"warm start: {len(shown)} demonstrations, {wins:.2f} of them succeed")
        self._warn_of_imbalance(shown)
        return shown

    def _learn_from(self, shown: Sequence[Trajectory], warm: WarmStartConfig) -> None:
        total = num_batches(warm, len(shown))
        train = self.config.train
        updates = imitate(
            self.parts.policy,
            shown,
            warm,
            self.config.seed,
            token_budget=train.token_budget,
            micro_batch=train.micro_batch,
        )
        for number, values in enumerate(updates, start=1):
            if number % 10 == 0 or number == total:
                self._tell("warm_start", values | {"step": float(number), "num_steps": float(total)})
            if has_goal(warm) and number % warm.check_every == 0 and self._is_warm(number, total):
                break

    def _warn_of_imbalance(self, shown: Sequence[Trajectory]) -> None:
        if self.parts.is_robot:
            return
        max_turns, rewarded = self.parts.agent.world.max_turns, self.parts.demonstrated_parts
        if (text := describe_imbalance(shown, self.config.rewards, rewarded, max_turns)) is not None:
            self.monitor.note(f"warning: {text}")

    def _is_warm(self, number: int, total: int) -> bool:
        """Whether the policy has learnt enough from demonstrations, by some training tasks; told aloud."""
        self._publish()
        tasks = self._tasks[: max(1, self.config.eval.num_tasks // 2)]
        warm = self.config.warm_start
        values = evaluate(self.parts, tasks, temperature=self.config.eval.temperature).values()
        is_enough = is_warm(warm, values)
        form = f"{values['format_share']:.2f} of replies in form, " if "format_share" in values else ""
        ending = "enough" if is_enough else f"goal: {describe_goal(warm)}"
        self.monitor.note(
            f"warm start: update {number} of at most {total}, {form}{values['success']:.2f} of tasks solved "
            f"({ending})"
        )
        return is_enough

    def _update(self) -> bool:
        """One update; False where a stop was asked for while its episodes were waited for."""
        batch = self._source.batch(self.state.update + 1)
        if batch is None:
            return False
        played = time.perf_counter()
        check_parity = self._check_parity if self._source.is_fresh else None
        version = self.state.update if batch.is_mixed else None
        judged = self._judge(batch.trajectories)
        trainer = self.parts.trainer
        learnable = self._choose_learnable(batch.trajectories)
        metrics = judged
        if learnable:
            metrics |= trainer.update(learnable, check_parity=check_parity, version=version)
        learnt = time.perf_counter()
        self.state.count_update(batch.num_actions, len(batch.trajectories), is_fresh=self._source.is_fresh)
        self._publish()
        now = time.perf_counter()
        times = {
            "time/rollout_s": batch.played_s,
            "time/update_s": learnt - played,
            "time/publish_s": now - learnt,
            "tokens_per_s": num_tokens(batch.trajectories) / (now - played + batch.played_s),
            "infra_errors": float(batch.num_retries),
        }
        self._tell("update", rollout_metrics(batch.trajectories) | metrics | times | batch.metrics)
        self._watch_agent(f"update {self.state.update}", batch.trajectories, is_update=True)
        return True

    def _choose_learnable(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        """What an update learns from: not what a user's own agent got wrong."""
        if self.failures is None:
            return trajectories
        learnable = self.failures.choose_learnable(trajectories)
        if not learnable:
            self.monitor.note(
                f"update {self.state.update + 1}: nothing to learn from, every episode failed in the agent"
            )
        return learnable

    def _watch_agent(self, place: str, trajectories: Sequence[Trajectory], *, is_update: bool) -> None:
        """Tell what a user's own agent got wrong, and stop where that is too much."""
        if self.failures is None:
            return
        reason = self.failures.watch(place, trajectories, is_update=is_update)
        if reason is not None:
            if is_update:  # so that a run that goes on plays the next update, not this one again
                self._save()
            raise AgentError(reason)

    def _judge(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Rewards that only a whole batch shows, where settings ask for them; figures of the judge."""
        judge = self.parts.batch_judge if self._source.is_fresh else None
        if judge is None:
            return {}
        figures = judge.reward(trajectories)
        if _is_due(self.config.eval.every, self.state.update + 1) and (repeated := judge.most_repeated()):
            told = "; ".join(f"{one.share:.2f} {one.sentence!r}" for one in repeated[:3])
            self.monitor.note(f"most repeated sentences (share of texts): {told}")
        return figures

    def _stop_here(self) -> bool:
        """An interrupt came between two updates: what was played is in the pool, the weights go there too."""
        self.ending = "interrupted"
        self._save()
        return True

    def _drain(self) -> None:
        """No new episodes; finished ones are kept, the others were not played."""
        if self.groups is not None and (num_left := self.groups.drain()):
            self.monitor.note(f"{num_left} episodes were under way at the end and count as not played")

    def _make_source(self) -> Source:
        if self.groups is not None:
            from stepwell.runs.loop.async_source import StreamedSource

            return StreamedSource(
                self.config,
                self.parts,
                self._run_name,
                self._tasks,
                self.groups,
                lambda: self._stop_asked,
            )
        if self.config.offline.pool is not None:
            source = StoredSource(self.config, self.parts.recipe)
            self.monitor.note(
                f"offline: {source.num_trajectories} trajectories of {self.config.offline.pool}"
            )
            return source
        return PlayedSource(self.config, self.parts, self._run_name, self._tasks)

    def _publish(self) -> None:
        """Hand the weights to the engine, which must then report the fingerprint of what was handed."""
        if self.groups is not None:
            published = self.groups.publish(self.state.update, self.parts.policy.model_weights)
        else:
            published = self._load_engine()
        if self._source.is_fresh and published is not None:
            self.parts.pool.publish_version(self.state.update, published, {"run": self._run_name})

    def _load_engine(self) -> str:
        weights, engine = self.parts.policy.model_weights(), self.parts.engine
        published = fingerprint_of(weights, engine.model.dtype)
        engine.load_weights(self.state.update, weights)
        if (found := engine.fingerprint()) != published:
            raise WeightsError(
                f"version {self.state.update} was published as {published}, the engine reports {found}; "
                "its weights are not the trainer's"
            )
        return published

    def _check_parity(self, gaps: LogprobGaps, measure_errors: Callable[[], LogprobErrors | None]) -> None:
        if self._parity is None:
            dtype = str(self.parts.engine.model.dtype if self.groups is None else self.groups.dtype)
            self._parity = ParityMonitor(dtype.removeprefix("torch."), self.config.parity.tolerance)
        verdict = self._parity.judge_gaps(gaps, measure_errors)
        place = f"update {self.state.update + 1}"
        if verdict.outlier is not None:
            self.monitor.note(f"{place}: an outlier between engine and trainer: {verdict.outlier}")
        if verdict.fault is None:
            return
        text = f"engine and trainer disagree about fresh samples: {gaps}; {verdict.fault}"
        if self.config.parity.on_mismatch == "stop":
            raise ParityError(
                f"{place}: {text}. The data are not what the ratio takes them for: "
                "compare dtypes and kernels of policy and engine, or set parity.tolerance if you know why. "
                "The weights were not changed"
            )
        self.monitor.note(f"{place}: {text}")

    def _evaluate(self) -> EvalResult | None:
        config = self.config.eval
        if config.num_tasks == 0:
            return None
        self.monitor.phase("evaluating")
        result = evaluate(
            self.parts,
            self._held_out,
            temperature=config.temperature,
            samples_per_task=config.samples_per_task,
        )
        write_episodes(self.folder, result.trajectories)
        values = result.values()
        self._tell("eval", values)
        self._watch_agent("held-out evaluation", result.trajectories, is_update=False)
        self.last_eval = result
        if self.state.count_eval(values | {"num_tasks": float(result.num_tasks)}):
            self._save(checkpoint.BEST)
        return result

    # --- the record -----------------------------------------------------------------------

    def _save(self, name: str | None = None) -> None:
        self.state.time_s = self._time()
        loop: dict[str, Any] = {"update": self.state.update, "state": self.state.as_dict()}
        if self.parts.batch_judge is not None:
            loop["judge"] = self.parts.batch_judge.state()
        trainer = self.parts.trainer if name is None else None
        folder = self.folder / "checkpoints"
        if name is None:
            self._source.saving(self.state.update)
        checkpoint.save_checkpoint(folder, self.parts.policy, trainer, loop, name)
        checkpoint.prune(folder, self.config.checkpoint.keep)
        if name is None:
            self._saved_at = time.perf_counter()

    def _tell(self, kind: Literal["warm_start", "update", "eval"], values: dict[str, float]) -> None:
        self.monitor.record(Entry(kind, self.state.update, self._time(), self.state.env_steps, values))

    def _time(self) -> float:
        return time.perf_counter() - self._clock

    def _ask_to_stop(self, asked: signal.Signals) -> None:
        self.stop_signal = asked.name
        at_hand = "this update" if self.state.before is not None else "the start"
        by, again = ("", "Ctrl-C") if asked == signal.SIGINT else (f" by {asked.name}", asked.name)
        self.monitor.note(f"interrupted{by}: finishing {at_hand}, then saving ({again} again stops at once)")


def _is_due(every: int, update: int) -> bool:
    return every > 0 and update % every == 0
