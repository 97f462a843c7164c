"""What every side of the gateway benchmark is asked and answers: one conversation, the same for all.

A session is a conversation of `NUM_TURNS` calls; each call sends the whole history back, as agents do.
The answer is always the same words, so that bodies have the same size on every side.
"""

from __future__ import annotations

import json
from typing import Any

MODEL = "stepwell"
UPSTREAM_MODEL = "gpt-4o-mini"  # a name whose price LiteLLM knows: it would search for another each call
NUM_TURNS = 4
SYSTEM = "You walk on a frozen lake and want to reach the goal. Holes end the walk. " * 4
QUESTION = "The lake:\n_ _ O _\n_ P _ _\nO _ _ G\n_ _ _ _\nWhich way do you go? " * 3
ANSWER = "The goal is two columns to the right and one row down, so I go right first: <answer>Right</answer>"


def bodies() -> list[bytes]:
    """The body of each call of a session, in order."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    found = []
    for turn in range(NUM_TURNS):
        messages.append({"role": "user", "content": f"Turn {turn + 1}. {QUESTION}"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 128, "temperature": 1.0}
        found.append(json.dumps(body).encode())
        messages.append({"role": "assistant", "content": ANSWER})
    return found


def completion(model: str = MODEL) -> dict[str, Any]:
    """The answer in the form of a chat completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": ANSWER},
        "finish_reason": "stop",
        "logprobs": None,
    }
    return {
        "id": "chatcmpl-instant",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": 500, "completion_tokens": 40, "total_tokens": 540},
    }
