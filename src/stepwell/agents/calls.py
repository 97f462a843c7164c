"""Tool calls in replies: what follows the thinking if an environment's actions are tool calls.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call><tool_call>...</tool_call>
    <answer>...</answer>      instead of calls, if `actions.answer` names the tool it stands for

Reading is lenient and strict at once, as in `reply.py`. Valid calls are made in order, up to the limit
of a turn; for every other call, `lost` says why it was not made. Text between blocks, capitals and
blanks in tags, a complete call without a closing tag, and arguments that are quoted or under another
name are accepted but not strict. An answer without a closing tag may be incomplete, so it is lost.

Invariants
* Whatever the text, reading returns valid calls and never raises.
* `write_calls` returns a text that reads back as the same calls, strictly. A tag inside an argument is
  written with JSON escapes, so that it cannot end the call.
* An answer ends the episode, so it must be alone: calls beside it are not made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.agents.strategy import Strategy
from stepwell.core.env_description import ActionSpace
from stepwell.core.errors import InputError
from stepwell.core.text import quote_short
from stepwell.core.tools import ToolCall, find_call_problem, parse_call, read_call, read_json

CALL, ANSWER = "tool_call", "answer"
_OPENINGS = {
    with_answer: re.compile(
        rf"<\s*({CALL}|{ANSWER})\s*>" if with_answer else rf"<\s*({CALL})\s*>", re.IGNORECASE | re.ASCII
    )
    for with_answer in (True, False)
}
_ENDS = {name: re.compile(rf"<\s*(?:(/)\s*)?{name}\s*>", re.IGNORECASE | re.ASCII) for name in (CALL, ANSWER)}
_NUM_TOLD = 3


@dataclass(frozen=True, slots=True)
class ParsedCalls:
    """Calls as JSON texts, what was not done and why, and the first deviation from the requested form."""

    done: tuple[str, ...] = ()
    lost: str = ""
    num_lost: int = 0
    misspelled: str = ""


@dataclass(frozen=True, slots=True)
class _Block:
    """One call or answer as written in a reply; `flaw` is what is wrong with its tags."""

    name: str
    body: str
    flaw: str
    is_closed: bool


def cut_thinking(strategy: Strategy, text: str) -> tuple[str, str]:
    """The thinking up to its first closing tag, and the rest; without a closing tag all is rest."""
    if len(strategy.marks) <= 2:
        return "", text
    closing = strategy.marks[-3]
    for match in strategy.pattern.finditer(text):
        if match[1] and match[2].lower() == closing.name:
            return text[: match.end()], text[match.end() :]
    return "", text


def read_calls(actions: ActionSpace, text: str) -> ParsedCalls:
    """Read the calls, or the answer, after the thinking."""
    blocks, outside = _find_blocks(actions, text)
    answers = sorted((block for block in blocks if block.name == ANSWER), key=lambda block: block.is_closed)
    if answers:  # the last closed one, if any
        return _read_answer(actions, answers[-1], len(blocks) - 1, outside)
    if not blocks:
        return ParsedCalls((), f"there is no {describe_call_form(actions)}")
    done: list[str] = []
    lost: list[str] = []
    misspelled = f"text beside the calls: {quote_short(outside)}" if outside else ""
    for number, block in enumerate(blocks, start=1):
        call, problem, flaw = _read_block(actions, block)
        if call is None or problem:
            lost.append(f"call {number}: {problem}" if len(blocks) > 1 else problem)
        else:
            done.append(call.text)
            misspelled = misspelled or flaw
    num_too_many = max(0, len(done) - actions.max_per_turn)
    num_lost = len(lost) + num_too_many
    if num_too_many:
        lost.append(f"{len(done)} calls, at most {actions.max_per_turn} are made in a turn")
    problems = "; ".join(lost[:_NUM_TOLD]) + ("; ..." if len(lost) > _NUM_TOLD else "")
    return ParsedCalls(tuple(done[: actions.max_per_turn]), problems, num_lost, misspelled)


def write_calls(actions: ActionSpace, calls: Sequence[str]) -> str:
    """The blocks of a turn with `calls` (JSON texts); `InputError` if a call is invalid."""
    read = [read_call(call) for call in calls]
    for call in read:
        if problem := find_call_problem(actions.tools, call):
            raise InputError(f"answer cannot be written: {problem}")
    if not 1 <= len(read) <= actions.max_per_turn:
        raise InputError(
            f"answer cannot be written: {len(read)} calls, a turn makes 1 to {actions.max_per_turn}"
        )
    if any(call.name == actions.answer for call in read):
        return _write_answer(actions, read)
    return "".join(f"<{CALL}>{_escape_tags(call.text)}</{CALL}>" for call in read)


def describe_call_form(actions: ActionSpace) -> str:
    """The form of what follows the thinking, in short."""
    call = f"<{CALL}>...</{CALL}>"
    return f"{call} or <{ANSWER}>...</{ANSWER}>" if actions.answer else call


def _find_blocks(actions: ActionSpace, text: str) -> tuple[list[_Block], str]:
    """Every block in order, and the text outside of them."""
    found: list[_Block] = []
    outside: list[str] = []
    at = 0
    while (opening := _OPENINGS[bool(actions.answer)].search(text, at)) is not None:
        outside.append(text[at : opening.start()])
        name = opening[1].lower()
        end = _ENDS[name].search(text, opening.end())
        closed = end is not None and bool(end[1])
        body = text[opening.end() : end.start() if end else len(text)]
        literals = opening[0], end[0] if end is not None and closed else f"</{name}>"
        flaw = "" if closed else f"<{name}> is never closed by </{name}>"
        if literals != (f"<{name}>", f"</{name}>"):
            flaw = f"{quote_short(''.join(literals))} must be written <{name}></{name}>"
        found.append(_Block(name, body.strip(), flaw, closed))
        at = len(text) if end is None else end.end() if closed else end.start()
    outside.append(text[at:])
    return found, "".join(outside).strip()


def _read_block(actions: ActionSpace, block: _Block) -> tuple[ToolCall | None, str, str]:
    """A call, why it is invalid, and what is wrong with its form."""
    try:
        value = read_json(block.body)
    except ValueError as error:
        return None, f"{block.flaw}, {error}" if block.flaw else f"not valid JSON: {error}", ""
    try:
        call = parse_call(value)
    except InputError as error:
        return None, str(error), ""
    problem = find_call_problem(actions.tools, call)
    if call.name == actions.answer:
        return call, problem, f"{call.name} must be written <{ANSWER}>...</{ANSWER}>"
    is_plain = set(value) == {"name", "arguments"} and isinstance(value["arguments"], dict)
    flaw = "" if is_plain else 'a call must be written {"name": ..., "arguments": {...}}'
    return call, problem, block.flaw or flaw


def _read_answer(actions: ActionSpace, block: _Block, num_others: int, outside: str) -> ParsedCalls:
    try:
        call = parse_call({"name": actions.answer, "arguments": {actions.answer_argument: block.body}})
        problem = find_call_problem(actions.tools, call) if block.body else "the answer is empty"
        problem = problem if block.is_closed else block.flaw
    except InputError as error:
        problem = str(error)
    if problem:
        return ParsedCalls((), problem, 1 + num_others)
    beside = "an answer stands alone: what is beside it is not done" if num_others else ""
    outside = f"text beside the answer: {quote_short(outside)}" if outside else ""
    return ParsedCalls((call.text,), beside, num_others, block.flaw or outside)


def _write_answer(actions: ActionSpace, calls: Sequence[ToolCall]) -> str:
    if len(calls) != 1:
        raise InputError("answer cannot be written: an answer must stand alone, without calls")
    text = str(calls[0].arguments[actions.answer_argument]).strip()
    if not text or _ENDS[ANSWER].search(text) or set(calls[0].arguments) != {actions.answer_argument}:
        raise InputError(f"answer cannot be written between <{ANSWER}> tags: {quote_short(text)}")
    return f"<{ANSWER}>{text}</{ANSWER}>"


def _escape_tags(text: str) -> str:
    """JSON without text that looks like a tag."""
    return text.replace("<", "\\u003c") if _ENDS[CALL].search(text) else text
