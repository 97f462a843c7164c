"""Tool calls that a real policy samples: a tiny model is trained to call tools, then served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.services.gateways import Served, chat, serve_gateway, user

from stepwell.core import ToolSchema
from stepwell.engines import EmbeddedEngine
from stepwell.policies.tiny_models import build_tiny
from stepwell.rendering import Message, Renderer

LOOK = ToolSchema("look", "Look", {"type": "object", "properties": {"at": {"type": "string"}}})
TOOLS = [LOOK.to_openai()]
ASKED = "Where is the lake?"
CALLING = 'Let me look.\n<tool_call>{"name": "look", "arguments": {"at": "map"}}</tool_call>'


def train_tool_caller() -> EmbeddedEngine:
    """A model that answers one question with one call, and what comes back with one word."""
    torch.manual_seed(0)
    model, tokenizer = build_tiny("tiny-0.3m")
    renderer = Renderer(tokenizer)
    first = renderer.start([Message.user(ASKED)], [LOOK])
    end = [tokenizer.eos_token_id]
    action = renderer.template.encode(CALLING) + end
    ids = torch.tensor([first.prompt_ids.tolist() + action])
    targets = ids.clone()
    targets[:, : first.prompt_ids.size] = -100
    optimizer = torch.optim.Adam(model.train().parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(input_ids=ids, labels=targets).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    return EmbeddedEngine(model.eval(), tokenizer, copy=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with train_tool_caller() as engine, serve_gateway(tmp_path_factory.mktemp("pool"), engine) as gateway:
        yield gateway


def ask(client: Any, messages: list[Any], **options: Any) -> Any:
    return chat(client, messages, temperature=0, max_tokens=60, **{"tools": TOOLS, **options})


def test_a_sampled_call_reaches_the_client_and_its_result_continues_the_exact_ids(served: Served) -> None:
    client = served.openai("tools")
    reply = ask(client, [user(ASKED)])
    (call,) = reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.content == "Let me look."
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "map"})
    renamed = {**call.model_dump(), "id": "other-1"}  # frameworks rename calls
    turn = {"role": "assistant", "content": "Let me look.", "tool_calls": [renamed]}
    result = {"role": "tool", "tool_call_id": "other-1", "content": "north"}
    ask(client, [user(ASKED), turn, result])
    first, second = served.steps("tools").values()
    before = [*first.state.prompt_ids, *first.action.action_ids]  # type: ignore[union-attr]
    assert second.info["parent"] == 0
    assert second.state.prompt_ids[: len(before)].tolist() == before  # type: ignore[union-attr]
    new = served.gateway.renderer.template.decode(second.state.prompt_ids[len(before) :].tolist())  # type: ignore[union-attr]
    assert new == "\n<|im_start|>tool\nnorth<|im_end|>\n<|im_start|>assistant\n"


def test_a_streamed_call_is_the_same_call_and_its_markup_is_never_sent(served: Served) -> None:
    text, calls, finish = "", [], None
    for chunk in ask(served.openai("streamed"), [user(ASKED)], stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        calls += delta.tool_calls or []
        finish = chunk.choices[0].finish_reason or finish
    assert (text, finish) == ("Let me look.", "tool_calls")
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("look", {"at": "map"})
    ]


def test_the_anthropic_client_gets_the_call_and_sends_its_result(served: Served) -> None:
    client = served.anthropic("blocks")
    tools: Any = [{"name": "look", "description": "Look", "input_schema": LOOK.parameters}]
    options: Any = {"model": "m", "max_tokens": 60, "tools": tools, "extra_body": {"temperature": 0}}
    reply = client.messages.create(messages=[{"role": "user", "content": ASKED}], **options)
    assert reply.stop_reason == "tool_use" and [block.type for block in reply.content] == ["text", "tool_use"]
    used: Any = reply.content[1]
    assert (used.name, used.input) == ("look", {"at": "map"})
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "north"}
    messages: Any = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(messages=messages, **options)
    assert [step.info["parent"] for step in served.steps("blocks").values()] == [None, 0]


def test_without_tools_in_the_call_the_markup_is_text(served: Served) -> None:
    reply = chat(served.openai("no-tools"), [user(ASKED)], temperature=0, max_tokens=60)
    (step,) = served.steps("no-tools").values()
    assert not reply.choices[0].message.tool_calls
    assert reply.choices[0].message.content == served.gateway.renderer.read_text(step.action.action_ids)  # type: ignore[union-attr]
