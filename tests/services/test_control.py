"""Sessions from start to end: tasks and groups, rewards and corrections, completion, silence."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.services.gateways import Served, assistant_message, chat, serve_gateway, user

from stepwell.core import Status, Task


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_gateway(tmp_path_factory.mktemp("pool")) as gateway:
        yield gateway


def talk(served: Served, session: str, num_calls: int = 3) -> list[Any]:
    client, messages, replies = served.openai(session), [user("begin")], []
    for turn in range(num_calls):
        replies.append(chat(client, messages, seed=turn))
        messages = [*messages, assistant_message(replies[-1]), user(f"turn {turn}")]
    return replies


def until(fact: Any, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_session_is_created_with_a_task_a_group_and_tags(served: Served) -> None:
    body = {
        "id": "begun",
        "task": {"env": "shop", "content": {"item": "lamp"}, "instruction": "Buy a lamp.", "seed": 4},
        "group": "lamps", "group_size": 2, "channel": "eval", "tags": ["night"],
    }  # fmt: skip
    reply = served.post("/sessions", body)
    assert reply.status_code == 201 and reply.json() == {"id": "begun", "base_path": "/s/begun"}
    assert served.post("/sessions", body).status_code == 201  # the same again
    talk(served, "begun", 1)
    stored = served.stored("begun")
    assert (stored.trajectory.task.env, stored.trajectory.task.content) == ("shop", {"item": "lamp"})
    assert (stored.entry.group, stored.group_size, stored.channel) == ("lamps", 2, "eval")
    assert set(stored.tags) == {"gateway", "night"}
    other = served.post("/sessions", {**body, "task": {"env": "shop", "content": {"item": "bed"}}})
    assert other.status_code == 400 and "another task" in other.json()["error"]["message"]


def test_a_group_of_completed_sessions_is_served_to_a_trainer(served: Served) -> None:
    for name, reward in (("g-1", 1.0), ("g-2", 0.0)):
        task = {"env": "shop", "content": {"item": "bed"}}
        served.post("/sessions", {"id": name, "task": task, "group": "beds", "group_size": 2})
        talk(served, name, 2)
        assert served.post(f"/sessions/{name}/complete", {"reward": reward}).status_code == 200
    taken = [group for group in served.pool.take("trainer", 5) if group.group == "beds"]
    assert [t.status for t in taken[0].trajectories] == [Status.SUCCESS, Status.FAILURE]
    assert [t.total_reward for t in taken[0].trajectories] == [1.0, 0.0]
    assert [[s.reward for s in t.steps] for t in taken[0].trajectories] == [[0.0, 1.0], [0.0, 0.0]]


def test_rewards_by_step_call_and_session_add_up_by_part(served: Served) -> None:
    replies = talk(served, "parts")
    assert served.post("/sessions/parts/reward", {"value": 0.25, "step": 0}).status_code == 200
    by_call = {"value": 0.5, "call": replies[1].id, "part": "format"}
    assert served.post("/sessions/parts/reward", by_call).json()["step"] == 1
    served.post("/sessions/parts/reward", {"value": 2.0})
    served.post("/sessions/parts/complete")
    steps = served.steps("parts")
    assert [step.reward for step in steps.values()] == [0.25, 0.5, 2.0]
    assert steps[1].reward_parts == {"format": 0.5}
    assert served.get("/sessions/parts").json()["reward"] == 2.75


def test_a_reward_is_corrected_after_the_session_is_over_and_its_history_is_kept(served: Served) -> None:
    replies = talk(served, "corrected")
    served.post("/sessions/corrected/complete", {"reward": 1.0})
    served.post("/sessions/corrected/reward", {"value": -1.0})
    served.post("/sessions/corrected/reward", {"value": 0.5, "call": replies[0].id})
    steps = served.steps("corrected")
    assert [step.reward for step in steps.values()] == [0.5, 0.0, -1.0]
    values = [entry.value for entry in served.stored("corrected").reward_history]
    assert values == [1.0, 0.0, 0.0, -1.0, 0.5]


def test_the_reward_of_a_whole_session_goes_to_the_choice_that_was_continued(served: Served) -> None:
    client = served.openai("chosen")
    reply = chat(client, [user("pick")], n=2)
    served.post("/sessions/chosen/complete", {"reward": 1.0})
    assert served.stored("chosen").path == (0,)
    assert [step.reward for step in served.steps("chosen").values()] == [1.0, None]
    assert reply.id == served.steps("chosen")[1].info["call"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, "failure"), ({"reward": 0.5}, "success"), ({"reward": -1}, "failure"),
        ({"status": "truncated", "reward": 1.0}, "truncated"),
        ({"status": "agent_error", "error": "it crashed"}, "agent_error"),
    ],
)  # fmt: skip
def test_how_a_session_ended(served: Served, body: dict[str, Any], status: str) -> None:
    name = f"ended-{status}-{len(body)}"
    talk(served, name, 1)
    assert served.post(f"/sessions/{name}/complete", body).json() == {"id": name, "status": status}
    assert served.stored(name).entry.status == status


def test_a_session_that_is_over_takes_no_call_and_is_completed_once(served: Served) -> None:
    talk(served, "over", 1)
    served.post("/sessions/over/complete", {"reward": 1.0})
    with pytest.raises(openai.ConflictError, match="is over"):
        chat(served.openai("over"), [user("more")])
    assert served.post("/sessions/over/complete").json()["status"] == "success"
    assert served.post("/sessions/over/complete", {"status": "failure"}).status_code == 409
    assert len(served.steps("over")) == 1


def test_an_invalid_control_call_gets_the_reason(served: Served) -> None:
    talk(served, "known", 1)
    for path, body, status, words in (
        ("/sessions/nobody/reward", {"value": 1.0}, 404, "no session 'nobody'"),
        ("/sessions/known/reward", {"value": 1.0, "step": 7}, 400, "has no step 7"),
        ("/sessions/known/reward", {"value": 1.0, "call": "x"}, 404, "no call 'x'"),
        ("/sessions/known/reward", {}, 400, "value"),
        ("/sessions/known/reward", {"value": "much"}, 400, "value"),
        ("/sessions/known/complete", {"status": "great"}, 400, "status"),
        ("/sessions", {"id": "bad id!"}, 400, "not a session id"),
        ("/sessions", {"group_sise": 3}, 400, "group_sise"),
    ):
        reply = served.post(path, body)
        assert reply.status_code == status and words in reply.json()["error"]["message"], reply.text


def test_a_key_without_a_named_session_has_one_until_it_is_completed(served: Served) -> None:
    plain = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    chat(plain, [user("one")])
    chat(plain, [user("two")])
    (name,) = [
        s["id"] for s in served.get("/sessions").json()["sessions"] if s["id"].startswith("automatic.")
    ]
    assert len(served.steps(name)) == 2
    served.post(f"/sessions/{name}/complete")
    chat(plain, [user("three")])
    assert len(served.steps(name)) == 2
    headed = openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", default_headers={"X-Stepwell-Session": "by-header"}
    )
    chat(headed, [user("one")])
    assert len(served.steps("by-header")) == 1


@pytest.mark.parametrize(("how", "error"), [("truncated", ""), ("agent_error", "no call for 60 s")])
def test_a_silent_session_is_finished_as_configured(tmp_path: Path, how: str, error: str) -> None:
    with serve_gateway(tmp_path, silent_timeout_s=60, on_silence=how) as served:
        talk(served, "silent", 2)
        talk(served, "heard", 1)
        registry, loop = served.gateway.registry, served.gateway.loop
        assert loop is not None
        registry.sessions["silent"].last_seen_s -= 60  # a minute passes
        assert asyncio.run_coroutine_threadsafe(registry.finish_silent_sessions(), loop).result(30) == 1
        stored = served.stored("silent")
        assert not stored.is_open and served.stored("heard").is_open
        assert (stored.entry.status, stored.trajectory.error, stored.path) == (how, error, (0, 1))


def test_a_session_of_an_earlier_process_times_out_too(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        talk(served, "left", 2)
    with serve_gateway(tmp_path, silent_timeout_s=0.2) as served:
        until(lambda: not served.stored("left").is_open)
        assert served.stored("left").path == (0, 1)


def test_counts_health_and_readiness(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        talk(served, "counted", 3)
        chat(served.openai("counted"), [user("something else")])
        counts = served.get("/metrics").json()
        assert counts["prompts"] == {"started": 2, "extended": 2, "restarted": {}}
        assert (counts["num_open"], counts["branches"]) == (1, {"new_conversation": 1})
        assert served.get("/health").json() == {"status": "ok"}
        assert served.get("/ready").json() == {"ready": True}


def test_a_trajectory_that_is_not_a_session_cannot_be_used_as_one(served: Served) -> None:
    served.pool.begin(Task("other", {"n": 1}), id="foreign")
    with pytest.raises(openai.ConflictError, match="is not a session"):
        chat(served.openai("foreign"), [user("hello")])
    assert served.get("/sessions/foreign").status_code == 409


def test_a_nul_in_an_error_message_is_replaced(served: Served) -> None:
    talk(served, "strange", 1)
    body = {"status": "agent_error", "error": "a\0b"}
    assert served.post("/sessions/strange/complete", body).status_code == 200
    assert served.stored("strange").trajectory.error == "a\ufffdb"


def test_a_missing_pool_is_503_with_the_reason(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        talk(served, "gone", 1)
        with sqlite3.connect(tmp_path / "pool.db") as broken:
            broken.execute("DROP TABLE steps")
        for path, body in (
            ("/s/gone/v1/chat/completions", {"model": "m", "messages": [user("more")], "max_tokens": 4}),
            ("/s/new/v1/chat/completions", {"model": "m", "messages": [user("more")], "max_tokens": 4}),
            ("/sessions/gone/complete", {}),
        ):
            reply = served.post(path, body)
            assert reply.status_code == 503 and "pool" in reply.json()["error"]["message"], reply.text
