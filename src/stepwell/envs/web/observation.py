"""A view of a page to the text that an agent reads, cut to a number of tokens with the viewport first.

    URL: http://shop.localhost/cart
    Tabs: [0] Shop | [1] Cart (now)
    Notice: the address is not allowed
    Lines: 1 to 40 of 71 (scroll down for more)
    Page:
    <h1>Cart
    ...

The lines of the viewport are kept first, then those after it, then those before it, as long as the budget
lasts. Kept lines stay in the page's order and are contiguous. What is left out is counted, so that an agent
knows that scrolling shows more.

The viewport is the same under both drivers: `FLOW_LINES` lines of simplified HTML, moved by the scroll action
(`place_viewport`). With `viewport="screen"` Chromium's own screen decides instead.

Tokens are counted by a rule that needs no tokenizer (`count_tokens`): up to five letters, up to three
digits, or any one other character count as one. It counts English and HTML slightly higher than common
tokenizers do.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from stepwell.envs.web.page import PageView
from stepwell.envs.web.simplify import SimplePage, ViewLayout

FLOW_LINES = 60
MAX_TITLE = 40
MAX_NOTICE = 500
MAX_KEPT_LINE = 1000
_MARKS = str.maketrans({"<": "&lt;", ">": "&gt;", "[": "(", "]": ")"})
_TOKEN = re.compile(r"[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9]")


def count_tokens(text: str) -> int:
    """An estimate of the tokens of a text, rather too high than too low.

    >>> count_tokens('<a id=12>Home</a>')
    11
    """
    return len(_TOKEN.findall(text))


@lru_cache(maxsize=32_768)
def _count_kept(text: str) -> int:
    return count_tokens(text)


def _count_line(line: str) -> int:
    """The tokens of a line; those of short ones are kept, for the same lines come again and again."""
    return _count_kept(line) if len(line) <= MAX_KEPT_LINE else count_tokens(line)


def make_view(
    page: SimplePage, url: str, title: str, tabs: tuple[str, ...], tab: int, *, offset: int, notice: str
) -> PageView:
    """A view of a simplified page; `offset` is the first line of the viewport, -1 for that of the screen."""
    on_screen = page.screen or (0, len(page.lines))
    viewport = on_screen if offset < 0 else place_viewport(offset, len(page.lines))
    layout = page.layout
    if layout is None or layout.viewport != viewport or (layout.is_screen != (offset < 0)):
        layout = page.layout = _lay_out(page, viewport, is_screen=offset < 0)
    return PageView(url, title, layout.html, layout.text, layout.elements, tabs, tab, notice, viewport)


def _lay_out(page: SimplePage, viewport: tuple[int, int], *, is_screen: bool) -> ViewLayout:
    first, last = viewport
    elements = tuple(
        element
        if element.in_viewport == (is_seen := first <= line < last) or is_screen
        else replace(element, in_viewport=is_seen)
        for element, line in zip(page.elements, page.element_lines, strict=True)
    )
    return ViewLayout(viewport, is_screen, "\n".join(page.lines), "\n".join(page.texts), elements)


def place_viewport(offset: int, num_lines: int) -> tuple[int, int]:
    """The viewport from a line on; it ends with the page."""
    first = max(0, min(offset, num_lines - FLOW_LINES))
    return first, min(num_lines, first + FLOW_LINES)


def write_observation(view: PageView, max_tokens: int, *, with_url: bool = True) -> str:
    """The text of a view within a budget; address (if wanted), tabs and notice are always there."""
    head = write_head(view)[0 if with_url else 1 :]
    lines = view.html.split("\n") if view.html else ["(the page is empty)"]
    left = max_tokens - count_tokens("\n".join(head))
    first, last, cut = choose_lines(lines, view.viewport, left)
    shown = lines[first:last]
    if cut is not None and shown:
        shown[-1] = cut
    if last - first < len(lines):
        ways = [way for way, is_more in (("up", first > 0), ("down", last < len(lines))) if is_more]
        more = f"scroll {' or '.join(ways)} for more"
        head.append(f"Lines: {first + 1} to {last} of {len(lines)} ({more})")
    return "\n".join([*head, "Page:", *shown])


def write_head(view: PageView) -> list[str]:
    """The lines above the page: address, tabs if there are several, notice if there is one."""
    head = [f"URL: {_flatten(view.url, 300)}"]
    if len(view.tabs) > 1:
        titles = [_flatten(title.translate(_MARKS), MAX_TITLE) for title in view.tabs]
        names = [f"[{i}] {title or 'empty'}" for i, title in enumerate(titles)]
        names[view.tab] += " (now)"
        head.append("Tabs: " + " | ".join(names))
    if view.notice:
        head.append(f"Notice: {write_notice(view, MAX_NOTICE)}")
    return head


def write_notice(view: PageView, limit: int) -> str:
    """The notice on one line; what a page says in it (a dialog, the name of a field) names no element."""
    return _flatten(view.notice.translate(_MARKS), limit)


def choose_lines(lines: list[str], viewport: tuple[int, int], budget: int) -> tuple[int, int, str | None]:
    """First line, line after the last, and the last line's shorter form if it did not fit whole."""
    start = min(viewport[0], max(0, len(lines) - 1))
    first = last = start
    while last < len(lines):
        cost = _count_line(lines[last])
        if cost > budget:
            break
        budget -= cost
        last += 1
    if last == start:  # not even one line fits: it is cut, so that the agent sees something
        return first, first + 1, _cut_line(lines[first], max(budget, 1))
    while first > 0 and last == len(lines):
        cost = _count_line(lines[first - 1])
        if cost > budget:
            break
        budget -= cost
        first -= 1
    return first, last, None


def _cut_line(line: str, budget: int) -> str:
    ends = [found.end() for found in _TOKEN.finditer(line)]
    return line[: ends[min(budget, len(ends)) - 1]] + "…" if ends else line


def _flatten(text: str, limit: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 1] + "…"
