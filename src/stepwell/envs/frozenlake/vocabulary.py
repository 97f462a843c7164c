"""What a judge must know to check descriptions of a lake."""

from __future__ import annotations

from stepwell.core.state_vocabulary import PLAYER_NAMES, StateVocabulary
from stepwell.envs.grid import JUDGE_CRITERIA

VOCABULARY = StateVocabulary(
    names={
        "player": (*PLAYER_NAMES, "elf"),
        "goal": ("goal", "target", "gift", "present", "flag", "destination", "finish", "treasure"),
        "hole": ("hole", "pit", "ice hole", "gap"),
    },
    pairs=(("goal", "player"), ("hole", "player")),
    symbols={
        "P": ("player",),
        "G": ("goal",),
        "O": ("hole",),
        "X": ("player", "hole"),
        "*": ("player", "goal"),
    },
    criteria="- Where the goal lies as seen from the player must be stated; holes may be left out.\n"
    + JUDGE_CRITERIA,
)
