"""Repetition: which sentences are said again and again, and what a wrong one of them costs.

An agent that is paid for descriptions may settle on one sentence that is often right and say it in
every state. A reply loses `repetition_penalty` if it contains one of the most frequent sentences
*and* its score is below the threshold: repeating what is true costs nothing, being wrong in one's
own words costs nothing more.

Frequency is counted over texts, not over occurrences, in the batch and (fading by
`repetition_memory` with each batch) in those before it. A sentence is compared without case,
punctuation and blanks. What was counted goes into a checkpoint (`state`, `restore`), in its order,
which decides between sentences that are equally frequent.
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
class Repeated:
    """A sentence and the share of texts that contain it."""

    sentence: str
    share: float


def sentences_of(text: str) -> list[str]:
    """The distinct sentences of a text, each as its lower-case words.

    >>> sentences_of("The goal is above. THE GOAL is above!  Go up.")
    ['the goal is above', 'go up']
    """
    told = (" ".join(re.findall(r"\w+", part.lower())) for part in _END.split(text))
    return [sentence for sentence in dict.fromkeys(told) if sentence]


class Repetition:
    """Counts sentences batch by batch and says what each text of a batch loses."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self._counts: Counter[str] = Counter()
        self._num_texts = 0.0

    def penalties(self, texts: Sequence[str], scores: Sequence[float]) -> list[float]:
        """What each text is to be given: 0 or minus the penalty. Counts the texts first."""
        if len(texts) != len(scores):
            raise InputError(f"scores: {len(scores)} for {len(texts)} texts; give one each")
        self.count(texts)
        frequent = {repeated.sentence for repeated in self.most_repeated()}
        return [
            -self.config.repetition_penalty
            if score < self.config.threshold and not frequent.isdisjoint(sentences_of(text))
            else 0.0
            for text, score in zip(texts, scores, strict=True)
        ]

    def count(self, texts: Sequence[str]) -> None:
        """Take a batch in; what was counted before fades."""
        kept = self.config.repetition_memory
        faded = {sentence: kept * number for sentence, number in self._counts.most_common(_MAX_KEPT)}
        self._counts = Counter({s: n for s, n in faded.items() if n > 1e-3})
        self._num_texts = kept * self._num_texts + len(texts)
        for text in texts:
            self._counts.update(sentences_of(text))

    def most_repeated(self) -> list[Repeated]:
        """The most frequent sentences, from the most frequent on; none said in one text alone."""
        found = []
        for sentence, number in self._counts.most_common(self.config.repetition_top):
            share = number / self._num_texts if self._num_texts else 0.0
            if number > 1 and share >= self.config.repetition_min_share:
                found.append(Repeated(sentence, share))
        return found

    def state(self) -> dict[str, Any]:
        """What was counted, for a checkpoint: JSON keeps it exactly."""
        return {"num_texts": self._num_texts, "counts": dict(self._counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._num_texts, self._counts = float(state["num_texts"]), Counter(state["counts"])

    def figures(self) -> dict[str, float]:
        """The share of the most repeated sentence, and of all texts' sentences that are distinct."""
        top = self.most_repeated()
        total = sum(self._counts.values())
        return {
            "repetition/top_share": top[0].share if top else 0.0,
            "repetition/distinct": len(self._counts) / total if total else 1.0,
        }
