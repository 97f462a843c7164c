"""What is searched and what is found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepwell.core.errors import InputError

TITLE_WEIGHT = 3


@dataclass(frozen=True, slots=True)
class Document:
    """One passage or paper: found by its title and its text, named by its id."""

    id: str
    title: str
    text: str

    @property
    def searched(self) -> str:
        """What an index reads of it."""
        return f"{self.title}\n{self.text}"

    @property
    def counted(self) -> str:
        """What an index by words counts: the title `TITLE_WEIGHT` times, so that a thing's own passage
        comes before the many that name it."""
        return f"{self.title}\n" * TITLE_WEIGHT + self.text


class Hit(NamedTuple):
    """One document found. Ranks count from 1; what a score means depends on the kind of index."""

    id: str
    score: float
    rank: int


def check_documents(documents: Sequence[Document]) -> None:
    """Refuse what no index can be made of."""
    if not documents:
        raise InputError("a search index needs at least one document")
    ids = {document.id for document in documents}
    if len(ids) != len(documents):
        raise InputError(f"documents must have distinct ids: {len(documents)} documents have {len(ids)}")


def digest_documents(documents: Sequence[Document]) -> str:
    """Content hash of documents in their order."""
    state = hashlib.blake2b(digest_size=16)
    for document in documents:
        for part in (document.id, document.title, document.text):
            data = part.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)
    return state.hexdigest()
