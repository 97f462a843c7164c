"""What a run needs besides where its agent sees: pictures that outlive memory, and clear refusals.

    world ─ picture ─► PoolPictures.add ─► blob store of the pool ◄─ generators, trainer, resumed runs
                              └─► memory, the most recent ones

Invariants
* A picture is in the blob store before its name is in any message: every process that opens the
  same pool finds the pixels of every prompt and every step.
* A world that shows pictures is refused before anything runs, unless the model sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, ModelError, Observation, Pictures
from stepwell.core.arrays import AnyArray
from stepwell.core.pictures import picture_name
from stepwell.pool import Pool
from stepwell.rendering.vision import ImageFormat, image_format_of


class PoolPictures(Pictures):
    """Pictures that are stored in a pool as they are added, and read from it again."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(load=pool.picture)
        self._blobs = pool.blobs

    def add(self, image: AnyArray) -> str:
        """Store a picture that is new here; gives its name."""
        if picture_name(image) not in self:
            self._blobs.put_image(image)
        return super().add(image)


def find_image_format(path: Path, tokenizer: Any) -> ImageFormat | None:
    """How the model in `path` writes pictures; None for one of text alone."""
    try:
        return image_format_of(path, tokenizer)
    except ModelError as error:
        raise ConfigError(f"policy.model: {error}") from error


def check_observation(config: RunConfig, observation: Observation, image_format: ImageFormat | None) -> None:
    """Refuse pictures for a model that reads text."""
    if observation.images and image_format is None:
        raise ConfigError(
            f"policy.model: {config.policy.model} reads text only, but {config.env.name} shows pictures; "
            "use a model that sees (such as tiny-vlm-0.5m), or a world that speaks "
            '(env.options: observation = "text", where it has that)'
        )


def check_places(config: RunConfig) -> None:
    """Refuse what an agent that sees cannot do yet."""
    if len(config.groups.trainers.devices) > 1:
        raise ConfigError(
            "groups.trainers.devices: a policy that sees learns on one device; give one, or a text model"
        )
