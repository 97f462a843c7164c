"""The repetition penalty: frequent sentences, and the cost of repeating a wrong one.

An agent that is rewarded for descriptions may settle on one sentence that is often right and repeat
it in every state. A reply loses `repetition_penalty` if it contains one of the most frequent
sentences *and* its score is below the threshold. Repeating a true sentence costs nothing; a wrong
sentence in new words costs nothing extra.

Frequency counts texts, not occurrences, in this batch and in earlier ones (which fade by
`repetition_memory` with each batch). Sentences are compared without case, punctuation and blanks.
The counts are part of a checkpoint (`state`, `restore`), in order, because the order decides between
equally frequent sentences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.config.judge import JudgeConfig
from stepwell.core.errors import InputError

_END = re.compile(r"[.;!?\n]+(?=\s|$)")
_MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class RepeatedSentence:
    """A sentence and the share of texts that contain it."""

    sentence: str
    share: float


def split_sentences(text: str) -> list[str]:
    """The distinct sentences of a text, each as its lower-case words.

    >>> split_sentences("The goal is above. THE GOAL is above!  Go up.")
    ['the goal is above', 'go up']
    """
    sentences = (" ".join(re.findall(r"\w+", part.lower())) for part in _END.split(text))
    return [sentence for sentence in dict.fromkeys(sentences) if sentence]


class RepetitionPenalty:
    """Counts sentences batch by batch and computes the penalty of each text."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self._counts: Counter[str] = Counter()
        self._num_texts = 0.0

    def compute_penalties(self, texts: Sequence[str], scores: Sequence[float]) -> list[float]:
        """The reward of each text: 0 or minus the penalty. Counts the texts first."""
        if len(texts) != len(scores):
            raise InputError(f"scores: {len(scores)} for {len(texts)} texts; give one per text")
        self.count_texts(texts)
        frequent = {repeated.sentence for repeated in self.find_most_repeated()}
        return [
            -self.config.repetition_penalty
            if score < self.config.threshold and not frequent.isdisjoint(split_sentences(text))
            else 0.0
            for text, score in zip(texts, scores, strict=True)
        ]

    def count_texts(self, texts: Sequence[str]) -> None:
        """Count a batch; earlier counts fade."""
        kept = self.config.repetition_memory
        faded = {sentence: kept * number for sentence, number in self._counts.most_common(_MAX_KEPT)}
        self._counts = Counter({s: n for s, n in faded.items() if n > 1e-3})
        self._num_texts = kept * self._num_texts + len(texts)
        for text in texts:
            self._counts.update(split_sentences(text))

    def find_most_repeated(self) -> list[RepeatedSentence]:
        """The most frequent sentences in order, without those that occur in one text only."""
        found = []
        for sentence, number in self._counts.most_common(self.config.repetition_top):
            share = number / self._num_texts if self._num_texts else 0.0
            if number > 1 and share >= self.config.repetition_min_share:
                found.append(RepeatedSentence(sentence, share))
        return found

    def state(self) -> dict[str, Any]:
        """The counts, for a checkpoint; JSON restores them exactly."""
        return {"num_texts": self._num_texts, "counts": dict(self._counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self._num_texts, self._counts = float(state["num_texts"]), Counter(state["counts"])

    def collect_metrics(self) -> dict[str, float]:
        """The share of the most repeated sentence, and the share of sentences that are distinct."""
        top = self.find_most_repeated()
        total = sum(self._counts.values())
        return {
            "repetition/top_share": top[0].share if top else 0.0,
            "repetition/distinct": len(self._counts) / total if total else 1.0,
        }
