"""A learned distance between images: shift-tolerant LPIPS over AlexNet, run by a forward of our own.

The weights ship inside the package `stlpips-pytorch`, whose own code needs torchvision; only its file of
weights is read here. Five layers of features are made unit vectors at every place; squared differences
are weighted per channel by what was learnt from people's judgements, and averaged over places.
Strides are taken after blurring, which is what makes the distance tolerant of small shifts.

Equal images are at distance 0 exactly.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.core import ConfigError
from stepwell.envs.tiles import Image

WEIGHTS = "weights/vST0.0/alex_shift_tolerant.pth"
MISSING = (
    "the perceptual measure needs the weights of stlpips-pytorch: pip install --no-deps stlpips-pytorch; "
    "or set env.options.measure = 'pixels'"
)
SIDE = 128  # at half of it, a stroke a quarter wider counts as much as another icon


def find_weights_file() -> Path | None:
    """The file of weights, where the package is installed."""
    spec = importlib.util.find_spec("stlpips_pytorch")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(place) / WEIGHTS).is_file():
            return path
    return None


@lru_cache(maxsize=1)
def load_network() -> Perceptual:
    """The network, loaded once per process."""
    path = find_weights_file()
    if path is None:
        raise ConfigError(MISSING)
    return Perceptual(path)


class Perceptual:
    """Distance of two images of equal size."""

    def __init__(self, path: Path) -> None:
        import torch

        self._torch = torch
        self._weights: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        self._features = lru_cache(maxsize=128)(self._compute_layers)  # a target is compared again and again

    def measure_distance(self, one: Image, other: Image) -> float:
        """0 for equal images, growing with what people see as difference."""
        torch = self._torch
        assert one.shape == other.shape, f"{one.shape} and {other.shape} differ"
        with torch.inference_mode():
            pairs = zip(self._features(*_make_key(one)), self._features(*_make_key(other)), strict=True)
            total = sum(
                torch.nn.functional.conv2d((a - b) ** 2, self._weights[f"lin{layer}.model.1.weight"]).mean()
                for layer, (a, b) in enumerate(pairs)
            )
        return float(total)

    def _compute_layers(self, pixels: bytes, shape: tuple[int, ...]) -> tuple[Any, ...]:
        torch, at = self._torch, self._weights
        functional = torch.nn.functional

        def blur(x: Any, name: str) -> Any:
            kernel = at[f"net.{name}.filt"]
            return functional.conv2d(
                functional.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, stride=2, groups=x.shape[1]
            )

        def convolve(x: Any, name: str, padding: int) -> Any:
            return functional.conv2d(x, at[f"net.{name}.weight"], at[f"net.{name}.bias"], padding=padding)

        with torch.inference_mode():
            array = np.frombuffer(pixels, dtype=np.uint8).reshape(shape).transpose(2, 0, 1)
            x = torch.from_numpy(array.astype(np.float32))[None] / 127.5 - 1
            x = (x - at["scaling_layer.shift"]) / at["scaling_layer.scale"]
            found = [functional.relu(blur(convolve(x, "slice1.0", 2), "slice1.1"))]
            pooled = blur(functional.max_pool2d(found[-1], 3, 1), "slice2.4")
            found.append(functional.relu(convolve(pooled, "slice2.5", 2)))
            pooled = blur(functional.max_pool2d(found[-1], 3, 1), "slice3.8")
            found.append(functional.relu(convolve(pooled, "slice3.9", 1)))
            found.append(functional.relu(convolve(found[-1], "slice4.11", 1)))
            found.append(functional.relu(convolve(found[-1], "slice5.13", 1)))
            return tuple(layer / (layer.norm(dim=1, keepdim=True) + 1e-10) for layer in found)


def _make_key(image: Image) -> tuple[bytes, tuple[int, ...]]:
    return image.tobytes(), image.shape
