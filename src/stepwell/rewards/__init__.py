"""A step's reward, part by part, each part kept in the record."""

from stepwell.rewards.batch import BatchJudge, needs_batch
from stepwell.rewards.judge.rule import RuleJudge
from stepwell.rewards.judge.verdict import Verdict
from stepwell.rewards.own import OwnPart, StepOutcome, load_own_parts, reward_part
from stepwell.rewards.parts import compose, part_names, step_parts
from stepwell.rewards.repetition import Repeated, Repetition
from stepwell.rewards.state_match import match_state

__all__ = [
    "BatchJudge",
    "OwnPart",
    "Repeated",
    "Repetition",
    "RuleJudge",
    "StepOutcome",
    "Verdict",
    "compose",
    "load_own_parts",
    "match_state",
    "needs_batch",
    "part_names",
    "reward_part",
    "step_parts",
]
