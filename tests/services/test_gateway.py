"""Calls through the real clients become exact steps: what was sampled is what is stored and continued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tests.services.gateways import Served, assistant_message, chat, engine, renderer, serve_gateway, user

from stepwell.core import Request, Sampled, SamplingParams, Step, TokenState
from stepwell.core.step import FinishReason
from stepwell.engines import EmbeddedEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_gateway(tmp_path_factory.mktemp("pool")) as gateway:
        yield gateway


def ids(step: Step) -> tuple[list[int], list[int]]:
    return step.state.prompt_ids.tolist(), step.action.action_ids.tolist()  # type: ignore[union-attr]


def sampled_directly(prompt: list[int], **params: Any) -> Any:
    request = Request(TokenState(prompt), SamplingParams(**params))
    return engine().generate_blocking([request])[0]


def test_a_step_holds_what_the_engine_gives_for_the_same_prompt_and_seed(served: Served) -> None:
    reply = chat(served.openai("exact"), [{"role": "system", "content": "Be brief."}, user("Where now?")])
    (step,) = served.steps("exact").values()
    prompt, action = ids(step)
    again = sampled_directly(prompt, max_tokens=8, seed=1)
    assert again.action.action_ids.tolist() == action
    np.testing.assert_allclose(step.behavior_logprobs, again.logprobs, atol=1e-5)
    assert renderer().template.decode(prompt).endswith("Where now?<|im_end|>\n<|im_start|>assistant\n")
    assert reply.usage.prompt_tokens == len(prompt) and reply.usage.completion_tokens == len(action)
    assert step.info["call"] == reply.id and step.sampling.seed == 1
    assert reply.choices[0].message.content == renderer().read_text(action)


def test_every_later_prompt_starts_with_the_earlier_prompt_and_action(served: Served) -> None:
    client, messages = served.openai("line"), [user("Where now?")]
    for turn in range(5):
        reply = chat(client, messages, seed=turn)
        messages += [
            {**assistant_message(reply), "content": f"  {assistant_message(reply)['content']}\n"},
            user(f"turn {turn}"),
        ]
    steps = [ids(step) for step in served.steps("line").values()]
    for (prompt, action), (later, _) in pairwise(steps):
        assert later[: len(prompt) + len(action)] == prompt + action
    shown = served.get("/sessions/line").json()
    assert (shown["num_steps"], shown["path"], shown["branches"]) == (5, [0, 1, 2, 3, 4], {})


def test_a_rewritten_history_is_a_branch_with_its_reason(served: Served) -> None:
    client = served.openai("branches")
    first = chat(client, [user("one")])
    asked = [user("one"), assistant_message(first), user("two")]
    second = chat(client, asked)
    chat(client, [user("one"), assistant_message(first), user("other")])
    chat(client, [*asked, {"role": "assistant", "content": "I never said that."}, user("three")])
    chat(client, [user("ONE"), assistant_message(first), user("two")])
    chat(client, asked, seed=2)
    chat(client, [user("something else")])
    chat(client, [*asked, assistant_message(second), user("three")])
    shown = served.get("/sessions/branches").json()
    assert shown["branches"] == {
        "history_changed": 2, "turn_changed": 1, "asked_again": 1, "new_conversation": 1,
    }  # fmt: skip
    assert shown["reasons"][:3] == [
        "step 2: history_changed: step 0 was already continued, with other messages",
        "step 3: turn_changed: message 3 is not a turn that was sampled here",
        "step 4: history_changed: message 0 (user) differs from the recorded one",
    ]
    parents = [step.info["parent"] for step in served.steps("branches").values()]
    assert parents == [None, 0, 0, 0, None, 0, None, 1]


def test_a_branch_starts_with_the_recorded_ids_it_shares(served: Served) -> None:
    client = served.openai("shared")
    first = chat(client, [user("one")])
    chat(client, [user("one"), assistant_message(first), user("two")])
    chat(client, [user("one"), assistant_message(first), user("other")])
    prompt, action = ids(served.steps("shared")[0])
    for number in (1, 2):
        assert ids(served.steps("shared")[number])[0][: len(prompt) + len(action)] == prompt + action


def test_each_choice_is_a_step_with_its_own_seed_and_the_continued_one_is_on_the_path(served: Served) -> None:
    client = served.openai("choices")
    reply = chat(client, [user("pick")], n=3, seed=5)
    steps = served.steps("choices")
    assert [step.info["choice"] for step in steps.values()] == [0, 1, 2]
    assert len({step.sampling.seed for step in steps.values()}) == 3 and steps[0].sampling.seed == 5
    for number, step in steps.items():
        again = sampled_directly(ids(step)[0], max_tokens=8, seed=step.sampling.seed)
        assert again.action.action_ids.tolist() == ids(step)[1]
        assert reply.choices[number].message.content == renderer().read_text(ids(step)[1])
    assert served.get("/sessions/choices").json()["path"] == [0]
    chat(client, [user("pick"), assistant_message(reply, 2), user("go on")])
    assert served.get("/sessions/choices").json()["path"] == [2, 3]
    prompt, action = ids(steps[2])
    assert ids(served.steps("choices")[3])[0][: len(prompt) + len(action)] == prompt + action


def test_the_same_seed_gives_the_same_text_and_no_seed_gives_another(served: Served) -> None:
    words = [
        chat(served.openai(f"seed-{n}"), [user("hello")], seed=seed).choices[0].message.content
        for n, seed in enumerate((7, 7, None, None))
    ]
    assert words[0] == words[1] and words[2] != words[3]


def test_a_stop_string_ends_the_action_and_is_not_shown(served: Served) -> None:
    text = assistant_message(chat(served.openai("plain"), [user("stop here")], max_tokens=30))["content"]
    stop = text[5:8]
    reply = chat(served.openai("stopped"), [user("stop here")], max_tokens=30, stop=[stop])
    assert reply.choices[0].message.content == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    (step,) = served.steps("stopped").values()
    assert stop in renderer().template.decode(ids(step)[1])
    assert step.sampling.finish_reason is FinishReason.STOP


def test_the_history_continues_from_the_ids_after_a_stop_string(served: Served) -> None:
    client = served.openai("stopped-line")
    text = assistant_message(chat(client, [user("stop here")], max_tokens=30))["content"]
    reply = chat(client, [user("stop here")], max_tokens=30, stop=[text[5:8]])
    chat(client, [user("stop here"), assistant_message(reply), user("go on")])
    steps = served.steps("stopped-line")
    prompt, action = ids(steps[1])
    assert steps[2].info["parent"] == 1
    assert ids(steps[2])[0][: len(prompt) + len(action)] == prompt + action


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"stop": ["a", " the"]}, {"logprobs": True}])
def test_a_streamed_reply_is_the_whole_reply_in_pieces(served: Served, options: dict[str, Any]) -> None:
    for seed in range(4):
        name = f"{'-'.join(options) or 'plain'}-{seed}"
        whole = chat(served.openai(f"whole-{name}"), [user("say")], max_tokens=40, seed=seed, **options)
        texts, finishes, tokens = ["", ""], {}, []
        stream = chat(
            served.openai(f"pieces-{name}"), [user("say")], max_tokens=40, seed=seed, stream=True, **options
        )
        for chunk in stream:
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs:
                tokens += choice.logprobs.content
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
        for choice in whole.choices:
            assert texts[choice.index] == choice.message.content
            assert finishes[choice.index] == choice.finish_reason
        if "logprobs" in options:
            assert tokens == whole.choices[0].logprobs.content
        steps = [served.steps(f"{way}-{name}") for way in ("whole", "pieces")]
        assert [ids(s) for s in steps[0].values()] == [ids(s) for s in steps[1].values()]


def test_logprobs_are_those_of_the_step_and_bytes_join_to_the_text(served: Served) -> None:
    reply = chat(served.openai("logprobs"), [user("say")], max_tokens=20, logprobs=True)
    tokens = reply.choices[0].logprobs.content
    (step,) = served.steps("logprobs").values()
    assert [token.logprob for token in tokens] == pytest.approx(
        step.behavior_logprobs[: len(tokens)].tolist()
    )
    raw = b"".join(bytes(token.bytes) for token in tokens)
    assert raw.decode(errors="replace") == reply.choices[0].message.content


def test_the_anthropic_client_gets_the_same_exact_line(served: Served) -> None:
    client, messages = served.anthropic("claude"), [user("hello")]
    for _ in range(3):
        reply = client.messages.create(model="m", max_tokens=8, system="Be brief.", messages=messages)  # type: ignore[arg-type]
        messages += [{"role": "assistant", "content": reply.content}, user("more")]  # type: ignore[dict-item]
    steps = [ids(step) for step in served.steps("claude").values()]
    assert len(steps) == 3
    for (prompt, action), (later, _) in pairwise(steps):
        assert later[: len(prompt) + len(action)] == prompt + action


def test_a_response_continues_an_earlier_one_by_its_id(served: Served) -> None:
    client = served.openai("responses")
    first = client.responses.create(model="m", input="hello", max_output_tokens=16)
    client.responses.create(model="m", input="more", previous_response_id=first.id, max_output_tokens=16)
    steps = [ids(step) for step in served.steps("responses").values()]
    assert steps[1][0][: len(steps[0][0]) + len(steps[0][1])] == steps[0][0] + steps[0][1]


def test_a_text_completion_is_sampled_from_exactly_its_ids(served: Served) -> None:
    reply = served.openai("text").completions.create(model="m", prompt=[5, 6, 7], max_tokens=4, seed=3)
    (step,) = served.steps("text").values()
    assert ids(step)[0] == [5, 6, 7] and reply.usage is not None and reply.usage.prompt_tokens == 3
    assert ids(step)[1] == sampled_directly([5, 6, 7], max_tokens=4, seed=3).action.action_ids.tolist()


def test_calls_of_one_session_may_run_at_once(served: Served) -> None:
    client = served.openai("parallel")
    first = chat(client, [user("begin")])
    asks = [[user("begin"), assistant_message(first), user(f"branch {n}")] for n in range(8)]
    replies: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: replies.update({n: chat(client, asks[n], seed=n)}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = served.steps("parallel")
    assert sorted(steps) == list(range(9)) and {step.info["parent"] for step in steps.values()} == {None, 0}
    prompt, action = ids(steps[0])
    by_call = {step.info["call"]: step for step in steps.values()}
    for reply in replies.values():
        step = by_call[reply.id]
        assert reply.choices[0].message.content == renderer().read_text(ids(step)[1])
        assert ids(step)[0][: len(prompt) + len(action)] == prompt + action


def test_a_prompt_beyond_the_context_is_refused_and_records_nothing(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(served.openai("long"), [user("word " * 5000)])
    assert refused.value.code == "context_length_exceeded"
    assert served.steps("long") == {}
    assert len(served.steps("long")) == 0 and served.get("/sessions/long").json()["num_running"] == 0


def test_an_image_is_refused_clearly(served: Served) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        chat(served.openai("image"), [{"role": "user", "content": [part]}])


def test_a_dead_engine_is_503_in_the_vendors_format_and_noted_with_the_session(tmp_path: Path) -> None:
    dead = EmbeddedEngine.from_pretrained("tiny-0.3m")
    with serve_gateway(tmp_path, dead) as served:
        dead.close()
        with pytest.raises(openai.InternalServerError) as refused:
            chat(served.openai("dead"), [user("hello")])
        assert refused.value.status_code == 503
        with pytest.raises(openai.InternalServerError):
            list(chat(served.openai("dead"), [user("hello")], stream=True))
        assert served.get("/sessions/dead").json()["infra_errors"] == {"EngineError": 2}
        assert served.post("/sessions/dead/complete").json()["status"] == "infra_error"
        assert "EngineError" in served.stored("dead").trajectory.error


class EndlessSampler(EmbeddedEngine):
    """Samples on past every end of a turn, so that a reply takes as long as its limit."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return await super().generate(
            [replace(request, params=replace(request.params, ignore_end=True)) for request in requests]
        )


async def test_a_client_that_disconnects_cancels_its_sampling(tmp_path: Path) -> None:
    with EndlessSampler.from_pretrained("tiny-0.3m") as rambler, serve_gateway(tmp_path, rambler) as served:
        async with httpx.AsyncClient(base_url=served.url) as client:
            body = {"model": "m", "messages": [user("talk")], "max_tokens": 4000}
            call = asyncio.create_task(client.post("/s/gone/v1/chat/completions", json=body, timeout=60))
            await running(served, "gone", 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await running(served, "gone", 0)
        num_steps = len(served.steps("gone"))
        assert num_steps == 0 or served.steps("gone")[0].num_units < 4000


async def running(served: Served, session: str, number: int, timeout_s: float = 30.0) -> None:
    """Wait until so many calls of a session are under way."""
    async with asyncio.timeout(timeout_s), httpx.AsyncClient(base_url=served.url) as client:
        while (await client.get(f"/sessions/{session}")).json().get("num_running") != number:
            await asyncio.sleep(0.01)


def test_with_template_history_every_prompt_is_what_the_template_writes(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, history="template") as served:
        client, messages = served.openai("afresh"), [user("one")]
        for _ in range(3):
            reply = chat(client, messages)
            messages = [*messages, assistant_message(reply), user("more")]
        for number, step in served.steps("afresh").items():
            own = [{"role": m["role"], "content": m["content"]} for m in messages[: 2 * number + 1]]
            text = engine().tokenizer.apply_chat_template(own, tokenize=False, add_generation_prompt=True)
            assert ids(step)[0] == engine().tokenizer.encode(text, add_special_tokens=False)
        assert served.get("/sessions/afresh").json()["branches"] == {}
