"""Calls between tags, one JSON object each: `<tool_call>{...}</tool_call>` (Hermes, Qwen, ours).

A block ends where its JSON ends, so arguments may contain the tags themselves. A block with broken JSON ends
at the next closing tag, or where another block opens.
"""

from __future__ import annotations

from stepwell.rendering.tool_calls.reply import CallReader, ParsedReply, decode_json_prefix

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def parse_hermes(text: str, first_number: int) -> ParsedReply:
    """Parse every tagged block as one call; text outside the blocks is content."""
    reader = CallReader(first_number)
    words, opened, rest = text.partition(_OPEN)
    content = [words]
    while opened:
        body, is_closed, rest = _read_block(rest)
        if is_closed:
            reader.read_call(body.strip())
        else:
            reader.add_error(f"{_OPEN} is never closed by {_CLOSE}", body)
        words, opened, rest = rest.partition(_OPEN)
        content.append(words)
    return reader.build_reply("".join(content))


def _read_block(text: str) -> tuple[str, bool, str]:
    """The body of an open block, whether it is closed, and the text after it."""
    start = len(text) - len(text.lstrip())
    try:
        _, size = decode_json_prefix(text[start:])
    except ValueError:
        size = 0
    after = text[start + size :].lstrip()
    if size and after.startswith(_CLOSE):
        return text[: start + size], True, after.removeprefix(_CLOSE)
    block, opened, further = text.partition(_OPEN)
    body, closed, behind = block.partition(_CLOSE)
    return body, bool(closed), behind + opened + further
