"""The judge of a run's episodes, from its settings."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.config.outcome import CHECKER, OutcomeConfig
from stepwell.core import OutcomeSource, Status, Trajectory
from stepwell.rewards.outcome_model.endpoint import EndpointOutcomeJudge
from stepwell.rewards.outcome_model.judges import JudgeEnsemble, OutcomeJudge


class CheckerJudge:
    """The environment's own verdict, as one of several judges."""

    name = CHECKER
    source = OutcomeSource.CHECKER

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """1 where the environment said success; None for a task that it cannot judge."""
        return [
            float(each.status is Status.SUCCESS) if each.task.has_checker else None for each in trajectories
        ]


def build_judge(config: OutcomeConfig) -> OutcomeJudge | None:
    """The judge that settings name; None if the checker alone decides."""
    if not config.is_judged:
        return None
    judges = [_build_one(name, config) for name in config.judge]
    return judges[0] if len(judges) == 1 else JudgeEnsemble(judges, config.combine)


def _build_one(name: str, config: OutcomeConfig) -> OutcomeJudge:
    kind, _, rest = name.partition(":")
    if kind == "model":
        from stepwell.runs.outcome_model.model import OutcomeModel

        return OutcomeModel.load(rest, device=config.device)
    if kind == "endpoint":
        return EndpointOutcomeJudge(config.endpoints[rest], rest)
    return CheckerJudge()
