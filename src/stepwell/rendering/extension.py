"""Finds how a template continues a conversation after a sampled turn, by comparing two renderings.

The engine saw a prompt (text `G`) and sampled a turn. When new messages arrive, the
template renders the whole conversation twice: once with a mark in place of the sampled turn,
once with the turn's own text. With the mark it must write

    head  mark  tail

where `tail` is what stands between the turn's last character and the point at which the
assistant speaks again: closing tokens, the new messages, the next generation prompt. The
ids of `tail` are appended to the ids the engine saw and sampled; those are never touched.

This is correct only if the template, given the real turn, would have written what the
engine saw and produced. So two things are checked. If either fails, the result is a refusal
with its reason:

* `head` is `G`, except for spaces at its end (some templates put one before an answer) and
  for what only a generation prompt adds (an opened `<think>`).
* The real rendering is `head`, the turn, `tail`, with only spaces around the turn changed.
  A template that strips thinking from earlier turns, or moves the list of tools to the
  latest message, fails here.

A template writes tool calls in its own format, so such a turn is not compared letter by
letter; only its plain content must be there.

If a conversation has skeletons (see `template_skeleton.py`), `can_continue` checks the same on
them, once for all conversations with the same roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.core.errors import RenderError
from stepwell.core.tools import ToolSchema
from stepwell.rendering.messages import Message
from stepwell.rendering.refusal import Refusal, RestartKind
from stepwell.rendering.template import ChatTemplate
from stepwell.rendering.template_skeleton import Roles, TemplateSkeleton


@dataclass(frozen=True, slots=True)
class TurnEnding:
    """How a template ends an assistant's turn, and what its generation prompt adds.

    `closing` follows the content ("<|im_end|>\\n"); `prompt_extra` is what a prompt ends
    with beyond the assistant's header, and what a past turn's content must begin with.
    """

    closing: str
    prompt_extra: str


@dataclass(frozen=True, slots=True)
class Continuation:
    """The template's text of the whole prompt, and its part after the sampled turn.

    If found from skeletons: the skeleton of the whole prompt, and the roles of its messages.
    """

    written: str | TemplateSkeleton
    tail: str
    roles: Roles | None = None


def find_ending(template: ChatTemplate) -> TurnEnding:
    """Find a template's turn ending from the shortest conversation."""
    asked = (Message.user("question"),)
    mark = find_unused_word("question")
    head, closing = _split_at(template.render_text((*asked, Message.assistant(mark)), prompt=False), mark)
    prompt = template.render_text(asked, prompt=True)
    extra = prompt[len(head) :] if prompt.startswith(head) else ""
    return TurnEnding(closing, extra)


def continue_after(
    template: ChatTemplate,
    ending: TurnEnding,
    prompt_text: str,
    before: Sequence[Message],
    reply: Message,
    new: Sequence[Message],
    tools: Sequence[ToolSchema] = (),
) -> Continuation | Refusal:
    """Find what follows `reply`, sampled after `prompt_text` (of `before`), given `new` messages."""
    text = template.render_text((*before, reply, *new), tools, prompt=True)
    mark = find_unused_word(text)
    try:
        marked = template.render_text((*before, Message.assistant(mark), *new), tools, prompt=True)
        head, tail = _split_at(marked, mark)
    except RenderError as error:
        if not reply.tool_calls:
            return _refuse_template(str(error))
        return _extend_after_tool_calls(template, ending, prompt_text, before, reply, tools, text)
    if not _is_same_opening(head, prompt_text, ending.prompt_extra):
        return _refuse_template(
            f"the template rewrites what precedes the sampled turn {_describe_difference(head, prompt_text)}"
        )
    if not _is_same_turn(text, head, tail, reply):
        return _refuse_template(
            "the template rewrites the sampled turn (or what follows it) once later messages come"
        )
    return Continuation(text, tail)


def can_continue(
    ending: TurnEnding, before: TemplateSkeleton, whole: TemplateSkeleton, num_before: int
) -> bool:
    """Return whether `whole`, a later prompt, continues the prompt of its first `num_before` messages.

    What `continue_after` finds by comparing texts follows for all contents from the literals of
    two skeletons: they contain the sampled turn unchanged, so only the text before it is compared.
    """
    opening, same = whole.literals[:num_before], before.literals[:num_before]
    taken = whole.trims[:num_before] == before.trims
    return (
        opening == same
        and taken
        and _is_same_opening(whole.literals[num_before], before.literals[num_before], ending.prompt_extra)
    )


def find_unused_word(text: str) -> str:
    """Find a plain word that does not occur in `text`."""
    word = "Stepwellmark"
    while word in text:
        word += "q"
    return word


def _split_at(text: str, mark: str) -> tuple[str, str]:
    if text.count(mark) != 1:
        raise RenderError(f"the template writes an assistant's turn {text.count(mark)} times, not once")
    head, _, tail = text.partition(mark)
    return head, tail


def _is_same_opening(head: str, prompt_text: str, extra: str) -> bool:
    return head + extra == prompt_text or (not extra and head.rstrip() == prompt_text.rstrip())


def _is_same_turn(text: str, head: str, tail: str, reply: Message) -> bool:
    if len(text) < len(head) + len(tail) or not (text.startswith(head) and text.endswith(tail)):
        return False
    written = text[len(head) : len(text) - len(tail)].strip()
    return reply.text.strip() in written if reply.tool_calls else written == reply.text.strip()


def _extend_after_tool_calls(
    template: ChatTemplate,
    ending: TurnEnding,
    prompt_text: str,
    before: Sequence[Message],
    reply: Message,
    tools: Sequence[ToolSchema],
    text: str,
) -> Continuation | Refusal:
    """Handle templates that accept tool results only after real tool calls, so that no mark is possible."""
    turn = template.render_text((*before, reply), tools, prompt=False)
    opening = prompt_text.rstrip()
    if not text.startswith(turn):
        return _refuse_template(f"the template rewrites earlier turns {_describe_difference(turn, text)}")
    if not turn.startswith(opening) or reply.text.strip() not in turn[len(opening) :]:
        return _refuse_template(
            f"the template rewrites what precedes the sampled turn {_describe_difference(turn, opening)}"
        )
    if not turn.endswith(ending.closing):
        return _refuse_template("the template closes a turn that calls tools in another way than an answer")
    return Continuation(text, ending.closing + text[len(turn) :])


def _refuse_template(reason: str) -> Refusal:
    return Refusal(RestartKind.TEMPLATE_REWRITES, reason)


def _describe_difference(a: str, b: str) -> str:
    """Describe the first difference between two texts."""
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"(at character {at}: {a[at : at + 30]!r} for {b[at : at + 30]!r})"
