"""A step's reward, part by part. The record keeps each part."""

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names
from stepwell.rewards.batch import BatchJudge, refuse_batch_settings
from stepwell.rewards.judge.verdict import Verdict
from stepwell.rewards.outcomes import JUDGED_PARTS, apply_outcomes
from stepwell.rewards.parts import compute_step_parts, list_part_names, make_rule_judge, select_parts
from stepwell.rewards.repetition import RepeatedSentence, RepetitionPenalty
from stepwell.rewards.state_match import match_state
from stepwell.rewards.user_parts import OwnPart, StepOutcome, load_own_parts, reward_part

if TYPE_CHECKING:
    from stepwell.rewards.judge.rule import RuleJudge

__all__ = [
    "JUDGED_PARTS",
    "BatchJudge",
    "OwnPart",
    "RepeatedSentence",
    "RepetitionPenalty",
    "RuleJudge",
    "StepOutcome",
    "Verdict",
    "apply_outcomes",
    "compute_step_parts",
    "list_part_names",
    "load_own_parts",
    "make_rule_judge",
    "match_state",
    "refuse_batch_settings",
    "reward_part",
    "select_parts",
]

__getattr__ = lazy_names(__name__, {"RuleJudge": "judge.rule"})
