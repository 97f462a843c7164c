"""The remote engine: exact ids and logprobs over real HTTP, and a clear error for everything else."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engines.completions_server import CONTEXT, Answer, CompletionsServer, serving
from tests.properties import examples

from stepwell.config.engine import RemoteEngineConfig
from stepwell.core.errors import ConfigError, ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled, Sampler, SamplingParams
from stepwell.core.step import ArrayState, FinishReason, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.completions import CompletionReply, detect_logprobs_mode, required_logprobs_mode
from stepwell.engines.parity import check_parity
from stepwell.engines.remote import RemoteEngine
from stepwell.engines.token_stream import SampledToken, Streamer
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.tiny_models import build_tiny

PROMPT = [40, 41, 42, 43, 44]
QUICK = RemoteEngineConfig(num_retries=2, backoff_s=0.01, connect_timeout_s=2.0)


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    model, tokenizer = build_tiny("tiny-0.3m", seed=3)
    with torch.no_grad():
        model.model.norm.weight.mul_(4.0)  # fresh weights find all tokens alike, which would hide mistakes
    return model, tokenizer


@pytest.fixture
def server(tiny: tuple[Any, Any]) -> Iterator[CompletionsServer]:
    with serving(CompletionsServer(*tiny)) as running:
        yield running


@pytest.fixture
def scorer(tiny: tuple[Any, Any]) -> CausalLMPolicy:
    return CausalLMPolicy(copy.deepcopy(tiny[0]))


def engine_for(server: CompletionsServer, config: RemoteEngineConfig = QUICK, **names: Any) -> RemoteEngine:
    return RemoteEngine(server.url, "tiny", config, tokenizer=server.tokenizer, **names)


def ask(prompt: list[int] = PROMPT, **params: Any) -> Request:
    return Request(TokenState(prompt), SamplingParams(**{"max_tokens": 8, "seed": 1, **params}))


async def read(engine: RemoteEngine, request: Request) -> tuple[list[SampledToken], Sampled]:
    *tokens, last = [item async for item in engine.stream(request)]
    assert isinstance(last, Sampled) and all(isinstance(token, SampledToken) for token in tokens)
    assert [token.id for token in tokens] == last.action.action_ids.tolist()
    assert [token.logprob for token in tokens] == last.logprobs.tolist()
    return tokens, last


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p"),
    [
        ("raw", 1.0, 1.0),
        ("processed", 1.0, 1.0),
        ("raw", 0.0, 1.0),
        ("processed", 0.0, 0.5),
        ("raw", 1.0, 0.5),
        ("processed", 0.7, 1.0),
        ("processed", 1.6, 1.0),
    ],
)
async def test_logprobs_that_come_back_are_those_the_trainer_computes(
    server: CompletionsServer, scorer: CausalLMPolicy, mode: str, temperature: float, top_p: float
) -> None:
    server.mode = mode
    requests = [
        ask([9 + i, 5, 17], temperature=temperature, top_p=top_p, seed=i, ignore_end=True) for i in range(6)
    ]
    async with engine_for(server) as engine:
        assert isinstance(engine, Sampler) and isinstance(engine, Streamer)
        samples = await engine.generate(requests)
    steps = [sample.step(request.state) for sample, request in zip(samples, requests, strict=True)]
    report = check_parity(scorer, steps, 1e-4)
    assert report.num_tokens == 6 * 8
    assert {step.sampling.temperature for step in steps} == {temperature}


@pytest.mark.parametrize(
    ("mode", "temperature", "top_p", "needed"),
    [("raw", 0.7, 1.0, "processed"), ("processed", 1.0, 0.5, "raw")],
)
async def test_logprobs_of_another_distribution_are_refused_with_the_servers_option(
    server: CompletionsServer, mode: str, temperature: float, top_p: float, needed: str
) -> None:
    server.mode = mode
    async with engine_for(server) as engine:
        with pytest.raises(InputError, match=f"--logprobs-mode {needed}_logprobs"):
            await engine.generate([ask(temperature=temperature, top_p=top_p)])
        asked = len(server.seen)
        with pytest.raises(InputError, match=f"--logprobs-mode {needed}_logprobs"):
            await engine.generate([ask(temperature=temperature, top_p=top_p)])
        assert len(server.seen) == asked  # known by now


def test_settings_whose_logprobs_no_server_returns_are_refused() -> None:
    with pytest.raises(InputError, match="use temperature=1 or top_p=1"):
        required_logprobs_mode(0.7, 0.9)
    with pytest.raises(InputError, match="use 0"):
        required_logprobs_mode(0.001, 1.0)


def test_a_mode_that_cannot_be_told_must_be_set() -> None:
    flat = {"choices": [{"logprobs": {"top_logprobs": [{"a": -2.0, "b": -2.0}]}}]}
    with pytest.raises(EngineError, match="set logprobs_mode"):
        detect_logprobs_mode(flat, flat)
    with pytest.raises(EngineError, match="top_logprobs"):
        detect_logprobs_mode({"choices": [{}]}, flat)


async def test_a_stream_gives_what_generate_gives(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        (whole,) = await engine.generate([ask()])
        tokens, last = await read(engine, ask())
    assert len(tokens) == 8
    assert last.action == whole.action and last.sampling == whole.sampling
    assert last.logprobs.tobytes() == whole.logprobs.tobytes()
    assert (whole.num_cached, last.num_cached) == (2, 2)


async def test_prompts_are_sent_as_ids_and_nothing_is_left_to_the_servers_defaults(
    server: CompletionsServer,
) -> None:
    async with engine_for(server) as engine:
        await engine.generate([ask(stop_ids=(7,), ignore_end=True, seed=2**63 + 5)])
    _, body, _ = server.seen[-1]
    assert body["prompt"] == PROMPT and body["add_special_tokens"] is False
    off = {"top_k": 0, "min_p": 0.0, "min_tokens": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert off.items() <= body.items() and body["repetition_penalty"] == 1.0
    assert (body["stop_token_ids"], body["ignore_eos"], body["seed"]) == ([7], True, 5)


async def test_requests_without_a_seed_draw_one_and_record_it(server: CompletionsServer) -> None:
    def seeds(samples: list[Sampled]) -> list[int | None]:
        return [sample.sampling.seed for sample in samples]

    async with engine_for(server) as engine, engine_for(server) as other:
        first = await engine.generate([ask(seed=None), ask(seed=None)])
        second = await other.generate([ask(seed=None), ask(seed=None)])
    assert len(set(seeds(first))) == 2 and None not in seeds(first)
    assert seeds(first) == seeds(second)
    assert [a.action for a in first] == [b.action for b in second]


async def test_actions_end_where_they_should_and_say_why(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        (long,) = await engine.generate([ask(ignore_end=True)])
        ids = long.action.action_ids.tolist()
        text = server.tokenizer.decode(ids, skip_special_tokens=False)
        by_id, by_text = await engine.generate(
            [ask(ignore_end=True, stop_ids=(ids[2],)), ask(ignore_end=True, stop=(text[-3:],))]
        )
    assert long.sampling.finish_reason is FinishReason.LENGTH
    assert long.action.text == server.tokenizer.decode(ids, skip_special_tokens=True)
    assert by_id.action.action_ids.tolist() == ids[: ids.index(ids[2]) + 1]
    assert by_text.action.action_ids.tolist() == ids[: len(by_text.logprobs)]
    assert text[-3:] in server.tokenizer.decode(by_text.action.action_ids.tolist())
    assert {by_id.sampling.finish_reason, by_text.sampling.finish_reason} == {FinishReason.STOP}


async def test_the_context_cuts_an_action_and_refuses_a_full_prompt(server: CompletionsServer) -> None:
    engine = engine_for(server)
    assert await asyncio.to_thread(lambda: engine.max_length) == CONTEXT
    async with engine:
        (cut,) = await engine.generate([ask([5] * (CONTEXT - 3), max_tokens=50, ignore_end=True)])
        assert len(cut.logprobs) == 3 and cut.sampling.finish_reason is FinishReason.LENGTH
        with pytest.raises(ContextLengthError, match=f"the context holds {CONTEXT}"):
            await engine.generate([ask([5] * CONTEXT)])


async def test_what_can_never_be_served_is_refused_before_anything_is_sent(server: CompletionsServer) -> None:
    async with RemoteEngine(server.url, "tiny", QUICK) as engine:
        assert await engine.generate([]) == []
        with pytest.raises(InputError, match="give the engine one, or use stop_ids"):
            await engine.generate([ask(stop=("x",))])
        with pytest.raises(InputError, match="not from arrays"):
            await engine.generate([Request(ArrayState({"x": np.zeros(2)}))])
    assert not server.seen
    with pytest.raises(ConfigError, match="base_url must start with http"):
        RemoteEngine("127.0.0.1:8000", "tiny")


async def test_many_requests_at_once_come_back_in_order(server: CompletionsServer) -> None:
    requests = [ask([3 + i, 4, 5], seed=i, max_tokens=3) for i in range(48)]
    config = QUICK.model_copy(update={"max_connections": 8})
    async with engine_for(server, config) as engine:
        together = await engine.generate(requests)
        alone = [(await engine.generate([request]))[0] for request in requests[:6]]
    assert [a.action for a in alone] == [b.action for b in together[:6]]
    assert len({tuple(sample.action.action_ids.tolist()) for sample in together}) > 24


def test_two_event_loops_one_after_the_other_share_an_engine(server: CompletionsServer) -> None:
    engine = engine_for(server)
    first, second = (asyncio.run(engine.generate([ask()])) for _ in range(2))
    assert first[0].action == second[0].action


async def test_leaving_a_stream_hangs_up_on_the_server(server: CompletionsServer) -> None:
    many = server.stream({**body_of(ask()), "max_tokens": 1})[:1] * 200_000

    def flood(path: str, body: dict[str, Any]) -> Answer | None:
        return (200, many) if body.get("stream") else None

    server.answers = flood
    async with engine_for(server) as engine:
        async with aclosing(engine.stream(ask())) as items:
            assert isinstance(await anext(items), SampledToken)
        assert await asyncio.to_thread(server.hung_up.wait, 10)


async def test_one_failure_in_a_slot_is_raised_and_the_rest_is_called_off(server: CompletionsServer) -> None:
    may_answer = threading.Event()

    def answers(path: str, body: dict[str, Any]) -> Answer | None:
        if body.get("prompt") == [7]:
            return 500, b'{"error":{"message":"broken"}}'
        if body.get("prompt") == [8]:
            may_answer.wait(60)
        return None

    server.answers = answers
    async with engine_for(server) as engine:
        await engine.check_ready()
        with pytest.raises(EngineError, match="answered 500: broken; look at the server's log"):
            await engine.generate([ask([8]), ask([7])])
        assert not may_answer.is_set()
        may_answer.set()


async def test_a_server_that_is_not_there_is_an_engine_error_that_names_the_address() -> None:
    with socket.socket() as taken:  # bound, never listening: nobody else can answer on it
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        engine = RemoteEngine(url, "tiny", QUICK)
        with pytest.raises(EngineError, match=f"no answer from {url}.*start the server"):
            await engine.generate([ask()])
        with pytest.raises(EngineError, match="no answer from"):
            await read(engine, ask())
        with pytest.raises(EngineError, match="no answer from"):
            await asyncio.to_thread(lambda: engine.max_length)
        assert not await engine.is_ready()


@pytest.mark.parametrize("first", [(503, b"{}"), (429, b"{}"), (0, b"")])
async def test_try_later_and_a_lost_connection_are_tried_again(
    server: CompletionsServer, first: Answer
) -> None:
    left = [first, first]
    server.answers = lambda path, body: left.pop() if body and left else None
    async with engine_for(server) as engine:
        (sample,) = await engine.generate([ask()])
        assert not left and len(sample.logprobs) == 8
        bodies = [body for path, body, _ in server.seen if path == "/v1/completions"]
        assert len(bodies) == 3 and bodies[0] == bodies[1] == bodies[2]  # the same seed: nothing is selected


@pytest.mark.parametrize("status", [500, 503])
async def test_failures_that_last_are_raised(server: CompletionsServer, status: int) -> None:
    server.answers = lambda path, body: (status, b"gone wrong") if body else None
    async with engine_for(server) as engine:
        with pytest.raises(EngineError, match=f"answered {status}: gone wrong"):
            await engine.generate([ask()])
    assert len(server.seen) == (2 if status == 500 else 4)  # a 500 is not tried again


async def test_a_long_silence_is_raised_and_not_tried_again(server: CompletionsServer) -> None:
    may_answer = threading.Event()

    def slow(path: str, body: dict[str, Any]) -> Answer | None:
        if body:
            may_answer.wait(60)
        return None

    server.answers = slow
    async with engine_for(server, QUICK.model_copy(update={"timeout_s": 0.5})) as engine:
        with pytest.raises(EngineError, match=r"did not respond within timeout_s=0\.5"):
            await engine.generate([ask()])
        may_answer.set()
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [
        (400, InputError, "refuses the request: no such thing"),
        (401, EngineError, "set api_key_env"),
        (404, EngineError, "does it serve 'tiny' at /v1/completions"),
    ],
)
async def test_refusals_say_what_to_change(
    server: CompletionsServer, status: int, kind: type[Exception], match: str
) -> None:
    words = json.dumps({"error": {"message": "no such thing"}}).encode()
    server.answers = lambda path, body: (status, words) if body else None
    async with engine_for(server) as engine:
        for call in (engine.generate([ask()]), read(engine, ask())):
            with pytest.raises(kind, match=match):
                await call


async def test_readiness_is_asked_once_and_without_patience(server: CompletionsServer) -> None:
    async with engine_for(server) as engine:
        assert await engine.is_ready()
        server.answers = lambda path, body: (503, b"{}")
        assert not await engine.is_ready()
    assert [path for path, _, _ in server.seen] == ["/v1/models"] * 2


async def test_another_model_name_is_told_what_there_is(server: CompletionsServer) -> None:
    async with RemoteEngine(server.url, "other", QUICK) as engine:
        with pytest.raises(EngineError, match="does not serve 'other'; it serves tiny"):
            await engine.check_ready()


async def test_the_api_key_goes_out_as_a_bearer_token(
    server: CompletionsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = QUICK.model_copy(update={"api_key_env": "TEST_REMOTE_KEY"})
    with pytest.raises(ConfigError, match="TEST_REMOTE_KEY, which is not set"):
        engine_for(server, config)
    monkeypatch.setenv("TEST_REMOTE_KEY", "abc")
    async with engine_for(server, config) as engine:
        await engine.generate([ask()])
    assert {key for _, _, key in server.seen} == {"Bearer abc"}


async def test_versions_come_from_the_configuration_or_from_an_endpoint(server: CompletionsServer) -> None:
    async with engine_for(server, QUICK.model_copy(update={"version": 4})) as engine:
        assert (await engine.generate([ask()]))[0].policy_version == VersionSpan(4, 4)

    def changing(path: str, body: dict[str, Any]) -> Answer | None:
        server.version = "3" if path == "/v1/completions" else server.version
        return None

    server.version, server.answers = "2", changing
    async with engine_for(server, QUICK.model_copy(update={"version_path": "/weight_info"})) as engine:
        assert (await engine.generate([ask()]))[0].policy_version == VersionSpan(2, 3)
        assert (await read(engine, ask()))[1].policy_version == VersionSpan(3, 3)
        assert engine.version == 3
        server.version, server.answers = "default", lambda path, body: None
        with pytest.raises(EngineError, match="returned the version 'default'"):
            await engine.generate([ask()])


def body_of(request: Request) -> dict[str, Any]:
    state, params = request.state, request.params
    assert isinstance(state, TokenState)
    off = {"stop": [], "stop_token_ids": [], "ignore_eos": True, "skip_special_tokens": True, "logprobs": 0}
    sampling = {"temperature": params.temperature, "top_p": params.top_p, "seed": params.seed}
    return {"prompt": state.prompt_ids.tolist(), "max_tokens": params.max_tokens, **sampling, **off}


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
