"""A chat API of your own in front of the gateway: `POST /api/chat` as Ollama's clients send it, no streaming.

    python examples/own_dialect.py     # serves at 127.0.0.1:8080

A dialect turns JSON into a `ChatRequest` and a `ChatCompletion` into JSON. It knows nothing of tokens,
sessions or engines: the gateway records every call. Keys, limits and error replies are the app's.
"""

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel

from stepwell.config.engine import EngineConfig
from stepwell.engines import EmbeddedEngine
from stepwell.pool import open_pool
from stepwell.rendering import Message, Renderer
from stepwell.services.gateway.app import create_app, identify_caller
from stepwell.services.gateway.chat import ChatRequest
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.http_server import serve


class OllamaMessage(BaseModel):
    role: str
    content: str


class OllamaRequest(BaseModel):
    model: str
    messages: list[OllamaMessage]
    options: dict[str, float] = {}


def make_router(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/api/chat")
    async def chat(body: OllamaRequest, request: Request) -> dict[str, object]:
        messages = tuple(Message(said.role, said.content) for said in body.messages)
        asked = ChatRequest(body.model, messages, max_tokens=int(body.options.get("num_predict", 128)))
        completion = await gateway.complete_chat(identify_caller(request), asked)
        reply = {"role": "assistant", "content": completion.choices[0].text}
        return {"model": completion.model, "message": reply, "done": True}

    return router


def make_app(gateway: Gateway) -> FastAPI:
    """The gateway's application with the dialect, also under `/s/SESSION` as the others are."""
    app = create_app(gateway)
    for prefix in ("", "/s/{session}"):
        app.include_router(make_router(gateway), prefix=prefix)
    return app


if __name__ == "__main__":
    engine = EmbeddedEngine.from_pretrained("tiny-0.3m", EngineConfig())
    with open_pool("pool.db") as pool:
        serve(make_app(Gateway(engine, Renderer(engine.tokenizer), pool)), "127.0.0.1", 8080)
