"""Evaluating over a real chat API: what it fails, refuses, limits and costs, and what is kept of it."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.responses import Response
from PIL import Image
from tests.rollout.chat_server import Body, ChatServer, chatting, refusal

from stepwell.config.chat_api import ChatApiConfig
from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, EngineError, Status
from stepwell.pool import Filter, open_pool
from stepwell.runs.evaluation.chat_evaluation import EndpointEvaluation
from stepwell.runs.evaluation.folders import read_evaluation

NOTES = ("env.name=tests.envs.tool_envs:Notes", "env.options={}")


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with chatting() as server:
        yield server


@pytest.fixture
def server(running: ChatServer) -> ChatServer:
    url = running.url
    running.__init__(url)  # type: ignore[misc]
    return running


def settings(*more: str) -> RunConfig:
    world = ("env.options={size=3, max_turns=2}", "eval.num_tasks=4", "recipe.name=grpo", "num_threads=1")
    return load_config(None, [*world, *more])


def evaluation(server: ChatServer, folder: Path, *more: str, **changes: Any) -> EndpointEvaluation:
    given = {"url": server.url, "model": "outside-1", "backoff_s": 0.001, "max_concurrent": 3, **changes}
    on_done = given.pop("on_done", lambda trajectory, model: None)
    return EndpointEvaluation(settings(*more), ChatApiConfig(**given), folder / "eval", on_done=on_done)


def played(folder: Path) -> list[Any]:
    with open_pool(folder / "eval" / "pool" / "pool.db") as pool:
        return [pool.get(entry.id) for entry in pool.find(Filter(channel="eval"))]


def test_failures_that_pass_cost_retries_and_no_episode(server: ChatServer, tmp_path: Path) -> None:
    server.failures = [
        refusal(429, "slow down", **{"retry-after": "0.02"}),
        refusal(503, "overloaded"),
        Response("<html>a proxy's page</html>", media_type="text/html"),
        Response('{"choices": []}', media_type="application/json"),
    ]
    report = evaluation(server, tmp_path).run()
    assert report.more["num_retries"] == 4 and report.more["num_unreadable"] == 2
    assert report.more["failed_tries"] == report.more["num_failures"] == 0
    assert [t.status.is_terminated for t in report.result.trajectories] == [True] * 4
    assert server.times[1] - server.times[0] >= 0.02


def test_an_answer_that_is_too_slow_is_tried_again(server: ChatServer, tmp_path: Path) -> None:
    server.delay_s = 60.0
    with pytest.raises(EngineError, match=r"outside-1 at .* gave no answer: silent for timeout_s=0\.3"):
        evaluation(server, tmp_path, timeout_s=0.3, max_retries=1).run()
    assert len(server.bodies) == 2
    assert not (tmp_path / "eval").exists()


def test_an_episode_whose_calls_fail_is_the_systems_failure_and_played_again(
    server: ChatServer, tmp_path: Path
) -> None:
    server.refuse = lambda body: refusal(500, "broken") if 2 <= len(server.bodies) <= 4 else None
    report = evaluation(server, tmp_path, max_retries=0, max_concurrent=1).run()
    assert report.more["failed_tries"] == report.more["num_failures"] == 3
    assert len(report.result.trajectories) == 4 and not report.notes
    statuses = [stored.trajectory.status for stored in played(tmp_path)]
    assert statuses.count(Status.INFRA_ERROR) == 3 and len(statuses) == 7


def test_tasks_that_never_get_through_are_left_out_and_told(server: ChatServer, tmp_path: Path) -> None:
    unlucky: list[str] = []

    def refuse(body: Body) -> Response | None:
        if len(server.bodies) == 1:
            return None
        board = body["messages"][1]["content"]
        unlucky[:] = unlucky or [board]
        return refusal(400, "content policy") if board == unlucky[0] else None

    server.refuse = refuse
    report = evaluation(server, tmp_path).run()
    assert report.result.num_tasks == 3
    assert report.more["failed_tries"] == 3  # train.max_env_retries = 2
    assert "1 of 4 tasks are not finished and not counted" in report.notes[0]
    assert read_evaluation(tmp_path / "eval").status == "interrupted"


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, r"outside-1 at .* refused with 401: 'no'; put the right key into \$MY_KEY"),
        (404, r"refused with 404: 'no'; check --model and --endpoint"),
        (400, r"refused with 400: 'no'; see its message"),
    ],
)
def test_what_the_api_refuses_is_told_before_anything_is_played(
    server: ChatServer, tmp_path: Path, status: int, problem: str
) -> None:
    server.refuse = lambda body: refusal(status, "no")
    with pytest.raises(ConfigError, match=problem):
        evaluation(server, tmp_path, key_variable="MY_KEY").run()
    assert len(server.bodies) == 1
    assert not (tmp_path / "eval").exists()


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    nowhere = ChatServer("http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match=r"no server answers at http://127.0.0.1:9/v1 .*--endpoint"):
        evaluation(nowhere, tmp_path).run()
    for url in ("host:80", "http://", "http://127.0.0.1:99999/v1", "http://[::1/v1"):
        with pytest.raises(ConfigError, match="url must be an address such as"):
            evaluation(ChatServer(url), tmp_path).run()


def test_the_key_goes_to_the_api_and_into_no_file(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    report = evaluation(server, tmp_path, key_variable="MY_KEY").run()
    assert set(server.keys) == {"Bearer sk-very-secret"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "evaluation.json", "summary.json", "config.toml", "pool.db"} <= {
        path.name for path in files
    }
    assert all(b"very-secret" not in path.read_bytes() for path in files)
    assert "very-secret" not in report.to_json()


def test_requests_hold_the_settings_and_no_more_are_open_than_allowed(
    server: ChatServer, tmp_path: Path
) -> None:
    server.delay_s = 0.02
    more = ("eval.temperature=0.7", "eval.samples_per_task=2", "sampling.max_tokens=33")
    report = evaluation(server, tmp_path, *more, prompt_price=2.0, completion_price=10.0).run()
    assert server.most_open == 3
    body = server.bodies[-1]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("outside-1", 0.7, 33)
    assert "tools" not in body and "top_p" not in body
    seeds = [body["seed"] for body in server.bodies[1:]]
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**31
    num_calls = len(server.bodies)
    assert report.more["num_calls"] == num_calls
    assert report.more["cost"] == pytest.approx(num_calls * (100 * 2 + 7 * 10) / 1e6)
    assert report.result.values()["response_tokens"] == 7
    assert "pass@2" in report.result.values() and report.result.num_tasks == 4


def test_settings_that_an_api_does_not_take_are_renamed_or_left_out(
    server: ChatServer, tmp_path: Path
) -> None:
    def refuse(body: Body) -> Response | None:
        if "max_tokens" in body:
            return refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return refusal(400, "Unrecognized argument: seed") if "seed" in body else None

    server.refuse = refuse
    report = evaluation(server, tmp_path, "sampling.max_tokens=33").run()
    assert server.bodies[-1]["max_completion_tokens"] == 33 and "seed" not in server.bodies[-1]
    assert report.notes == ["the API accepts no seed: sampled episodes cannot be repeated"]
    assert report.more["failed_tries"] == 0


def test_a_prompt_that_is_too_long_cuts_the_episode(server: ChatServer, tmp_path: Path) -> None:
    server.refuse = lambda body: (
        refusal(400, "maximum context length is 50", "context_length_exceeded")
        if len(body["messages"]) > 2
        else None
    )
    report = evaluation(server, tmp_path).run()
    cut = [t for t in report.result.trajectories if t.status is Status.TRUNCATED]
    assert cut and all(len(t.steps) == 1 and "maximum context length" in t.error for t in cut)
    assert report.more["failed_tries"] == 0


def finder(body: Body) -> Body:
    """Follows both chains of notes by reading the results of its calls, then says where they end."""
    told = "\n".join(str(message["content"]) for message in body["messages"][1:])
    if "Begin at" not in told:
        return {"content": "ready"}
    first, second = told.split("Begin at ", 1)[1].split(".", 1)[0].split(" and ")
    nexts = dict(line.split(": ") for line in told.splitlines() if line[1:3] == ": ")
    ends, open_ = [], []
    for name in (first, second):
        while name in nexts and nexts[name] != "the end":
            name = nexts[name]
        ends.append(name)
        open_ += [] if nexts.get(name) == "the end" else [name]
    if not open_:
        return {"content": f"<answer>{''.join(ends)}</answer>"}
    if "tools" not in body:
        return {
            "content": "".join(
                f'<tool_call>{{"name": "look", "arguments": {{"name": "{name}"}}}}</tool_call>'
                for name in open_
            )
        }
    calls = [
        {
            "id": f"call-{len(body['messages'])}-{name}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"name": name})},
        }
        for name in open_
    ]
    return {"content": None, "tool_calls": calls}


def test_tools_are_told_called_and_answered_in_the_apis_own_fields(
    server: ChatServer, tmp_path: Path
) -> None:
    server.say = finder
    report = evaluation(server, tmp_path, *NOTES).run()
    assert report.result.success == 1.0
    values = report.result.values()
    assert values["format_share"] == 1.0 and values["calls/look"] > 2
    longest = max(server.bodies, key=lambda body: len(body["messages"]))
    assert [tool["function"]["name"] for tool in longest["tools"]] == ["look"]
    assert "look" not in longest["messages"][0]["content"]
    asked = [c["id"] for m in longest["messages"] for c in m.get("tool_calls", ())]
    answered = [m["tool_call_id"] for m in longest["messages"] if m["role"] == "tool"]
    assert asked == answered and len(asked) > 2
    step = report.result.trajectories[0].steps[1]
    assert [message["role"] for message in step.info["messages"]] == ["tool", "tool"]  # type: ignore[index,union-attr]
    assert step.info["usage"] == {"prompt_tokens": 100, "completion_tokens": 7}


def test_tools_go_into_the_prompt_where_the_api_refuses_them(server: ChatServer, tmp_path: Path) -> None:
    server.say = finder
    server.refuse = lambda body: refusal(400, "tools are not supported") if "tools" in body else None
    report = evaluation(server, tmp_path, *NOTES).run()
    assert report.result.success == 1.0 and report.result.values()["format_share"] == 1.0
    assert report.notes == ["the API accepts no tools: they are described in the prompt"]
    assert "look" in server.bodies[-1]["messages"][0]["content"]
    with pytest.raises(ConfigError, match="tools are not supported"):
        evaluation(server, tmp_path, *NOTES, tools="api").run()


def test_images_are_sent_as_they_are_seen(server: ChatServer, tmp_path: Path) -> None:
    more = ('env.options={size=3, max_turns=2, observation="image"}',)
    report = evaluation(server, tmp_path, *more).run()
    first, text = server.bodies[1]["messages"][1]["content"]
    assert text == {"type": "text", "text": "The picture shows the state."}
    head, data = first["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    sent = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    shown = report.result.trajectories[0].steps[0].info["messages"][1]["images"]  # type: ignore[index,call-overload]
    with open_pool(tmp_path / "eval" / "pool" / "pool.db") as pool:
        known = [pool.load_image(m["images"][0]) for t in report.result.trajectories for m in _shown(t)]
        assert any(np.array_equal(sent, image) for image in known)
    assert len(shown) == 1
    server.refuse = lambda body: refusal(400, "this model does not read image_url parts")
    with pytest.raises(ConfigError, match=r"does not accept images .*choose a vision model"):
        evaluation(server, tmp_path / "other", *more).run()


def _shown(trajectory: Any) -> list[Any]:
    return [m for step in trajectory.steps for m in step.info["messages"] if "images" in m]


@pytest.mark.parametrize(
    ("words", "told"),
    [("<answer>Up</answer>", r"\d+"), ("I would go up.", "none: no reply named one")],
)
def test_the_report_says_how_many_actions_were_carried_out(
    server: ChatServer, tmp_path: Path, words: str, told: str
) -> None:
    server.say = lambda body: {"content": words}
    evaluation(server, tmp_path).run()
    page = (tmp_path / "eval" / "report.html").read_text()
    assert re.search(f"<dt>actions carried out</dt><dd>{told}</dd>", page)
    assert "environment steps" not in page


def test_ctrl_c_keeps_what_is_finished_and_the_rest_is_played_later(
    server: ChatServer, tmp_path: Path
) -> None:
    finished = []

    def stop(trajectory: Any, model: Any) -> None:
        finished.append(trajectory)
        if len(finished) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        evaluation(server, tmp_path, max_concurrent=1, on_done=stop).run()
    kept = read_evaluation(tmp_path / "eval")
    assert (kept.status, kept.num_done, len(kept.tasks)) == ("interrupted", 2, 4)
    assert "This evaluation was interrupted" in (tmp_path / "eval" / "report.html").read_text()
    before, asked = {t.id for t in finished}, len(server.bodies)
    report = evaluation(server, tmp_path).run(resume=True)
    assert report.result.num_tasks == 4
    assert [t.id in before for t in report.result.trajectories] == [True, True, False, False]
    assert 1 + 2 <= len(server.bodies) - asked <= 1 + 4  # two tasks, one or two turns each
    assert read_evaluation(tmp_path / "eval").status == "finished"
    again = len(server.bodies)
    assert evaluation(server, tmp_path).run(resume=True).result.success == report.result.success
    assert len(server.bodies) == again


def test_an_api_that_dies_stops_the_evaluation_and_says_how_to_go_on(
    server: ChatServer, tmp_path: Path
) -> None:
    server.refuse = lambda body: refusal(500, "gone") if len(server.bodies) > 8 else None
    more = ("eval.num_tasks=30",)
    with pytest.raises(EngineError, match=r"8 episodes in a row failed .*stepwell eval --resume"):
        evaluation(server, tmp_path, *more, max_retries=0, max_concurrent=2).run()
    assert len(server.bodies) < 20
    assert 2 <= read_evaluation(tmp_path / "eval").num_done < 8


def test_envs_that_no_chat_model_can_act_in_are_refused(server: ChatServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own_agent: with --endpoint the built-in agent plays"):
        evaluation(server, tmp_path, "own_agent.function=some:agent").run()
    assert server.bodies == []
