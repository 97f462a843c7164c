"""BM25 over an inverted index in plain arrays.

The score of a document d for the distinct words w of a query is

    sum over w of  idf(w) * f / (f + k1 * (1 - b + b * |d| / mean length)),
    idf(w) = log(1 + (N - n + 1/2) / (n + 1/2))

where f is the number of times that w occurs in d, n the number of documents with w, and N the number of all
documents. What a word adds to a document does not depend on the query, so it is computed once, when the index
is built. A search adds up one list per word. The lists are stored end to end: that of word w goes from
`starts[w]` to `starts[w + 1]`. The most common words also have a full row, because adding rows is faster than
adding at places. A document that shares no word with the query is not a result.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from stepwell.envs.retrieval.ranking import Places, Scores, find_best
from stepwell.envs.retrieval.text import split_query, split_words

K1, B = 1.2, 0.75
COMMON_SHARE, MAX_COMMON = 0.05, 64  # words in more of the documents than this have a row, so many at most


class WordIndex:
    """An index by words."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.num_documents = len(texts)
        pairs, lengths = self._number_words(texts)
        keys, counts = np.unique(pairs, return_counts=True)
        word_of, self._places = np.divmod(keys, self.num_documents)
        self._starts = np.searchsorted(word_of, np.arange(len(self._words) + 1))
        holding = np.diff(self._starts)
        idf = np.log1p((self.num_documents - holding + 0.5) / (holding + 0.5))
        fullness = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
        self._gains = (idf[word_of] * counts / (counts + fullness[self._places])).astype(np.float32)
        commonest = np.argsort(-holding, kind="stable")[:MAX_COMMON].tolist()
        self._rows = {
            number: self._make_row(number)
            for number in commonest
            if holding[number] > COMMON_SHARE * self.num_documents
        }

    def _number_words(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """One number per word of every text, which holds the word and the place of the text."""
        known: defaultdict[str, int] = defaultdict(count().__next__)
        ids, lengths = array("q"), array("q")
        for text in texts:
            words = split_words(text)
            ids.extend(map(known.__getitem__, words))
            lengths.append(len(words))
        self._words = dict(known)
        sizes = np.array(lengths, np.int64)
        places = np.repeat(np.arange(self.num_documents), sizes)
        return np.array(ids, np.int64) * self.num_documents + places, sizes

    def score_documents(self, query: str) -> Scores:
        """The score of every document; 0 for those without a word of the query."""
        totals = np.zeros(self.num_documents, np.float64)
        for word in split_query(query):
            number = self._words.get(word)
            if number is None:
                continue
            if number in self._rows:
                totals += self._rows[number]
            else:
                part = self._get_slice(number)
                totals[self._places[part]] += self._gains[part]  # a list holds a place at most once
        return totals

    def _get_slice(self, number: int) -> slice:
        return slice(int(self._starts[number]), int(self._starts[number + 1]))

    def _make_row(self, number: int) -> npt.NDArray[np.float64]:
        row = np.zeros(self.num_documents, np.float64)  # as wide as the totals: to add it converts nothing
        row[self._places[self._get_slice(number)]] = self._gains[self._get_slice(number)]
        return row

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """(place, score) of the `k` best documents."""
        scores = self.score_documents(query)
        return [(int(place), float(scores[place])) for place in self._keep_matches(scores, k)]

    def _keep_matches(self, scores: Scores, k: int) -> Places:
        matches = np.flatnonzero(scores > 0)  # few of all: what is sorted is short
        return matches[find_best(scores[matches], k)]
