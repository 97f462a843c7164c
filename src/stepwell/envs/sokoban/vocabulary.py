"""What a judge must know to check descriptions of a Sokoban room."""

from __future__ import annotations

from stepwell.core.state_vocabulary import PLAYER_NAMES, StateVocabulary
from stepwell.envs.grid import JUDGE_CRITERIA

VOCABULARY = StateVocabulary(
    names={
        "player": (*PLAYER_NAMES, "worker", "keeper"),
        "box": ("box", "crate", "wooden box"),
        "target": ("target", "goal", "ring", "destination", "storage", "red ring", "target spot"),
    },
    pairs=(("box", "player"), ("target", "player"), ("target", "box")),
    symbols={
        "P": ("player",),
        "X": ("box",),
        "O": ("target",),
        "*": ("box", "target"),
        "S": ("player", "target"),
    },
    criteria="- The player's relation to a box or a target must be stated.\n" + JUDGE_CRITERIA,
)
