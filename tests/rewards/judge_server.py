"""A chat API that says YES or NO by rule, on a real socket, and fails as it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.responses import Response
from tests.rollout.chat_server import Body, ChatServer, chatting, refusal


@contextmanager
def judging() -> Iterator[ChatServer]:
    """The server on a free port of this machine, until the block ends."""
    with chatting() as server:
        server.say = by_rule
        yield server


def by_rule(body: Body) -> Body:
    """YES where every sentence of the agent's text is one of the true ones."""
    truth, text = body["messages"][-1]["content"].removesuffix("\n-----").split("\n-----\n")
    told = [sentence.strip(" .\n") for sentence in text.split(". ")]
    is_true = all(sentence in truth for sentence in told)
    return {"content": f"I compared them.<answer>{'YES' if is_true else 'NO'}</answer>"}


def failing(*statuses: int) -> list[Response]:
    """The next answers fail, and may be asked for again soon."""
    return [refusal(status, "as told", **{"retry-after": "0.01"}) for status in statuses]
