"""WebArena as a source of tasks for the web environment.

    make_content   seed -> one published task, with placeholders instead of addresses
    start          fills in the host's addresses, logs in, allows the hosts of the sites
    judge          all evaluators of the task; None for an instruction without one
    read_instruction   the published task of these words, else an instruction on the parent's site
    plan           none: the published tasks have no scripted solutions

The content of a task is its published entry, so two runs name the same task alike wherever the sites are.
Addresses, accounts and files come from the host's options and never from a task's content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepwell.core import JSON, ConfigError, InputError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sources import TaskStart
from stepwell.envs.web.webarena.accounts import find_account
from stepwell.envs.web.webarena.answers import AnswerMatcher
from stepwell.envs.web.webarena.judge import judge_episode
from stepwell.envs.web.webarena.loader import load_entries
from stepwell.envs.web.webarena.login import SessionStore
from stepwell.envs.web.webarena.model_matcher import ModelMatcher
from stepwell.envs.web.webarena.options import WebArenaOptions, fill_from_environment
from stepwell.envs.web.webarena.page_content import SiteFunction
from stepwell.envs.web.webarena.rule_matcher import RuleMatcher
from stepwell.envs.web.webarena.site_functions import list_functions
from stepwell.envs.web.webarena.sites import fill_urls
from stepwell.envs.web.webarena.task import (
    Rules,
    WebArenaTask,
    complete_entry,
    find_site,
    fold_words,
    read_task,
)


class WebArenaSource:
    """Published tasks, on sites that the host runs."""

    has_oracle = False

    def __init__(self, options: WebArenaOptions | None = None) -> None:
        self.options = fill_from_environment(options or WebArenaOptions())
        folder = None if self.options.auth_folder is None else Path(self.options.auth_folder)
        self._sessions = SessionStore(self.options.sites, self.options.accounts, folder)
        self._task: WebArenaTask | None = None
        self._matcher: AnswerMatcher | None = None

    @property
    def rules(self) -> Rules | None:
        """Whose rules judge; None if the form of each entry decides."""
        return None if self.options.rules == "auto" else self.options.rules

    def make_content(self, options: Any, seed: int) -> dict[str, JSON]:
        """The task of a seed: seeds count through the file again and again."""
        entries = load_entries(self.options.task_path, self.rules)
        return self._make_entry_content(entries[seed % len(entries)])

    def read_instruction(self, options: Any, content: Mapping[str, Any], instruction: str) -> dict[str, JSON]:
        """The task of new words, on the site of the task that they were written after."""
        entries = load_entries(self.options.task_path, self.rules)
        words = fold_words(instruction)
        for entry in entries:
            if fold_words(read_task(entry, self.rules).intent) == words:
                return self._make_entry_content(entry)
        made = self._make_entry_content({"task": instruction, "web": find_site(content["entry"])})
        return {**made, "split": "train"}

    def _make_entry_content(self, entry: Mapping[str, Any]) -> dict[str, JSON]:
        task = read_task(entry, self.rules)
        split = "held_out" if task.evaluators else "train"
        if "intent" not in entry:  # the place of an instruction in a file is no part of it
            start = {"start_url": entry["start_url"]} if entry.get("start_url") else {}
            entry = {"task": task.intent, "web": task.sites[0], **start}
        return {
            "source": "webarena",
            "entry": dict(entry),
            "instruction": task.intent,
            "split": split if self.options.split == "auto" else self.options.split,
        }

    @staticmethod
    def has_checker(content: Mapping[str, Any]) -> bool:
        """Whether the task of a content has evaluators."""
        return bool(read_task(content["entry"]).evaluators)

    @staticmethod
    def name_family(content: Mapping[str, Any]) -> str:
        """The site where a task begins."""
        return find_site(content["entry"])

    def start(self, content: Mapping[str, Any]) -> TaskStart:
        """Fill in the addresses, log in, and begin at the task's page."""
        entry = content.get("entry")
        if not isinstance(entry, Mapping):
            raise InputError("a task of WebArena holds its published 'entry'")
        self._task = None
        whole = json.dumps(complete_entry(entry))
        task = read_task(json.loads(fill_urls(whole, self.options.sites)), self.rules)
        state = self._sessions.find_state(task)
        self._task = task
        return TaskStart(
            task.start_urls[0],
            allowed_hosts=self.options.sites.list_hosts(),
            storage_state=state,
            more_urls=task.start_urls[1:],
        )

    def judge(self, view: PageView, driver: PageDriver, answer: str) -> float | None:
        """1.0 if the started task was done, else 0.0; None if it has no evaluator."""
        if self._task is None:
            raise InputError("no task of WebArena is started; call start first")
        if not self._task.evaluators:
            return None
        return judge_episode(
            self._task, answer, view, driver, matcher=self._find_matcher(), functions=self._list_functions()
        )

    def plan(self, content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
        """There is none."""
        raise ConfigError("tasks of WebArena have no scripted solutions; play source 'sites' with an oracle")

    def close(self) -> None:
        """Forget the started task."""
        self._task = None

    def _find_matcher(self) -> AnswerMatcher:
        if self._matcher is None:
            is_model = self.options.fuzzy == "model"
            self._matcher = ModelMatcher(self.options.matcher) if is_model else RuleMatcher()
        return self._matcher

    def _list_functions(self) -> Mapping[str, SiteFunction]:
        try:
            administrator = find_account("shopping_admin", self.options.accounts)
        except ConfigError:  # told when a task asks the shop
            administrator = None
        return list_functions(self.options.sites.shopping, administrator)
