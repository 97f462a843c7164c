"""The tree of recorded turns of one session, and where a call's messages belong in it.

    History.match_messages(messages, tools)  ─►  HistoryMatch: the turn to continue, and why it branches
    History.add(turn)                            store a sampled turn under the number of its step

A turn is found by its content: its messages, including the sampled one, in a normal form on which all clients
agree (`normalize_messages` ignores spaces around an assistant's text, ids of tool calls, and text that the
generation prompt had opened). One walk over the messages finds the longest recorded line that they start
with, whatever the size of the tree.

Invariants
* A turn is continued only if everything before it and the turn itself came back as recorded, with the same
  tools. Hashes only find a candidate, which is then compared.
* A call that is not a plain continuation has a kind and a reason in words, which are counted and shown.
* Only the longest id array of a line is stored (`TokenLine`): turns that were extended are views of what
  extends them. Memory grows linearly with the conversation, not with its square.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from stepwell.core.arrays import IntArray
from stepwell.core.step import ImageSpan
from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering import Message, RecordedAction, RenderedPrompt, RestartKind
from stepwell.rendering.template import ChatTemplate
from stepwell.rendering.template_skeleton import find_plain_roles

NormalForm = tuple[Any, ...]
_NO_IDS: IntArray = np.zeros(0, dtype=np.int32)


class BranchKind(StrEnum):
    """Why a call is not a plain continuation. Some kinds are the renderer's (`RestartKind`)."""

    ASKED_AGAIN = "asked_again"  # the same prompt again: a retry, or another sample
    NEW_CONVERSATION = "new_conversation"  # no assistant turn in it, and it is not the first call
    TOOLS_CHANGED = RestartKind.TOOLS_CHANGED.value
    HISTORY_CHANGED = RestartKind.HISTORY_CHANGED.value
    TURN_CHANGED = RestartKind.TURN_CHANGED.value
    TEMPLATE_REWRITES = RestartKind.TEMPLATE_REWRITES.value


@dataclass(frozen=True, slots=True)
class Branch:
    """Why a call is a branch: the kind, which is counted, and the reason in words, which is shown."""

    kind: BranchKind
    reason: str


@dataclass(slots=True, eq=False)
class TokenLine:
    """The ids of a line of turns, up to its newest one."""

    ids: IntArray


@dataclass(slots=True, eq=False)
class RecordedTurn:
    """One sampled turn. `number` is that of its step, `call` that of the call's first choice.

    `line` holds the prompt as [0, start) and the action as [start, end). It is None if nothing can be
    extended: a plain upstream, or a text completion. `rendered` is the prompt without its ids. In a
    session that was restored from the pool it is None until it is needed.
    `is_delivered` says whether the reply left this process after its commit, as far as it knows.
    """

    number: int
    call: int
    call_id: str
    parent: int | None
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    normal_form: NormalForm = ()
    line: TokenLine | None = None
    start: int = 0
    end: int = 0
    images: tuple[ImageSpan, ...] = ()  # in the prompt
    rendered: RenderedPrompt | None = None
    is_extended: bool = False
    is_continued: bool = False
    is_delivered: bool = False

    @property
    def choice(self) -> int:
        return self.number - self.call

    def record(self, recorded: RecordedAction) -> None:
        """Store prompt and action, so that the turn can be continued."""
        self.rendered = replace(recorded.rendered, prompt_ids=_NO_IDS)
        self.start, self.is_extended = recorded.rendered.prompt_ids.size, recorded.rendered.extended
        self.line, self.images = TokenLine(recorded.ids), recorded.rendered.images
        self.end = self.line.ids.size

    def restore_recorded(self, template: ChatTemplate) -> RecordedAction | None:
        """Prompt and action as they were."""
        if self.line is None:
            return None
        before = self.messages[:-1]
        if self.rendered is None:
            text = template.render_text(before, self.tools, prompt=True)
            self.rendered = RenderedPrompt(
                _NO_IDS, text, before, self.tools, roles=find_plain_roles(before), images=self.images
            )
        rendered = replace(self.rendered, prompt_ids=self.line.ids[: self.start])
        return RecordedAction(rendered, self.line.ids[self.start : self.end], self.messages[-1])


@dataclass(frozen=True, slots=True)
class HistoryMatch:
    """Where a call belongs: the turn it continues, the messages after it, and whether it is a branch."""

    parent: RecordedTurn | None
    new_messages: tuple[Message, ...]
    normal_form: NormalForm
    branch: Branch | None = None
    same_prompt: RecordedTurn | None = None  # the newest turn with the same prompt


@dataclass(slots=True)
class History:
    """The recorded turns of one session. `prompt_extra` is the text that the generation prompt opens."""

    prompt_extra: str = ""
    turns: dict[int, RecordedTurn] = field(default_factory=dict)
    _ends: dict[int, list[RecordedTurn]] = field(default_factory=dict)  # by hash of messages with the reply
    _asked: dict[int, list[RecordedTurn]] = field(default_factory=dict)  # by hash of the prompt's messages

    def match_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> HistoryMatch:
        """Find the longest recorded line that `messages` start with, and explain the rest."""
        normal_form = normalize_messages(messages, self.prompt_extra)
        hashes = _hash_prefixes(normal_form, tools)
        parent, length = self._find_longest_match(messages, normal_form, hashes, tuple(tools))
        same_prompt = self._find_same_prompt(normal_form, hashes[-1], tuple(tools))
        new = (
            _restore_call_ids(messages[length:], messages[length - 1], parent) if parent else tuple(messages)
        )
        branch = self._explain_branch(messages, tools, normal_form, parent, length, same_prompt)
        return HistoryMatch(parent, new, normal_form, branch, same_prompt)

    def add(self, turn: RecordedTurn) -> None:
        """Store a sampled turn. Its parent, if any, counts as continued."""
        self.turns[turn.number] = turn
        if turn.messages:
            before = turn.normal_form or normalize_messages(turn.messages[:-1], self.prompt_extra)
            # the reply's normal form does not depend on earlier call ids, so it can be appended
            turn.normal_form = (*before, *normalize_messages(turn.messages[-1:], self.prompt_extra))
            hashes = _hash_prefixes(turn.normal_form, turn.tools)
            self._asked.setdefault(hashes[-2], []).append(turn)
            self._ends.setdefault(hashes[-1], []).append(turn)
        if turn.parent is not None:
            parent = self.turns[turn.parent]
            parent.is_continued = True
            _share_ids(parent, turn)

    def _find_longest_match(
        self,
        messages: Sequence[Message],
        normal_form: NormalForm,
        hashes: list[int],
        tools: tuple[ToolSchema, ...],
    ) -> tuple[RecordedTurn | None, int]:
        for length in range(len(messages) - 1, 0, -1):
            if messages[length - 1].role == "assistant":
                found = self._ends.get(hashes[length])
                turn = _find_newest(
                    t for t in found or () if t.normal_form == normal_form[:length] and t.tools == tools
                )
                if turn is not None:
                    return turn, length
        return None, 0

    def _find_same_prompt(
        self, normal_form: NormalForm, hash_: int, tools: tuple[ToolSchema, ...]
    ) -> RecordedTurn | None:
        found = self._asked.get(hash_)
        return _find_newest(t for t in found or () if t.normal_form[:-1] == normal_form and t.tools == tools)

    def _explain_branch(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        normal_form: NormalForm,
        parent: RecordedTurn | None,
        length: int,
        same_prompt: RecordedTurn | None,
    ) -> Branch | None:
        if not self._ends:
            return None
        if same_prompt is not None:
            return Branch(
                BranchKind.ASKED_AGAIN, f"the same prompt was sent before, as step {same_prompt.number}"
            )
        changed = next((i for i in range(length, len(messages)) if messages[i].role == "assistant"), None)
        if parent is None:
            return self._explain_restart(messages, tools, normal_form, changed)
        if changed is not None:
            return Branch(BranchKind.TURN_CHANGED, f"message {changed} is not a turn that was sampled here")
        if parent.is_continued:
            return Branch(
                BranchKind.HISTORY_CHANGED, f"step {parent.number} was already continued, with other messages"
            )
        return None

    def _explain_restart(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        normal_form: NormalForm,
        changed: int | None,
    ) -> Branch:
        """Why a call that matches no recorded line starts a new conversation."""
        if changed is None:
            return Branch(BranchKind.NEW_CONVERSATION, "it has no assistant turn, and its messages are new")
        latest = next(turn for turn in reversed(self.turns.values()) if turn.messages)
        if tuple(tools) != latest.tools and latest.normal_form == normal_form[: len(latest.normal_form)]:
            return Branch(BranchKind.TOOLS_CHANGED, "the tools differ from those of the previous turn")
        at = next(
            (i for i, (a, b) in enumerate(zip(latest.normal_form, normal_form, strict=False)) if a != b),
            len(normal_form),
        )
        if at == changed and at == len(latest.normal_form) - 1:
            return Branch(BranchKind.TURN_CHANGED, f"message {at} differs from the sampled turn")
        if at >= len(normal_form):
            return Branch(BranchKind.HISTORY_CHANGED, "the messages end inside the recorded line")
        return Branch(
            BranchKind.HISTORY_CHANGED, f"message {at} ({messages[at].role}) differs from the recorded one"
        )


def normalize_messages(messages: Sequence[Message], prompt_extra: str = "") -> NormalForm:
    """Messages in a form in which two clients' versions of the same history are equal."""
    parts: list[Any] = []
    calls: dict[str, int] = {}
    for message in messages:
        if message.role == "assistant":
            calls = {call.id: place for place, call in enumerate(message.tool_calls)}
            parts.append(
                (
                    _strip_prompt_extra(message.text, prompt_extra),
                    tuple(map(_normalize_call, message.tool_calls)),
                )
            )
        elif message.role == "tool":
            parts.append(("tool", message.content, calls.get(message.tool_call_id, message.tool_call_id)))
        else:
            parts.append((message.role, message.content, message.name))
    return tuple(parts)


def _strip_prompt_extra(text: str, prompt_extra: str) -> str:
    text = text.strip()
    extra = prompt_extra.strip()
    return text[len(extra) :].lstrip() if extra and text.startswith(extra) else text


def _normalize_call(call: ToolCall) -> Any:
    return call.name, _make_hashable(call.arguments)


def _make_hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((key, _make_hashable(item)) for key, item in value.items())
    return tuple(map(_make_hashable, value)) if isinstance(value, list) else value


def _hash_prefixes(normal_form: NormalForm, tools: Sequence[ToolSchema]) -> list[int]:
    """A hash of every prefix of the messages, from none of them to all."""
    hashes = [hash(tuple(tool.name for tool in tools))]
    for form in normal_form:
        hashes.append(hash((hashes[-1], form)))
    return hashes


def _find_newest(turns: Iterable[RecordedTurn]) -> RecordedTurn | None:
    """The first choice of the newest call."""
    return max(turns, key=lambda turn: (turn.call, -turn.number), default=None)


def _restore_call_ids(new: Sequence[Message], returned: Message, parent: RecordedTurn) -> tuple[Message, ...]:
    """New messages, with tool results under the ids that the recorded turn gave its calls."""
    recorded = parent.messages[-1].tool_calls
    names = {theirs.id: ours.id for theirs, ours in zip(returned.tool_calls, recorded, strict=True)}
    if all(name == own for name, own in names.items()):
        return tuple(new)
    renamed: list[Message] = []
    for place, message in enumerate(new):
        if message.role != "tool":
            return (*renamed, *new[place:])
        renamed.append(replace(message, tool_call_id=names.get(message.tool_call_id, message.tool_call_id)))
    return tuple(renamed)


def _share_ids(parent: RecordedTurn, child: RecordedTurn) -> None:
    """Make both views of the child's ids, if the child extends the newest turn of the parent's line."""
    if not child.is_extended or parent.line is None or child.line is None:
        return
    if parent.line.ids.size == parent.end:
        parent.line.ids = child.line.ids
        child.line = parent.line
