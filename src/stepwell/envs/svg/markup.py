"""Reads untrusted SVG code: it is checked, and written again from the parsed elements.

The rasteriser never gets an agent's text, only the output of `read_markup`: shapes, groups and gradients with
known attributes and plain values. Anything that could read a file or a network, run code, repeat itself
(`use`, patterns, entities) or grow without bound is refused with a sentence for the agent. Text and titles
are skipped, since fonts differ between machines.

* The result is canonical: reading it again gives the same text.
* The view box is made square around its centre, as a square image shows it.
* A `style` attribute becomes attributes; `currentColor` becomes black.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from stepwell.core import InputError

SHAPES = frozenset({"path", "rect", "circle", "ellipse", "line", "polyline", "polygon"})
GRADIENTS = frozenset({"linearGradient", "radialGradient", "stop"})
GROUPS = frozenset({"g", "defs"})
LEAVES = SHAPES | {"stop"}  # no drawn element can be inside them
SKIPPED = frozenset({"title", "desc", "metadata", "text"})
_STROKE = ("width", "linecap", "linejoin", "miterlimit", "dasharray", "dashoffset", "opacity")
_LOOK = ("fill", "stroke", "opacity", "transform", "display", "visibility", "stop-color", "stop-opacity")
PAINT = frozenset({*_LOOK, "fill-opacity", "fill-rule", *(f"stroke-{part}" for part in _STROKE)})
_ENDS = ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "fx", "fy")
GEOMETRY = frozenset({"d", "points", "r", "rx", "ry", "width", "height", *_ENDS})
OF_GRADIENTS = frozenset({"id", "offset", "gradientUnits", "gradientTransform", "spreadMethod"})
KNOWN = PAINT | GEOMETRY | OF_GRADIENTS
LINKS = frozenset({"href", "src", "base", "clip-path", "mask", "filter", "marker-start", "marker-mid"})

MAX_DEPTH, MAX_ELEMENTS, MAX_NUMBER, MAX_SHOWN = 24, 1000, 1e6, 40
XMLNS = "http://www.w3.org/2000/svg"
PLAIN = re.compile(r"[\w\s#%.,()+\-]*", re.ASCII)
LOCAL_URL = re.compile(r"url\(\s*(#[\w-]+)\s*\)", re.ASCII)
PATH_DATA = re.compile(r"[MmLlHhVvCcSsQqTtAaZzEe0-9+\-.,\s]*", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class SvgError(InputError):
    """Code that is refused; the message explains the reason to its author."""


@dataclass(frozen=True, slots=True)
class SvgShape:
    """One shape, as a separate drawing."""

    kind: str
    svg: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Checked code, and its single shapes."""

    svg: str
    shapes: tuple[SvgShape, ...]


def read_markup(text: str, max_chars: int = 16_384) -> Drawing:
    """The drawing of an answer, from its first `<svg` to its last `</svg>`; otherwise `SvgError`."""
    if len(text) > max_chars:
        raise SvgError(f"the code has {len(text)} characters; at most {max_chars} are read")
    if re.search(r"<!(?!--)", text):
        raise SvgError("document types, entities and CDATA are not allowed")
    first, last = text.find("<svg"), text.rfind("</svg>")
    if first < 0 or last < first:
        raise SvgError("there is no complete <svg ...>...</svg> in the answer")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start_element
    parser.EndElementHandler = reader.end_element
    parser.ProcessingInstructionHandler = reader.refuse_instruction
    try:
        parser.Parse(text[first : last + len("</svg>")].encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        raise SvgError(f"the code is not well-formed XML: {error}") from None
    return reader.finish_drawing()


@dataclass(slots=True)
class _Reader:
    """Handles the parser's events and writes the allowed elements."""

    written: list[str] = field(default_factory=list)
    opened: list[tuple[str, str]] = field(default_factory=list)  # tag and opening text of open elements
    shapes: list[tuple[str, str]] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    num_elements: int = 0
    num_skipped: int = 0  # depth inside a skipped element

    def start_element(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle an opening tag."""
        self.num_elements += 1
        if self.num_elements > MAX_ELEMENTS:
            raise SvgError(f"there are more than {MAX_ELEMENTS} elements")
        if len(self.opened) + self.num_skipped >= MAX_DEPTH:
            raise SvgError(f"elements are nested more than {MAX_DEPTH} deep")
        if self.num_skipped or (tag in SKIPPED and self.opened):
            self.num_skipped += 1
            return
        text = self._write_opening(tag, attributes)
        if tag in SHAPES:
            around = "".join(opening for _, opening in self.opened[1:])
            closing = "".join(f"</{name}>" for name, _ in reversed(self.opened[1:]))
            if all(name != "defs" for name, _ in self.opened):
                self.shapes.append((tag, f"{around}{text}{closing}"))
        elif tag in GRADIENTS:
            self.gradients.append(text)
        self.written.append(text)
        self.opened.append((tag, text))

    def end_element(self, tag: str) -> None:
        """Handle a closing tag."""
        if self.num_skipped:
            self.num_skipped -= 1
            return
        self.opened.pop()
        if tag not in LEAVES:
            self.written.append(f"</{tag}>")
            if tag in GRADIENTS:
                self.gradients.append(f"</{tag}>")

    def refuse_instruction(self, target: str, _: str) -> None:
        """Refuse a processing instruction, such as a style sheet."""
        raise SvgError(f"processing instructions are not allowed: <?{target[:MAX_SHOWN]} ...?>")

    def finish_drawing(self) -> Drawing:
        """Return the drawing."""
        defs = f"<defs>{''.join(self.gradients)}</defs>" if self.gradients else ""
        root = self.written[0]
        shapes = (SvgShape(kind, f"{root}{defs}{svg}</svg>") for kind, svg in self.shapes)
        return Drawing("".join(self.written), tuple(shapes))

    def _write_opening(self, tag: str, attributes: dict[str, str]) -> str:
        if not self.opened:
            return _write_root(tag, attributes)
        if tag not in SHAPES | GRADIENTS | GROUPS:
            allowed = ", ".join(sorted(SHAPES))
            raise SvgError(f"<{tag[:MAX_SHOWN]}> is not allowed; draw with {allowed}, g and gradients")
        if self.opened[-1][0] in LEAVES:
            raise SvgError(f"<{tag}> cannot stand inside <{self.opened[-1][0]}>")
        texts = "".join(
            f" {name}={quoteattr(value)}" for name, value in _check_attributes(attributes).items()
        )
        return f"<{tag}{texts}{'/' if tag in LEAVES else ''}>"


def _write_root(tag: str, attributes: dict[str, str]) -> str:
    if tag != "svg":
        raise SvgError(f"the outermost element is <{tag[:MAX_SHOWN]}>, not <svg>")
    kept = {name: value for name, value in _check_attributes(attributes).items() if name in PAINT}
    box = " ".join(f"{number:.8g}" for number in _make_square_view(attributes))
    texts = "".join(f" {name}={quoteattr(value)}" for name, value in kept.items())
    return f'<svg xmlns="{XMLNS}" viewBox="{box}"{texts}>'


def _make_square_view(attributes: dict[str, str]) -> tuple[float, float, float, float]:
    if "viewBox" in attributes:
        numbers = _read_numbers("viewBox", attributes["viewBox"])
        if len(numbers) != 4:
            raise SvgError(f"viewBox needs four numbers, got {attributes['viewBox'][:MAX_SHOWN]!r}")
    else:
        sides = [_read_numbers(name, attributes.get(name, "")) for name in ("width", "height")]
        if not all(sides):
            raise SvgError("<svg> needs a viewBox, such as viewBox='0 0 24 24'")
        numbers = [0.0, 0.0, sides[0][0], sides[1][0]]
    x, y, width, height = numbers
    side = max(width, height)
    if min(width, height) < 1e-3:
        raise SvgError(f"the view box is {width:g} by {height:g}; both must be positive")
    return x - (side - width) / 2, y - (side - height) / 2, side, side


def _check_attributes(attributes: dict[str, str]) -> dict[str, str]:
    """The known attributes, in the order given, after splitting up `style`."""
    found: dict[str, str] = {}
    for name, value in attributes.items():
        if name == "style":
            parts = (part.partition(":") for part in value.split(";") if part.strip())
            found |= {key.strip(): what.strip() for key, _, what in parts}
        else:
            found[name] = value
    kept: dict[str, str] = {}
    for name, value in found.items():
        local = name.rpartition(":")[2]
        if local in LINKS or local.startswith("on"):
            raise SvgError(f"the attribute {name[:MAX_SHOWN]} is not allowed")
        if name in KNOWN:
            kept[name] = _check_value(name, value)
        elif "url" in value.lower() and not name.startswith("xmlns"):
            raise SvgError(f"the attribute {name[:MAX_SHOWN]} must not hold an address")
    return kept


def _check_value(name: str, value: str) -> str:
    value = " ".join(value.split())
    local = LOCAL_URL.fullmatch(value)
    if local and name in ("fill", "stroke"):
        return f"url({local[1]})"
    if "url" in value.lower() or not (PATH_DATA if name == "d" else PLAIN).fullmatch(value):
        raise SvgError(f"the value of {name} is not understood: {value[:MAX_SHOWN]!r}")
    if name not in ("id", "fill", "stroke", "stop-color"):
        _read_numbers(name, value)
    return "black" if value.lower() == "currentcolor" else value


def _read_numbers(name: str, value: str) -> list[float]:
    numbers = [float(number) for number in NUMBER.findall(value)]
    if any(not math.isfinite(number) or abs(number) > MAX_NUMBER for number in numbers):
        raise SvgError(f"a number of {name} is larger than {MAX_NUMBER:g}")
    return numbers
