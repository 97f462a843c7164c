"""An outside model behind a chat API.

    prepare ─► (one small request with everything that later ones contain) ─► what this API accepts
    ask_model ─► body ─► ChatClient ─► OutsideReply

APIs accept different things. `prepare` finds out before the first episode: a refused seed is left out, the
token limit goes under its newer name, tools go into the prompt. A wrong address, key or model is an error
that names the fix. Nothing is adapted later, so that all episodes are sampled in the same way.

During episodes, a prompt that is too long raises `ContextLengthError` (the episode is truncated, as with our
own models). Everything else that the API refuses or does not answer raises `EngineError`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from stepwell.rewards.chat_client import CallCounts, ChatClient, ChatRefusedError, ChatReply, NoAnswerError
from stepwell.rollout.chat_messages import (
    OutsideReply,
    encode_api_message,
    encode_data_url,
    read_outside_reply,
)

_MAX_SEED = 2**31  # servers differ in how large a seed may be; all take these
_MAX_URLS = 512
_NUM_ADAPTED = 4
_GREY = "a grey image"
_TOO_LONG = (
    "context length",
    "context_length",
    "context window",
    "too long",
    "maximum context",
    "the prompt has",
)


@dataclass(slots=True)
class ChatCounts(CallCounts):
    """Calls and tokens so far, and calls without an answer."""

    num_failures: int = 0

    def summarize(self, config: ChatApiConfig) -> dict[str, float]:
        """All counts, and the cost if prices are known."""
        spent = self.prompt_tokens * config.prompt_price + self.completion_tokens * config.completion_price
        return asdict(self) | (
            {"cost": spent / 1e6} if config.prompt_price or config.completion_price else {}
        )


class ChatModel:
    """The model `config.model` at `config.url`; open it with `async with`."""

    def __init__(self, config: ChatApiConfig, image_store: ImageStore | None = None) -> None:
        self.config = config
        self.counts = ChatCounts()
        self.notes: list[str] = []
        """What was adapted, for the user."""
        self._image_store = ImageStore() if image_store is None else image_store
        self._client = ChatClient(config, self.counts)
        self._urls: OrderedDict[str, str] = OrderedDict()
        self._limit_name = "max_tokens"
        self._with_seed = True

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__()

    async def prepare(
        self, params: SamplingParams, tools: Sequence[ToolSchema] = (), *, with_image: bool = False
    ) -> bool:
        """Find out what the API accepts; whether that includes `tools`."""
        message = Message.user("Answer with the word: ready")
        if with_image:
            self._urls[_GREY] = encode_data_url(np.full((32, 32, 3), 127, dtype=np.uint8))
            message = Message.user([ImagePart(_GREY), TextPart("Answer with the word: ready")])
        offered = () if self.config.tools == "text" else tuple(tools)
        for _ in range(_NUM_ADAPTED):
            body = self._build_body([message], offered, params)
            try:
                await self._client.complete(body, _accept_any, must_be_there=True)
                return bool(offered)
            except ChatRefusedError as refusal:
                offered = self._adapt_request(refusal, offered, with_image)
            except NoAnswerError as failure:
                raise EngineError(self._explain_silence(failure)) from failure
        raise ConfigError(f"{self._who} refuses every kind of request that we know")

    async def ask_model(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], params: SamplingParams
    ) -> OutsideReply:
        """The reply to a conversation."""
        body = self._build_body(messages, tools, params)
        sampling = Sampling(params.temperature, params.top_p, body.get("seed"))

        def read_checked(reply: ChatReply) -> OutsideReply:
            try:
                return read_outside_reply(reply, sampling)
            except InputError as error:
                self.counts.num_unreadable += 1
                raise NoAnswerError(str(error)) from error

        try:
            return await self._client.complete(body, read_checked)
        except ChatRefusedError as refusal:
            if _is_too_long(refusal):
                raise ContextLengthError(refusal.words) from refusal
            if refusal.status in (401, 403):
                raise ConfigError(self._explain_refusal(refusal)) from refusal
            self.counts.num_failures += 1
            raise EngineError(f"{self._who} {refusal}") from refusal
        except NoAnswerError as failure:
            self.counts.num_failures += 1
            raise EngineError(self._explain_silence(failure)) from failure

    def _build_body(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], params: SamplingParams
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [encode_api_message(message, self._encode_image) for message in messages],
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

    def _encode_image(self, name: str) -> str:
        """An image as a data URL; recent ones are kept."""
        if name not in self._urls:
            self._urls[name] = encode_data_url(self._image_store.get(name))
        self._urls.move_to_end(name)
        while len(self._urls) > _MAX_URLS:
            self._urls.popitem(last=False)
        return self._urls[name]

    def _adapt_request(
        self, refusal: ChatRefusedError, offered: tuple[ToolSchema, ...], with_image: bool
    ) -> tuple[ToolSchema, ...]:
        """Leave out or rename what the API refuses; raises if nothing can be done."""
        words = refusal.words.lower()
        if refusal.status in (400, 422):
            if self._limit_name in words and "max_completion_tokens" in words:
                self._limit_name = "max_completion_tokens"
                return offered
            if self._with_seed and "seed" in words:
                self._with_seed = False
                self.notes.append("the API accepts no seed: sampled episodes cannot be repeated")
                return offered
            if with_image and any(word in words for word in ("image", "picture", "vision", "multimodal")):
                raise ConfigError(
                    f"{self._who} does not accept images ({refusal.words}); choose a vision model, or text "
                    'observations (env.options: observation = "text", if the environment has that)'
                ) from refusal
            if offered and self.config.tools == "auto" and ("tool" in words or "function" in words):
                self.notes.append("the API accepts no tools: they are described in the prompt")
                return ()
        raise ConfigError(self._explain_refusal(refusal)) from refusal

    @property
    def _who(self) -> str:
        return f"{self.config.model} at {self.config.url}"

    def _explain_refusal(self, refusal: ChatRefusedError) -> str:
        fix = "see its message; the request depends on sampling, eval.temperature and --tools"
        if refusal.status in (401, 403):
            fix = f"put the right key into ${self.config.key_variable}, or name another by --api-key-env"
        elif refusal.status == 404:
            fix = "check --model and --endpoint, which ends before /chat/completions (often with /v1)"
        elif refusal.status == 429:
            fix = "the account has no budget left"
        return f"{self._who} {refusal}; {fix}"

    def _explain_silence(self, failure: NoAnswerError) -> str:
        if failure.is_unreachable:
            return f"no server answers at {self.config.url} ({failure}); start it, or correct --endpoint"
        return f"{self._who} gave no answer: {failure}"


def _accept_any(reply: ChatReply) -> None:
    """Accept any completion: only whether the request is accepted matters."""


def _is_too_long(refusal: ChatRefusedError) -> bool:
    words = f"{refusal.code} {refusal.words}".lower()
    return refusal.status in (400, 413, 422) and any(mark in words for mark in _TOO_LONG)
