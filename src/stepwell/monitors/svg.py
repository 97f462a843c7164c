"""SVG text: elements with escaped attributes, and the colours and font of all charts.

Colours are CSS variables (`--c0` … `--c5`, `--ink`, `--muted`, `--grid`, `--paper`) with
fallbacks: a page can define dark ones, and a chart in its own file still looks right.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stepwell.monitors.plain_text import show_controls

COLORS = ("#1d6fd8", "#d9660f", "#0d8a6a", "#8a4fd0", "#c2365f", "#7a7568")
FONT = "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
INK, MUTED = "var(--ink,#1c1b19)", "var(--muted,#6b675f)"
GRID, PAPER = "var(--grid,#e4e0d8)", "var(--paper,#ffffff)"
Points = Sequence[tuple[float, float]]


def get_color(index: int) -> str:
    """The colour of series `index`: a CSS variable with a fallback."""
    index %= len(COLORS)
    return f"var(--c{index},{COLORS[index]})"


def make_element(tag: str, *children: str, **attributes: str | float | None) -> str:
    """One element. Children are SVG; attributes are plain text and get escaped; None is left out.

    Underscores become hyphens: `stroke_width=2` is `stroke-width="2"`.
    """
    words = "".join(
        f' {name.replace("_", "-")}="{_format_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{words}>{''.join(children)}</{tag}>" if children else f"<{tag}{words}/>"


def make_text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = MUTED, more: str = ""
) -> str:
    """A text element; `more` is CSS."""
    return make_element("text", escape_text(words), x=x, y=y, text_anchor=anchor, style=f"fill:{fill};{more}")


def escape_text(words: str) -> str:
    """Plain text for XML in one line: markup is escaped, controls become visible signs."""
    if words.isprintable():
        return escape(words)
    return escape(show_controls(words.replace("\n", " ").replace("\t", " ")))


def format_points(points: Points) -> str:
    """Points in the format of the attribute `points`."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def make_svg(width: float, height: float, title: str, parts: Sequence[str], **attributes: str) -> str:
    """A complete SVG, which shrinks with its page."""
    return make_element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=title or "chart",
        style=f"font:11px {FONT};max-width:100%;height:auto",
        **{"class": "chart"},
        **attributes,
    )


def _format_attribute(value: str | float) -> str:
    return escape_text(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
