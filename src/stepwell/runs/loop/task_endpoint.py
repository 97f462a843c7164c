"""Asks the model that writes tasks: prompts in, texts out, several at once."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.config.curriculum import TaskEndpointConfig
from stepwell.core import ConfigError, InfraError
from stepwell.curriculum.instruction_prompts import Messages
from stepwell.rewards.chat_client import (
    CallCounts,
    ChatClient,
    ChatRefusedError,
    ChatReply,
    NoAnswerError,
    gather_calls,
    run_to_end,
)


class TaskEndpoint:
    """A model that writes tasks. A model that stays silent stops the run: no phase is made without it."""

    def __init__(self, config: TaskEndpointConfig) -> None:
        self.config, self.counts = config, CallCounts()

    def __call__(self, prompts: Sequence[Messages]) -> list[str | None]:
        """The replies, in order; None for a reply without text."""
        if not prompts:
            return []
        return run_to_end(self._ask_all(prompts))

    async def _ask_all(self, prompts: Sequence[Messages]) -> list[str | None]:
        async with ChatClient(self.config, self.counts) as client:
            return await gather_calls(self._ask_one(client, messages) for messages in prompts)

    async def _ask_one(self, client: ChatClient, messages: Messages) -> str | None:
        config = self.config
        is_question = "<answer>" in messages[0]["content"]
        body = {
            "model": config.model,
            "messages": messages,
            "temperature": 0 if is_question else config.temperature,
            "max_tokens": config.max_tokens,
        }
        try:
            return await client.complete(body, _read_text)
        except NoAnswerError as failure:
            raise InfraError(
                f"the model that writes tasks at {config.url} gave no answer: {failure}; check that it is "
                "running, or raise curriculum.endpoint.max_retries, then --resume"
            ) from failure
        except ChatRefusedError as refusal:
            raise ConfigError(
                f"the model that writes tasks at {config.url} {refusal}; check curriculum.endpoint (url, "
                f"model) and the key in ${config.key_variable}"
            ) from refusal


def _read_text(reply: ChatReply) -> str | None:
    return reply.text
