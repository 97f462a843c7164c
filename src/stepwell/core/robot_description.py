"""What an array policy must know about an environment, as plain data.

The counterpart of `EnvDescription`, which describes text environments. A robot environment shows named
arrays (camera images, proprioception, object states) with an instruction in words, takes chunks of
actions in [-1, 1], and ends with success or after `max_actions`.
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
    def is_image(self) -> bool:
        """Whether it is an RGB image, [height, width, 3] bytes."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] == 3


@dataclass(frozen=True, slots=True)
class RobotEnvDescription:
    """An environment as a robot policy sees it.

    >>> env = RobotEnvDescription("reach", {"state": ArraySpec((39,))}, action_dim=4, max_actions=100)
    >>> env.images
    ()
    """

    name: str
    arrays: dict[str, ArraySpec]
    action_dim: int
    max_actions: int

    def __post_init__(self) -> None:
        if not self.arrays:
            raise InputError("arrays is empty; a policy needs at least one")
        if self.action_dim < 1 or self.max_actions < 1:
            raise InputError(
                f"action_dim ({self.action_dim}) and max_actions ({self.max_actions}) must be at least 1"
            )

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the camera images among the arrays."""
        return tuple(name for name, spec in self.arrays.items() if spec.is_image)
