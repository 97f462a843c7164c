"""DINO and DreamSim scores with weights from a folder the user names, through transformers.

Both compare images by the cosine of the class tokens of a vision transformer (224 pixels, ImageNet's
mean and spread). DreamSim's vector is its tuned backbone's, made a unit vector and centred; its folder
is that backbone in Hugging Face format with the LoRA weights merged in. Written from the published
descriptions and tried here with small untrained transformers only: neither model's weights could be had.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.core import ConfigError
from stepwell.envs.tiles import Image

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@lru_cache(maxsize=4)
def load_backbone(path: str, option: str, is_centred: bool) -> Backbone:
    """The model of a folder, loaded once per process; `option` is the setting to blame."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"env.options.{option}: {path!r} is not the folder of a model in Hugging Face format (there is "
            "no config.json in it); save the backbone with save_pretrained and name that folder"
        )
    return Backbone(folder, option, is_centred)


class Backbone:
    """Likeness of two images, from -1 to 1, 1 for equal ones."""

    def __init__(self, folder: Path, option: str, is_centred: bool) -> None:
        import torch
        from transformers import AutoModel

        try:
            self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError) as error:
            raise ConfigError(f"env.options.{option}: cannot load {str(folder)!r}: {error}") from error
        self._torch, self._is_centred = torch, is_centred
        self._side = int(getattr(self._model.config, "image_size", 224))

    def measure_similarity(self, one: Image, other: Image) -> float:
        """The cosine of the two images' vectors."""
        torch = self._torch
        with torch.inference_mode():
            pixels = torch.from_numpy(np.stack([self._prepare_image(one), self._prepare_image(other)]))
            vectors = self._model(pixel_values=pixels).last_hidden_state[:, 0]
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
            if self._is_centred:
                vectors = vectors - vectors.mean(dim=1, keepdim=True)
            return float(torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:]))

    def _prepare_image(self, image: Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        from PIL import Image as Pillow

        resize_image = Pillow.fromarray(image).resize((self._side, self._side), Pillow.Resampling.BICUBIC)
        scaled = (np.asarray(resize_image, dtype=np.float32) / 255 - np.array(MEAN)) / np.array(SPREAD)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32)
