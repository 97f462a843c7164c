"""Which tokenizers encode the lines of a text independently.

A text is cut after a newline between two visible ASCII characters. For the splitting rules listed here the
newline ends a word of the tokenizer there, in the whole text and in the piece alone, and no rule looks back.
Byte pairs are merged only inside a word, so the ids of the lines, joined, are those of the text.
"""

from __future__ import annotations

import json
import re
from typing import Any

LINE_END = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RULES = (
    _QWEN,
    _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),  # Llama 3
    r""" ?(?:[A-Z][a-z]+|[a-z]{2,})|["{}:]+|[\s\S]""",  # our tiny models
)


def can_encode_lines_alone(tokenizer: Any) -> bool:
    """Whether a fast tokenizer splits by one of the known rules, and nothing else sees the text."""
    core = tokenizer.backend_tokenizer
    if core.normalizer is not None or core.pre_tokenizer is None:
        return False
    if type(core.model).__name__ != "BPE" or core.model.dropout:
        return False
    added = tokenizer.added_tokens_decoder.values()
    if any("\n" in str(token) or token.lstrip or token.rstrip for token in added):
        return False
    splitter = json.loads(core.pre_tokenizer.__getstate__())
    parts = splitter["pretokenizers"] if splitter["type"] == "Sequence" else [splitter]
    return all(map(_can_split_at_lines, parts)) and any(map(_is_rule, parts))


def _is_rule(part: dict[str, Any]) -> bool:
    """A rule that makes a word end with the newline: GPT-2's own, or a listed one."""
    if part["type"] == "ByteLevel":
        return bool(part["use_regex"])
    is_plain = part["type"] == "Split" and part["behavior"] == "Isolated" and not part["invert"]
    return is_plain and part["pattern"].get("Regex") in _RULES


def _can_split_at_lines(part: dict[str, Any]) -> bool:
    if part["type"] == "ByteLevel":
        return not part["add_prefix_space"]
    return part["type"] == "Digits" or _is_rule(part)
