"""Calls between tags, one JSON object each: `<tool_call>{...}</tool_call>` (Hermes, Qwen, ours)."""

from __future__ import annotations

from stepwell.rendering.tool_calls.reply import CallReader, ParsedReply

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def parse_hermes(text: str, first_number: int) -> ParsedReply:
    """Every tagged block is one call; what stands outside the blocks is content."""
    reader = CallReader(first_number)
    words, *blocks = text.split(_OPEN)
    content = [words]
    for block in blocks:
        body, closed, after = block.partition(_CLOSE)
        if closed:
            reader.read(body.strip())
        else:
            reader.fail(f"{_OPEN} is never closed by {_CLOSE}", body)
        content.append(after)
    return reader.reply("".join(content))
