"""What a judge must know to check descriptions of what is seen in a room."""

from __future__ import annotations

from stepwell.core.state_vocabulary import PLAYER_NAMES, StateVocabulary

_CRITERIA = """\
- The direction of the target object as seen from the agent must be stated: ahead, left, right or behind.
- A combination such as ahead-left is true if it contains the true direction.
- Words such as near, closer or towards state no direction."""

VOCABULARY = StateVocabulary(
    names={"player": (*PLAYER_NAMES, "robot")},
    frame="bearing",
    tolerance=0.2,
    synonyms={
        "sofa": ("couch", "settee"),
        "television": ("tv", "television set"),
        "fridge": ("refrigerator",),
        "plant": ("potted plant", "house plant"),
        "garbage can": ("trash can", "bin", "dustbin", "waste bin"),
        "bathtub": ("bath", "tub"),
    },
    criteria=_CRITERIA,
)
