"""Tool calls in sampled text: detecting a template's format, and parsing calls.

There is one file per format (`hermes.py`, `llama.py`, `mistral.py`), each with one function from text to
`ParsedReply`. `reply.py` holds that type and shared code. A call that cannot be parsed is an error value
inside the reply, which the agent can see and learn from.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from stepwell.rendering.tool_calls.hermes import parse_hermes
from stepwell.rendering.tool_calls.llama import parse_llama
from stepwell.rendering.tool_calls.mistral import parse_mistral
from stepwell.rendering.tool_calls.reply import ParsedReply, ToolCallError


class ToolFormat(StrEnum):
    """The tool call format of a model family."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    LLAMA = "llama"  # {"name": ..., "parameters": {...}}
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name": ..., "arguments": {...}}]


PARSERS: dict[ToolFormat, Callable[[str, int], ParsedReply]] = {
    ToolFormat.HERMES: parse_hermes,
    ToolFormat.LLAMA: parse_llama,
    ToolFormat.MISTRAL: parse_mistral,
}


def parse_reply(text: str, tool_format: ToolFormat | str, first_number: int = 0) -> ParsedReply:
    """Split a sampled turn into its text and its tool calls. Never raises, whatever the text.

    Calls without an id are numbered from `first_number` on ("call00000").
    """
    return PARSERS[ToolFormat(tool_format)](text, first_number)


def detect_format(written: str) -> ToolFormat | None:
    """The format in which a template wrote a call; None if it is not a supported one."""
    if "[TOOL_CALLS]" in written:
        parsed = parse_mistral(written[written.index("[TOOL_CALLS]") :].rpartition("]")[0] + "]", 0)
        return ToolFormat.MISTRAL if parsed.tool_calls else None
    if "<tool_call>" in written:
        return ToolFormat.HERMES if parse_hermes(written, 0).tool_calls else None
    start, end = written.find('{"name"'), written.rfind("}")
    if start >= 0 and parse_llama(written[start : end + 1], 0).tool_calls:
        return ToolFormat.LLAMA
    return None


__all__ = ["PARSERS", "ParsedReply", "ToolCallError", "ToolFormat", "format_of", "parse_reply"]
