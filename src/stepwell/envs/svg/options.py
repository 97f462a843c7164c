"""Settings of SVG reconstruction."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option


class SvgOptions(Settings):
    """Icons, limits, images, and how likeness is measured and paid."""

    icons: str = declare_host_option(
        "lucide",
        description="'lucide' (the icons of that package), 'shapes' (circles and rectangles) or a folder of "
        ".svg files",
    )
    max_icon_chars: int = Field(700, ge=60, le=1_000_000, description="icons with longer code are left out")
    max_turns: int = Field(
        2, ge=1, le=1000, description="drawings of an episode; the last one counts for success"
    )
    image_size: int = Field(224, ge=32, le=512, description="pixels along each side of an image")
    measure: Literal["auto", "dreamsim", "perceptual", "pixels"] = Field(
        "auto",
        description="how the likeness of images is measured; auto: the first of these that has weights here",
    )
    dreamsim_path: str | None = declare_host_option(
        None, description="folder of a DreamSim backbone in Hugging Face format, its LoRA merged"
    )
    dino_path: str | None = declare_host_option(
        None, description="folder of a DINO model in Hugging Face format"
    )
    similarity_weight: float = Field(5.0, ge=0, description="reward for a likeness of 1")
    dino_weight: float = Field(0.0001, ge=0, description="reward for a DINO score of 1, with dino_path")
    success_threshold: float = Field(0.9, gt=0, le=1, description="likeness of the last drawing for success")
    max_chars: int = Field(16_384, ge=64, le=1_000_000, description="code longer than this is refused")
    time_limit_s: float = Field(2.0, gt=0, le=60, description="time to draw one code; then it is refused")
