"""How long a run will still take: what its parts took so far, times how many of them are left.

    warm start     updates of imitation, checks on training tasks
    training       updates: played, learnt, published
    evaluations    before, at intervals, at the end
    the end        replays and the report

Each part is timed where it happens, so that what comes only once (the first call of a kernel, the replays
before training) does not count as if every update paid it. The last ones count, without the longest and the
shortest, since other work on the machine stretches single ones. Until updates were made, one is put together
from what the warm start measures: playing from a check on tasks, learning from imitation, per episode. A
goal may end the warm start early: `TYPICAL_WARM` says when that is expected.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.config.run import RunConfig
from stepwell.core import Trajectory
from stepwell.runs.build.warm_starts import has_goal
from stepwell.runs.loop.loop_state import LoopState
from stepwell.runs.loop.rollout_metrics import count_tokens

RECENT = 15  # of the last updates, which predict the next ones
TIMED = 4  # after so many updates of a warm start, a check tells how long playing takes, goal or not
TYPICAL_WARM = 1 / 4
"""The share of its updates after which a warm start with a goal usually ends: 0.17 to 0.52 in presets."""
LONGER = 4 / 3  # of the updates made so far: the expected end of one that lasts longer than that


def _make_recent() -> deque[float]:
    return deque(maxlen=RECENT)


@dataclass(slots=True)
class TimeLeft:
    """Estimates what is left of a run of `config`, from the durations that are reported to it."""

    config: RunConfig
    warm_updates_left: float | None = None  # None: not in the warm start
    imitation_s: deque[float] = field(default_factory=_make_recent)
    imitated: int = 1  # examples of an update of imitation
    update_s: deque[float] = field(default_factory=_make_recent)
    play_s: float | None = None  # one episode of the policy that is expected after the warm start
    length: float = 1.0  # an episode to learn from, in turns of a demonstrated one
    eval_s: float | None = None
    end_s: float = 0.0

    @property
    def needs_check(self) -> bool:
        """Whether playing should be timed in the warm start, because it has not been and will be needed."""
        return self.play_s is None and (self._is_played or self.config.eval.num_tasks > 0)

    # --- what happened --------------------------------------------------------------------

    def count_imitation(self, took_s: float, size: int, number: int, total: int, later: int) -> None:
        """Update `number` of at most `total`, from `size` examples; `later` updates follow from others.

        Of the first ones, which also start kernels, the shortest counts.
        """
        if number <= TIMED:
            took_s = took_s if number == 1 else min(took_s, *self.imitation_s)
            self.imitation_s.clear()
        self.imitation_s.append(took_s)
        self.imitated = size
        self.warm_updates_left = self._expect_end(total, number) - number + self._expect_end(later, 0)

    def end_warm_start(self) -> None:
        """Nothing is left of it."""
        self.warm_updates_left = None

    def count_check(
        self, took_s: float, played: Sequence[Trajectory], shown: Sequence[Trajectory], form: float = 1.0
    ) -> None:
        """A check of the warm start; `form` is the share of replies in the required form, if there is one.

        The policy is expected to write replies as short as those `shown`. Where it knows no form yet, it
        makes all of its turns in vain: it is expected to need as many as were shown.
        """
        shorter = min(1.0, _measure_reply(shown) / _measure_reply(played))
        now, wanted = _count_turns(played), _count_turns(shown)
        turns = form * now + (1.0 - form) * wanted
        self.play_s = took_s / len(played) * shorter * turns / now
        self.length = turns / wanted

    def count_update(self, took_s: float) -> None:
        """An update, with its checkpoint and without evaluations."""
        self.update_s.append(took_s)

    def count_eval(self, took_s: float) -> None:
        """An evaluation on held-out tasks."""
        self.eval_s = took_s

    def count_end(self, took_s: float) -> None:
        """What comes after the last evaluation."""
        self.end_s = took_s

    def as_dict(self) -> dict[str, float]:
        """What a run that resumes should know."""
        known = {"update_s": self._find_update_s(), "eval_s": self.eval_s, "end_s": self.end_s}
        return {name: value for name, value in known.items() if value is not None}

    def restore(self, known: dict[str, float]) -> None:
        """Continue from what `as_dict` gave."""
        self.update_s.extend([known["update_s"]] if "update_s" in known else [])
        self.eval_s, self.end_s = known.get("eval_s"), known.get("end_s", 0.0)

    # --- what is left ---------------------------------------------------------------------

    def estimate_s(self, state: LoopState, elapsed_s: float, *, is_judged: bool = False) -> float | None:
        """Seconds to the end, or to the run's own time limit if that is sooner; None: not known yet.

        `is_judged`: the present weights were just evaluated, which `state` does not say yet.
        """
        if (update_s := self._find_update_s()) is None:
            return None
        eval_s, train = self._find_eval_s(), self.config.train
        last = self._find_last_update(state)
        judged = state.update if is_judged else state.evaluated_at
        evals_s = self._count_evals_left(judged, last) * eval_s
        left_s = update_s * (last - state.update) + evals_s
        if train.max_seconds is not None:
            trained_s = elapsed_s - state.warm_start_s if self.warm_updates_left is None else 0.0
            left_s = min(left_s, max(train.max_seconds - trained_s, 0.0) + min(evals_s, eval_s))
        return max(left_s, 0.0) + self._find_warm_start_s() + self.end_s

    def _find_update_s(self) -> float | None:
        if self.update_s:
            return _mean_without_extremes(self.update_s)
        if self.play_s is None or not self.imitation_s:
            return None
        train = self.config.train
        learnt_s = _mean_without_extremes(self.imitation_s) / self.imitated * self.length
        count, play_s = train.tasks_per_update * train.group_size, self.play_s if self._is_played else 0.0
        return count * (play_s + train.update_epochs * learnt_s)

    @property
    def _is_played(self) -> bool:
        return self.config.offline.pool is None

    def _find_eval_s(self) -> float:
        if self.eval_s is not None:
            return self.eval_s
        settings = self.config.eval
        return (self.play_s or 0.0) * settings.num_tasks * settings.samples_per_task

    def _find_warm_start_s(self) -> float:
        """Seconds that are left of the warm start, with its checks."""
        if self.warm_updates_left is None:
            return 0.0
        warm = self.config.warm_start
        num_checks = self.warm_updates_left / warm.check_every if has_goal(warm) else 0.0
        check_s = (self.play_s or 0.0) * max(1, self.config.eval.num_tasks // 2)
        return self.warm_updates_left * _mean_without_extremes(self.imitation_s) + num_checks * check_s

    def _expect_end(self, total: int, number: int) -> float:
        """The update after which a warm start of at most `total` is expected to end, `number` being made."""
        if not has_goal(self.config.warm_start):
            return total
        return min(total, max(TYPICAL_WARM * total, LONGER * number))

    def _find_last_update(self, state: LoopState) -> int:
        """The number of updates of the run; fewer where its limit of environment steps comes sooner."""
        train = self.config.train
        if train.max_env_steps is None or not state.env_steps or not state.update:
            return train.num_updates
        more = math.ceil(max(train.max_env_steps - state.env_steps, 0) * state.update / state.env_steps)
        return min(train.num_updates, state.update + more)

    def _count_evals_left(self, judged: int | None, last: int) -> int:
        """The evaluations to come: before the first update, at intervals, and at the end."""
        if not self.config.eval.num_tasks:
            return 0
        every = self.config.eval.every or max(last, 1)
        if judged is None:
            return 1 + -(-last // every)
        return max(0, last // every - judged // every + (last % every > 0 and judged < last))


def _measure_reply(trajectories: Sequence[Trajectory]) -> float:
    """Tokens of a reply, or units of a robot's step, on average."""
    return count_tokens(trajectories) / max(sum(len(t.steps) for t in trajectories), 1)


def _count_turns(trajectories: Sequence[Trajectory]) -> float:
    return max(sum(len(t.steps) for t in trajectories), 1) / len(trajectories)


def _mean_without_extremes(times: Sequence[float]) -> float:
    """The mean of times without a tenth of them at either end; of a few, the lower one in the middle."""
    if len(times) < 5:
        return statistics.median_low(times)
    cut = math.ceil(len(times) / 10)
    kept = sorted(times)[cut : len(times) - cut]
    return sum(kept) / len(kept)
