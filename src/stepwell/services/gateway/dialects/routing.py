"""The routes of all dialects, joined to a gateway; paths are relative to wherever they are mounted.

`caller` makes who calls, in which session, from a request; it may refuse. Bodies are described
in the app's OpenAPI by the request models, refusals by the vendor's error form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from stepwell.services.gateway.dialects import (
    anthropic_messages,
    models,
    openai_chat,
    openai_completions,
    openai_responses,
)
from stepwell.services.gateway.dialects.anthropic_events import MessagesWriter
from stepwell.services.gateway.dialects.openai_responses_events import ResponsesWriter
from stepwell.services.gateway.dialects.refusals import AnthropicError, Json, OpenAIError, vendor_of
from stepwell.services.gateway.dialects.route import DialectRoute, EventStream, unless_gone
from stepwell.services.gateway.exchange import Answer, Answering, Caller

WhoCalls = Callable[[Request], Caller]


def routers(gateway: Answering, caller: WhoCalls) -> list[APIRouter]:
    """One router per API."""
    return [
        _chat(gateway, caller),
        _completions(gateway, caller),
        _responses(gateway, caller),
        _messages(gateway, caller),
        _models(gateway, caller),
    ]


def _router(tag: str, form: type[Any]) -> APIRouter:
    refusals: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": form, "description": "Refused, and why"},
        "5XX": {"model": form, "description": "Not served now, and why"},
    }
    return APIRouter(route_class=DialectRoute, tags=[tag], responses=refusals)


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or its events", "content": {"text/event-stream": {}}}
}


def _chat(gateway: Answering, caller: WhoCalls) -> APIRouter:
    router = _router("openai", OpenAIError)

    @router.post("/v1/chat/completions", responses=_STREAM)
    async def chat_completions(body: openai_chat.ChatRequest, request: Request) -> Response:
        """A chat completion, as OpenAI's API gives it."""
        who, ask = caller(request), openai_chat.ask_of(body, gateway.see)
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            writer = openai_chat.ChatWriter(ask, with_usage=with_usage)
            return EventStream(request, gateway.stream(who, ask), writer)
        return Json(openai_chat.reply(ask, await unless_gone(request, gateway.answer(who, ask))))

    return router


def _completions(gateway: Answering, caller: WhoCalls) -> APIRouter:
    router = _router("openai", OpenAIError)

    @router.post("/v1/completions", responses=_STREAM)
    async def completions(body: openai_completions.CompletionRequest, request: Request) -> Response:
        """A completion of plain text or token ids, as OpenAI's API gives it."""
        who, ask = caller(request), openai_completions.ask_of(body)
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            writer = openai_completions.CompletionWriter(ask, with_usage=with_usage)
            return EventStream(request, gateway.stream(who, ask), writer)
        return Json(openai_completions.reply(ask, await unless_gone(request, gateway.answer(who, ask))))

    return router


def _responses(gateway: Answering, caller: WhoCalls) -> APIRouter:
    router = _router("openai", OpenAIError)

    @router.post("/v1/responses", responses=_STREAM)
    async def responses(body: openai_responses.ResponsesRequest, request: Request) -> Response:
        """A response, as OpenAI's API gives it; it may go on from an earlier one."""
        who = caller(request)
        conversation = openai_responses.conversation_of(body, lambda id: gateway.recall(who, id), gateway.see)
        ask = openai_responses.ask_of(body, conversation)

        def remember(answer: Answer) -> None:
            gateway.remember(who, answer.id, (*conversation, openai_responses.turn_of(answer)))

        if body.stream:
            return EventStream(request, gateway.stream(who, ask), ResponsesWriter(body, ask, remember))
        answer = await unless_gone(request, gateway.answer(who, ask))
        remember(answer)
        return Json(openai_responses.reply(body, ask, answer))

    return router


def _messages(gateway: Answering, caller: WhoCalls) -> APIRouter:
    router = _router("anthropic", AnthropicError)

    @router.post("/v1/messages", responses=_STREAM)
    async def messages(body: anthropic_messages.MessagesRequest, request: Request) -> Response:
        """A message, as Anthropic's API gives it."""
        who, ask = caller(request), anthropic_messages.ask_of(body, gateway.see)
        if body.stream:
            return EventStream(request, gateway.stream(who, ask), MessagesWriter(ask))
        return Json(anthropic_messages.reply(ask, await unless_gone(request, gateway.answer(who, ask))))

    if isinstance(gateway, anthropic_messages.Counting):
        counting = gateway

        @router.post("/v1/messages/count_tokens")
        async def count_tokens(body: anthropic_messages.CountRequest, request: Request) -> Response:
            """How many tokens the prompt of a message has, as Anthropic's API counts them."""
            who, ask = caller(request), anthropic_messages.count_of(body, gateway.see)
            return Json({"input_tokens": await counting.count_tokens(who, ask)})

    return router


def _models(gateway: Answering, caller: WhoCalls) -> APIRouter:
    router = _router("models", OpenAIError | AnthropicError)  # type: ignore[arg-type]  # a union is a model too

    @router.get("/v1/models")
    async def list_models(
        request: Request, anthropic_version: Annotated[str | None, Header()] = None
    ) -> Response:
        """The models that may be asked for, in the form of whoever asks."""
        caller(request)
        return Json(models.model_list(gateway.models, vendor_of(request.url.path, request.headers)))

    @router.get("/v1/models/{name:path}")
    async def get_model(
        name: str, request: Request, anthropic_version: Annotated[str | None, Header()] = None
    ) -> Response:
        """One model, in the form of whoever asks."""
        caller(request)
        return Json(models.one_model(name, gateway.models, vendor_of(request.url.path, request.headers)))

    return router
