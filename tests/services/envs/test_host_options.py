"""A caller cannot make the service fetch, read or import anything: such options belong to the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.services.connection_counter import ConnectionCounter

from stepwell.cli.main import main
from stepwell.core import ConfigError
from stepwell.envs import make_env
from stepwell.envs.remote.wire import Frame, to_bytes

Service = Callable[..., str]
QUESTIONS = [
    {
        "id": str(number),
        "question": f"Where is the secret {number}?",
        "answer": "here",
        "type": "bridge",
        "supporting_facts": [["A", 0]],
        "context": [["A", ["It is here."]]],
    }
    for number in range(4)
]


def ask(url: str, op: str, env: str, options: dict[str, Any]) -> httpx.Response:
    header = {"env": env, "options": options, "seeds": [0]}
    return httpx.post(f"{url}/call", content=to_bytes(Frame(op, header)), timeout=60)


@pytest.mark.parametrize("op", ["describe", "tasks", "create"])
def test_a_callers_url_is_never_fetched(url: str, op: str) -> None:
    with ConnectionCounter() as listener:
        reply = ask(url, op, "shop", {"size": "tiny", "url": listener.url})
        assert listener.num_connections == 0
    assert reply.status_code == 403, reply.text
    assert "env.options.url of shop belongs to the host" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("env", "option", "value"),
    [
        ("multihop_qa", "dataset", "/etc/passwd"), ("paper_search", "snapshot", "/etc"),
        ("paper_search", "graph_seed", 7), ("household", "games", "/"), ("svg", "icons", "/"),
        ("svg", "dino_path", "/"), ("shop", "webshop_files", "/"), ("shop", "num_products", 10_000),
        ("shop", "transport", "http"),
    ],
)  # fmt: skip
def test_options_that_name_host_resources_are_refused(url: str, env: str, option: str, value: object) -> None:
    reply = httpx.post(f"{url}/sessions", json={"env": env, "options": {option: value}})
    assert reply.status_code == 403 and f"env.options.{option} of {env}" in reply.json()["detail"]


@pytest.mark.parametrize("name", ["os:path", "in-process:Lake", "../x.py:Env", "pond"])
def test_a_caller_cannot_name_a_module(url: str, name: str) -> None:
    for reply in (ask(url, "describe", name, {}), httpx.post(f"{url}/sessions", json={"env": name})):
        assert reply.status_code == 404 and "is not hosted here" in reply.json()["detail"]


def test_callers_see_the_environment_but_not_the_hosts_file(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "hotpot.json"
    file.write_text(json.dumps(QUESTIONS))
    url = service(envs=("multihop_qa",), env_options={"multihop_qa": {"dataset": str(file)}})
    env = make_env(f"remote:{url}#multihop_qa", {"max_turns": 2})
    observation, _ = env.reset(seed=0)
    assert "Where is the secret" in observation.text
    assert "dataset" not in env.options.model_dump() and env.options.max_turns == 2
    assert str(tmp_path) not in ask(url, "describe", "multihop_qa", {}).text
    env.close()


def test_a_host_option_cannot_be_changed_but_may_be_repeated(service: Service) -> None:
    url = service(envs=("frozenlake",), env_options={"frozenlake": {"size": 5}})
    assert ask(url, "tasks", "frozenlake", {"size": 5}).status_code == 200
    reply = ask(url, "tasks", "frozenlake", {"size": 6})
    assert reply.status_code == 403 and "env.options.size" in reply.json()["detail"]
    env = make_env(f"remote:{url}#frozenlake")
    assert len(env.make_task(env.options, 0).content["board"]) == 5


def test_a_remote_run_that_sets_a_host_option_gets_its_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.options\.dataset of multihop_qa belongs to the host"):
        make_env(f"remote:{url}#multihop_qa", {"dataset": "/etc/passwd"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shop", "write NAME.OPTION=VALUE"),
        ("shop.urll=x", "did you mean 'url'"),
        ("shopp.url=http://x", "did you mean 'shop'"),
        ("frozenlake.size=99", "at most 32"),
    ],
)
def test_an_invalid_set_option_ends_the_command_with_the_reason(
    capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert main(["serve", "envs", "--port", "0", "--set", text]) == 2
    assert words in capsys.readouterr().err
