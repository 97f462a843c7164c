"""A gateway that dies loses nothing: real processes are killed, and clients retry."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.processes import await_end, start_module
from tests.services.gateways import assistant_message, chat, renderer, serve_gateway, user

from stepwell.pool import open_pool
from stepwell.services.keys import create_key, hash_key


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def read_metrics(url: str, path: str) -> dict[str, Any]:
    """What the gateway says of itself, asked for at little cost; nothing where it does not answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path)
        return dict(json.loads(connection.getresponse().read()))
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()


def is_up(url: str) -> bool:
    return read_metrics(url, "/health") == {"status": "ok"}


def wait_until(fact: Any, timeout_s: float = 90.0) -> None:
    end = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def run_restarting_gateway(folder: Path) -> Iterator[tuple[str, Any]]:
    """The URL of a gateway that comes back, and what kills it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    parent = start_module("tests.services.restarting_gateway", str(folder), str(port))

    def child() -> int:
        return int((folder / "pid").read_text())

    def kill() -> None:
        pid = child()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: child() != pid)

    try:
        wait_until(lambda: is_up(url))
        yield url, kill
    finally:
        parent.kill()  # with its child


def converse(url: str, session: str, num_turns: int, heard: dict[str, list[tuple[str, str]]]) -> None:
    client = openai.OpenAI(base_url=f"{url}/s/{session}/v1", api_key="none", max_retries=200, timeout=30)
    messages, heard[session] = [user("begin")], []
    for turn in range(num_turns):
        reply = chat(client, messages, seed=None)
        heard[session].append((reply.id, reply.choices[0].message.content))
        messages = [*messages, assistant_message(reply), user(f"turn {turn}")]
        time.sleep(0.05)


@pytest.mark.slow
def test_kills_at_any_moment_lose_no_step_and_put_none_twice_on_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.2)  # seconds; its own are up to 8
    heard: dict[str, list[tuple[str, str]]] = {}
    with run_restarting_gateway(tmp_path) as (url, kill):
        threads = [threading.Thread(target=converse, args=(url, f"s{n}", 12, heard)) for n in range(4)]
        for thread in threads:
            thread.start()
        dice = random.Random(3)
        for _ in range(5):
            wait_until(lambda: is_up(url))
            time.sleep(dice.uniform(0.05, 0.4))
            kill()
        for thread in threads:
            thread.join(120)
        wait_until(lambda: is_up(url))
        for name in heard:
            assert httpx.post(f"{url}/sessions/{name}/complete", json={"reward": 1.0}).status_code == 200
    with open_pool(tmp_path / "pool.db") as pool:
        for name, replies in heard.items():
            stored = pool.get(name)  # the path: exactly what the agent heard, in order
            assert [step.info["call"] for step in stored.trajectory.steps] == [call for call, _ in replies]
            lines = [
                (step.state.prompt_ids.tolist(), step.action.action_ids.tolist())  # type: ignore[union-attr]
                for step in stored.trajectory.steps
            ]
            assert [renderer().read_text(action) for _, action in lines] == [text for _, text in replies]
            for (prompt, action), (later, _) in pairwise(lines):
                assert later[: len(prompt) + len(action)] == prompt + action


def test_a_lost_reply_that_is_requested_again_leaves_the_path(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [user("hello")], "max_tokens": 4}
    with serve_gateway(tmp_path) as served:
        first = served.post("/s/lost/v1/chat/completions", body).json()["id"]
    with serve_gateway(tmp_path) as served:  # of the reply before the end nobody knows whether it arrived
        again = served.post(
            "/s/lost/v1/chat/completions", body, headers={"x-stainless-retry-count": "1"}
        ).json()["id"]
        assert [step.info["call"] for step in served.steps("lost").values()] == [first, again]
        assert served.get("/sessions/lost").json()["path"] == [1]
        third = served.post(
            "/s/lost/v1/chat/completions", body, headers={"x-stainless-retry-count": "1"}
        ).json()["id"]  # a retry after a refusal, say: the second reply did arrive
        assert third != again and served.get("/sessions/lost").json()["path"] == [1, 2]


@pytest.mark.slow
def test_a_session_continues_after_a_restart_with_its_ids_rewards_and_replies(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        client = served.openai("on")
        first = chat(client, [user("one")], n=2)
        response = client.responses.create(model="m", input="hello", max_output_tokens=16)
        served.post("/sessions/on/reward", {"value": 0.5, "step": 0})
    with serve_gateway(tmp_path) as served:
        client = served.openai("on")
        client.responses.create(
            model="m", input="more", previous_response_id=response.id, max_output_tokens=16
        )
        chat(client, [user("one"), assistant_message(first, 1), user("two")])
        served.post("/sessions/on/complete", {"reward": 1.0})
        steps = served.steps("on")
        assert [step.info["parent"] for step in steps.values()] == [None, None, None, 2, 1]
        assert served.stored("on").path == (1, 2, 3, 4)
        assert [step.reward for step in steps.values()] == [0.5, 0.0, 0.0, 0.0, 1.0]
        for parent, child in ((2, 3), (1, 4)):
            before = [*steps[parent].state.prompt_ids, *steps[parent].action.action_ids]  # type: ignore[union-attr]
            assert steps[child].state.prompt_ids[: len(before)].tolist() == before  # type: ignore[union-attr]


@pytest.mark.slow
def test_after_an_interrupt_running_calls_finish_and_new_ones_are_refused(tmp_path: Path) -> None:
    port = free_port()
    command = [
        "serve",
        "gateway",
        "--model",
        "tiny-0.3m",
        "--pool",
        str(tmp_path / "pool.db"),
        "--port",
        str(port),
    ]
    log = tmp_path / "errors.txt"
    process = start_module("stepwell", *command, log=log)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().decode() == f"listening on http://127.0.0.1:{port}\n"
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_up(url))
        replies: list[httpx.Response] = []
        body = {
            "model": "m",
            "messages": [user("talk")],
            "max_tokens": 600,
            "seed": 5,
        }  # as long as it may be
        call = threading.Thread(
            target=lambda: replies.append(
                httpx.post(f"{url}/s/flight/v1/chat/completions", json=body, timeout=60)
            )
        )
        call.start()
        wait_until(lambda: read_metrics(url, "/metrics").get("num_running") == 1)
        process.send_signal(signal.SIGINT)
        call.join(60)
        assert replies[0].status_code == 200 and replies[0].json()["usage"]["completion_tokens"] == 600
        code, _ = await_end(process)
        errors = log.read_text()
        assert code == 130 and "Traceback" not in errors
        assert "the same command continues them" in errors
    finally:
        process.kill()
    with open_pool(tmp_path / "pool.db") as pool:
        assert pool.get("flight").is_open and len(pool.get("flight").trajectory.steps) == 1


def test_the_session_of_a_key_continues_after_a_restart(tmp_path: Path) -> None:
    key = create_key("a-b")
    for _ in range(2):
        with serve_gateway(tmp_path, keys={"a-b": hash_key(key)}) as served:
            chat(openai.OpenAI(base_url=f"{served.url}/v1", api_key=key), [user("hello")])
            (entry,) = served.pool.find()
    assert entry.num_steps == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "set --model"),
        (["--model", "tiny-0.3m", "--host", "0.0.0.0"], "stepwell serve key NAME"),
        (["--model", "tiny-9m"], "neither a directory nor a built-in name"),
        (["--upstream", "host:80"], "must start with http"),
    ],
)
def test_a_mistake_on_the_command_line_names_the_fix(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from stepwell.cli.main import main

    assert main(["serve", "gateway", "--pool", str(tmp_path / "pool.db"), *options]) == 2
    assert words in capsys.readouterr().err
