"""A collection: passages, an index over them, and questions with their answers and the way to them.

Made once and kept in the cache as compressed JSON with its own digest; a file that was changed or cut is
made again. Questions are kept only if every passage on the way is found by its title, and neither the
titles before it nor the question itself find it sooner: this is tried on the index, not assumed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from stepwell.core.errors import EncodingError
from stepwell.core.ids import hash_content
from stepwell.data.cache import open_cached
from stepwell.envs.retrieval import Document, IndexKind, SearchIndex

DEPTH = 5  # results of a search that count when questions are tried


@dataclass(frozen=True, slots=True)
class MultihopQuestion:
    """A question, the answers accepted, and the ids of the passages that hold what it takes.

    `plan` is in the order of turns: passages of one turn can be searched for together, those of the
    next need what these say. Where that order is not known (`is_proven` is false), all are in one turn.
    """

    text: str
    answers: tuple[str, ...]
    plan: tuple[tuple[str, ...], ...]
    kind: str = ""
    is_proven: bool = True


class Collection:
    """Passages and questions about them."""

    def __init__(
        self, name: str, documents: Iterable[Document], questions: Iterable[MultihopQuestion]
    ) -> None:
        self.name = name
        self.documents = tuple(documents)
        self.questions = tuple(questions)
        self._indexes: dict[IndexKind, SearchIndex] = {}

    def index(self, kind: IndexKind) -> SearchIndex:
        """The index over all passages, built when first asked for."""
        if kind not in self._indexes:
            self._indexes[kind] = SearchIndex.build(self.documents, kind)
        return self._indexes[kind]

    def compute_digest(self) -> str:
        """Content hash of all of it."""
        return hash_content(_to_plain(self))


def load_cached_collection(
    name: str, digest: str, build: Callable[[], Collection], root: Path | None = None
) -> Collection:
    """The collection of a name, built where the cache does not hold that of these inputs."""
    return open_cached(
        f"facts/{name}-{digest}.json.gz",
        lambda path: _write_collection(path, build()),
        _read_collection,
        root,
    )


def keep_sound_questions(
    name: str, documents: Iterable[Document], questions: Iterable[MultihopQuestion]
) -> Collection:
    """The collection of those questions that can be answered by the searches of their plan and no sooner."""
    whole = Collection(name, documents, ())
    index = whole.index("bm25")
    shown: dict[str, frozenset[str]] = {}
    kept = [question for question in questions if _is_sound(index, question, shown)]
    return Collection(name, whole.documents, kept)


def _is_sound(index: SearchIndex, question: MultihopQuestion, shown: dict[str, frozenset[str]]) -> bool:
    """Whether titles find their passages, and nothing finds a passage before its turn."""
    later = {id for turn in question.plan for id in turn}
    for turn in question.plan:
        later.difference_update(turn)
        for id in turn:
            if id not in shown:
                shown[id] = _search_ids(index, index[id].title)
            if id not in shown[id] or later & shown[id]:
                return False
    later.update(id for turn in question.plan[1:] for id in turn)
    return not later & _search_ids(index, question.text)


def _search_ids(index: SearchIndex, query: str) -> frozenset[str]:
    return frozenset(hit.id for hit in index.search(query, DEPTH))


def _to_plain(collection: Collection) -> dict[str, object]:
    return {
        "name": collection.name,
        "documents": [[document.id, document.title, document.text] for document in collection.documents],
        "questions": [asdict(question) for question in collection.questions],
    }


def _write_collection(path: Path, collection: Collection) -> None:
    value = _to_plain(collection)
    text = json.dumps({"digest": hash_content(value), "collection": value}, ensure_ascii=False)
    with gzip.GzipFile(path, "wb", compresslevel=6, mtime=0) as file:  # the same bytes on every day
        file.write(text.encode())


def _read_collection(path: Path) -> Collection:
    try:
        with gzip.open(path, "rb") as file:
            stored = json.loads(file.read())
        value = stored["collection"]
        if hash_content(value) != stored["digest"]:
            raise EncodingError("its content has changed since it was written")
        return Collection(
            value["name"],
            [Document(*document) for document in value["documents"]],
            [
                MultihopQuestion(
                    question["text"],
                    tuple(question["answers"]),
                    tuple(tuple(turn) for turn in question["plan"]),
                    question["kind"],
                    question["is_proven"],
                )
                for question in value["questions"]
            ],
        )
    except EncodingError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise EncodingError(f"no collection: {error}") from error
