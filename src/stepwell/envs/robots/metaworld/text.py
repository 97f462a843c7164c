"""The instruction of each Meta-World task, one sentence, and which of its vectors are allowed.

`MIN_APART` is how far apart (in the plane) Meta-World wants the two points of a random vector; a
vector with less is drawn again. In `sweep-into` the second point is fixed. `EXPERT_SHARE` is what
share of tasks the shipped experts can be trusted to solve, where it is less than nine in ten.
"""

from __future__ import annotations

from stepwell.core import ConfigError
from stepwell.core.names import suggest_name

VERSION = "-v3"

INSTRUCTIONS: dict[str, str] = {
    "assembly": "pick up the nut and put it over the peg",
    "basketball": "drop the ball into the basket",
    "bin-picking": "move the cube from one bin to the other",
    "box-close": "put the lid on the box",
    "button-press": "push the button in",
    "button-press-topdown": "press the button down from above",
    "button-press-topdown-wall": "reach over the wall and press the button down",
    "button-press-wall": "reach around the wall and push the button in",
    "coffee-button": "press the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine",
    "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial",
    "disassemble": "lift the nut off the peg",
    "door-close": "close the door",
    "door-lock": "lock the door",
    "door-open": "open the door",
    "door-unlock": "unlock the door",
    "drawer-close": "push the drawer shut",
    "drawer-open": "pull the drawer open",
    "faucet-close": "turn the faucet off",
    "faucet-open": "turn the faucet on",
    "hammer": "drive the nail into the wall with the hammer",
    "hand-insert": "put the gripper into the hole",
    "handle-press": "press the handle down",
    "handle-press-side": "press the handle down from the side",
    "handle-pull": "pull the handle up",
    "handle-pull-side": "pull the handle up from the side",
    "lever-pull": "pull the lever up",
    "peg-insert-side": "insert the peg into the hole in the side",
    "peg-unplug-side": "pull the peg out of the hole in the side",
    "pick-out-of-hole": "take the puck out of the hole",
    "pick-place": "pick up the puck and hold it at the goal",
    "pick-place-wall": "lift the puck over the wall to the goal",
    "plate-slide": "slide the plate into the cabinet",
    "plate-slide-back": "slide the plate back out of the cabinet",
    "plate-slide-back-side": "slide the plate out of the cabinet sideways",
    "plate-slide-side": "slide the plate into the cabinet sideways",
    "push": "push the puck to the goal",
    "push-back": "pull the block back to the goal",
    "push-wall": "push the puck around the wall to the goal",
    "reach": "move the gripper to the goal",
    "reach-wall": "move the gripper past the wall to the goal",
    "shelf-place": "put the block on the shelf",
    "soccer": "kick the ball into the net",
    "stick-pull": "hook the bottle with the stick and pull it",
    "stick-push": "push the bottle with the stick",
    "sweep": "sweep the block off to the goal",
    "sweep-into": "sweep the block into the hole",
    "window-close": "slide the window shut",
    "window-open": "slide the window open",
}

_FAR = (
    "basketball coffee-pull coffee-push hand-insert pick-out-of-hole pick-place pick-place-wall "
    "push push-back push-wall reach reach-wall soccer sweep-into"
)
_NEAR = "assembly disassemble peg-insert-side shelf-place stick-pull stick-push"
MIN_APART: dict[str, float] = {
    "box-close": 0.25,
    **dict.fromkeys(_FAR.split(), 0.15),
    **dict.fromkeys(_NEAR.split(), 0.1),
}
SWEEP_GOAL = (0.0, 0.84)

# Meta-World's scripted policies solve nearly all tasks, given 200 actions; these solve fewer
EXPERT_SHARE: dict[str, float] = {
    "box-close": 0.5,
    "peg-insert-side": 0.5,
    "push-back": 0.0,
    "soccer": 0.5,
    "stick-pull": 0.5,
}


def strip_version(task: str) -> str:
    """A task's name without version; one that is not there is refused with the nearest.

    >>> strip_version("reach-v3"), strip_version("door-open")
    ('reach', 'door-open')
    """
    name = task.removesuffix(VERSION)
    if name not in INSTRUCTIONS:
        guess = suggest_name(name, sorted(INSTRUCTIONS), "It has")
        raise ConfigError(f"Meta-World has no task {task!r}{guess}")
    return name
