"""The routes of all dialects, connected to a gateway. Paths are relative to where they are mounted.

`identify_caller` reads the caller and the session from a request; it may raise `ServiceError`. In the app's
OpenAPI, bodies are described by the request models, errors by the vendor's error format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from stepwell.services.gateway.chat import ChatBackend, ChatCompletion, GatewayCaller
from stepwell.services.gateway.dialects import (
    anthropic_messages,
    models,
    openai_chat,
    openai_completions,
    openai_responses,
)
from stepwell.services.gateway.dialects.anthropic_events import MessagesWriter
from stepwell.services.gateway.dialects.errors import (
    AnthropicError,
    AsciiJSONResponse,
    OpenAIError,
    find_vendor,
)
from stepwell.services.gateway.dialects.openai_responses_events import ResponsesWriter
from stepwell.services.gateway.dialects.route import DialectRoute, EventStream, run_until_disconnect

IdentifyCaller = Callable[[Request], GatewayCaller]


def make_routers(gateway: ChatBackend, identify_caller: IdentifyCaller) -> list[APIRouter]:
    """One router per API."""
    return [
        _make_chat_router(gateway, identify_caller),
        _make_completions_router(gateway, identify_caller),
        _make_responses_router(gateway, identify_caller),
        _make_messages_router(gateway, identify_caller),
        _make_models_router(gateway, identify_caller),
    ]


def _make_router(tag: str, error_model: type[Any]) -> APIRouter:
    errors: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": error_model, "description": "The request is refused"},
        "5XX": {"model": error_model, "description": "The service failed"},
    }
    return APIRouter(route_class=DialectRoute, tags=[tag], responses=errors)


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "The reply, or its events", "content": {"text/event-stream": {}}}
}


def _make_chat_router(gateway: ChatBackend, identify_caller: IdentifyCaller) -> APIRouter:
    router = _make_router("openai", OpenAIError)

    @router.post("/v1/chat/completions", responses=_STREAM)
    async def create_chat_completion(body: openai_chat.ChatCompletionRequest, request: Request) -> Response:
        """A chat completion, as in OpenAI's API."""
        caller, chat = identify_caller(request), openai_chat.parse_request(body, gateway.image_decoder)
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            writer = openai_chat.ChatWriter(chat, with_usage=with_usage)
            return EventStream(request, gateway.stream_chat(caller, chat), writer)
        completion = await run_until_disconnect(request, gateway.complete_chat(caller, chat))
        return AsciiJSONResponse(openai_chat.write_reply(chat, completion))

    return router


def _make_completions_router(gateway: ChatBackend, identify_caller: IdentifyCaller) -> APIRouter:
    router = _make_router("openai", OpenAIError)

    @router.post("/v1/completions", responses=_STREAM)
    async def create_completion(body: openai_completions.CompletionRequest, request: Request) -> Response:
        """A completion of plain text or token ids, as in OpenAI's API."""
        caller, chat = identify_caller(request), openai_completions.parse_request(body)
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            writer = openai_completions.CompletionWriter(chat, with_usage=with_usage)
            return EventStream(request, gateway.stream_chat(caller, chat), writer)
        completion = await run_until_disconnect(request, gateway.complete_chat(caller, chat))
        return AsciiJSONResponse(openai_completions.write_reply(chat, completion))

    return router


def _make_responses_router(gateway: ChatBackend, identify_caller: IdentifyCaller) -> APIRouter:
    router = _make_router("openai", OpenAIError)

    @router.post("/v1/responses", responses=_STREAM)
    async def create_response(body: openai_responses.ResponsesRequest, request: Request) -> Response:
        """A response, as in OpenAI's API. It may continue an earlier one."""
        caller = identify_caller(request)
        conversation = openai_responses.read_conversation(
            body, lambda id: gateway.recall_conversation(caller, id), gateway.image_decoder
        )
        chat = openai_responses.parse_request(body, conversation)

        def remember(completion: ChatCompletion) -> None:
            gateway.remember_conversation(
                caller, completion.id, (*conversation, openai_responses.make_reply_message(completion))
            )

        if body.stream:
            return EventStream(
                request, gateway.stream_chat(caller, chat), ResponsesWriter(body, chat, remember)
            )
        completion = await run_until_disconnect(request, gateway.complete_chat(caller, chat))
        remember(completion)
        return AsciiJSONResponse(openai_responses.write_reply(body, chat, completion))

    return router


def _make_messages_router(gateway: ChatBackend, identify_caller: IdentifyCaller) -> APIRouter:
    router = _make_router("anthropic", AnthropicError)

    @router.post("/v1/messages", responses=_STREAM)
    async def create_message(body: anthropic_messages.MessagesRequest, request: Request) -> Response:
        """A message, as in Anthropic's API."""
        caller, chat = identify_caller(request), anthropic_messages.parse_request(body, gateway.image_decoder)
        if body.stream:
            return EventStream(request, gateway.stream_chat(caller, chat), MessagesWriter(chat))
        completion = await run_until_disconnect(request, gateway.complete_chat(caller, chat))
        return AsciiJSONResponse(anthropic_messages.write_reply(chat, completion))

    if isinstance(gateway, anthropic_messages.TokenCounter):
        counter = gateway

        @router.post("/v1/messages/count_tokens")
        async def count_tokens(body: anthropic_messages.CountRequest, request: Request) -> Response:
            """The number of prompt tokens of a message, as in Anthropic's API."""
            caller = identify_caller(request)
            chat = anthropic_messages.parse_count_request(body, gateway.image_decoder)
            return AsciiJSONResponse({"input_tokens": await counter.count_tokens(caller, chat)})

    return router


def _make_models_router(gateway: ChatBackend, identify_caller: IdentifyCaller) -> APIRouter:
    router = _make_router("models", OpenAIError | AnthropicError)  # type: ignore[arg-type]  # a union is a model too

    @router.get("/v1/models")
    async def list_models(
        request: Request, anthropic_version: Annotated[str | None, Header()] = None
    ) -> Response:
        """The available models, in the caller's format."""
        identify_caller(request)
        return AsciiJSONResponse(
            models.write_model_list(gateway.models, find_vendor(request.url.path, request.headers))
        )

    @router.get("/v1/models/{name:path}")
    async def get_model(
        name: str, request: Request, anthropic_version: Annotated[str | None, Header()] = None
    ) -> Response:
        """One model, in the caller's format."""
        identify_caller(request)
        return AsciiJSONResponse(
            models.write_model(name, gateway.models, find_vendor(request.url.path, request.headers))
        )

    return router
