"""How alike two images are, from 0 to 1, by the best measure there are weights for.

    dreamsim     the cosine DreamSim gives            (weights from env.options.dreamsim_path)
    perceptual   shift-tolerant LPIPS                 (weights inside the package stlpips-pytorch)
    pixels       colours and edges, place by place    (no weights)

The last two are distances d and become a likeness that is 1 for equal images. Perceptual: exp(-d / 0.2),
so that another icon of the same set scores about a fifth and an empty canvas nearly 0. Pixels: which
part of the way from the empty canvas to the target was gone. Scores of different measures are not
comparable, so each carries its measure's name. A DINO score stands beside any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import ConfigError
from stepwell.envs.svg import perceptual
from stepwell.envs.svg.backbones import load_backbone
from stepwell.envs.svg.options import SvgOptions
from stepwell.envs.tiles import Image

TITLES = {
    "dreamsim": "DreamSim",
    "perceptual": "shift-tolerant LPIPS",
    "pixels": "pixels and edges",
}
PERCEPTUAL_SCALE = 0.2  # two icons of the lucide set are 0.34 apart on average
NO_DREAMSIM = (
    "env.options.measure = 'dreamsim' needs env.options.dreamsim_path, a folder of DreamSim's backbone in "
    "Hugging Face format; its weights come with no package"
)


@dataclass(frozen=True, slots=True)
class LikenessScore:
    """The likeness of a drawing, by `measure`; `dino` where its weights are given."""

    measure: str
    value: float
    dino: float | None = None


class LikenessJudge:
    """Scores drawings against targets by the measure that the options lead to."""

    def __init__(self, options: SvgOptions) -> None:
        self.measure = choose_measure(options)
        self._dreamsim_path, self._dino_path = options.dreamsim_path, options.dino_path

    def score(self, target: Image, drawing: Image) -> LikenessScore:
        """The likeness of `drawing` to `target`."""
        dino = None
        if self._dino_path is not None:
            dino = _clip_to_unit(
                load_backbone(self._dino_path, "dino_path", False).measure_similarity(target, drawing)
            )
        if self.measure == "dreamsim":
            assert self._dreamsim_path is not None
            value = load_backbone(self._dreamsim_path, "dreamsim_path", True).measure_similarity(
                target, drawing
            )
            return LikenessScore(self.measure, _clip_to_unit(value), dino)
        one, other = shrink_image(target), shrink_image(drawing)
        if self.measure == "perceptual":
            value = math.exp(-perceptual.load_network().measure_distance(one, other) / PERCEPTUAL_SCALE)
        else:
            value = measure_progress(one, other)
        return LikenessScore(self.measure, value, dino)


def choose_measure(options: SvgOptions) -> str:
    """The measure asked for, or the best that can be had; loads nothing."""
    if options.measure == "dreamsim" and options.dreamsim_path is None:
        raise ConfigError(NO_DREAMSIM)
    if options.measure == "perceptual" and perceptual.find_weights_file() is None:
        raise ConfigError(perceptual.MISSING)
    if options.measure != "auto":
        return options.measure
    if options.dreamsim_path is not None:
        return "dreamsim"
    return "pixels" if perceptual.find_weights_file() is None else "perceptual"


def measure_progress(target: Image, drawing: Image) -> float:
    """By pixels: 1 at the target, 0 at the empty canvas or farther."""
    whole = measure_pixel_distance(np.full_like(target, 255), target)
    left = measure_pixel_distance(drawing, target)
    return 1.0 if left == 0.0 else _clip_to_unit(1.0 - left / whole) if whole > 0 else 0.0


def measure_pixel_distance(one: Image, other: Image) -> float:
    """Mean difference of colours and of edges, after a small blur that forgives part of a stroke."""
    a, b = _blur_image(one), _blur_image(other)
    colours = float(np.abs(a - b).mean())
    edges = float(sum(np.abs(np.diff(a, axis=axis) - np.diff(b, axis=axis)).mean() for axis in (0, 1)))
    return colours + edges


def shrink_image(image: Image) -> Image:
    """The image in the size at which distances are taken, whatever size the agent sees."""
    from PIL import Image as Pillow

    side = perceptual.SIDE
    if image.shape[0] == side:
        return image
    return np.asarray(Pillow.fromarray(image).resize((side, side), Pillow.Resampling.BOX))


def _blur_image(image: Image) -> npt.NDArray[Any]:
    padded = np.pad(image.astype(np.float32) / 255, ((1, 1), (1, 1), (0, 0)), mode="edge")
    rows = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 3


def _clip_to_unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)
