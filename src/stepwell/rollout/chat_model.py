"""An outside model: messages go to a chat API, answers come back, and every refusal is told for what it is.

    prepare ─► (one small question, with everything that later ones hold) ─► what this API takes
    ask ─► body ─► ChatClient ─► Said

APIs differ in what they take. `prepare` finds out before anything is played, and stops with a sentence
that names the fix where the address, the key or the model is wrong: a seed that is refused is left out,
the limit of tokens goes under its newer name, and tools go into the prompt. Nothing is adapted later,
so that all episodes are asked in the same way.

While episodes are played, a prompt that is too long is a `ContextLengthError` (the episode is cut, as with
a model of our own); whatever else the API refuses or does not answer is an `EngineError`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from stepwell.config.chat_api import ChatApiConfig
from stepwell.core import (
    ConfigError,
    ContextLengthError,
    EngineError,
    ImageStore,
    InputError,
    Sampling,
    SamplingParams,
    ToolSchema,
)
from stepwell.rendering import ImagePart, Message, TextPart
from stepwell.rewards.chat_client import ChatClient, ChatRefused, ChatReply, Unanswered
from stepwell.rollout.chat_messages import Said, api_message, data_url, read_said

_MAX_SEED = 2**31  # servers differ in how large a seed may be; all take these
_MAX_URLS = 512
_NUM_ADAPTED = 4
_GREY = "a grey picture"
_TOO_LONG = (
    "context length",
    "context_length",
    "context window",
    "too long",
    "maximum context",
    "the prompt has",
)


@dataclass(slots=True)
class ChatCounts:
    """What asking took so far."""

    num_calls: int = 0
    num_retries: int = 0
    num_unreadable: int = 0
    num_failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def figures(self, config: ChatApiConfig) -> dict[str, float]:
        """Everything as numbers, with the cost where prices are known."""
        spent = self.prompt_tokens * config.prompt_price + self.completion_tokens * config.completion_price
        return asdict(self) | (
            {"cost": spent / 1e6} if config.prompt_price or config.completion_price else {}
        )


class ChatModel:
    """The model `config.model` at `config.url`; open it with `async with`."""

    def __init__(self, config: ChatApiConfig, pictures: ImageStore | None = None) -> None:
        self.config = config
        self.counts = ChatCounts()
        self.notes: list[str] = []
        """What was adapted, in words."""
        self._pictures = ImageStore() if pictures is None else pictures
        self._client = ChatClient(config, self.counts)
        self._urls: OrderedDict[str, str] = OrderedDict()
        self._limit_name = "max_tokens"
        self._with_seed = True

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def prepare(
        self, params: SamplingParams, tools: Sequence[ToolSchema] = (), *, with_picture: bool = False
    ) -> bool:
        """Find out what the API takes; gives whether that includes `tools`."""
        message = Message.user("Answer with the word: ready")
        if with_picture:
            self._urls[_GREY] = data_url(np.full((32, 32, 3), 127, dtype=np.uint8))
            message = Message.user([ImagePart(_GREY), TextPart("Answer with the word: ready")])
        offered = () if self.config.tools == "text" else tuple(tools)
        for _ in range(_NUM_ADAPTED):
            body = self._body([message], offered, params)
            try:
                await self._client.complete(body, _taken, must_be_there=True)
                return bool(offered)
            except ChatRefused as refusal:
                offered = self._adapted(refusal, offered, with_picture)
            except Unanswered as failure:
                raise EngineError(self._no_answer(failure)) from failure
        raise ConfigError(f"{self._who} refuses every form of request")

    async def ask(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], params: SamplingParams
    ) -> Said:
        """The answer to a conversation."""
        body = self._body(messages, tools, params)
        sampling = Sampling(params.temperature, params.top_p, body.get("seed"))

        def read(reply: ChatReply) -> Said:
            try:
                return read_said(reply, sampling)
            except InputError as error:
                self.counts.num_unreadable += 1
                raise Unanswered(str(error)) from error

        try:
            return await self._client.complete(body, read)
        except ChatRefused as refusal:
            if _is_too_long(refusal):
                raise ContextLengthError(refusal.words) from refusal
            if refusal.status in (401, 403):
                raise ConfigError(self._refused(refusal)) from refusal
            self.counts.num_failures += 1
            raise EngineError(f"{self._who} {refusal}") from refusal
        except Unanswered as failure:
            self.counts.num_failures += 1
            raise EngineError(self._no_answer(failure)) from failure

    def _body(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], params: SamplingParams
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [api_message(message, self._url) for message in messages],
            "temperature": params.temperature,
            self._limit_name: params.max_tokens,
        }
        if params.top_p < 1.0:
            body["top_p"] = params.top_p
        if self._with_seed and params.seed is not None:
            body["seed"] = params.seed % _MAX_SEED
        if tools:
            body["tools"] = [tool.to_openai() for tool in tools]
        return body

    def _url(self, name: str) -> str:
        """A picture as it goes out; those of the conversations under way are written once."""
        if name not in self._urls:
            self._urls[name] = data_url(self._pictures.get(name))
        self._urls.move_to_end(name)
        while len(self._urls) > _MAX_URLS:
            self._urls.popitem(last=False)
        return self._urls[name]

    def _adapted(
        self, refusal: ChatRefused, offered: tuple[ToolSchema, ...], with_picture: bool
    ) -> tuple[ToolSchema, ...]:
        """Leave out or rename what the API says it does not take; raises where nothing can be done."""
        words = refusal.words.lower()
        if refusal.status in (400, 422):
            if self._limit_name in words and "max_completion_tokens" in words:
                self._limit_name = "max_completion_tokens"
                return offered
            if self._with_seed and "seed" in words:
                self._with_seed = False
                self.notes.append("the API takes no seed: sampled episodes cannot be repeated")
                return offered
            if with_picture and any(word in words for word in ("image", "picture", "vision", "multimodal")):
                raise ConfigError(
                    f"{self._who} does not take pictures ({refusal.words}); choose a model that sees, or a "
                    'world that speaks (env.options: observation = "text", where it has that)'
                ) from refusal
            if offered and self.config.tools == "auto" and ("tool" in words or "function" in words):
                self.notes.append("the API takes no tools: the prompt tells of them")
                return ()
        raise ConfigError(self._refused(refusal)) from refusal

    @property
    def _who(self) -> str:
        return f"{self.config.model} at {self.config.url}"

    def _refused(self, refusal: ChatRefused) -> str:
        fix = "see what it says; settings of the request are sampling, eval.temperature and --tools"
        if refusal.status in (401, 403):
            fix = f"put the right key into ${self.config.key_variable}, or name another by --api-key-env"
        elif refusal.status == 404:
            fix = "check --model and --endpoint, which ends before /chat/completions (often with /v1)"
        elif refusal.status == 429:
            fix = "the account has nothing left to spend"
        return f"{self._who} {refusal}; {fix}"

    def _no_answer(self, failure: Unanswered) -> str:
        if failure.is_unreachable:
            return f"nobody answers at {self.config.url} ({failure}); start the server, or correct --endpoint"
        return f"{self._who} gave no answer: {failure}"


def _taken(reply: ChatReply) -> None:
    """Any completion will do: only whether the request is taken is asked."""


def _is_too_long(refusal: ChatRefused) -> bool:
    words = f"{refusal.code} {refusal.words}".lower()
    return refusal.status in (400, 413, 422) and any(mark in words for mark in _TOO_LONG)
