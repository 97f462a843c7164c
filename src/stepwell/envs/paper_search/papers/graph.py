"""A citation graph of papers: texts, years, links and, if generated, the facets of each paper.

Papers are numbered by time, so paper i cites only papers below i (not guaranteed in a snapshot of real
papers). Links are stored in both directions in compressed rows: references in their original order; citing
papers by their own citations, newest first among equals. `facets`, `about` and `mentions` are the generator's
hidden truth (value numbers, -1 for none) and empty in a real graph. The selector may read them; an agent
never sees them.

A graph is stored in one `.npz` file without pickled objects, with texts as one UTF-8 block and the end of
each.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import EncodingError, InputError

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Facet:
    """One aspect of papers; every value has one or more forms."""

    name: str
    values: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class PaperGraph:
    """Papers and their citations.

    `cited_ends[i]` is the end of paper i's references in `cited`, where those of the next paper begin.
    """

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    abstracts: tuple[str, ...]
    years: Ints
    cited: Ints
    cited_ends: Ints
    digest: str
    facets: tuple[Facet, ...] = ()
    about: Ints | None = None  # [papers, facets]
    mentions: Ints | None = None  # [papers, facets]

    def __post_init__(self) -> None:
        counts = {len(self.ids), len(self.titles), len(self.abstracts), len(self.years), len(self.cited_ends)}
        if len(counts) != 1:
            raise InputError(f"a graph needs as many ids as titles, abstracts, years and rows, got {counts}")
        if len(self.cited) and not 0 <= int(self.cited.min()) <= int(self.cited.max()) < len(self.ids):
            raise InputError("a citation leads to a paper that the graph does not hold")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers of papers by id."""
        return {paper: number for number, paper in enumerate(self.ids)}

    def list_references(self, number: int) -> list[int]:
        """The papers that a paper cites."""
        start = int(self.cited_ends[number - 1]) if number else 0
        row: list[int] = self.cited[start : int(self.cited_ends[number])].tolist()
        return row

    def list_citations(self, number: int) -> list[int]:
        """The papers that cite a paper, most cited first."""
        start, end = self._citing_starts[number], self._citing_starts[number + 1]
        row: list[int] = self._citing[start:end].tolist()
        return row

    @cached_property
    def num_citations(self) -> Ints:
        """Number of citations of each paper."""
        return np.bincount(self.cited, minlength=len(self)).astype(np.int32)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Title and abstract of each paper, for the search index and the selector."""
        pairs = zip(self.titles, self.abstracts, strict=True)
        return tuple(f"{title}. {abstract}" if abstract else title for title, abstract in pairs)

    @cached_property
    def _citing_starts(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.num_citations)]).astype(np.int32)

    @cached_property
    def _citing(self) -> Ints:
        lengths = np.diff(self.cited_ends, prepend=0)
        sources = np.repeat(np.arange(len(self), dtype=np.int32), lengths)
        order = np.lexsort((-sources, -self.num_citations[sources], self.cited))
        return sources[order]

    def save(self, path: Path) -> None:
        """Write the graph as one file."""
        facets = [[facet.name, facet.values] for facet in self.facets]
        none = np.zeros((len(self), 0), np.int32)
        columns = {
            "cited": self.cited,
            "cited_ends": self.cited_ends,
            "years": self.years,
            "about": none if self.about is None else self.about,
            "mentions": none if self.mentions is None else self.mentions,
            "told": _encode_text(json.dumps({"digest": self.digest, "facets": facets})),
        }
        for name, texts in (("ids", self.ids), ("titles", self.titles), ("abstracts", self.abstracts)):
            columns[name], columns[f"{name}_ends"] = _encode_texts(texts)
        with open(path, "wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> PaperGraph:
        """Read what `save` wrote; anything else is an `EncodingError`."""
        try:
            with np.load(path, allow_pickle=False) as columns:
                told = json.loads(columns["told"].tobytes())
                facets = tuple(Facet(name, tuple(map(tuple, values))) for name, values in told["facets"])
                return cls(
                    ids=_decode_texts(columns["ids"], columns["ids_ends"]),
                    titles=_decode_texts(columns["titles"], columns["titles_ends"]),
                    abstracts=_decode_texts(columns["abstracts"], columns["abstracts_ends"]),
                    years=columns["years"],
                    cited=columns["cited"],
                    cited_ends=columns["cited_ends"],
                    digest=told["digest"],
                    facets=facets,
                    about=columns["about"] if facets else None,
                    mentions=columns["mentions"] if facets else None,
                )
        except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise EncodingError(f"{path} is not a graph of papers: {error}") from error


def _encode_text(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _encode_texts(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _decode_texts(block: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> tuple[str, ...]:
    data, starts = block.tobytes(), [0, *ends.tolist()]
    return tuple(data[a:b].decode() for a, b in pairwise(starts))
