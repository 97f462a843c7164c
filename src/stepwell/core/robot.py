"""The robot's world: what a policy of arrays must know of an environment, as plain data.

The counterpart of `World`, which speaks of words. A robot world shows named arrays (camera
pictures, proprioception, object states) with an instruction in words, takes chunks of actions in
[-1, 1], and ends by success or after `max_actions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.core.errors import InputError


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one named array of an observation."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def is_picture(self) -> bool:
        """Whether it is an RGB picture, [height, width, 3] bytes."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] == 3


@dataclass(frozen=True, slots=True)
class RobotWorld:
    """What a robot policy is built for.

    >>> world = RobotWorld("reach", {"state": ArraySpec((39,))}, action_dim=4, max_actions=100)
    >>> world.pictures
    ()
    """

    name: str
    arrays: dict[str, ArraySpec]
    action_dim: int
    max_actions: int

    def __post_init__(self) -> None:
        if not self.arrays:
            raise InputError("arrays is empty: a policy must see something")
        if self.action_dim < 1 or self.max_actions < 1:
            raise InputError(
                f"action_dim ({self.action_dim}) and max_actions ({self.max_actions}) must be at least 1"
            )

    @property
    def pictures(self) -> tuple[str, ...]:
        """Names of the camera pictures among the arrays."""
        return tuple(name for name, spec in self.arrays.items() if spec.is_picture)
