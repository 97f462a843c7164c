"""Single tokens as a client sees them: their text and the bytes they stand for.

Two families of tokenizers are recognised by their vocabulary: byte-level ones, which write every byte as a
letter of their own alphabet, and SentencePiece, which marks spaces and writes bytes as `<0xAB>`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from stepwell.rendering.token_text import map_byte_letters
from stepwell.services.gateway.chat import TokenLogprob

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


class TokenDecoder:
    """Decodes tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {id_: text for text, id_ in tokenizer.get_added_vocab().items()}
        vocabulary = tokenizer.get_vocab()
        self._letters = map_byte_letters()
        self._is_byte_level = all(letter in vocabulary for letter in self._letters)
        self._read = lru_cache(maxsize=65536)(self._look_up)

    def decode_token(self, id_: int, logprob: float) -> TokenLogprob:
        text, raw = self._read(id_)
        return TokenLogprob(id_, text, raw, logprob)

    def _look_up(self, id_: int) -> tuple[str, bytes]:
        raw = self._find_bytes(id_)
        return raw.decode("utf-8", errors="replace"), raw

    def _find_bytes(self, id_: int) -> bytes:
        piece = str(self._added.get(id_) or self._tokenizer.convert_ids_to_tokens(id_) or "")
        byte = None if self._is_byte_level else _BYTE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if id_ in self._added:
            return piece.encode()
        if self._is_byte_level and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece)
        return piece.replace(_SPACE, " ").encode()
