"""Icons to draw: of the `lucide` package (over 1,700, ISC and MIT licences), single shapes, or of a folder.

Single shapes are circles and rectangles of four colours on a canvas of 10 by 10: what a small model can
learn to draw. Every icon is read as an agent's code would be, and its canonical code is what a task holds.
Icons that are refused, empty or longer than asked are left out, and of equal ones the first name stays.
"""

from __future__ import annotations

import importlib.util
import itertools
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from stepwell.core import ConfigError
from stepwell.core.errors import MissingPackageError
from stepwell.envs.svg.markup import SvgError, read_markup
from stepwell.envs.svg.rasteriser import NEEDS

MAX_FILE_CHARS = 100_000
CANVAS, COLOURS = 10, ("red", "green", "blue", "black")


@lru_cache(maxsize=8)
def load_icons(source: str, max_chars: int) -> tuple[tuple[str, str], ...]:
    """(name, canonical code), ordered by name."""
    found: dict[str, str] = {}
    for name, text in sorted(_read_files(source)):
        try:
            drawing = read_markup(text, MAX_FILE_CHARS)
        except SvgError:
            continue
        if drawing.shapes and len(drawing.svg) <= max_chars:
            found.setdefault(drawing.svg, name)
    if not found:
        raise ConfigError(
            f"env.options.icons: no icon of {source!r} has at most {max_chars} characters; "
            "raise env.options.max_icon_chars or name another folder of .svg files"
        )
    return tuple((name, svg) for svg, name in found.items())


def _write_shapes() -> Iterator[tuple[str, str]]:
    """(name, code) of every single shape; its name says what can be seen."""
    shapes = []
    for r in (1, 2, 3):
        middles = range(r, CANVAS - r + 1)
        shapes += [("circle", f'cx="{x}" cy="{y}" r="{r}"') for x in middles for y in middles]
    for width, height in itertools.product((2, 4, 6), repeat=2):
        corners = itertools.product(range(CANVAS - width + 1), range(CANVAS - height + 1))
        shapes += [("rect", f'x="{x}" y="{y}" width="{width}" height="{height}"') for x, y in corners]
    for (kind, place), colour in itertools.product(shapes, COLOURS):
        code = f'<svg viewBox="0 0 {CANVAS} {CANVAS}"><{kind} {place} fill="{colour}"/></svg>'
        yield f"{colour} {kind}", code


def _read_files(source: str) -> Iterator[tuple[str, str]]:
    if source == "shapes":
        yield from _write_shapes()
        return
    if source == "lucide":
        with zipfile.ZipFile(_find_archive()) as archive:
            for name in archive.namelist():
                if name.endswith(".svg"):
                    yield Path(name).stem, archive.read(name).decode()
        return
    folder = Path(source)
    if not folder.is_dir():
        raise ConfigError(
            f"env.options.icons must be 'lucide', 'shapes' or a folder of .svg files, got {source!r}"
        )
    for path in folder.glob("*.svg"):
        yield path.stem, path.read_text(errors="replace")


def _find_archive() -> Path:
    spec = importlib.util.find_spec("lucide")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        if (path := Path(place) / "lucide.zip").is_file():
            return path
    raise MissingPackageError(
        f"{NEEDS} (the package lucide), or set env.options.icons to a folder of .svg files"
    )
