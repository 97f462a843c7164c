"""Tokens of a trajectory as a person reads them: their text, and the figure that colours each.

The tokenizer is the one beside the run's weights. Without one, ids are shown. Texts are plain strings here;
the templates escape them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stepwell.core.arrays import FloatArray, IntArray
from stepwell.view.token_reader import TokenReader, open_token_reader

MAX_PROMPT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One action token with its figures; None where a figure is not known."""

    text: str
    logprob: float | None
    ratio: float | None = None
    advantage: float | None = None
    value: float | None = None
    is_clipped: bool = False
    is_trained: bool = True

    @property
    def shades(self) -> dict[str, str]:
        """The CSS class of this token for each figure: `n3` is strongly below, `p3` strongly above."""
        return {
            "logprob": _shade(None if self.logprob is None else self.logprob / 2.0),
            "ratio": _shade(None if self.ratio is None else math.log(max(self.ratio, 1e-9)) / 0.2),
            "advantage": _shade(None if self.advantage is None else self.advantage / 1.5),
        }

    @property
    def title(self) -> str:
        """All figures in words."""
        known = {
            "logprob": self.logprob,
            "ratio": self.ratio,
            "advantage": self.advantage,
            "value": self.value,
        }
        parts = [f"{name} {value:.3g}" for name, value in known.items() if value is not None]
        parts += ["clipped"] if self.is_clipped else []
        return ", ".join(parts + ([] if self.is_trained else ["not trained"]))


def _shade(amount: float | None) -> str:
    """From `n4` (at or below −1) over `z` (about 0) to `p4`."""
    if amount is None or not math.isfinite(amount):
        return "z"
    size = min(4, math.ceil(abs(amount) * 4 - 0.15))
    return "z" if size <= 0 else f"{'n' if amount < 0 else 'p'}{size}"


@lru_cache(maxsize=16)
def find_reader(folders: tuple[Path, ...]) -> TokenReader | None:
    """The first tokenizer among these folders that opens."""
    for folder in folders:
        if (reader := open_token_reader(folder)) is not None:
            return reader
    return None


def read_texts(reader: TokenReader | None, ids: IntArray) -> list[str]:
    """The text of each token; its id without a tokenizer. Bytes of one letter stay with its first token."""
    if reader is None:
        return [f"{number} " for number in ids.tolist()]
    return reader.split_text(ids)


def read_prompt(reader: TokenReader | None, ids: IntArray) -> str:
    """A prompt as one text, cut in its middle if it is very long."""
    text = "".join(read_texts(reader, ids))
    if len(text) <= MAX_PROMPT_CHARS:
        return text
    half = MAX_PROMPT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def show_tokens(
    texts: Sequence[str], logprobs: FloatArray, credit: dict[str, Any] | None
) -> list[ShownToken]:
    """Texts with their figures. `credit` holds arrays of this step by name, if an update learnt from it."""
    rows: dict[str, Any] = {"logprob": logprobs, **(credit or {})}
    known = {name: row for name, row in rows.items() if row is not None and len(row) == len(texts)}
    columns: dict[str, list[Any]] = {name: row.tolist() for name, row in known.items()}
    columns.setdefault("logprob", [None] * len(texts))
    return [
        ShownToken(text, **{name: row[i] for name, row in columns.items()}) for i, text in enumerate(texts)
    ]
