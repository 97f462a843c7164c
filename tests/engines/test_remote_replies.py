"""The remote engine and replies that are wrong: whatever comes back, a sample or an engine error."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engines.completions_server import Answer, CompletionsServer
from tests.engines.remote_engines import PROMPT, ask, engine_for, server, tiny
from tests.properties import examples

from stepwell.core.errors import EngineError
from stepwell.core.versions import VersionSpan
from stepwell.engines.completions import CompletionReply

__all__ = ["server", "tiny"]  # fixtures


def _without_ids(choice: dict[str, Any]) -> None:
    choice["token_ids"] = None


def _one_logprob_less(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"].pop()


def _no_logprobs(choice: dict[str, Any]) -> None:
    choice["logprobs"] = None


def _null_logprob(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = None


def _logits(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = 3.5


def _minus_infinity(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = -9999.0


def _other_prompt(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = [1, *choice["prompt_token_ids"]]


def _unknown_prompt(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = None


def _aborted(choice: dict[str, Any]) -> None:
    choice["finish_reason"] = "abort"


def _cut(choice: dict[str, Any]) -> None:
    choice["token_ids"].pop()
    choice["logprobs"]["token_logprobs"].pop()


def _text_ids(choice: dict[str, Any]) -> None:
    choice["token_ids"][0] = "5"


def _huge_id(choice: dict[str, Any]) -> None:
    choice["token_ids"][0] = 2**31


def _other_stop(choice: dict[str, Any]) -> None:
    choice["finish_reason"], choice["stop_reason"] = "stop", "never sampled"


BROKEN = [
    (_without_ids, "does not support `return_token_ids`"),
    (_one_logprob_less, "7 logprobs for token_ids"),
    (_no_logprobs, "no logprobs.token_logprobs"),
    (_null_logprob, "contains the logprob None"),
    (_logits, "contains the logprob 3.5.*--logprobs-mode"),
    (_minus_infinity, r"contains the logprob -9999\.0"),
    (_other_prompt, "the prompt that was sent .5 ids sent, 6 returned"),
    (_unknown_prompt, "the prompt that was sent .5 ids sent, none returned"),
    (_aborted, "finish_reason 'abort' after 8"),
    (_cut, "7 tokens with finish_reason 'length', but max_tokens was 8"),
    (_text_ids, "each id needs one"),
    (_huge_id, "each id needs one"),
    (_other_stop, "stopped at 'never sampled'"),
]


@pytest.mark.parametrize(("spoil", "match"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_reply_that_contradicts_itself_is_refused(
    server: CompletionsServer, spoil: Any, match: str
) -> None:
    def answers(path: str, body: dict[str, Any]) -> Answer | None:
        if not body:
            return None
        reply = server.completion(body)
        spoil(reply["choices"][0])
        return 200, json.dumps(reply).encode()

    server.answers = answers
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match=match):
            await engine.generate([ask(ignore_end=True)])


@pytest.mark.parametrize(
    ("chunks", "match"),
    [
        ([], "stream ended early"),
        ([b"data: {oops\n\n"], "invalid JSON"),
        ([b'data: {"error": {"message": "engine died"}}\n\n'], "the server failed: engine died"),
        ([b"data: [DONE]\n\n"], "finish_reason None after 3"),
        ([b": ping\n\n", b'data: {"choices": []}\n\n'], "not a completion with one choice"),
    ],
)
async def test_a_stream_that_breaks_off_raises_after_the_tokens_it_gave(
    server: CompletionsServer, chunks: list[bytes], match: str
) -> None:
    def answers(path: str, body: dict[str, Any]) -> Answer | None:
        return (200, server.stream(body)[:3] + chunks) if body else None

    server.answers = answers
    got = []
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match=match):
            async for item in engine.stream(ask(ignore_end=True)):
                got.append(item)
    assert len(got) == 3


@pytest.mark.parametrize(
    "content", [b"{oops", b"<html>hello</html>", b"[]", b'{"choices": [{}, {}]}', b"null"]
)
async def test_a_reply_in_another_form_is_an_engine_error(server: CompletionsServer, content: bytes) -> None:
    server.answers = lambda path, body: (200, content) if body else None
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match="the server's reply is no"):
            await engine.generate([ask()])
    server.answers = lambda path, body: (200, content)
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match=r"reply is not JSON|does not serve 'tiny'"):
            await engine.check_ready()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GOOD = {
    "choices": [
        {
            "token_ids": [5, 6],
            "logprobs": {"token_logprobs": [-0.5, -1.5]},
            "prompt_token_ids": PROMPT,
            "finish_reason": "length",
            "stop_reason": None,
            "text": "ab",
        }
    ],
    "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
}


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_damage_to_a_reply_gives_the_sample_or_an_engine_error(data: st.DataObject) -> None:
    reply = copy.deepcopy(GOOD)
    target: Any = reply
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            target[key] = data.draw(JSON)
            break
        target = target[key]
    answer = CompletionReply(ask(max_tokens=2), seed=1, max_tokens=2)
    try:
        tokens = list(answer.add_chunk(reply))
        sample = answer.build_sample(VersionSpan.at(0))
    except EngineError:
        return
    assert sample.action.num_units == len(sample.logprobs) == len(tokens) >= 1
    assert np.isfinite(sample.logprobs).all() and (sample.logprobs <= 0).all()
