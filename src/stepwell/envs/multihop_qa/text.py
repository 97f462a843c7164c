"""What agents see of searches, and the true state in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepwell.envs.multihop_qa.options import MultihopOptions
from stepwell.envs.retrieval import Document

QUERY_CHARS = 80


class CallResult(NamedTuple):
    """What came of one call: the passages of a search, or why there was none."""

    query: str = ""
    passages: tuple[Document, ...] = ()
    problem: str = ""


def write_observation(question: str, turns: Sequence[Sequence[CallResult]], options: MultihopOptions) -> str:
    """The question, then call by call what was found; each passage only once."""
    is_tiny = options.is_tiny
    lines = [question if is_tiny else f"Question: {question}"]
    shown: set[str] = set()
    for found in (found for turn in turns for found in turn):
        if found.problem:
            lines.append(f"Not done: {found.problem}.")
            continue
        if not is_tiny:
            lines.append(f"Found for {_to_one_line(found.query, QUERY_CHARS)!r}:")
        if not found.passages:
            lines.append("No passage has these words.")
        for passage in found.passages:
            if passage.id in shown:
                lines += [] if is_tiny else [f"- {passage.title}: see above"]
                continue
            shown.add(passage.id)
            text = _to_one_line(passage.text, options.passage_chars)
            lines.append(f"{passage.title}: {text}" if is_tiny else f"- {passage.title}: {text}")
    return "\n".join(lines)


def write_state(question: str, needed: Sequence[str], found: Sequence[str], answer: str | None) -> str:
    """The true state in sentences."""
    said = f"The question is: {question} It takes {len(needed)} passages: {', '.join(needed)}. "
    said += f"Of these were found: {', '.join(found)}." if found else "None of these was found."
    return f"{said} The answer given is {answer}." if answer is not None else f"{said} No answer was given."


def _to_one_line(text: str, max_chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."
