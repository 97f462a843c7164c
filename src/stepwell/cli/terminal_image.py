"""An image in a terminal: two pixels per character, in 24-bit colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def format_ansi_image(image: npt.NDArray[np.uint8], width: int = 32) -> str:
    """RGB [H, W, 3] as lines of half blocks, at most `width` characters wide.

    The upper pixel is the character's colour, the lower one its background.
    """
    import numpy as np

    height, wide, _ = image.shape
    columns = min(width, wide)
    rows = max(2, 2 * round(height * columns / wide / 2))
    at_rows = (np.arange(rows) + 0.5) * height / rows
    at_columns = (np.arange(columns) + 0.5) * wide / columns
    small = image[at_rows.astype(int)][:, at_columns.astype(int)]
    lines = []
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper, lower, strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)
