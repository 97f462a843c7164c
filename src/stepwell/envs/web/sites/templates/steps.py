"""Steps of a plan: what a scripted agent does on a page, from what the page shows alone.

A plan is a tuple of steps. A step is a generator of actions; after each action the player's `view` is the
page that followed. Texts in steps are formatted with the task's parameters and with what was read before:

    (search("{title}"), open_link("{title}"), read(r"Price: (\\S+)"), answer("{read}"))

Elements are found by their visible text (links, buttons) or by their name (fields). A step that finds no
such element raises `PlanError`: the page is not as its maker thought.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepwell.core.errors import EnvError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.page import PageElement, PageView

NOT_POSSIBLE = "N/A"
MAX_PAGES = 60
_SPACES, _LINE_SPACES = re.compile(r"\s+"), re.compile(r"[^\S\n]+")


class PlanError(EnvError):
    """A scripted agent does not find what its plan needs."""


class PlanPlayer:
    """Plays a plan: called with a view, it gives the next action."""

    def __init__(self, steps: tuple[PlanStep, ...], parameters: Mapping[str, Any]) -> None:
        self.memory: dict[str, str] = {key: str(value) for key, value in parameters.items()}
        self.view: PageView
        self._actions = self._play_steps(steps)

    def __call__(self, view: PageView) -> WebAction:
        self.view = view
        return next(self._actions)

    def _play_steps(self, steps: tuple[PlanStep, ...]) -> Iterator[WebAction]:
        for step in steps:
            yield from step(self)
        yield WebAction("exit", argument="done")

    def fill_in(self, text: str) -> str:
        """A text with parameters and memories filled in."""
        return text.format_map(self.memory)

    def find(self, text: str, tags: str = "a button", after: str = "") -> PageElement | None:
        """The first element with this text (of those after another text)."""
        is_after = not after
        for element in self.view.elements:
            shown = _SPACES.sub(" ", element.text).strip()
            if is_after and element.tag in tags.split() and shown == text:
                return element
            is_after = is_after or shown == after
        return None

    def need_field(self, name: str, after: str = "") -> PageElement:
        """The first field of this name (of those after a text)."""
        is_after = not after
        for element in self.view.elements:
            if is_after and element.attributes.get("name") == name:
                return element
            is_after = is_after or _SPACES.sub(" ", element.text).strip() == after
        raise PlanError(f"no field {name!r} on {self.view.url}")


PlanStep = Callable[[PlanPlayer], Iterator[WebAction]]


def click(text: str, after: str = "") -> PlanStep:
    """Click the link or button with this text; `after` names the row that it stands in."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        wanted, row = player.fill_in(text), player.fill_in(after)
        found = player.find(wanted, after=row)
        if found is None:
            raise PlanError(f"no link or button {wanted!r} on {player.view.url}")
        yield WebAction("click", found.id, element_comment=wanted)

    return act


def open_link(text: str) -> PlanStep:
    """Click a link of a list, on whichever of its pages it stands."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        wanted = player.fill_in(text)
        for _ in range(MAX_PAGES):
            if found := player.find(wanted, "a"):
                yield WebAction("click", found.id, element_comment=wanted)
                return
            yield from click("Next")(player)
        raise PlanError(f"no link {wanted!r} on {MAX_PAGES} pages up to {player.view.url}")

    return act


def open_first(path: str) -> PlanStep:
    """Click the first link whose path matches a pattern; its text is remembered as `first`."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        for element in player.view.elements:
            if element.tag == "a" and re.fullmatch(path, _find_path(element)):
                player.memory["first"] = _SPACES.sub(" ", element.text).strip()
                yield WebAction("click", element.id, element_comment=element.text)
                return
        raise PlanError(f"no link to {path} on {player.view.url}")

    return act


def _find_path(element: PageElement) -> str:
    return re.sub(r"^https?://[^/]*", "", element.attributes.get("href", ""))


def search(words: str) -> PlanStep:
    """Use the site's search box."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        yield WebAction("search", player.need_field("q").id, player.fill_in(words), "search box")

    return act


def fill(after: str = "", **values: str) -> PlanStep:
    """Type into fields by name; fields that hold the value already are left alone."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        for name, value in values.items():
            element, text = player.need_field(name, player.fill_in(after)), player.fill_in(value)
            if element.attributes.get("value") != text:
                yield WebAction("type", element.id, text, element_comment=name)

    return act


def choose(name: str, option: str) -> PlanStep:
    """Choose an option of a drop-down."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        element = player.need_field(name)
        yield WebAction("select_dropdown_option", element.id, player.fill_in(option), name)

    return act


def sort_by(order: str) -> PlanStep:
    """Choose the order of a list."""
    return chain(choose("sort", order), click("Apply"))


def filter_by(name: str, option: str) -> PlanStep:
    """Choose a filter of a list."""
    return chain(choose(name, option), click("Apply"))


def chain(*steps: PlanStep) -> PlanStep:
    """Several steps as one."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        for step in steps:
            yield from step(player)

    return act


def read(pattern: str, into: str = "read") -> PlanStep:
    """Remember what a pattern's group matches in the page's text; parameters in it stand for themselves."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        made = _fill_pattern(player, pattern)
        found = re.search(made, _LINE_SPACES.sub(" ", player.view.text))
        if found is None:
            raise PlanError(f"no {made!r} on {player.view.url}")
        player.memory[into] = found[1].strip()
        yield from ()

    return act


def _fill_pattern(player: PlanPlayer, pattern: str) -> str:
    memory = player.memory
    return re.sub(r"{([a-z]\w*)}", lambda m: re.escape(memory[m[1]]) if m[1] in memory else m[0], pattern)


def read_all(pattern: str, into: str = "read") -> PlanStep:
    """Remember every match of a pattern on all pages of a list, joined by commas, and their `count`."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        made = _fill_pattern(player, pattern)
        found = re.findall(made, _LINE_SPACES.sub(" ", player.view.text))
        while player.find("Next", "a"):
            yield from click("Next")(player)
            found += re.findall(made, _LINE_SPACES.sub(" ", player.view.text))
        player.memory |= {into: ", ".join(text.strip() for text in found), "count": str(len(found))}

    return act


def read_nth(pattern: str, place: str) -> PlanStep:
    """Remember the n-th match of a pattern on the page, from 1."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        found = re.findall(_fill_pattern(player, pattern), player.view.text)
        number = int(player.fill_in(place))
        if len(found) < number:
            raise PlanError(f"{pattern!r} is only {len(found)} times on {player.view.url}")
        player.memory["read"] = found[number - 1].strip()
        yield from ()

    return act


def answer(text: str = "{read}") -> PlanStep:
    """End with an answer."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        yield WebAction("exit", argument=player.fill_in(text))

    return act


def give_up(proof: str = "") -> PlanStep:
    """End by saying that it cannot be done, after checking that the page shows why (a pattern)."""

    def act(player: PlanPlayer) -> Iterator[WebAction]:
        if proof and not re.search(_fill_pattern(player, proof), player.view.text):
            raise PlanError(f"{proof!r} is not on {player.view.url}")
        yield WebAction("exit", argument=NOT_POSSIBLE)

    return act
