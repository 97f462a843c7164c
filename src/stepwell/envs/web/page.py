"""A page as an agent sees it: what a driver returns after every action.

Invariants
* `PageView.html` is written by the simplifier (`simplify.py`) and by nobody else. Text of the page in it is
  escaped, so that no page can write a tag or an id of its own.
* `PageElement.id` is the number in that HTML. The same page gives the same ids on every render and under both
  drivers.
* A view is plain data: it holds no handle of a browser and stays valid after the page is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageElement:
    """One element that an action can name.

    `attributes` is a small set: href, type, name, value, placeholder, checked, disabled, options (labels of a
    select, one per line), and the like. All values are text; a flag such as `checked` is "true" or missing.
    """

    id: str
    tag: str
    text: str
    attributes: Mapping[str, str]
    in_viewport: bool


@dataclass(frozen=True, slots=True)
class PageView:
    """The focused tab after an action.

    `html` is the whole page in simplified form; `observation.py` cuts it to a budget. `elements` are in
    document order. `tabs` are the titles of the open tabs and `tab` is the index of the focused one.
    `notice` tells the agent what happened outside of the page: a dialog, a refused address, a download, a
    time-out, an element that is not there. `viewport` are the lines of `html` in the viewport: the first, and
    the one after the last.
    """

    url: str
    title: str
    html: str
    text: str
    elements: tuple[PageElement, ...]
    tabs: tuple[str, ...]
    tab: int
    notice: str = ""
    viewport: tuple[int, int] = (0, 0)
