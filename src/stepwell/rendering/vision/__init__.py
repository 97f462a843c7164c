"""Images in prompts: how each family of vision-language models represents them.

`ImageFormat` is the interface. One file per family implements it with numpy and Pillow only (no torch, no
torchvision, no `AutoProcessor`). `load_image_format` detects a directory's family.
"""

from stepwell.rendering.vision.families import FAMILIES, is_vision_language, load_image_format
from stepwell.rendering.vision.format import ImageFormat, ImageTokens, PlacedImage

__all__ = ["FAMILIES", "ImageFormat", "ImageTokens", "PlacedImage", "is_vision_language", "load_image_format"]
