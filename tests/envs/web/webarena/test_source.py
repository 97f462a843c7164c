"""WebArena's tasks through the web environment, on a small forum with log-in, posts and pages to judge."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.envs.web.conftest import needs_chromium

from stepwell.core import ConfigError, InputError, Split
from stepwell.envs import list_distinct_tasks, make_env
from stepwell.envs.web.webarena.options import WebArenaOptions
from stepwell.envs.web.webarena.source import WebArenaSource

LOGIN = '<form action="/login" method="post"><input name="user"><input type="password" name="word"></form>'
WRITE = """<title>Write</title><form action="/f/lamps" method="post"><textarea name="text"></textarea>
<button>Post</button></form>"""
TASK: dict[str, Any] = {
    "sites": ["reddit"],
    "task_id": 0,
    "require_login": True,
    "storage_state": "./.auth/reddit_state.json",
    "start_url": "__REDDIT__/write |AND| __REDDIT__/f/lamps/1/first",
    "intent": "Post that the lamp is red and tell me how many words that is",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"must_include": ["5"]},
        "reference_url": "__REDDIT__/f/lamps",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "func:reddit_get_post_url('__last_url__')",
                "locator": "document.querySelector('.post').outerText",
                "required_contents": {"must_include": ["the lamp is red", "by ann"]},
            },
            {"url": "last", "locator": "", "required_contents": {"must_include": ["<title>Post"]}},
        ],
    },
}


class ForumHandler(BaseHTTPRequestHandler):
    """A forum: whoever is logged in can write a post, which then has a page."""

    def do_GET(self) -> None:
        is_inside = "user=ann" in (self.headers.get("cookie") or "")
        if self.path == "/login":
            self._send_page(LOGIN)
        elif self.path == "/write":
            self._send_page(WRITE if is_inside else LOGIN)
        else:
            number = int([*self.path.split("/"), "", "", "", ""][3] or 0)
            posts: list[str] = self.server.posts  # type: ignore[attr-defined]
            text = posts[number] if number < len(posts) else "nothing"
            self._send_page(f"<title>Post</title><div class=post><p>{text}</p><p>by ann</p></div>")

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        posts: list[str] = self.server.posts  # type: ignore[attr-defined]
        if self.path == "/login":
            self._send_page("", place="/", cookie="user=ann; Path=/" if sent["word"] == ["right"] else "")
        else:
            posts.append(sent["text"][0])
            self._send_page("", place=f"/f/lamps/{len(posts) - 1}/title")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _send_page(self, text: str, place: str = "", cookie: str = "") -> None:
        self.send_response(303 if place else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(text)))
        for name, value in (("location", place), ("set-cookie", cookie)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def forum() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ForumHandler) as server:
        server.posts = ["welcome", "first"]  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_addresses_and_tasks_are_options_of_the_environment(forum: Any, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    account = {"username": "ann", "password": "right"}
    webarena = {
        "sites": {"reddit": f"http://127.0.0.1:{forum.server_port}"},
        "accounts": {"reddit": account},
        "tasks": str(tmp_path / "tasks.json"),
    }
    options = {"source": "webarena", "webarena": webarena}
    with make_env("web", options) as env:
        observation, _ = env.reset(seed=0)
        assert "Post that the lamp is red" in observation.text and "textarea" in observation.text
    assert next(list_distinct_tasks("web", options, Split.HELD_OUT, 0)).content["entry"] == TASK


@pytest.fixture
def host(forum: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a person sets: one address, one file of tasks, and here the state of a log-in."""
    url = f"http://127.0.0.1:{forum.server_port}"
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    cookie = {"name": "user", "value": "ann", "domain": "127.0.0.1", "path": "/", "expires": -1}
    state = {"cookies": [{**cookie, "httpOnly": False, "secure": False, "sameSite": "Lax"}], "origins": []}
    (tmp_path / "reddit_state.json").write_text(json.dumps(state))
    monkeypatch.setenv("STEPWELL_WEBARENA_REDDIT", url)
    monkeypatch.setenv("STEPWELL_WEBARENA_TASKS", str(tmp_path / "tasks.json"))
    monkeypatch.setenv("STEPWELL_WEBARENA_AUTH_FOLDER", str(tmp_path))
    return url


def play_task(driver: str, text: str, answer: str) -> float:
    """Write a post and exit; the reward."""
    with make_env("web", {"source": "webarena", "driver": driver}) as env:
        observation, _ = env.reset(seed=0)
        assert "Post that the lamp is red" in observation.text and "textarea" in observation.text
        observation, *_ = env.step([f'do(action="Type", argument="{text}", element="1")'])
        observation, *_ = env.step(['do(action="Click", element="2")'])
        assert "by ann" in observation.text
        _, reward, terminated, _, info = env.step([f'exit(message="{answer}")'])
        assert terminated and info["success"] == (reward == 1.0)
        return float(reward)


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [("The lamp is red", "5 words", 1.0), ("The lamp is red", "15", 0.0), ("The lamp is blue", "5", 0.0)],
)
def test_answer_url_and_pages_must_all_be_right(host: str, text: str, answer: str, reward: float) -> None:
    assert play_task("light", text, answer) == reward


@pytest.mark.slow
@needs_chromium
def test_chromium_gives_the_same_verdicts(host: str) -> None:
    assert play_task("chromium", "The lamp is red", "5 words") == 1.0
    assert play_task("chromium", "The lamp is blue", "5 words") == 0.0


def test_the_pages_of_a_start_are_tabs_and_the_first_has_the_focus(host: str) -> None:
    start = WebArenaSource().start(WebArenaSource().make_content(None, 7))
    assert (start.url, list(start.more_urls)) == (f"{host}/write", [f"{host}/f/lamps/1/first"])
    assert list(start.allowed_hosts) == [host.removeprefix("http://")]
    with make_env("web", {"source": "webarena"}) as env:
        text = env.reset(seed=0)[0].text
        assert "Write" in text and "Post" in text


def test_without_a_folder_of_states_the_agent_is_logged_in_by_form(forum: Any) -> None:
    url = f"http://127.0.0.1:{forum.server_port}"
    account = {"username": "ann", "password": "right"}
    options = {"sites": {"reddit": url}, "accounts": {"reddit": account}}
    source = WebArenaSource(WebArenaOptions.model_validate(options))
    start = source.start({"entry": TASK})
    assert [(cookie["name"], cookie["value"]) for cookie in start.storage_state["cookies"]] == [
        ("user", "ann")
    ]


def test_content_names_no_address_and_a_missing_one_is_told() -> None:
    source = WebArenaSource(WebArenaOptions())
    content = source.make_content(None, 812 + 21)
    assert content["entry"]["task_id"] == 21  # type: ignore[index, call-overload]
    assert "http" not in json.dumps(content["entry"]["start_url"])  # type: ignore[index, call-overload]
    with pytest.raises(ConfigError, match=r"webarena\.sites\.shopping"):
        source.start(content)
    with pytest.raises(InputError, match="'entry'"):
        source.start({})
    with pytest.raises(ConfigError, match="no scripted solutions"):
        source.plan(content)


INSTRUCTIONS = [
    {"task": "Find a lamp", "web": "Reddit"},
    {"task": " Find a  lamp", "web": "reddit"},
    {"task": "Say who wrote the first post", "web": "reddit", "start_url": "__REDDIT__/f/lamps/1/first"},
]


def test_an_instruction_begins_at_its_page_and_is_left_to_a_judge(forum: Any, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([*INSTRUCTIONS, TASK]))
    url = f"http://127.0.0.1:{forum.server_port}"
    account = {"username": "ann", "password": "right"}
    webarena = {
        "sites": {"reddit": url},
        "accounts": {"reddit": account},
        "tasks": str(tmp_path / "tasks.json"),
    }
    options = {"source": "webarena", "webarena": webarena}
    tasks = {task.instruction: task for task in list_distinct_tasks("web", options, Split.TRAIN, 0)}
    assert set(tasks) == {
        "Find a lamp",
        "Say who wrote the first post",
    }  # one of them stands twice in the file
    assert not any(task.has_checker for task in tasks.values())
    (checked,) = list_distinct_tasks("web", options, Split.HELD_OUT, 0)
    assert checked.has_checker
    with make_env("web", options) as env:
        assert not env.has_oracle and {env.name_family(task) for task in tasks.values()} == {"reddit"}
        for task in tasks.values():
            first, _ = env.reset(options={"task": task})
            place = f"{url}/f/lamps/1/first" if "wrote" in task.instruction else url
            assert f"Task: {task.instruction}" in first.text and f"URL: {place}" in first.text
            assert "by ann" in first.text
            _, reward, terminated, _, info = env.step(['exit(message="ann")'])
            assert (reward, terminated, info["success"]) == (0.0, True, False)
        with pytest.raises(InputError, match="mark it with the tag 'unchecked'"):
            env.reset(options={"task": replace(tasks["Find a lamp"], tags=())})


def test_new_words_are_a_task_of_the_parents_site_or_the_one_that_the_file_has(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([*INSTRUCTIONS, TASK]))
    options = {"source": "webarena", "webarena": {"tasks": str(tmp_path / "tasks.json")}}
    (parent,) = list_distinct_tasks("web", options, Split.HELD_OUT, 0)
    train = {task.instruction: task.id for task in list_distinct_tasks("web", options, Split.TRAIN, 0)}
    with make_env("web", options) as env:
        made = env.read_instruction(env.options, parent, "Find a chair")
        assert made.content["entry"] == {"task": "Find a chair", "web": "reddit"} and not made.has_checker
        assert made.split(0.2) is Split.TRAIN
        known = env.read_instruction(env.options, parent, "find a lamp.")
        assert known.id == train["Find a lamp"]
        held_out = env.read_instruction(env.options, parent, TASK["intent"].upper())
        assert held_out.id == parent.id and held_out.split(0.2) is Split.HELD_OUT


def test_an_instruction_of_an_unknown_site_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([{"task": "Find a lamp", "web": "bank"}]))
    with pytest.raises(InputError, match=r"entry 0: an instruction needs 'web'.*not 'bank'"):
        WebArenaSource(WebArenaOptions(tasks=str(tmp_path / "tasks.json"))).make_content(None, 0)
