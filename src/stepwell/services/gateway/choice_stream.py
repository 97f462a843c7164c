"""One choice on its way to the client, piece by piece: text that is safe to send, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.services.gateway.chat import CompletionDelta, TokenLogprob
from stepwell.services.gateway.replies import IncrementalReader, VisibleReply
from stepwell.services.gateway.token_bytes import TokenDecoder


class ChoiceStream:
    """Passes on what `reader` releases. With `tokens`, each piece has the tokens since the last one."""

    def __init__(
        self, index: int, reader: IncrementalReader, tokens: TokenDecoder | None, end_ids: Sequence[int]
    ) -> None:
        self.index = index
        self._reader, self._tokens, self._end_ids = reader, tokens, end_ids
        self._pending: list[TokenLogprob] = []

    def feed(self, ids: Sequence[int], logprobs: Sequence[float]) -> list[CompletionDelta]:
        """What can be sent after these tokens."""
        text = self._reader.feed(ids)
        if self._tokens is not None:
            self._pending += [self._tokens.decode_token(*pair) for pair in zip(ids, logprobs, strict=True)]
        if not text:
            return []
        tokens, self._pending = tuple(self._pending), []
        return [CompletionDelta(self.index, text, tokens=tokens)]

    def finish(self, ids: Sequence[int]) -> tuple[VisibleReply, list[CompletionDelta]]:
        """The whole reply from all its ids, and the part of it that was not sent yet."""
        text, visible = self._reader.finish(ids)
        while self._pending and self._pending[-1].id in self._end_ids:
            self._pending.pop()
        if visible.stop_string is not None:
            self._pending = take_first_bytes(self._pending, len(text.encode(errors="replace")))
        deltas = (
            [CompletionDelta(self.index, text, tokens=tuple(self._pending))] if text or self._pending else []
        )
        return visible, deltas + [CompletionDelta(self.index, tool_call=call) for call in visible.tool_calls]


def take_first_bytes(tokens: Sequence[TokenLogprob], num_bytes: int) -> list[TokenLogprob]:
    """The tokens that make up the first bytes of a text."""
    taken: list[TokenLogprob] = []
    for token in tokens:
        if num_bytes <= 0:
            break
        taken.append(token)
        num_bytes -= len(token.raw)
    return taken
