"""Calls as one JSON list after a token: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` (Mistral)."""

from __future__ import annotations

from stepwell.rendering.tool_calls.reply import CallReader, ParsedReply, decode_json_prefix

_TAG = "[TOOL_CALLS]"


def parse_mistral(text: str, first_number: int) -> ParsedReply:
    """Text before the tag is content; everything after it must be the list of calls."""
    words, tag, body = text.partition(_TAG)
    reader = CallReader(first_number)
    if not tag:
        return reader.build_reply(text)
    body = body.strip()
    try:
        value, end = decode_json_prefix(body)
    except ValueError as error:
        reader.add_error(f"not valid JSON: {error}", body)
        return reader.build_reply(words)
    for item in value if isinstance(value, list) else [value]:
        reader.take_call(item, body[:end])
    if body[end:].strip():
        reader.add_error(f"text after the list of calls: {body[end:].strip()[:40]!r}", body[end:])
    return reader.build_reply(words)
