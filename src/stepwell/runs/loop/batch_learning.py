"""What one update does with its batch: judge it, reward it, and change the weights.

    batch ─► outcomes by a judge ─► rewards follow them ─► rewards of the whole batch ─► replay ─► trainer

Invariants
* A judge in the checker's place comes first, because rewards follow outcomes.
* Rewards that need the whole batch are computed for fresh episodes only: stored ones already have them.
* An episode that failed in a user's own agent is not learnt from, unless settings ask for it. An update
  without anything to learn from leaves the weights as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stepwell.config.run import RunConfig
from stepwell.core import Trajectory
from stepwell.curriculum import ReplayBuffer
from stepwell.rewards import JUDGED_PARTS, apply_outcomes
from stepwell.runs.build.components import Components
from stepwell.runs.loop.agent_failures import AgentFailures
from stepwell.runs.loop.credit_recorder import CreditRecorder
from stepwell.runs.loop.outcome_judging import OutcomeJudging
from stepwell.runs.loop.parity_check import UpdateChecks
from stepwell.runs.loop.sources import Batch


@dataclass(eq=False)
class BatchLearner:
    """Learns from the batches of one run. `note` reports what a user should know."""

    config: RunConfig
    components: Components
    note: Callable[[str], None]
    failures: AgentFailures | None = None
    replay: ReplayBuffer | None = None
    judging: OutcomeJudging | None = None
    credit: CreditRecorder | None = None

    def learn_from(self, update: int, batch: Batch, checks: UpdateChecks | None) -> dict[str, float]:
        """Learn from the batch of this update; returns figures.

        `checks` compare fresh samples with the engine; None if the episodes are not fresh.
        """
        outcomes = {} if self.judging is None else self.judging.judge_batch(update, batch)
        num_judged = self._apply_outcomes(batch.trajectories)
        figures = outcomes | ({} if checks is None else self._judge_batch(update, batch.trajectories))
        figures |= {"judged": num_judged / len(batch.trajectories)} if num_judged else {}
        figures |= self._update_weights(update, batch, checks)
        if num_left_out := figures.get("guard/left_out"):
            self.note(
                f"update {update}: {num_left_out:.0f} optimizer steps left out: the policy is "
                f"{figures['guard/last_kl']:.3g} from the one that sampled (train.guard.max_kl)"
            )
        return figures

    def _update_weights(self, update: int, batch: Batch, checks: UpdateChecks | None) -> dict[str, float]:
        learnable = self._choose_learnable(update, batch.trajectories)
        if not learnable:
            return {}
        replayed = None
        if self.replay is not None:
            replayed = self.replay.draw_steps(update, batch.trajectories)
            self._apply_outcomes(replayed.trajectories)
        is_mixed = batch.is_mixed or (replayed is not None and bool(replayed.trajectories))
        if checks is not None:
            checks.judge_weights()
        metrics = self.components.trainer.update(
            learnable if replayed is None else [*learnable, *replayed.trajectories],
            check_parity=None if checks is None else checks.judge_gaps,
            check_positions=None if checks is None else checks.judge_positions,
            version=update - 1 if is_mixed else None,
            trained_steps=None if replayed is None else replayed.masks,
            replay_teaches_critic=self.config.replay.teaches_critic,
            keep_credit=None if self.credit is None else partial(self.credit.keep, update),
        )
        metrics |= {} if checks is None else checks.read_figures()
        return metrics if replayed is None else metrics | replayed.figures

    def _apply_outcomes(self, trajectories: Sequence[Trajectory]) -> int:
        """Let rewards follow judged outcomes; where a judge takes the checker's place, the task's too."""
        scale = self.config.rewards.scale
        if self.judging is None:
            return apply_outcomes(trajectories, scale)
        return apply_outcomes(trajectories, scale, JUDGED_PARTS)

    def _choose_learnable(self, update: int, trajectories: list[Trajectory]) -> list[Trajectory]:
        if self.failures is None:
            return trajectories
        learnable = self.failures.choose_learnable(trajectories)
        if not learnable:
            self.note(f"update {update}: nothing to learn from, every episode failed in the agent")
        return learnable

    def _judge_batch(self, update: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Add rewards that need the whole batch, if settings ask for them; returns the judge's figures."""
        judge = self.components.backend.batch_judge
        if judge is None:
            return {}
        figures = judge.reward(trajectories)
        every = self.config.eval.every
        if every > 0 and update % every == 0 and (repeated := judge.find_most_repeated()):
            shares = "; ".join(f"{one.share:.2f} {one.sentence!r}" for one in repeated[:3])
            self.note(f"most repeated sentences (share of texts): {shares}")
        return figures
