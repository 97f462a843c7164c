"""Environments that exit, hang or write half characters; servers that freeze; load over two servers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.services.envs.misbehaving_envs import Stubborn

from stepwell.core import EnvError
from stepwell.envs import make_env
from stepwell.envs.batch import EnvBatch
from stepwell.envs.remote.servers import EnvServerLostError, Server

Service = Callable[..., str]
ODD, EXITS, STUBBORN, INTERRUPTED = (
    f"tests.services.envs.misbehaving_envs:{name}" for name in ("Odd", "Exits", "Stubborn", "Interrupted")
)
WHOLE = "half \ufffd, whole \U0001f600"


class Relay:
    """Passes bytes on to a server until it is told to freeze; then it answers nothing."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._to, self._is_frozen = (host, int(port)), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        self._is_frozen.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, from_: socket.socket, to: socket.socket) -> None:
        try:
            while data := from_.recv(65_536):
                if not self._is_frozen.is_set():
                    to.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def relay(service: Service) -> Iterator[Relay]:
    found = Relay(service())
    yield found
    found.close()


def test_an_environment_that_exits_fails_its_turn_and_nothing_else() -> None:
    with EnvBatch(ODD, {}, 2) as batch:
        tasks = [batch.envs[0].make_task(batch.envs[0].options, seed) for seed in range(2)]
        turns = batch.reset(tasks, with_state=True)
        assert [turn.observation.text for turn in turns] == [WHOLE] * 2  # type: ignore[union-attr]
        assert turns[0].state == {"natural_language": "half \ufffd"}
        lost, play_episode = batch.step([0, 1], [("Up",), ("Left",)])
        assert isinstance(lost.error, EnvError) and "SystemExit: no licence" in str(lost.error)
        assert play_episode.error is None and play_episode.info["result"] == "lost \ufffd"


@pytest.mark.parametrize("name", ["Unseen", "Untold"])
def test_an_environment_that_exits_at_its_reset_or_asked_for_its_state_fails_its_turn(name: str) -> None:
    with EnvBatch(f"tests.services.envs.misbehaving_envs:{name}", {}, 1) as batch:
        (turn,) = batch.reset([batch.envs[0].make_task(batch.envs[0].options, 0)], with_state=True)
    assert isinstance(turn.error, EnvError) and "SystemExit: no licence" in str(turn.error)


def test_a_service_outlives_environments_that_exit_and_sends_whole_characters(service: Service) -> None:
    url = service(envs=(ODD, EXITS))
    env = make_env(f"remote:{url}#{ODD}")
    assert env.reset(seed=0)[0].text == WHOLE
    with pytest.raises(EnvError, match="no licence"):
        env.step(("Up",))
    env.reset(seed=0)
    assert env.step(("Left",))[4]["result"] == "lost \ufffd"
    assert set(env.state().values()) == {"half \ufffd"}
    reply = httpx.post(f"{url}/sessions", json={"env": EXITS}, timeout=30)
    assert reply.status_code == 400 and "sys.exit(3)" in reply.json()["detail"]
    assert httpx.get(f"{url}/ready").status_code == 200
    env.close()


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_a_service_outlives_an_environment_that_raises_what_ctrl_c_raises(
    service: Service, scheme: str
) -> None:
    server = Server(service(envs=(INTERRUPTED,)).replace("http", scheme), timeout_s=60)
    made = server.call("create", {"env": INTERRUPTED}).header["sessions"]
    tasks = server.call("tasks", {"env": INTERRUPTED, "seeds": [0]}).header
    with pytest.raises(EnvError, match="raised KeyboardInterrupt: no licence"):
        server.call("tasks", {"env": INTERRUPTED, "seeds": [1]})
    for actions in (["Left"], ["Up"], ["Left"], ["Left"], ["Up"]):  # in its thread, later on the event loop
        if actions == ["Left"]:
            assert not server.call("reset", {"sessions": made, **tasks}).header["errors"]
        errors = server.call("step", {"sessions": made, "names": [actions]}).header["errors"]
        assert bool(errors) == (actions == ["Up"]), errors
        assert not errors or "raised KeyboardInterrupt: no licence" in errors[0][2]
    with pytest.raises(EnvError, match="raised KeyboardInterrupt: no licence"):
        server.call("state", {"sessions": made})
    assert server.call("close", {"sessions": made}).op == "closed"
    server.close()


def test_slow_calls_that_return_are_no_longer_counted_as_stuck(service: Service) -> None:
    url = service(envs=(STUBBORN,), call_timeout_s=1.0, max_stuck=1)
    Stubborn.may_go_on.clear()
    env = make_env(f"remote:{url}#{STUBBORN}")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="took longer than call_timeout_s"):
        env.step(("Up",))
    assert httpx.get(f"{url}/ready", timeout=60).json()["num_stuck"] == 1
    with pytest.raises(EnvError, match="1 of your calls hang"):
        env.reset(seed=0)
    Stubborn.may_go_on.set()
    until = time.monotonic() + 60
    while httpx.get(f"{url}/ready", timeout=60).json()["num_stuck"]:
        assert time.monotonic() < until, "they came back and are still counted"
        time.sleep(0.02)
    env.reset(seed=0)
    env.close()
    Stubborn.may_go_on.clear()


def test_a_frozen_server_costs_one_limited_wait(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_ENV_TIMEOUT_S", "2")  # time enough for a crowded machine; waited for once
    with EnvBatch(f"remote:{relay.url}#frozenlake", {}, 8) as batch:
        tasks = [batch.envs[0].make_task(batch.envs[0].options, seed) for seed in range(8)]
        assert all(turn.error is None for turn in batch.reset(tasks))
        relay.freeze()
        began = time.monotonic()
        turns = batch.step(range(8), [()] * 8)
        assert time.monotonic() - began < 8 * 2  # less than a time-out for each
        assert all(isinstance(turn.error, EnvError) for turn in turns)
        assert "the env server at" in str(turns[0].error)


def test_a_server_that_is_slow_but_alive_is_waited_for(service: Service) -> None:
    url = service(envs=(STUBBORN,), call_timeout_s=30, num_threads=2)
    Stubborn.may_go_on.clear()
    server = Server(url, timeout_s=30, silent_s=0.05)
    made = server.call("create", {"env": STUBBORN}).header["sessions"]
    server.call("reset", {"sessions": made, "seeds": [0]})
    threading.Timer(0.5, Stubborn.may_go_on.set).start()
    answer = server.call("step", {"sessions": made, "names": [["Up"]]})
    assert answer.op == "turns"
    server.close()
    Stubborn.may_go_on.clear()


def test_a_silent_server_is_given_up_before_the_timeout(relay: Relay) -> None:
    server = Server(relay.url, timeout_s=60, silent_s=0.1, connect_timeout_s=0.2)
    server.call("load", {})
    relay.freeze()
    began = time.monotonic()
    with pytest.raises(EnvServerLostError, match="has frozen"):
        server.call("load", {})
    assert time.monotonic() - began < 30
    with pytest.raises(EnvServerLostError, match="does not answer"):  # others do not wait for it again
        server.call("load", {})


def test_environments_are_spread_over_two_servers(service: Service) -> None:
    urls = [service(), service()]
    envs = []
    for seed in range(6):
        env = make_env(f"remote:{urls[0]},{urls[1]}#frozenlake")
        task = env.make_task(env.options, seed)
        env.reset(options={"task": task})
        envs.append(env)
    assert [httpx.get(f"{url}/envs").json()["num_sessions"] for url in urls] == [3, 3]
    other = make_env(f"remote:{urls[1]},{urls[0]}#frozenlake")  # as another process would
    other.reset(seed=0)
    assert sum(httpx.get(f"{url}/envs").json()["num_sessions"] for url in urls) == 7
    for env in (*envs, other):
        env.close()
