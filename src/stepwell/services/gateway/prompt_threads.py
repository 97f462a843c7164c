"""Prompts are built in threads, so tokenizing never blocks the event loop.

There are two threads, so a long prompt delays only other long ones. The queue is bounded: with `max_waiting`
prompts waiting, a call is refused with a time to retry.

A prompt that cannot fit is refused by its number of bytes before anything is tokenized: no token stands for
more bytes than the longest of the vocabulary, so a context of C tokens holds at most C times as many.
Tools and tool calls count as JSON: a prompt holds them (the renderer refuses templates that omit them).
Assistant turns are checked one by one only, since a template may leave out their reasoning.
"""

from __future__ import annotations

import asyncio
import json
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
    """Builds prompts outside the event loop."""

    def __init__(self, max_waiting: int, max_prompt_bytes: int | None) -> None:
        self._short = ThreadPoolExecutor(1, "stepwell-prompt")
        self._long = ThreadPoolExecutor(1, "stepwell-long-prompt")
        self._max_waiting, self._num_waiting = max_waiting, 0
        self._max_prompt_bytes = max_prompt_bytes

    def check_size(self, chat: ChatRequest) -> int:
        """The number of bytes of a prompt. Raises `ContextLengthError` if they cannot fit."""
        return _check_prompt_size(chat, self._max_prompt_bytes)

    async def run(self, size: int, make: Callable[[], T]) -> T:
        """Call `make` in the thread for prompts of this size. Raises an error if too many are waiting."""
        if self._num_waiting >= self._max_waiting:
            message = f"{self._num_waiting} prompts are waiting to be tokenized (max_waiting_prompts)"
            raise ServiceError(ErrorKind.UNAVAILABLE, message, retry_after_s=1.0)
        self._num_waiting += 1
        try:
            threads = self._long if size > LONG_BYTES else self._short
            return await asyncio.get_running_loop().run_in_executor(threads, make)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Stop the threads."""
        self._short.shutdown(cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)


def find_prompt_limit(tokenizer: Any, context_length: int | None) -> int | None:
    """The most bytes that a prompt of this context can have; None if the context is unknown.

    A vocabulary entry, written in UTF-8, is never shorter than the text it stands for.
    """
    if context_length is None:
        return None
    return context_length * max(
        (len(piece.encode(errors="replace")) for piece in tokenizer.get_vocab()), default=1
    )


def _check_prompt_size(chat: ChatRequest, most: int | None) -> int:
    if chat.messages is None:
        prompt = chat.prompt if isinstance(chat.prompt, str) else ""
        others, turns = count_bytes(prompt), []
    else:
        others = sum(_count_message_bytes(m) for m in chat.messages if m.role != "assistant")
        others += sum(count_bytes(json.dumps(tool.to_openai(), ensure_ascii=False)) for tool in chat.tools)
        turns = [_count_message_bytes(m) for m in chat.messages if m.role == "assistant"]
    least = max(others, *turns, 0)
    if most is not None and least > most:
        raise ContextLengthError(
            f"the prompt has {least} bytes, but the context holds at most {most}; send less"
        )
    return others + sum(turns)


def count_bytes(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _count_message_bytes(message: Message) -> int:
    """Bytes of the text and the tool calls in a message. The renderer counts its images."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return sum(map(count_bytes, (*texts, *(call.text for call in message.tool_calls))))
