"""Templates of the view: Jinja with escaping on by default, and the few functions that pages need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2

from stepwell.monitors.plain_text import show_controls
from stepwell.monitors.progress import format_duration

_HERE = Path(__file__).parent
_PAGES = (_HERE / "page", _HERE.parent / "monitors" / "page")


@cache
def get_templates() -> jinja2.Environment:
    """The environment of all pages. What agents wrote is escaped, because everything is."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals.update(link=make_link, duration=format_duration, ago=describe_age)
    made.filters.update(figure=format_figure, signed=format_signed, share=format_share, plain=show_controls)
    return made


def compile_pages() -> None:
    """Compile every template, which takes longer than filling one."""
    made = get_templates()
    for path in sorted((_HERE / "page").glob("*.jinja")):
        made.get_template(path.name)


def render_page(page: str, **content: Any) -> str:
    """One page as HTML."""
    return get_templates().get_template(f"{page}.html.jinja").render(**content)


def make_link(
    run: str | None = None, page: str = "", query: Mapping[str, Any] | None = None, **more: Any
) -> str:
    """The address of a page; empty values are left out."""
    path = "/" if run is None else f"/run/{quote(run, safe='')}" + (f"/{page}" if page else "")
    given = {name: value for name, value in {**(query or {}), **more}.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def format_figure(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash if there is none."""
    if value is None or value != value:
        return "–"
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    return "0" if text in ("-0", "") else text.replace("-", "−")


def format_share(value: float | None) -> str:
    """A success or another share, with two digits."""
    return "–" if value is None or value != value else f"{value:.2f}"


def format_signed(value: float | None, digits: int = 3) -> str:
    """A number with its sign."""
    return (
        f"+{format_figure(value, digits)}"
        if value is not None and value > 0
        else format_figure(value, digits)
    )


def describe_age(moment_s: float) -> str:
    """How long ago a moment was."""
    age_s = max(0.0, time.time() - moment_s)
    for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * length_s:
            return f"{age_s / length_s:.0f} {unit} ago"
    return f"{age_s:.0f} s ago"
