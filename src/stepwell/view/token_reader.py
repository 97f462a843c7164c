"""Single tokens as text, read from `tokenizer.json` alone: no torch, no transformers.

Two families are recognised by their vocabulary: byte-level ones, which write every byte as a letter of their
own alphabet, and SentencePiece, which marks spaces and writes bytes as `<0xAB>`. The bytes of one letter may
be spread over several tokens; then the first of them has the letter and the others are empty.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stepwell.rendering.token_text import map_byte_letters

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


class TokenReader:
    """The texts of one vocabulary: pieces by id, and which of them are added tokens."""

    def __init__(self, pieces: dict[int, str], added: dict[int, str]) -> None:
        self._pieces, self._added = pieces, added
        self._letters = map_byte_letters()
        known = set(pieces.values())
        self._is_byte_level = all(letter in known for letter in self._letters)

    def split_text(self, ids: Any) -> list[str]:
        """The text of every token; together they are the whole text."""
        texts, waiting, start = [], b"", 0
        for place, number in enumerate(int(each) for each in ids):
            waiting += self.find_bytes(number)
            texts.append("")
            if (text := _decode_whole(waiting)) is None and len(waiting) < 8 and place + 1 < len(ids):
                continue
            texts[start] = waiting.decode("utf-8", errors="replace") if text is None else text
            waiting, start = b"", place + 1
        return texts

    def is_added(self, number: int) -> bool:
        """Whether a token stands outside the vocabulary of texts, such as one that begins a message."""
        return number in self._added

    def find_bytes(self, number: int) -> bytes:
        """The bytes that a token stands for."""
        if number in self._added:
            return self._added[number].encode()
        piece = self._pieces.get(number, f"[{number}]")
        byte = None if self._is_byte_level else _BYTE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if self._is_byte_level and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece)
        return piece.replace(_SPACE, " ").encode(errors="replace")


def open_token_reader(folder: Path) -> TokenReader | None:
    """The reader of a model directory; None without a `tokenizer.json` that lists its vocabulary."""
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        named = vocabulary.items() if isinstance(vocabulary, dict) else _number_pieces(vocabulary)
        pieces = {int(number): str(piece) for piece, number in named}
        added = {int(each["id"]): str(each["content"]) for each in content.get("added_tokens", ())}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return TokenReader(pieces, added)


def _number_pieces(vocabulary: Any) -> list[tuple[str, int]]:
    """Unigram models list [piece, score] pairs in order."""
    return [(str(piece), number) for number, (piece, _) in enumerate(vocabulary)]


def _decode_whole(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
