"""Renders messages to exact token ids. Every prompt of a language agent is made here.

    rendered = renderer.start(messages)              # the first prompt
    recorded = renderer.record(rendered, action_ids)  # what the engine sampled after it
    rendered = renderer.extend(recorded, [Message.user("...")])   # strict: or RenderError
    rendered = renderer.render(messages, recorded)    # extends if possible, gives the reason if not

Invariants
* With `history="exact"`, an extended prompt begins with the previous `prompt_ids` and `action_ids`, whatever
  those ids decode to. The new part is encoded separately and never merges with a sampled token.
* With `history="template"`, every prompt is exactly what the template writes for its messages.
* For roles with a template skeleton, the template is not run; the ids are the same. The cost of an extension
  then does not grow with the conversation.
* `render` never fails because a conversation cannot be extended. It starts a new prompt, reports this in
  `RenderedPrompt.extended` and `.reason`, and counts it in `counts`.
* A prompt that leaves no room in the context is a `ContextLengthError`. Prompts are never cut.
* An image is in a prompt as the run of ids of the model's `image_format`; `TokenState.images` records its
  place. A renderer without an image format refuses images. If text contains the image marker by chance, a
  space is inserted into it.
* System messages, tools, tool calls and tool results are a `RenderError` if the template would omit them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.core import arrays
from stepwell.core.arrays import IntArray
from stepwell.core.errors import ContextLengthError, InputError, RenderError
from stepwell.core.images import ImageStore
from stepwell.core.step import ImageSpan
from stepwell.core.tools import ToolSchema
from stepwell.rendering.extension import Continuation, can_continue, continue_after
from stepwell.rendering.messages import Message
from stepwell.rendering.probe import TemplateReport, inspect_template
from stepwell.rendering.record import RecordedAction, RenderedPrompt
from stepwell.rendering.refusal import Refusal, RestartKind
from stepwell.rendering.template import ChatTemplate, ChatTokenizer
from stepwell.rendering.template_skeleton import Roles, SkeletonCache, TemplateSkeleton, find_plain_roles
from stepwell.rendering.vision.format import ImageFormat
from stepwell.rendering.vision.placeholders import break_markers, expand_markers

History = Literal["exact", "template"]
_REMEMBERED = 2048


@dataclass(slots=True)
class RenderCounts:
    """Counts of prompts: first prompts, extensions, and restarts by kind."""

    num_started: int = 0
    num_extended: int = 0
    restarts: Counter[RestartKind] = field(default_factory=Counter)


class Renderer:
    """Renders conversations for one tokenizer.

    `context_length` is the model's limit; `room` tokens of it must stay free for the action.
    `template_options` are passed to the chat template (such as `enable_thinking`). With `image_format` (see
    `vision.load_image_format`), messages may contain images of `image_store`.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        history: History = "exact",
        *,
        context_length: int | None = None,
        room: int = 1,
        template_options: Mapping[str, Any] | None = None,
        image_format: ImageFormat | None = None,
        image_store: ImageStore | None = None,
    ) -> None:
        if history not in ("exact", "template"):
            raise InputError(f'history is {history!r}; it must be "exact" or "template"')
        if room < 0 or (context_length is not None and context_length < 1):
            raise InputError(f"context_length {context_length} and room {room} must be positive")
        self.image_format = image_format
        self.image_store = ImageStore() if image_store is None else image_store
        self.template = ChatTemplate(tokenizer, template_options, image_format)
        self.report: TemplateReport = inspect_template(self.template)
        self.history = history
        self.context_length = context_length
        self.room = room
        self.counts = RenderCounts()
        report = self.report
        self._writes_all = report.system and report.tools and report.tool_calls and report.tool_results
        self._skeletons = SkeletonCache(self.template)
        self._passing: dict[tuple[int, TemplateSkeleton], bool] = {}
        self._closing_ids = self.template.encode_after(self.report.ending.closing)
        if history == "exact":
            self.report.require_extension()

    @property
    def can_extend(self) -> bool:
        """Whether plain conversations continue from their exact ids; `report` has the other cases."""
        return self.report.extends

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens at which an engine should end an action."""
        return self.report.end_ids

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> RenderedPrompt:
        """Render a prompt from its messages alone."""
        rendered = self._render_first(messages, tools)
        self.counts.num_started += 1
        return rendered

    def record(
        self,
        rendered: RenderedPrompt,
        action_ids: Iterable[int] | npt.NDArray[Any],
        message: Message | None = None,
    ) -> RecordedAction:
        """Record the action sampled after a prompt.

        `message` is the action as a message if it was parsed (tool calls); by default it is the action's
        text. In both cases the next prompt continues from the ids.
        """
        ids = arrays.token_ids(action_ids, "action_ids")
        (message,) = self._strip_markers((message or Message.assistant(self.read_text(ids)),))
        return RecordedAction(rendered, ids, message)

    def read_text(self, action_ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """An action's text as part of its conversation: with what the prompt opened, without an end token."""
        ids = action_ids.tolist() if isinstance(action_ids, np.ndarray) else [int(i) for i in action_ids]
        while ids and ids[-1] in self.end_ids:
            ids.pop()
        return self.report.ending.prompt_extra + self.template.decode(ids)

    def extend(self, previous: RecordedAction, new: Sequence[Message]) -> RenderedPrompt:
        """The prompt after `new` messages, continued from the exact ids; otherwise a `RenderError`."""
        new = self._strip_markers(new)
        found = self._find_continuation(previous, new)
        if isinstance(found, Refusal):
            raise RenderError(
                f"the conversation cannot be extended: {found.reason}. "
                'Start a new prompt from its messages, or use history="template"'
            )
        return self._extend_prompt(previous, new, found)

    def render(
        self,
        messages: Sequence[Message],
        previous: RecordedAction | None = None,
        tools: Sequence[ToolSchema] = (),
    ) -> RenderedPrompt:
        """The prompt for `messages`; it extends `previous` if history and template allow it."""
        if previous is None:
            return self.start(messages, tools)
        messages = self._strip_markers(messages)
        if self.history == "template":
            return self._render_afresh(messages, previous, tools)
        refusal = previous.find_mismatch(messages, tools, self.report.ending.prompt_extra)
        if refusal is None:
            return self.continue_turn(previous, messages[len(previous.messages) :])
        return self._restart_prompt(messages, tools, refusal)

    def continue_turn(self, previous: RecordedAction, new: Sequence[Message]) -> RenderedPrompt:
        """Same as `render`, for the messages of `previous` followed by `new`."""
        new = self._strip_markers(new)
        if self.history == "template":
            return self._render_afresh((*previous.messages, *new), previous, previous.rendered.tools)
        found = self._find_continuation(previous, new)
        if isinstance(found, Continuation):
            return self._extend_prompt(previous, new, found)
        return self._restart_prompt((*previous.messages, *new), previous.rendered.tools, found)

    def _restart_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], refusal: Refusal
    ) -> RenderedPrompt:
        rendered = replace(self._render_first(messages, tools), refusal=refusal)
        self.counts.restarts[refusal.kind] += 1
        return rendered

    def _find_continuation(self, previous: RecordedAction, new: Sequence[Message]) -> Continuation | Refusal:
        if not new:
            raise InputError("new messages are empty: an action must be answered before the next prompt")
        self._refuse_what_is_left_out(new, ())
        quick = self._find_quick_continuation(previous, new)
        if quick is not None:
            return quick
        prompt = previous.rendered
        return continue_after(
            self.template,
            self.report.ending,
            prompt.text,
            prompt.messages,
            previous.message,
            tuple(new),
            prompt.tools,
        )

    def _find_quick_continuation(
        self, previous: RecordedAction, new: Sequence[Message]
    ) -> Continuation | None:
        """The continuation from template skeletons; None if there are none, or if they do not apply."""
        before, tools = previous.rendered.roles, previous.rendered.tools
        roles = self._find_roles_after(previous, new)
        whole = self._skeletons.get_skeleton(roles, tools) if roles else None
        if before is None or whole is None or not self._can_continue(before, whole, tools):
            return None
        tail = whole.fill_after(len(before) + 1, [message.text for message in new])
        return Continuation(whole, tail, roles)

    @staticmethod
    def _find_roles_after(previous: RecordedAction, new: Sequence[Message]) -> Roles | None:
        before, added = previous.rendered.roles, find_plain_roles((previous.message, *new))
        return None if before is None or added is None else before + added

    def _can_continue(self, before: Roles, whole: TemplateSkeleton, tools: Sequence[ToolSchema]) -> bool:
        key = (len(before), whole)
        if key not in self._passing:
            skeleton = self._skeletons.get_skeleton(before, tools)
            if skeleton is None:
                return False
            if len(self._passing) >= _REMEMBERED:
                self._passing.clear()
            self._passing[key] = found = can_continue(self.report.ending, skeleton, whole, len(before))
            return found
        return self._passing[key]

    def _extend_prompt(
        self, previous: RecordedAction, new: Sequence[Message], found: Continuation
    ) -> RenderedPrompt:
        tail = self.template.encode_after(found.tail)
        tail = tail[self._count_sampled_closing(previous.action_ids, tail) :]
        before = previous.ids
        added, images = self._insert_images(tail, new, before.size)
        ids = np.concatenate([before, added])
        rendered = RenderedPrompt(
            self._check_length(ids),
            found.written,
            (*previous.messages, *new),
            previous.rendered.tools,
            previous.turns,
            extended=True,
            roles=found.roles or self._find_roles_after(previous, new),
            images=previous.rendered.images + images,
        )
        self.counts.num_extended += 1
        return rendered

    def _count_sampled_closing(self, action_ids: IntArray, tail: Sequence[int]) -> int:
        """Number of closing tokens that the engine has already sampled."""
        pairs = zip(tail, self._closing_ids, strict=False)
        closing = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        action = action_ids[-closing:].tolist() if closing else []
        if action and action[-1] in self.end_ids and action[-1] in tail[:closing]:
            return list(tail).index(action[-1]) + 1
        for count in range(len(action), 0, -1):
            if action[-count:] == list(tail[:count]):
                return count
        return 0

    def _render_afresh(
        self, messages: Sequence[Message], previous: RecordedAction, tools: Sequence[ToolSchema]
    ) -> RenderedPrompt:
        rendered = self._render_first(messages, tools)
        before = previous.ids
        shown = tuple(span for span in rendered.images if span.start < before.size)
        extended = shown == previous.rendered.images and bool(
            np.array_equal(rendered.prompt_ids[: before.size], before)
        )
        self.counts.num_extended += extended
        self.counts.num_started += not extended
        refusal = None if extended else Refusal(RestartKind.AFRESH, 'history="template" renders afresh')
        return replace(rendered, extended=extended, refusal=refusal)

    def _render_first(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> RenderedPrompt:
        messages = self._strip_markers(messages)
        self._refuse_what_is_left_out(messages, tools)
        roles = find_plain_roles(messages)
        skeleton = self._skeletons.get_skeleton(roles, tools) if roles else None
        if skeleton is None:
            text = self.template.render_text(messages, tools, prompt=True)
        else:
            text = skeleton.fill([message.text for message in messages])
        ids, images = self._insert_images(self.template.encode(text), messages, 0)
        return RenderedPrompt(
            self._check_length(ids),
            skeleton or text,
            tuple(messages),
            tuple(tools),
            roles=roles,
            images=images,
        )

    def _strip_markers(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, with every accidental image marker in their text broken up."""
        if self.image_format is None:
            return messages
        return tuple(break_markers(message, self.image_format.marker) for message in messages)

    def _insert_images(
        self, ids: Sequence[int], messages: Sequence[Message], offset: int
    ) -> tuple[npt.NDArray[np.int32], tuple[ImageSpan, ...]]:
        """The ids with image runs in place of markers, and the places of the images in the prompt."""
        array = np.asarray(ids, dtype=np.int32)
        if self.image_format is None:
            return array, ()
        names = [name for message in messages for name in message.images]
        return expand_markers(array, names, self.image_format, self.image_store, offset)

    def _refuse_what_is_left_out(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        if self._writes_all:
            return
        roles = {message.role for message in messages}
        for wanted, written, what in (
            ("system" in roles, self.report.system, "system messages"),
            (bool(tools), self.report.tools, "tools"),
            (any(message.tool_calls for message in messages), self.report.tool_calls, "tool calls"),
            ("tool" in roles, self.report.tool_results, "tool results"),
        ):
            if wanted and not written:
                problem = next(p for p in self.report.problems if p.startswith(what))
                raise RenderError(f"this chat template has no place for {problem}")

    def _check_length(self, ids: npt.NDArray[np.int32]) -> IntArray:
        limit = self.context_length
        if limit is not None and ids.size + self.room > limit:
            raise ContextLengthError(
                f"the prompt has {ids.size} tokens and {self.room} must stay free for the action, but the "
                f"context length is {limit}: shorten the observation, keep fewer turns in the messages, "
                "or use a model with a longer context"
            )
        ids.setflags(write=False)  # no check needed: made here from checked ids and the tokenizer's own
        return ids
