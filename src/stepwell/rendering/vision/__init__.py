"""Images in prompts: how each family of vision-language models writes and reads them.

`ImageFormat` is the interface; one file per family implements it with numpy and Pillow alone
(no torch, no torchvision, no `AutoProcessor`). `load_image_format` finds a directory's family.
"""

from stepwell.rendering.vision.families import FAMILIES, is_vision_language, load_image_format
from stepwell.rendering.vision.format import ImageFormat, ImageTokens, PlacedImage

__all__ = ["FAMILIES", "ImageFormat", "ImageTokens", "PlacedImage", "is_vision_language", "load_image_format"]
