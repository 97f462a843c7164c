"""The words that all descriptions share: directions, numbers, verbs, and their meanings.

A direction is (axis, sign): rows grow downwards, columns rightwards, so (0, -1) is above and (1, 0)
is in the same column. Names of things are in the vocabulary of an environment.
"""

from __future__ import annotations

ROW, COLUMN, BEARING, FAR = 0, 1, "bearing", "far"
Axis = int | str
Sign = int | str

_ABOVE, _BELOW, _LEFT, _RIGHT = (ROW, -1), (ROW, 1), (COLUMN, -1), (COLUMN, 1)
HERE = ((ROW, 0), (COLUMN, 0))
_UP = ("above", "up", "upward", "upwards", "north", "over", "higher", "upper", "top")
_DOWN = (
    "below",
    "down",
    "downward",
    "downwards",
    "south",
    "under",
    "underneath",
    "beneath",
    "lower",
    "bottom",
)
DIRECTIONS: dict[str, tuple[tuple[Axis, Sign], ...]] = {
    **dict.fromkeys(_UP, (_ABOVE,)),
    **dict.fromkeys((*_DOWN, "bottom"), (_BELOW,)),
    **dict.fromkeys(("left", "west", "leftward", "leftwards", "lefthand"), (_LEFT,)),
    **dict.fromkeys(("right", "east", "rightward", "rightwards", "righthand"), (_RIGHT,)),
    "northwest": (_ABOVE, _LEFT),
    "northeast": (_ABOVE, _RIGHT),
    "southwest": (_BELOW, _LEFT),
    "southeast": (_BELOW, _RIGHT),
}
AHEAD = {
    **dict.fromkeys(("ahead", "forward", "front"), "ahead"),
    **dict.fromkeys(("behind", "back", "backward"), "behind"),
}
REGION = frozenset({"upper", "lower", "top", "bottom"})
SAME: dict[str, tuple[tuple[Axis, Sign], ...]] = {
    **dict.fromkeys(("row", "line", "height", "level"), ((ROW, 0),)),
    "column": ((COLUMN, 0),),
    **dict.fromkeys(("place", "position", "cell", "tile", "spot", "location", "square", "space"), HERE),
}
NUMBERS = {
    word: number
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    )
} | {"a": 1, "an": 1, "single": 1, "ten": 10}
ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6}


def _split_into_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNITS: dict[str, Axis | None] = {
    **dict.fromkeys(("row", "rows"), ROW),
    **dict.fromkeys(("column", "columns"), COLUMN),
    **dict.fromkeys(_split_into_set("cell cells step steps tile tiles square squares space spaces"), None),
    **dict.fromkeys(_split_into_set("block blocks place places move moves"), None),
    **dict.fromkeys(_split_into_set("m meter meters metre metres"), FAR),
}
COPULAS = _split_into_set(
    "is are am be was were lies lie stands stand sits sit located positioned found remains stays ends "
    "becomes being appears standing lying sitting"
)
SEES = _split_into_set("see sees has have notice notices contains shows face faces")
MOVES = _split_into_set(
    "move moves moving moved go goes going went walk walks walking step stepping slide slides heading head "
    "travel travels turn turning turns"
)
PUSHES = _split_into_set("push pushes pushing pushed")
MAYBE = _split_into_set(
    "may might maybe perhaps possibly could or either probably likely if whether unless seems somewhere"
)
NOT = _split_into_set("not no never neither nor without cannot")
BUT = _split_into_set("but instead rather however")
AND = _split_into_set("and while whereas then so also plus")
VAGUE = _split_into_set(
    "near nearby next beside adjacent close between facing toward towards around diagonal diagonally away "
    "past along against"
)
ONTO = _split_into_set("on onto upon atop into reach reaches reached overlaps occupies in at inside")
STRAIGHT = _split_into_set("directly straight exactly immediately just precisely")
BEFORE_WHICH_RIGHT_IS_NO_SIDE = _split_into_set(
    "above below under beneath over next beside at on now here in"
)
ABSOLUTE = _split_into_set("center centre middle")
DETERMINERS = _split_into_set("the a an its this that same")
IT = _split_into_set("it its him his he her she")
