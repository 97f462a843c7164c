"""What every gateway does, whoever answers behind it: sessions kept, silence watched, answers remembered.

`Keeper` is the part of `Answering` that knows nothing of sampling. `Gateway` (tokens, trainable) and
`UpstreamGateway` (messages only) are the two that stand on it.
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
from stepwell.services.gateway.exchange import Ask, Caller, Kind, Refused, See
from stepwell.services.gateway.registry import Registry
from stepwell.services.gateway.sessions import totals

_log = logging.getLogger(__name__)
_MIN_CHECK_S, _MAX_CHECK_S = 0.05, 5.0


class Keeper:
    """Sessions of one pool, and the watch over them."""

    def __init__(
        self, pool: Pool, config: GatewayConfig | None, *, prompt_extra: str = "", tags: Sequence[str] = ()
    ) -> None:
        self.config = config or GatewayConfig()
        self.registry = Registry(pool, self.config, prompt_extra, tags)
        self.loop: asyncio.AbstractEventLoop | None = None  # where it runs, for those outside
        self._watch: asyncio.Task[None] | None = None

    @property
    def see(self) -> See | None:
        """Who takes pictures: nobody, unless the policy sees."""
        return None

    @property
    def models(self) -> tuple[str, ...]:
        return (self.config.model_name,)

    async def start(self) -> int:
        """Take up the sessions an earlier process left, and watch for silent ones; gives their number."""
        self.loop = asyncio.get_running_loop()
        num_open = await self.registry.resume()
        self._watch = asyncio.create_task(self._finish_silent_sessions())
        return num_open

    async def stop(self) -> None:
        """Stop watching. Open sessions stay open in the pool: a later process goes on with them."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        self.registry.close()

    def remember(self, caller: Caller, answer_id: str, messages: tuple[Message, ...]) -> None:
        session = self.registry.sessions.get(caller.session or self.registry.current(caller.key_name))
        if session is not None:
            session.remember(answer_id, messages)

    def recall(self, caller: Caller, answer_id: str) -> tuple[Message, ...]:
        return self.registry.now(caller).recall(answer_id)

    async def is_ready(self) -> bool:
        """Whether calls can be served now; here, whether the pool answers."""
        await self.registry.run(self.registry.pool.versions)
        return True

    def counts(self) -> dict[str, JSON]:
        """What happened since the start."""
        return {**self.registry.totals(), **totals(self.registry.sessions.values())}

    def _refuse_impossible(self, ask: Ask) -> None:
        if not self.config.any_model and ask.model not in self.models:
            served = ", ".join(self.models)
            raise Refused(Kind.NOT_FOUND, f"no model {ask.model!r}; served are: {served}", param="model")
        if ask.num_choices > self.config.max_choices:
            most = self.config.max_choices
            raise Refused(Kind.INVALID, f"n is {ask.num_choices}; at most {most} are served", param="n")
        if (ask.messages is None) == (ask.prompt is None):
            raise Refused(Kind.INVALID, "give either messages or a prompt")

    async def _finish_silent_sessions(self) -> None:
        pause_s = min(max(self.config.silent_timeout_s / 4, _MIN_CHECK_S), _MAX_CHECK_S)
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.registry.finish_silent()
            except Exception:  # the watch must outlive a pool that fails for a while
                _log.exception("sessions that fell silent could not be finished")


def checked_messages(messages: Sequence[Message], *, with_images: bool = False) -> tuple[Message, ...]:
    """Messages that can be written; refused with the place where they cannot."""
    if not messages:
        raise Refused(Kind.INVALID, "messages is empty; give at least one", param="messages")
    for index, message in enumerate(messages):
        if message.images and not with_images:
            raise Refused(
                Kind.INVALID,
                f"messages[{index}] holds an image, but the policy served here reads text only; describe it",
                param=f"messages[{index}]",
            )
        for part in message.parts:
            if isinstance(part, TextPart):
                checked_text(part.text, f"messages[{index}]")
    return tuple(messages)


def checked_text(text: str, param: str) -> str:
    """Text that has an encoding."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        words = f"{param} holds half of a surrogate pair, which is not text"
        raise Refused(Kind.INVALID, words, param=param) from None
    return text
