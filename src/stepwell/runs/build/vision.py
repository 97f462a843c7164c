"""What a run needs if its agent sees: images kept in the pool, and clear refusals.

    env ─ image ─► PoolImageStore.add ─► blob store of the pool ◄─ generators, trainer, resumed runs
                              └─► memory, the most recent ones

An environment that shows images is refused before anything runs, unless the model sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, ModelError, Observation
from stepwell.rendering.vision import ImageFormat, load_image_format

if TYPE_CHECKING:
    from stepwell.policies import VLMPolicy

_PROJECTORS = ("projector", "merger", "connector")  # names of the module that carries features to the decoder


def find_image_format(path: Path, tokenizer: Any) -> ImageFormat | None:
    """How the model in `path` writes images into prompts; None for a text model."""
    try:
        return load_image_format(path, tokenizer)
    except ModelError as error:
        raise ConfigError(f"policy.model: {error}") from error


def check_observation(config: RunConfig, observation: Observation, image_format: ImageFormat | None) -> None:
    """Refuse images for a text model."""
    if observation.images and image_format is None:
        raise ConfigError(
            f"policy.model: {config.policy.model} reads text only, but {config.env.name} shows images; "
            "use a vision model (such as tiny-vlm-0.5m), or text observations "
            '(env.options: observation = "text", if the environment has that)'
        )


def check_engine(config: RunConfig, image_format: ImageFormat) -> None:
    """Refuse servers that cannot be given the images of a model that sees."""
    if config.engine.backend == "embedded":
        return
    from stepwell.engines.served.images import refuse_images

    if (reason := refuse_images(config.engine.backend, image_format)) is not None:
        raise ConfigError(
            f"engine.backend: {reason}, but policy.model {config.policy.model} sees; use "
            "engine.backend=embedded"
        )


def freeze_vision(policy: VLMPolicy, trained: Literal["all", "projector", "none"]) -> None:
    """Freeze what is not trained of vision encoder and projector."""
    if trained == "all":
        return
    from stepwell.policies.vlm.vision import find_decoder

    decoder = {id(parameter) for parameter in find_decoder(policy.model).parameters()}
    decoder |= {id(parameter) for parameter in policy.model.get_output_embeddings().parameters()}
    for name, parameter in policy.model.named_parameters():
        is_projector = any(word in name for word in _PROJECTORS)
        if id(parameter) not in decoder and not (is_projector and trained == "projector"):
            parameter.requires_grad_(False)


def check_devices(config: RunConfig) -> None:
    """Refuse several trainer devices, which a vision model does not support."""
    if len(config.workers.trainers.devices) > 1:
        raise ConfigError(
            "workers.trainers.devices: a vision model is trained on one device; give one, or a text model"
        )
