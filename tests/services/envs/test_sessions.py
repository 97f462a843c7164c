"""Sessions: limits, expiry, owners, environments that raise or hang; the same over JSON."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.services.envs.misbehaving_envs import Stubborn

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core import ConfigError, EnvError
from stepwell.envs import make_env
from stepwell.envs.remote import wire
from stepwell.envs.remote.servers import Server
from stepwell.services.envs.sessions import EnvSession, EnvSessions
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.keys import create_key, hash_key

Service = Callable[..., str]


def open_sessions(sessions: EnvSessions, owner: str = "", count: int = 1):  # type: ignore[no-untyped-def]
    return sessions.create(owner, "frozenlake", lambda: make_env("frozenlake"), count)


async def test_a_silent_session_is_closed_and_one_in_use_is_not() -> None:
    now = [0.0]
    sessions = EnvSessions(EnvServiceConfig(session_timeout_s=10), clock=lambda: now[0])
    silent, used = await open_sessions(sessions, count=2)
    now[0] = 8.0
    sessions.find("", [used.id])
    now[0] = 11.0
    await sessions.close_expired()
    assert sessions.find("", [used.id]) == [used] and sessions.num_expired == 1
    with pytest.raises(ServiceError, match="was closed, has expired") as refused:
        sessions.find("", [silent.id])
    assert refused.value.kind is ErrorKind.NOT_FOUND
    await sessions.stop()
    assert len(sessions) == 0


async def test_limits_count_all_environments_and_those_of_a_key() -> None:
    sessions = EnvSessions(EnvServiceConfig(max_sessions=4, max_sessions_per_key=3))
    mine = await open_sessions(sessions, "me", 3)
    with pytest.raises(
        ServiceError, match="3 environments of this key are open and max_sessions_per_key is 3"
    ):
        await open_sessions(sessions, "me")
    with pytest.raises(ServiceError, match="3 environments are open and max_sessions is 4") as refused:
        await open_sessions(sessions, "you", 2)
    assert refused.value.kind is ErrorKind.LIMITED
    await sessions.close(mine[:1])
    assert len(await open_sessions(sessions, "you", 2)) == 2
    assert not sessions.is_ready
    await sessions.stop()


async def test_only_its_owner_finds_a_session() -> None:
    sessions = EnvSessions(EnvServiceConfig())
    (session,) = await open_sessions(sessions, "me")
    with pytest.raises(ServiceError, match="there is no session"):
        sessions.find("you", [session.id])
    with pytest.raises(ServiceError, match="named twice"):
        sessions.find("me", [session.id, session.id])
    await sessions.stop()


async def test_an_environment_that_cannot_be_made_leaves_nothing_open() -> None:
    sessions = EnvSessions(EnvServiceConfig(max_sessions=2))
    made = []

    def make() -> object:
        if made:
            raise ConfigError("no more")
        made.append(make_env("frozenlake"))
        return made[0]

    with pytest.raises(ConfigError, match="no more"):
        await sessions.create("", "frozenlake", make, 2)
    assert len(sessions) == 0
    assert len(await open_sessions(sessions, count=2)) == 2  # the room was given back
    await sessions.stop()


async def test_a_hanging_environment_is_abandoned_and_the_service_continues() -> None:
    sessions = EnvSessions(EnvServiceConfig(num_threads=2, call_timeout_s=1.0, max_stuck=1))
    stuck, well = await open_sessions(sessions, count=2)
    assert stuck.thread is not well.thread

    def play(session: EnvSession, place: int) -> str:
        if session is stuck:
            Stubborn.may_go_on.wait()
        return session.id

    with pytest.raises(ServiceError, match="took longer than call_timeout_s") as refused:
        await sessions.run([stuck], play)
    assert refused.value.kind is ErrorKind.UNAVAILABLE and sessions.num_stuck == 1
    assert await sessions.run([well], play) == [well.id]
    with pytest.raises(ServiceError, match="there is no session"):
        sessions.find("", [stuck.id])
    with pytest.raises(ServiceError, match=r"1 of your calls hang \(max_stuck is 1\)"):
        await open_sessions(sessions)
    await open_sessions(sessions, owner="another")  # whose calls do not hang
    Stubborn.may_go_on.set()
    await sessions.stop()


async def test_only_quick_environments_that_nobody_uses_are_played_on_the_event_loop() -> None:
    def name_thread(session: EnvSession, place: int) -> str:
        return threading.current_thread().name

    sessions, here = EnvSessions(EnvServiceConfig(num_threads=1)), threading.current_thread().name
    quick, used, slow = await open_sessions(sessions, count=3)
    (other,) = await sessions.create("", "stubborn", Stubborn, 1)  # a subclass of a quick environment
    assert sessions.run_now([quick], name_thread) is None  # it has not shown yet how quick it is
    assert await sessions.run([quick], name_thread) == ["stepwell-envs-0"]
    quick.last_call_s = used.last_call_s = other.last_call_s = 0.0
    slow.last_call_s = 0.1
    assert sessions.run_now([quick, used], name_thread) == [here, here]
    assert sessions.run_now([quick, slow], name_thread) is None
    assert sessions.run_now([other], name_thread) is None
    async with used.lock:
        waiting = asyncio.create_task(sessions.run([used], name_thread))
        await asyncio.sleep(0)
        assert sessions.run_now([quick, used], name_thread) is None
    assert await waiting == ["stepwell-envs-0"]
    used.last_call_s = 0.0
    assert sessions.run_now([used], name_thread) == [here]
    await sessions.stop()


def test_an_error_in_one_environment_does_not_affect_others(service: Service) -> None:
    name = "tests.services.envs.misbehaving_envs:Stubborn"
    server = Server(service(envs=(name,)))
    ids = server.call("create", {"env": name, "options": {}, "count": 2}).header["sessions"]
    server.call("reset", {"sessions": ids, "seeds": [0, 1]})
    header, _ = wire.pack_actions([("Down",), ("Left",)])
    frame = server.call("step", {**header, "sessions": ids})
    broken, fine = wire.unpack_turns(frame.header, frame.arrays)
    assert isinstance(broken.error, EnvError) and "raised OSError: the simulator is gone" in str(broken.error)
    assert fine.error is None and fine.info["num_actions"] == 1
    server.close()


def test_a_known_key_is_needed(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = create_key("alice")
    log = tmp_path / "access.jsonl"
    url = service(keys={"alice": hash_key(key)}, access_log=str(log))
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/ready").json()["ready"] is True
    assert httpx.get(f"{url}/envs").status_code == 401
    assert httpx.post(f"{url}/call", content=b"").status_code == 401
    for scheme in ("http", "ws"):
        with pytest.raises(ConfigError, match="key"):
            make_env(f"remote:{url.replace('http', scheme)}#frozenlake")
    monkeypatch.setenv("STEPWELL_ENV_KEY", key)
    for scheme, name in (("http", "sokoban"), ("ws", "frozenlake")):
        env = make_env(f"remote:{url.replace('http', scheme)}#{name}")
        env.reset(seed=0)
        env.close()
    assert '"key":"alice"' in log.read_text() and key not in log.read_text()


def test_other_addresses_need_keys_by_default() -> None:
    with pytest.raises(ValueError, match=r"host 0\.0\.0\.0 can be reached from other machines"):
        EnvServiceConfig(host="0.0.0.0")
    assert EnvServiceConfig().host == "127.0.0.1"


def test_json_and_frames_give_the_same_turns(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        made = http.post("/sessions", json={"env": "frozenlake", "options": {"observation": "both"}})
        assert made.status_code == 201
        ids = made.json()["sessions"]
        local = make_env("frozenlake", {"observation": "both"})
        seen, _ = local.reset(seed=4)
        for images in ("png", "raw"):
            body = {"sessions": ids, "seeds": [4], "with_state": True, "images": images}
            (turn,) = http.post("/sessions/reset", json=body).json()["turns"]
            assert turn["text"] == seen.text
            assert turn["state"]["natural_language"] == local.state()["natural_language"]
            if images == "png":
                image = np.asarray(Image.open(io.BytesIO(base64.b64decode(turn["images"][0]))))
            else:
                raw = turn["images"][0]
                image = np.frombuffer(base64.b64decode(raw["data"]), raw["dtype"]).reshape(raw["shape"])
            assert (image == seen.images[0]).all()
        (turn,) = http.post("/sessions/step", json={"sessions": ids, "actions": [["Up"]]}).json()["turns"]
        after, reward, terminated, truncated, info = local.step(("Up",))
        told = (turn["text"], turn["reward"], turn["terminated"], turn["truncated"], turn["info"])
        assert told == (after.text, reward, terminated, truncated, info)
        task = {"env": "frozenlake", "content": local.task.content}
        (turn,) = http.post("/sessions/reset", json={"sessions": ids, "tasks": [task]}).json()["turns"]
        assert turn["text"] == seen.text
        assert http.post("/sessions/heartbeat", json={"sessions": ids}).json() == {"alive": 1}
        assert http.post("/sessions/close", json={"sessions": ids}).json() == {"closed": 1}
        assert http.post("/sessions/close", json={"sessions": ids}).status_code == 404
