"""Encodes text piece by piece: it is split before special tokens, and encoded pieces are cached.

A tokenizer first splits a text at its special tokens, so the text before such a token and the text
from it on are encoded independently: the ids of the whole are those of the pieces, joined. The long
text that all prompts share is then encoded only once. Where the tokenizer's rules allow it (`line_cuts.py`),
pieces are lines: most lines of a history were in the prompt before.

Invariants
* The ids are those of encoding the whole at once. A token is cut at only if that holds for it: no
  blanks around it are swallowed, no normalizer changes it, no other token overlaps its beginning.
* If a tokenizer does not list its special tokens, texts are not split.
* At most `_REMEMBERED` pieces and as many lines are kept, and none that is longer than `_LONGEST_REMEMBERED`.
* Encoding a long text does not block other threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stepwell.rendering.line_cuts import LINE_END, can_encode_lines_alone

_REMEMBERED, _LONGEST_REMEMBERED = 8192, 65_536  # pieces, characters of a piece
_SHORT = 4096  # characters that are encoded before anyone waits for it
_PROBES = ("", "x", " x ", "\n\nThe end.", "  \t", "é…", "Hello there.\n")

Encode = Callable[[str], list[int]]


class PieceEncoder:
    """Encodes like `whole`, with the special tokens of `tokenizer` among `wanted` as places to cut."""

    def __init__(self, tokenizer: Any, whole: Encode, wanted: Iterable[str]) -> None:
        cuts = _find_safe_cuts(tokenizer, set(wanted))
        self._cut = re.compile("|".join(map(re.escape, cuts))) if cuts else None
        self._cuts = tuple(cuts)
        direct = _choose_encoder(tokenizer, whole)
        remember_piece = lru_cache(maxsize=_REMEMBERED)(lambda text: tuple(self._encode_lines(text)))
        self._direct = direct
        self._remember_line = lru_cache(maxsize=_REMEMBERED)(lambda text: tuple(direct(text)))
        self._encode_piece: Callable[[str], Sequence[int]] = lambda text: (
            direct(text) if len(text) > _LONGEST_REMEMBERED else remember_piece(text)
        )
        self._has_line_cuts = direct is not whole and can_encode_lines_alone(tokenizer)
        if not all(self.encode(text) == whole(text) for text in _list_probe_texts(cuts)):
            self._cut, self._cuts, self._has_line_cuts = None, (), False
            remember_piece.cache_clear()

    def encode(self, text: str) -> list[int]:
        """Ids of a whole document."""
        if self._cut is None:
            return list(self._encode_piece(text))
        ids: list[int] = []
        start = 0
        for cut in self._cut.finditer(text):
            if cut.start() > start:
                ids += self._encode_piece(text[start : cut.start()])
                start = cut.start()
        ids += self._encode_piece(text[start:])
        return ids

    def _encode_lines(self, text: str) -> Sequence[int]:
        if not self._has_line_cuts:
            return self._direct(text)
        return [token for line in LINE_END.split(text) for token in self._remember_line(line)]

    def starts_at_cut(self, text: str) -> bool:
        """Whether `text` begins with a special token, so that nothing before it matters."""
        return bool(self._cuts) and text.startswith(self._cuts)


def _find_safe_cuts(tokenizer: Any, wanted: set[str]) -> list[str]:
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    texts = [str(token) for token in added.values()]
    return sorted(
        str(token)
        for token in added.values()
        if str(token) in wanted
        and not (token.lstrip or token.rstrip or token.normalized or token.single_word)
        and not any(_could_overlap(other, str(token)) for other in texts)
    )


def _could_overlap(other: str, token: str) -> bool:
    """Whether `other` could be found in a text across the beginning of `token`, or in its place."""
    if other != token and token in other:
        return True
    return any(other.endswith(token[:size]) for size in range(1, len(token)))


def _choose_encoder(tokenizer: Any, whole: Encode) -> Encode:
    """The tokenizer's own core where there is one: the same ids at half the cost."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or not hasattr(core, "encode_special_tokens"):
        return whole

    def encode(text: str) -> list[int]:
        # Other users of the tokenizer may have left it truncating or padding.
        if core.truncation is not None or core.padding is not None or core.encode_special_tokens:
            return whole(text)
        if len(text) > _SHORT:  # a batch of one lets other threads run meanwhile; `encode` does not
            return list(core.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return list(core.encode(text, add_special_tokens=False).ids)

    return encode if all(encode(text) == whole(text) for text in _list_probe_texts(())) else whole


def _list_probe_texts(cuts: Iterable[str]) -> list[str]:
    plain = list(_PROBES)
    around = [before + cut + after for cut in cuts for before in _PROBES for after in _PROBES[:4]]
    return plain + around
