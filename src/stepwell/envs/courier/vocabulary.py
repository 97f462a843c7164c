"""What a judge must know to check descriptions of a delivery."""

from __future__ import annotations

from stepwell.core.state_vocabulary import PLAYER_NAMES, StateVocabulary
from stepwell.envs.grid import JUDGE_CRITERIA

VOCABULARY = StateVocabulary(
    names={
        "player": (*PLAYER_NAMES, "courier"),
        "parcel": ("parcel", "package", "packet", "box"),
        "door": ("door", "goal", "target", "destination"),
    },
    pairs=(("parcel", "player"), ("door", "player")),
    symbols={
        "P": ("player",),
        "B": ("parcel",),
        "D": ("door",),
        "Q": ("player", "parcel"),
        "H": ("player", "parcel"),
        "S": ("player", "door"),
        "*": ("player", "parcel", "door"),
    },
    criteria="- Where the parcel or the door lies as seen from the player must be stated.\n" + JUDGE_CRITERIA,
)
