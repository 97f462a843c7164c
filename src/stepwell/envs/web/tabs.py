"""The tabs of the light driver: pages without scripts, each tab with its history."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.envs.web.addresses import BLANK
from stepwell.envs.web.forms import walk_nodes
from stepwell.envs.web.simplify import SimplePage, simplify_page
from stepwell.envs.web.snapshot import Node, Snapshot, make_node, prepare_controls, read_html


@dataclass(slots=True, eq=False)
class LightPage:
    """A page that was loaded, with what a user did to it.

    `offset` is the first line of the viewport. `is_fresh`: the site forbids to keep it, so that going back
    asks for it again; `is_posted`: it answered a form, so that it cannot be asked for.
    """

    snapshot: Snapshot
    html: str = ""
    is_fresh: bool = False
    is_posted: bool = False
    offset: int = 0
    focus: Node | None = None
    defaults: dict[int, tuple[Node, dict[str, str]]] = field(default_factory=dict)
    _simple: SimplePage | None = None

    def simplify(self) -> SimplePage:
        """The simplified page; made again only after a change."""
        if self._simple is None:
            self._simple = simplify_page(self.snapshot)
        return self._simple

    def change_node(self, node: Node) -> dict[str, str]:
        """The attributes of a node for a change; the first ones are kept for a reset."""
        attributes: dict[str, str] = node[1]
        self.defaults.setdefault(id(node), (node, dict(attributes)))
        self._simple = None
        return attributes

    def restore_nodes(self, nodes: list[Node]) -> None:
        """Undo every change of these nodes."""
        for node in nodes:
            if id(node) in self.defaults:
                node[1] = dict(self.defaults[id(node)][1])
        self._simple = None


def load_page(url: str, html: str, is_fresh: bool = False) -> LightPage:
    """A page from its HTML."""
    snapshot = read_html(url, html)
    prepare_controls(snapshot.body)
    return LightPage(snapshot, html, is_fresh)


def restore_controls(old: LightPage, new: LightPage) -> None:
    """Carry over what a user put into the controls of a page, as browsers do when they return to it.

    Controls are matched by kind and name, those with the same in their order. Passwords are not kept.
    """
    by_key: dict[tuple[str, str, str], list[Node]] = {}
    for node in walk_nodes(new.snapshot.body):
        by_key.setdefault(_identify_control(node), []).append(node)
    places: dict[tuple[str, str, str], int] = {}
    for node in walk_nodes(old.snapshot.body):
        key = _identify_control(node)
        place = places[key] = places.get(key, -1) + 1
        is_kept = node[0] in ("input", "textarea", "option") and key[2] != "password"
        if is_kept and id(node) in old.defaults and place < len(by_key.get(key, ())):
            attributes = new.change_node(by_key[key][place])
            for name in ("value", "checked", "selected"):
                attributes.pop(name, None)
                if name in node[1]:
                    attributes[name] = node[1][name]


def _identify_control(node: Node) -> tuple[str, str, str]:
    return node[0], node[1].get("name", ""), node[1].get("type", "").lower()


def make_blank_page() -> LightPage:
    """The page of a new tab."""
    return LightPage(Snapshot(BLANK, "", make_node("body"), BLANK))


@dataclass(slots=True, eq=False)
class LightTab:
    """One tab: its pages in the order of the history, and the one that is shown."""

    pages: list[LightPage] = field(default_factory=lambda: [make_blank_page()])
    position: int = 0

    @property
    def page(self) -> LightPage:
        """The page that is shown."""
        return self.pages[self.position]

    def push_page(self, page: LightPage, *, replaces: bool) -> None:
        """Show a page; what lay ahead in the history is gone. A blank first page leaves no trace."""
        if replaces or self.page.snapshot.url == BLANK:
            del self.pages[self.position :]
        else:
            del self.pages[self.position + 1 :]
        self.pages.append(page)
        self.position = len(self.pages) - 1
