"""The warm start of a run: supervised learning before the first update.

    WarmStart.run ─► the user's chats ─► the oracle's demonstrations ─► until the goal or the last update

Runs with equal settings can share one warm start on disk (`build/warm_starts.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stepwell.config.training import WarmStartConfig
from stepwell.core import Task, Trajectory
from stepwell.monitors import Monitor
from stepwell.runs.build.components import Components
from stepwell.runs.build.runner import EpisodeRunner
from stepwell.runs.build.warm_starts import NO_DEMOS, describe_goal, has_goal, is_warm, load_or_make
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.runs.loop.rollout_metrics import measure_descriptions
from stepwell.runs.loop.time_left import TIMED, TimeLeft
from stepwell.runs.sft.chats import read_chats
from stepwell.training import count_batches, imitate
from stepwell.training.critics import prepare_critics, restart_critic
from stepwell.training.memory_budget import TokenBudget

SHARES = ("success", "format_share")  # of what a check of the goal measures: recorded


@dataclass(eq=False)
class WarmStart:
    """Makes the policy of `components` warm; `tasks` are training tasks on which its goal is checked."""

    components: Components
    runner: EpisodeRunner
    monitor: Monitor
    tasks: Sequence[Task]
    publish: Callable[[], None]  # hands the present weights to the engine
    record: Callable[[dict[str, float]], None]
    time_left: TimeLeft

    def run(self) -> None:
        """Learn what settings ask for, or load it from where another run left it."""
        if not self.components.config.has_warm_start:
            self.monitor.note(f"warm start: {NO_DEMOS}")
            return
        prepare_critics(self.components.policy, self.components.recipe)
        cache = self.components.config.warm_start.cache
        if cache is None:
            self._imitate()
        else:
            load_or_make(self.components, Path(cache), self._imitate, self.monitor.note)
        if not self.components.config.warm_start.value_coef:
            restart_critic(self.components.policy)
        self.time_left.end_warm_start()

    def _imitate(self) -> None:
        warm = self.components.config.warm_start
        if warm.chats is not None:
            self.monitor.phase("chats")
            chats = read_chats(warm.chats, self.components.language.renderer, "warm_start.chats")
            self.monitor.note(f"warm start: {len(chats)} chats of {warm.chats}")
            # what a chat is worth is not known: the critic learns nothing from it
            self._learn_from(chats, warm.model_copy(update={"value_coef": 0.0}), later=self._num_demo_batches)
        if self.components.config.num_demos:
            self._learn_from(self._demonstrate(), warm)

    @property
    def _num_demo_batches(self) -> int:
        config = self.components.config
        return count_batches(config.warm_start, config.num_demos) if config.num_demos else 0

    def _demonstrate(self) -> list[Trajectory]:
        components, warm = self.components, self.components.config.warm_start
        self.monitor.phase("demonstrations")
        demonstrations = components.play_demonstrations(
            warm.num_demos, warm.noise, components.config.start_seed, warm.demos_per_task
        )
        success = np.mean([t.is_success for t in demonstrations])
        self.monitor.note(f"warm start: {len(demonstrations)} demonstrations, {success:.2f} of them succeed")
        if (warning := components.backend.describe_imbalance(demonstrations)) is not None:
            self.monitor.note(f"warning: {warning}")
        return demonstrations

    def _learn_from(
        self, demonstrations: Sequence[Trajectory], warm: WarmStartConfig, *, later: int = 0
    ) -> None:
        total, config = count_batches(warm, len(demonstrations)), self.components.config
        size = min(warm.batch_size, len(demonstrations))
        updates = imitate(
            self.components.policy,
            demonstrations,
            warm,
            config.start_seed,
            recipe=self.components.recipe,
            token_budget=TokenBudget(config.train.token_budget, self.components.policy).read_tokens(
                demonstrations
            ),
            micro_batch=config.train.micro_batch,
        )
        began = time.perf_counter()
        for number, values in enumerate(updates, start=1):
            self.time_left.count_imitation(time.perf_counter() - began, size, number, total, later)
            is_due = has_goal(warm) and number % warm.check_every == 0
            is_timed = number == TIMED and self.time_left.needs_check
            checked = self._check_on_tasks(demonstrations) if is_due or is_timed else {}
            if is_due or is_timed or number % 10 == 0 or number == total:
                shares = {name: checked[name] for name in SHARES if name in checked}
                self.record(values | shares | {"step": float(number), "num_steps": float(total)})
            if is_due and self._reaches_goal(checked, number, total):
                break
            began = time.perf_counter()

    def _check_on_tasks(self, demonstrations: Sequence[Trajectory]) -> dict[str, float]:
        """The figures of the present policy on some training tasks."""
        self.publish()
        config = self.components.config
        tasks = self.tasks[: max(1, config.eval.num_tasks // 2)]
        play = partial(evaluate, self.components, temperature=config.eval.temperature, runner=self.runner)
        if self.time_left.needs_check:
            play(tasks[:1])  # also starts what plays, which comes once
        began = time.perf_counter()
        result = play(tasks)
        took_s, values = time.perf_counter() - began, result.values()
        form = values.get("format_share", 1.0)
        self.time_left.count_check(took_s, result.trajectories, demonstrations, form)
        return values | measure_descriptions(result.trajectories, config.rewards)

    def _reaches_goal(self, values: dict[str, float], number: int, total: int) -> bool:
        """Whether the policy has learnt enough, which is reported."""
        warm = self.components.config.warm_start
        is_enough = is_warm(warm, values)
        form = f"{values['format_share']:.2f} of replies in form, " if "format_share" in values else ""
        if "grounding_share" in values:
            form += f"descriptions {values['grounding_share']:.2f} right, "
        goal = f"goal: {describe_goal(warm)}" if number == warm.check_every else "not enough yet"
        self.monitor.note(
            f"warm start: update {number} of at most {total}, {form}{values['success']:.2f} of tasks solved "
            f"({'enough' if is_enough else goal})"
        )
        return is_enough
