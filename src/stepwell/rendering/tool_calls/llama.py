"""Calls that are the whole turn: `{"name": ..., "parameters": {...}}` (Llama 3 JSON style).

Several calls follow each other, separated by a semicolon, comma or newline, or as one JSON list. A turn that
begins differently, or whose object has no name, is plain text, because a model may answer in JSON. After
the `<|python_tag|>`, every failure is an error.
"""

from __future__ import annotations

from typing import Any

from stepwell.rendering.tool_calls.reply import CallReader, ParsedReply, decode_json_prefix

_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;,"


def parse_llama(text: str, first_number: int) -> ParsedReply:
    """Parse the calls if the turn consists of nothing else; otherwise its text is content."""
    words, tag, body = text.partition(_TAG)
    if text.lstrip().startswith(("{", "[")):  # then a tag can only be inside a call
        words, tag, body = "", "", text
    elif not tag:
        return ParsedReply(text.strip())
    rest = body.strip()
    reader = CallReader(first_number)
    while rest:
        try:
            value, end = decode_json_prefix(rest)
        except ValueError as error:
            reader.add_error(f"not valid JSON: {error}", rest)
            break
        for item in value if isinstance(value, list) else [value]:
            reader.take_call(item, rest[:end])
        rest = rest[end:].lstrip(_BETWEEN)
    if not tag and not reader.calls and not _is_meant_as_call(rest or body):
        return ParsedReply(text.strip())
    return reader.build_reply(words)


def _is_meant_as_call(text: Any) -> bool:
    """Whether broken JSON was meant as a call, so that its error should be reported."""
    return '"name"' in text and ('"parameters"' in text or '"arguments"' in text)
