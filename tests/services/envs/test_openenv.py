"""An environment that OpenEnv serves, played as one of ours.

With `STEPWELL_OPENENV_PYTHON` (an interpreter that has openenv-core) it is OpenEnv's own server; otherwise a
stand-in that speaks the published messages. Both host the same counting game.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect

from stepwell.core import ConfigError, EnvError
from stepwell.envs import make_env
from stepwell.envs.check import check_env
from stepwell.services.http_server import serve_in_thread

PYTHON = os.environ.get("STEPWELL_OPENENV_PYTHON")
SCRIPT = Path(__file__).parent / "openenv_counter.py"


def stand_in() -> FastAPI:
    app = FastAPI()

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        fields = {"metadata": {"type": "object"}, "word": {"type": "string"}}
        return {"action": {"properties": fields, "required": ["word"]}, "observation": {}, "state": {}}

    @app.get("/metadata")
    def metadata() -> dict[str, Any]:
        return {"name": "Counter", "description": "Counter environment"}

    @app.websocket("/ws")
    async def play(websocket: WebSocket) -> None:
        await websocket.accept()
        count, goal = 0, 1
        try:
            while True:
                message = json.loads(await websocket.receive_text())
                data, reward, done = message["data"], None, False
                if message["type"] == "reset":
                    count, goal = 0, 1 + data["seed"] % 3
                elif not isinstance(data["word"], str):
                    error = {"message": "word must be text", "code": "VALIDATION_ERROR"}
                    await websocket.send_json({"type": "error", "data": error})
                    continue
                elif data["word"] == "up":
                    count += 1
                    done = count == goal
                    reward = float(done)
                else:
                    reward, done = -1.0, True
                shown = {"count": count, "goal": goal, "text": f"{count} of {goal}"}
                answer = {"observation": shown, "reward": reward, "done": done}
                await websocket.send_json({"type": "observation", "data": answer})
        except WebSocketDisconnect:
            return

    return app


@pytest.fixture(scope="module")
def counter() -> Iterator[str]:
    if PYTHON is None:
        url, stop = serve_in_thread(stand_in())
        yield f"openenv:{url}"
        stop()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PYTHON, str(SCRIPT), str(port)])
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            break
        except OSError:
            time.sleep(0.2)
    yield f"openenv:{url}"
    process.kill()
    process.wait()


def test_an_episode_is_played_with_the_texts_that_the_schema_asks_for(counter: str) -> None:
    with make_env(counter, {"text_field": "text"}) as env:
        assert env.description.actions.is_text and env.description.guide == "Counter environment"
        assert env.reset(seed=1)[0].text == "0 of 2"
        observation, *rest = env.step(("up",))
        assert (observation.text, rest) == (
            "1 of 2",
            [0.0, False, False, {"success": False, "num_actions": 1}],
        )
        observation, *rest = env.step(("up",))
        assert (observation.text, rest) == ("2 of 2", [1.0, True, False, {"success": True, "num_actions": 1}])
        env.reset(seed=1)
        assert env.step(("down",))[1:] == (-1.0, True, False, {"success": False, "num_actions": 1})


def test_named_actions_are_sent_as_they_were_given_and_a_refused_one_does_nothing(counter: str) -> None:
    with make_env(counter, {"actions": {"Up": {"word": "up"}, "Odd": {"word": 5}}}) as env:
        assert env.description.actions.names == ("Up", "Odd")
        first, _ = env.reset(seed=0)
        assert json.loads(first.text) == {"count": 0, "goal": 1, "text": "0 of 1"}
        assert env.step(("Odd",))[:4] == (first, 0.0, False, False)
        assert env.step(("Up",))[1:3] == (1.0, True)


def test_two_environments_are_two_sessions(counter: str) -> None:
    with make_env(counter, {"text_field": "text"}) as one, make_env(counter, {"text_field": "text"}) as other:
        one.reset(seed=2)
        other.reset(seed=2)
        one.step(("up",))
        assert one.observe().text == "1 of 3" and other.observe().text == "0 of 3"


def test_an_openenv_environment_keeps_the_contract(counter: str) -> None:
    report = check_env(counter, {"text_field": "text", "max_turns": 4}, num_tasks=3)
    failed = [check.name for check in report.findings if not check.ok]
    # a seed decides the goal modulo three here, so that tasks of other seeds look alike
    assert failed in ([], ["splits_are_disjoint_and_both_filled"]), str(report)


def test_a_server_that_is_not_there_and_a_field_that_is_not_shown(counter: str) -> None:
    with pytest.raises(EnvError, match="no OpenEnv server answers at"):
        make_env("openenv:http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="write openenv:http"):
        make_env("openenv:somewhere")
    with (
        make_env(counter, {"text_field": "words"}) as env,
        pytest.raises(ConfigError, match="'words' is not"),
    ):
        env.reset(seed=0)
