"""Prompts are made in threads: tokenizing never holds up the event loop.

Two threads, so that a long prompt delays only other long ones. What waits is bounded: beyond
`max_waiting` prompts a call is refused with a time to try again.

A prompt that cannot fit is refused by its bytes before anything is tokenized: no token stands for more bytes
than the longest of the vocabulary, so a context of C tokens holds at most C times as many. Earlier turns of
the assistant are looked at one by one only, since a template may leave their reasoning out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stepwell.core import ContextLengthError
from stepwell.rendering import Message, TextPart
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import ChatRequest

T = TypeVar("T")
LONG_BYTES = 16_384


class PromptThreads:
    """Makes prompts outside the event loop."""

    def __init__(self, max_waiting: int, max_prompt_bytes: int | None) -> None:
        self._short = ThreadPoolExecutor(1, "stepwell-prompt")
        self._long = ThreadPoolExecutor(1, "stepwell-long-prompt")
        self._max_waiting, self._num_waiting = max_waiting, 0
        self._max_prompt_bytes = max_prompt_bytes

    async def run(self, chat: ChatRequest, make: Callable[[], T]) -> T:
        """What `make` gives, made in a thread; refused where the prompt cannot fit or too many wait."""
        size = _check_prompt_size(chat, self._max_prompt_bytes)
        if self._num_waiting >= self._max_waiting:
            words = f"{self._num_waiting} prompts wait to be tokenized (max_waiting_prompts)"
            raise ServiceError(ErrorKind.UNAVAILABLE, words, retry_after_s=1.0)
        self._num_waiting += 1
        try:
            threads = self._long if size > LONG_BYTES else self._short
            return await asyncio.get_running_loop().run_in_executor(threads, make)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Let go of the threads."""
        self._short.shutdown(cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)


def find_prompt_limit(tokenizer: Any, context_length: int | None) -> int | None:
    """The most bytes that a prompt of this context can have; None where the context is not known.

    A piece of the vocabulary, written in UTF-8, is never shorter than what it stands for.
    """
    if context_length is None:
        return None
    return context_length * max(
        (len(piece.encode(errors="replace")) for piece in tokenizer.get_vocab()), default=1
    )


def _check_prompt_size(chat: ChatRequest, most: int | None) -> int:
    """The bytes of a prompt; `ContextLengthError` where they cannot fit."""
    if chat.messages is None:
        prompt = chat.prompt if isinstance(chat.prompt, str) else ""
        others, own = count_bytes(prompt), 0
    else:
        others = sum(_count_text_bytes(m) for m in chat.messages if m.role != "assistant")
        own = max((_count_text_bytes(m) for m in chat.messages if m.role == "assistant"), default=0)
    if most is not None and max(others, own) > most:
        raise ContextLengthError(
            f"the prompt has {max(others, own)} bytes, and the context holds at most {most}: send less"
        )
    return others + own


def count_bytes(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _count_text_bytes(message: Message) -> int:
    """Bytes of the text in a message; its images are counted by the renderer."""
    return sum(count_bytes(part.text) for part in message.parts if isinstance(part, TextPart))
