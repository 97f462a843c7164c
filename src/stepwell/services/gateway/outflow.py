"""One choice on its way to the client, piece by piece: safe text, and the tokens it is made of."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.services.gateway.exchange import Delta, Token
from stepwell.services.gateway.reading import LiveReader, Reading
from stepwell.services.gateway.token_bytes import TokenReader


class Outflow:
    """Hands out what `reader` lets go. With `tokens`, each piece has the tokens since the last one."""

    def __init__(
        self, index: int, reader: LiveReader, tokens: TokenReader | None, end_ids: Sequence[int]
    ) -> None:
        self.index = index
        self._reader, self._tokens, self._end_ids = reader, tokens, end_ids
        self._held: list[Token] = []

    def feed(self, ids: Sequence[int], logprobs: Sequence[float]) -> list[Delta]:
        """What can be shown after these tokens."""
        text = self._reader.feed(ids)
        if self._tokens is not None:
            self._held += [self._tokens.token(*pair) for pair in zip(ids, logprobs, strict=True)]
        if not text:
            return []
        tokens, self._held = tuple(self._held), []
        return [Delta(self.index, text, tokens=tokens)]

    def rest(self, ids: Sequence[int]) -> tuple[Reading, list[Delta]]:
        """The whole answer, all of whose ids are given, and what of it is not out yet."""
        text, reading = self._reader.finish(ids)
        while self._held and self._held[-1].id in self._end_ids:
            self._held.pop()
        if reading.stop_string is not None:
            self._held = first_bytes(self._held, len(text.encode(errors="replace")))
        deltas = [Delta(self.index, text, tokens=tuple(self._held))] if text or self._held else []
        return reading, deltas + [Delta(self.index, tool_call=call) for call in reading.tool_calls]


def first_bytes(tokens: Sequence[Token], num_bytes: int) -> list[Token]:
    """The tokens that the first bytes of a text are made of."""
    kept: list[Token] = []
    for token in tokens:
        if num_bytes <= 0:
            break
        kept.append(token)
        num_bytes -= len(token.raw)
    return kept
