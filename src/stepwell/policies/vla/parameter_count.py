"""The number of parameters of a new robot policy, without building it: a plan answers before torch is loaded.

It follows `encoder.py`, `heads.py` and `critic.py` layer by layer; a test compares it with built policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stepwell.config.vla import VLAConfig
from stepwell.core import ArraySpec

NUM_BYTES = 257  # of an instruction, and what fills it up
NUM_FREQUENCIES = 16  # of a flow head's time


def count_parameters(
    config: VLAConfig, arrays: Mapping[str, ArraySpec], action_dim: int, critic: str = "none"
) -> int:
    """Count the parameters of encoder, head and critic."""
    encoder = _count_encoder(config, arrays)
    head = (_count_token_head if config.head == "token" else _count_flow_head)(config, action_dim)
    value = {"none": 0, "shared": config.width + 1, "own": config.width + 1 + encoder}[critic]
    return encoder + head + value


def _count_encoder(config: VLAConfig, arrays: Mapping[str, ArraySpec]) -> int:
    channels, words = config.image_channels, config.instruction_width
    num_images = sum(spec.is_image for spec in arrays.values())
    numbers = sum(math.prod(spec.shape) for spec in arrays.values() if not spec.is_image)
    camera = _count_linear(3 * 25, channels) + 2 * _count_linear(channels * 9, channels)
    instruction = NUM_BYTES * words + 2 * _count_linear(words * 5, words)
    join = _count_linear(numbers + 2 * channels * num_images + words, config.width)
    blocks = config.layers * _count_block(config.width)
    return num_images * camera + instruction + join + blocks + 2 * config.width


def _count_token_head(config: VLAConfig, action_dim: int) -> int:
    rank = min(config.bin_rank, config.bins)
    return _count_linear(config.width, config.chunk * action_dim * rank) + rank * config.bins


def _count_flow_head(config: VLAConfig, action_dim: int) -> int:
    size, width = config.chunk * action_dim, config.width
    ends = _count_linear(width, width) + _count_linear(size + 2 * NUM_FREQUENCIES, width)
    blocks = max(config.layers, 1) * _count_block(width)
    return ends + blocks + 2 * width + _count_linear(width, size)


def _count_block(width: int) -> int:
    return 2 * width + _count_linear(width, 2 * width) + _count_linear(2 * width, width)


def _count_linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
