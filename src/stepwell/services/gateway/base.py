"""What all gateways share: sessions, the watch for silent ones, remembered conversations.

`BaseGateway` is the part of `ChatBackend` that does not sample. `Gateway` (tokens, trainable) and
`UpstreamGateway` (messages only) are built on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from stepwell.config.gateway import GatewayConfig
from stepwell.core import JSON
from stepwell.pool import Pool
from stepwell.rendering import Message, TextPart
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import ChatRequest, GatewayCaller, ImageDecoder
from stepwell.services.gateway.registry import SessionRegistry
from stepwell.services.gateway.sessions import count_running

_log = logging.getLogger(__name__)
_MIN_CHECK_S, _MAX_CHECK_S = 0.05, 5.0


class BaseGateway:
    """The sessions of one pool, and the watch over them."""

    def __init__(
        self, pool: Pool, config: GatewayConfig | None, *, prompt_extra: str = "", tags: Sequence[str] = ()
    ) -> None:
        self.config = config or GatewayConfig()
        self.registry = SessionRegistry(pool, self.config, prompt_extra, tags)
        self.loop: asyncio.AbstractEventLoop | None = None  # for callers in other threads
        self._watch: asyncio.Task[None] | None = None

    @property
    def image_decoder(self) -> ImageDecoder | None:
        """None: only a policy that sees takes images."""
        return None

    @property
    def models(self) -> tuple[str, ...]:
        return (self.config.model_name,)

    async def start(self) -> int:
        """Take over sessions that an earlier process left open (returns how many), and start the watch."""
        self.loop = asyncio.get_running_loop()
        num_open = await self.registry.resume()
        self._watch = asyncio.create_task(self._finish_silent_sessions())
        return num_open

    async def stop(self) -> None:
        """Stop the watch. Open sessions stay open in the pool, where a later process continues them."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        self.registry.close()

    def remember_conversation(
        self, caller: GatewayCaller, answer_id: str, messages: tuple[Message, ...]
    ) -> None:
        session = self.registry.sessions.get(caller.session or self.registry.get_current_id(caller.key_name))
        if session is not None:
            session.remember_conversation(answer_id, messages)

    def recall_conversation(self, caller: GatewayCaller, answer_id: str) -> tuple[Message, ...]:
        return self.registry.get_open(caller).recall_conversation(answer_id)

    async def is_ready(self) -> bool:
        """Whether calls can be served now; here, whether the pool responds."""
        await self.registry.run_in_thread(self.registry.pool.versions)
        return True

    def collect_metrics(self) -> dict[str, JSON]:
        """Counts since the start."""
        return {**self.registry.count_sessions(), **count_running(self.registry.sessions.values())}

    def _check_request(self, chat: ChatRequest) -> None:
        if not self.config.any_model and chat.model not in self.models:
            served = ", ".join(self.models)
            raise ServiceError(
                ErrorKind.NOT_FOUND, f"there is no model {chat.model!r}; available: {served}", param="model"
            )
        if chat.num_choices > self.config.max_choices:
            most = self.config.max_choices
            raise ServiceError(
                ErrorKind.INVALID,
                f"n is {chat.num_choices}, but at most {most} choices are served (max_choices)",
                param="n",
            )
        if (chat.messages is None) == (chat.prompt is None):
            raise ServiceError(ErrorKind.INVALID, "send either messages or a prompt")

    async def _finish_silent_sessions(self) -> None:
        pause_s = min(max(self.config.silent_timeout_s / 4, _MIN_CHECK_S), _MAX_CHECK_S)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.registry.finish_silent_sessions()
            except Exception:  # the watch must survive a pool that fails for a while
                _log.exception("silent sessions could not be finished")


def check_messages(messages: Sequence[Message], *, with_images: bool = False) -> tuple[Message, ...]:
    """The messages, if they can be rendered. Raises `ServiceError` with the position at fault."""
    if not messages:
        raise ServiceError(ErrorKind.INVALID, "messages is empty; send at least one", param="messages")
    for index, message in enumerate(messages):
        if message.images and not with_images:
            raise ServiceError(
                ErrorKind.INVALID,
                f"messages[{index}] holds an image, but this policy reads text only; describe it in text",
                param=f"messages[{index}]",
            )
        for part in message.parts:
            if isinstance(part, TextPart):
                check_text(part.text, f"messages[{index}]")
    return tuple(messages)


def check_text(text: str, param: str) -> str:
    """The text, if it can be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{param} holds half of a surrogate pair, which is not valid text"
        raise ServiceError(ErrorKind.INVALID, message, param=param) from None
    return text
