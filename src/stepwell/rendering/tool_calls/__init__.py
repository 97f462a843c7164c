"""Tool calls in what a model wrote: which spelling a template uses, and reading them back.

One file per spelling (`hermes.py`, `llama.py`, `mistral.py`), each with one function from
text to `ParsedReply`; `reply.py` holds that type and what they share. A call that cannot
be read is an error value inside the reply, for the agent to see and to learn from.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from stepwell.rendering.tool_calls.hermes import parse_hermes
from stepwell.rendering.tool_calls.llama import parse_llama
from stepwell.rendering.tool_calls.mistral import parse_mistral
from stepwell.rendering.tool_calls.reply import ParsedReply, ToolCallError


class ToolFormat(StrEnum):
    """How a model family spells its tool calls."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    LLAMA = "llama"  # {"name": ..., "parameters": {...}}
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name": ..., "arguments": {...}}]


PARSERS: dict[ToolFormat, Callable[[str, int], ParsedReply]] = {
    ToolFormat.HERMES: parse_hermes,
    ToolFormat.LLAMA: parse_llama,
    ToolFormat.MISTRAL: parse_mistral,
}


def parse_reply(text: str, tool_format: ToolFormat | str, first_number: int = 0) -> ParsedReply:
    """Split a sampled turn into its words and its tool calls; never raises on any text.

    Calls without an id of their own are numbered from `first_number` on ("call00000").
    """
    return PARSERS[ToolFormat(tool_format)](text, first_number)


def detect_format(written: str) -> ToolFormat | None:
    """The format in which a template wrote a call; None when it is none of ours."""
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
