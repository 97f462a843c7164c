"""The encoder of a robot policy: images, instruction and numbers become one vector.

    image    ─► convolutions ─► spatial softmax (one encoder per camera) ───────┐
    numbers  ─► centred and scaled ─────────────────────────────────────────────┼─► trunk ─► vector
    text     ─► bytes ─► convolutions ─► mean (once per distinct instruction) ──┘

Numbers are all arrays that are not images, concatenated. Buffers centre and scale them. They are set once
from demonstrations (`fit_scaling`), because a robot's coordinates vary by centimetres around metres. Buffers
are weights: they are saved, published and fingerprinted with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.config.vla import VLAConfig
from stepwell.core import ArraySpec, InputError

MAX_BYTES = 128
_PADDING = 256
_MIN_SCALE = 1e-3  # keeps inputs that hardly vary in the demonstrations from being scaled up too far
_LIMIT = 10.0  # bound of a scaled number, so that states far from all demonstrations stay in a safe range


class Encoder(nn.Module):
    """Maps states to vectors."""

    def __init__(self, config: VLAConfig, arrays: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        self.specs = dict(arrays)
        self.image_names = tuple(name for name, spec in arrays.items() if spec.is_image)
        self.numbers = tuple(name for name in arrays if name not in self.image_names)
        size = sum(int(np.prod(arrays[name].shape)) for name in self.numbers)
        self.centre: Tensor
        self.scale: Tensor
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        channels, width = config.image_channels, config.width
        self.cameras = nn.ModuleDict({name: _CameraEncoder(channels) for name in self.image_names})
        self.words = _InstructionEncoder(config.instruction_width)
        self.join = nn.Linear(size + 2 * channels * len(self.image_names) + config.instruction_width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, arrays: Mapping[str, Tensor], instructions: Tensor, rows: Tensor) -> Tensor:
        """Return [B, width]. `instructions` [I, bytes] are the distinct ones; `rows` [B] is the index of each
        state's."""
        parts = [self.cameras[name](arrays[name]) for name in self.image_names]
        if self.numbers:
            flat = torch.cat([arrays[name].flatten(1).to(self.scale.dtype) for name in self.numbers], dim=1)
            parts.append(((flat - self.centre) / self.scale).clamp(-_LIMIT, _LIMIT))
        parts.append(self.words(instructions)[rows])
        hidden = self.join(torch.cat(parts, dim=1))
        for block in self.blocks:
            hidden = block(hidden)
        normed: Tensor = self.norm(hidden)
        return normed

    def fit_scaling(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set centre and scale of the numbers from these states."""
        if not self.numbers:
            return
        flat = np.concatenate([arrays[n].reshape(len(arrays[n]), -1) for n in self.numbers], axis=1)
        flat = flat.astype(np.float64)
        spread = flat.std(axis=0)
        scale = np.where(spread < 1e-6, 1.0, np.maximum(spread, _MIN_SCALE))
        self.centre.copy_(torch.from_numpy(flat.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(scale))

    def check_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse states with other arrays than those of this policy's environment."""
        for name, spec in self.specs.items():
            if name not in arrays or tuple(arrays[name].shape[1:]) != tuple(spec.shape):
                found = "nothing" if name not in arrays else f"shape {tuple(arrays[name].shape[1:])}"
                raise InputError(
                    f"state.arrays: this policy sees {name!r} of shape {tuple(spec.shape)}, the state has "
                    f"{found}; its environment or its observation setting differs"
                )


class Block(nn.Module):
    """A residual block: normalise, widen, project back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        folded: Tensor = self.down(F.silu(self.up(self.norm(x))))
        return x + folded


class _CameraEncoder(nn.Module):
    """Maps an image [B, H, W, 3] of bytes to the expected place of each channel, [B, 2 * channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 5, stride=2, padding=2)
        self.second = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.third = nn.Conv2d(channels, channels, 3, stride=1, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        dtype = self.first.weight.dtype
        x = image.permute(0, 3, 1, 2).to(dtype) / 127.5 - 1.0
        x = self.third(F.silu(self.second(F.silu(self.first(x)))))
        height, width = x.shape[-2:]
        weights = x.flatten(2).softmax(dim=-1).view_as(x)
        down = torch.linspace(-1.0, 1.0, height, dtype=dtype, device=x.device)
        across = torch.linspace(-1.0, 1.0, width, dtype=dtype, device=x.device)
        return torch.cat([weights.sum(3) @ down, weights.sum(2) @ across], dim=1)


class _InstructionEncoder(nn.Module):
    """Maps instructions [I, bytes] to [I, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_PADDING + 1, width, padding_idx=_PADDING)
        self.near = nn.Conv1d(width, width, 5, padding=2)
        self.far = nn.Conv1d(width, width, 5, padding=4, dilation=2)

    def forward(self, ids: Tensor) -> Tensor:
        is_byte = (ids != _PADDING).to(self.embed.weight.dtype)[:, None]
        x = self.embed(ids).transpose(1, 2)
        x = F.silu(self.near(x)) * is_byte
        x = F.silu(self.far(x)) * is_byte
        return x.sum(dim=2) / is_byte.sum(dim=2).clamp(min=1.0)


def encode_instructions(instructions: Sequence[str]) -> np.ndarray:
    """Return [I, MAX_BYTES]: the bytes of each instruction, padded or cut at the end."""
    ids = np.full((len(instructions), MAX_BYTES), _PADDING, np.int64)
    for row, text in zip(ids, instructions, strict=True):
        encoded = text.encode()[:MAX_BYTES]
        row[: len(encoded)] = list(encoded)
    return ids
