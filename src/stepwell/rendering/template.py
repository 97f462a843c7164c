"""The chat template of a tokenizer: messages to text, and text to ids.

The template is the tokenizer's own; nothing here is specific to a model family. If it fails, the
`RenderError` quotes the template's own message.

Invariants
* Text is encoded without adding special tokens. A template writes its own beginning token, so a tokenizer
  that would add one as well still gives exactly one.
* Nothing is cut: a length limit saved in a tokenizer file is ignored.
* With an `image_format`, an image is one marker in the text and one marker id among the ids.
* `encode_after` gives the ids of text as a continuation, never the ids it has at the beginning of a document
  (some tokenizers add a space there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from stepwell.core.errors import InputError, RenderError
from stepwell.core.text import take_first_line
from stepwell.core.tools import ToolSchema
from stepwell.rendering.messages import ImagePart, Message
from stepwell.rendering.piece_encoder import PieceEncoder
from stepwell.rendering.vision.format import ImageFormat

_REMEMBERED = 1024


class ChatTokenizer(Protocol):
    """The tokenizer interface that the renderer needs; every `transformers` tokenizer has it."""

    chat_template: Any
    eos_token_id: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def encode(self, text: str, **options: Any) -> Any: ...
    def decode(self, token_ids: Any, **options: Any) -> Any: ...
    def get_added_vocab(self) -> dict[str, int]: ...


class ChatTemplate:
    """The template of `tokenizer`, with fixed `options` (such as `enable_thinking`)."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        options: Mapping[str, Any] | None = None,
        image_format: ImageFormat | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise RenderError(
                "the tokenizer has no chat template; use an instruct model, "
                "or set tokenizer.chat_template before the renderer is made"
            )
        self.tokenizer = tokenizer
        self.options = dict(options or {})
        added = tokenizer.get_added_vocab()
        self.added_ids = frozenset(added.values())
        source = str(tokenizer.chat_template)
        ends = (getattr(tokenizer, "bos_token", None), getattr(tokenizer, "eos_token", None))
        wanted = [text for text in added if text in source or text in ends]
        self._decoded: Callable[[tuple[int, ...]], str] = lru_cache(maxsize=8192)(self._decode_ids)
        self._pieces = PieceEncoder(tokenizer, self._encode_whole, wanted)
        # Texts to encode after. An added token always stands alone, so the last one cannot merge.
        self._before = [(text, self.encode(text)) for text in ("x", ".", "\n", *sorted(added)[:1])]
        self._written: dict[str, str] = {}
        self._images = image_format is not None
        self._as_parts = False
        if image_format is not None:
            self._as_parts = not self._writes_plain_text()
            self._check_marker(image_format)

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, prompt: bool
    ) -> str:
        """What the template writes; with `prompt`, up to the start of the assistant's turn."""
        if not messages:
            raise InputError("messages is empty: a prompt needs at least one message")
        entries = [message.to_template(images=self._images, as_parts=self._as_parts) for message in messages]
        offered = [tool.to_openai() for tool in tools] or None
        if not self._images:  # text uses skeletons, and can be long
            return self._apply_template(entries, offered, prompt)
        key = f"{prompt} {offered!r} {entries!r}"  # an image is only a placeholder here, so many are equal
        if key not in self._written:
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            self._written[key] = self._apply_template(entries, offered, prompt)
        return self._written[key]

    def _apply_template(self, entries: list[Any], offered: list[Any] | None, prompt: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                entries, tools=offered, add_generation_prompt=prompt, tokenize=False, **self.options
            )
        except Exception as error:  # a template is a program: it may raise anything
            roles, why = " ".join(message["role"] for message in entries), take_first_line(error)
            raise RenderError(f"the chat template refused these messages ({roles}): {why}") from error
        return str(text)

    def _writes_plain_text(self) -> bool:
        """Whether contents may be strings. Templates of some vision-language models accept only lists of
        parts."""
        try:
            return "Stepwellmark" in self.render_text((Message.user("Stepwellmark"),), prompt=True)
        except RenderError:
            return False

    def _check_marker(self, image_format: ImageFormat) -> None:
        text = self.render_text((Message.user([ImagePart(""), ImagePart("")]),), prompt=True)
        count = self.encode(text).count(image_format.marker_id)
        if text.count(image_format.marker) != 2 or count != 2:
            raise RenderError(
                f"the chat template writes two images as {text!r}, which holds {count} markers "
                f"{image_format.marker!r} (id {image_format.marker_id}) as tokens; use the template and the "
                "tokenizer that came with this vision-language model"
            )

    def encode(self, text: str) -> list[int]:
        """Ids of a whole document."""
        return self._pieces.encode(text)

    def encode_after(self, text: str) -> list[int]:
        """Ids of text that follows other text, without merging with it."""
        if not text:
            return []
        if self._pieces.starts_at_cut(text):
            return self.encode(text)
        for before, known in self._before:
            ids = self.encode(before + text)
            if ids[: len(known)] == known:
                return ids[len(known) :]
        return self.encode(text)

    def _encode_whole(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, truncation=False, verbose=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids with special tokens written out, because some carry tool calls."""
        return self._decoded(tuple(ids))

    def _decode_ids(self, ids: tuple[int, ...]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)
