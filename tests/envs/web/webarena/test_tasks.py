"""Files of tasks: the package's 812, WebArena-Lite's form, instructions, folders, and what is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import ConfigError, InputError
from stepwell.envs.web.webarena.accounts import WebArenaAccounts, find_account
from stepwell.envs.web.webarena.loader import load_entries
from stepwell.envs.web.webarena.login import list_login_sites
from stepwell.envs.web.webarena.sites import WebArenaSites, fill_urls
from stepwell.envs.web.webarena.task import read_task

LITE: dict[str, Any] = {
    "sites": ["reddit"],
    "task_id": 7,
    "old_task_id": 610,
    "require_login": True,
    "storage_state": "./.auth/reddit_state.json",
    "start_url": "__REDDIT__/f/lamps",
    "geolocation": None,
    "intent_template": "Post about {{thing}}",
    "instantiation_dict": {"thing": "lamps"},
    "intent": "Post about lamps",
    "require_reset": False,
    "eval": {
        "eval_types": ["url_match", "program_html"],
        "reference_answers": None,
        "reference_url": "__REDDIT__/f/lamps",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "func:reddit_get_post_url('__last_url__')",
                "locator": "document.querySelector('.post').outerText",
                "required_contents": {"fuzzy_match": ["a post about lamps"]},
            }
        ],
    },
    "intent_template_id": 28,
}


def test_all_tasks_of_the_package_are_read() -> None:
    tasks = [read_task(entry) for entry in load_entries()]
    assert [task.task_id for task in tasks] == list(range(812))
    assert Counter(name for task in tasks for name in task.evaluators) == {
        "program_html": 411,
        "string_match": 335,
        "url_match": 205,
    }
    assert len({task.template_id for task in tasks}) == 190
    assert sum(not task.is_achievable for task in tasks) == 36
    assert max(len(task.start_urls) for task in tasks) == 3
    assert {task.rules for task in tasks} == {"webarena"}


def test_five_addresses_are_enough_for_all_tasks() -> None:
    names = ("shopping", "shopping_admin", "reddit", "gitlab", "map")
    sites = WebArenaSites(**{name: f"http://{name.replace('_', '-')}.test/" for name in names})
    text = fill_urls(json.dumps(load_entries()), sites)
    assert not re.search("__[A-Z]+__", text)
    assert "http://shopping-admin.test/catalog" in text
    assert sites.list_hosts()[:2] == ("shopping.test", "shopping-admin.test")
    with pytest.raises(ConfigError, match=r"webarena\.sites\.map"):
        fill_urls("__MAP__", WebArenaSites())


def test_a_task_begins_logged_in_to_the_sites_of_its_storage_state() -> None:
    tasks = [read_task(entry) for entry in load_entries()]
    assert Counter(list_login_sites(task) for task in tasks) == {
        ("shopping",): 187,
        ("gitlab",): 186,
        ("shopping_admin",): 182,
        (): 128,
        ("reddit",): 111,
        ("gitlab", "reddit"): 18,
    }


def test_published_accounts_are_found_and_can_be_replaced() -> None:
    assert find_account("gitlab", WebArenaAccounts()).username
    own = WebArenaAccounts.model_validate({"gitlab": {"username": "me", "password": "secret"}})
    assert find_account("gitlab", own).username == "me"
    assert "secret" not in repr(own)


def test_webarena_lite_is_known_by_its_old_task_id(tmp_path: Path) -> None:
    path = tmp_path / "lite.raw.json"
    path.write_text(json.dumps([LITE, {**LITE, "task_id": 8}]))
    first, second = (read_task(entry) for entry in load_entries(path))
    assert (first.rules, first.task_id, second.task_id) == ("lite", 7, 8)
    assert first.targets[0].required == {"fuzzy_match": ["a post about lamps"]}
    assert read_task(LITE, "webarena").rules == "webarena"


def test_a_folder_holds_one_task_per_file_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 0):
        (tmp_path / f"{number}.json").write_text(json.dumps({**LITE, "task_id": number}))
    assert [entry["task_id"] for entry in load_entries(tmp_path)] == [0, 9, 10]


def test_lines_of_instructions_become_tasks_without_evaluators(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(
        '{"task": "Find a lamp", "web": "shopping"}\n\n{"task": "Star a project", "web": "gitlab"}\n'
    )
    tasks = [read_task(entry) for entry in load_entries(path)]
    assert [(task.intent, task.start_urls, task.evaluators) for task in tasks] == [
        ("Find a lamp", ("__SHOPPING__",), ()),
        ("Star a project", ("__GITLAB__",), ()),
    ]
    assert list_login_sites(tasks[1]) == ("gitlab",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eval": None}, "'eval' must be an object"),
        ({"eval": {**LITE["eval"], "eval_types": ["magic"]}}, "unknown evaluator 'magic'"),
        ({"eval": {**LITE["eval"], "eval_types": ["string_match"]}}, "reference_answers must hold"),
        ({"eval": {**LITE["eval"], "url_note": "NEAR"}}, "unknown url_note 'NEAR'"),
        ({"eval": {**LITE["eval"], "program_html": [{"url": "last"}]}}, "needs url, locator"),
        ({"intent": ...}, "has no 'intent'"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_number(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    entry = {name: value for name, value in {**LITE, **change}.items() if value is not ...}
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([LITE, entry]))
    with pytest.raises(InputError, match="entry 1") as refused:
        load_entries(path)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_entries(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("[{")
    with pytest.raises(InputError, match="is not JSON"):
        load_entries(tmp_path / "broken.json")
