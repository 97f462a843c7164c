"""The tabs of the light driver: pages without scripts, each tab with its history.

    LightTab ─ LightPage (an entry of the history: address, viewport) ─ LightDocument (tree, state of forms)

Pages that differ in their fragment only are one document. Documents with the same address and the same HTML
share one tree until something in it is changed (`copy_own_node`): most pages are only read, and the same
pages come again and again.

Invariants
* A shared tree is never changed, and a change of one document is never seen in another.
* At most `MAX_SHARED` trees are kept, none of them from more than `MAX_SHARED_CHARS` characters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepwell.envs.web.addresses import BLANK
from stepwell.envs.web.forms import walk_nodes
from stepwell.envs.web.recent import RecentTable
from stepwell.envs.web.simplify import SimplePage, simplify_page
from stepwell.envs.web.snapshot import Node, Snapshot, copy_tree, make_node, prepare_controls, read_html

MAX_SHARED, MAX_SHARED_CHARS = 2048, 60_000


@dataclass(slots=True, eq=False)
class LightDocument:
    """A document that was loaded, with what a user did to it.

    `is_fresh`: the site forbids to keep it, so that going back asks for it again; `is_posted`: it answered a
    form, so that it cannot be asked for.
    """

    snapshot: Snapshot
    html: str = ""
    is_fresh: bool = False
    is_posted: bool = False
    is_shared: bool = False
    focus: Node | None = None
    defaults: dict[int, tuple[Node, dict[str, str]]] = field(default_factory=dict)
    _simple: SimplePage | None = None

    def simplify(self) -> SimplePage:
        """The simplified page; made again only after a change."""
        if self._simple is None:
            self._simple = simplify_page(self.snapshot)
        return self._simple

    def copy_own_node(self, node: Node) -> Node:
        """The same node in a tree that no other document has, for a change."""
        if not self.is_shared:
            return node
        body, own = copy_tree(self.snapshot.body)
        simple = self.simplify()
        self.snapshot = replace(self.snapshot, body=body)
        self._simple = replace(simple, nodes={key: own[id(old)] for key, old in simple.nodes.items()})
        self.focus = None if self.focus is None else own[id(self.focus)]
        self.is_shared = False
        return own[id(node)]

    def change_node(self, node: Node) -> dict[str, str]:
        """The attributes of a node of an own tree for a change; the first ones are kept for a reset."""
        assert not self.is_shared, "call copy_own_node first"
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


_SHARED: RecentTable[tuple[Snapshot, SimplePage]] = RecentTable(MAX_SHARED)


def load_document(url: str, html: str, is_fresh: bool = False) -> LightDocument:
    """A document from its HTML."""
    if len(html) > MAX_SHARED_CHARS:
        return LightDocument(_read_page(url, html), html, is_fresh)
    kept = _SHARED.find((url, html))
    if kept is None:
        snapshot = _read_page(url, html)
        kept = _SHARED.keep((url, html), (snapshot, simplify_page(snapshot)))
    return LightDocument(kept[0], html, is_fresh, is_shared=True, _simple=kept[1])


def _read_page(url: str, html: str) -> Snapshot:
    snapshot = read_html(url, html)
    prepare_controls(snapshot.body)
    return snapshot


def restore_controls(old: LightDocument, new: LightDocument) -> None:
    """Carry over what a user put into the controls of a page, as browsers do when they return to it.

    Controls are matched by kind and name, those with the same in their order. Passwords are not kept.
    """
    if not old.defaults:
        return
    new.copy_own_node(new.snapshot.body)
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


@dataclass(slots=True, eq=False)
class LightPage:
    """An entry of the history: a document under an address. `offset` is the first line of the viewport."""

    url: str
    document: LightDocument
    offset: int = 0


def make_blank_page() -> LightPage:
    """The page of a new tab."""
    return LightPage(BLANK, LightDocument(Snapshot(BLANK, "", make_node("body"), BLANK)))


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
        if replaces or self.page.url == BLANK:
            del self.pages[self.position :]
        else:
            del self.pages[self.position + 1 :]
        self.pages.append(page)
        self.position = len(self.pages) - 1
