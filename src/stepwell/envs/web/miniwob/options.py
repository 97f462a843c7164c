"""Which pages of MiniWoB++ are played.

    [env.options.miniwob]
    pages = ["click-test", "click-link"]

Without this option, the variable `STEPWELL_MINIWOB_PAGES` of the host names them.
"""

from __future__ import annotations

import os

from pydantic import Field, field_validator

from stepwell.config.base import Settings
from stepwell.envs.web.miniwob.pages import list_pages

VARIABLE = "STEPWELL_MINIWOB_PAGES"


class MiniWobOptions(Settings):
    """Which pages are played."""

    pages: tuple[str, ...] = Field((), description="names of pages, such as click-test; empty: all 130")

    @field_validator("pages")
    @classmethod
    def _check_pages(cls, pages: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in pages if name not in list_pages()]
        if unknown:
            raise ValueError(f"MiniWoB++ has no page {unknown[0]!r}; it has {', '.join(list_pages()[:5])}, …")
        return pages


def fill_pages(options: MiniWobOptions) -> MiniWobOptions:
    """The options, with the pages of the environment variable if they name none."""
    named = tuple(os.environ.get(VARIABLE, "").replace(",", " ").split())
    return options if options.pages or not named else MiniWobOptions(pages=named)
