"""Facts as a graph: things, what is said of them, and what they lead to.

Every fact is in the passage of one thing and nowhere else, and a passage names what it leads to but
says nothing about it. So a question about something k links away needs the k + 1 passages on the way, one
after the other: this is what makes questions need several searches, and how many is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stepwell.envs.retrieval import Document
from stepwell.envs.retrieval.text import split_words


@dataclass(slots=True)
class Node:
    """One thing: a city, an isotope. `name` is how other passages call it, `title` how its own does.

    `values` are facts as words, `numbers` facts to compare, `links` the thing a relation leads to,
    `many` the things that one leads to. `may_start` is false where other passages tell too much of it.
    """

    id: str
    kind: str
    name: str
    title: str
    text: str = ""
    values: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    many: dict[str, tuple[str, ...]] = field(default_factory=dict)
    may_start: bool = True

    @property
    def document(self) -> Document:
        """Its passage."""
        return Document(self.id, self.title, self.text)


class FactGraph:
    """Nodes by id and by kind, in a fixed order."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}
        dangling = [to for node in self.nodes.values() for to in node.links.values() if to not in self.nodes]
        assert not dangling, f"links to nowhere: {dangling[:3]}"
        self._kinds: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            self._kinds.setdefault(node.kind, []).append(node)

    def __getitem__(self, id: str) -> Node:
        return self.nodes[id]

    def list_kind(self, kind: str) -> list[Node]:
        """The nodes of a kind."""
        return self._kinds.get(kind, [])

    def follow_links(self, start: Node, links: Iterable[str]) -> list[Node] | None:
        """The nodes from `start` along `links`; None where one is missing or a node comes twice."""
        found = [start]
        for link in links:
            following = found[-1].links.get(link)
            if following is None or any(node.id == following for node in found):
                return None
            found.append(self.nodes[following])
        return found

    def documents(self) -> Iterator[Document]:
        """The passages."""
        for node in self.nodes.values():
            yield node.document


@lru_cache(maxsize=50_000)
def make_key(name: str) -> str:
    """A name as search reads it: two names with one key cannot be told apart."""
    return " ".join(split_words(name))


def find_unique_keys(names: Iterable[str]) -> set[str]:
    """The keys that one name alone has."""
    return {name for name, count in Counter(map(make_key, names)).items() if count == 1 and name}
