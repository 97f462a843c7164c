"""The verdict on a finished episode: all evaluators of the task must agree.

    answer ─► string_match ┐
    URL    ─► url_match    ├─ all hold ─► 1.0, else 0.0
    pages  ─► program_html ┘

Pages are read through the episode's own driver, in a tab of their own that is closed again. So the agent's
cookies are sent, and its page stays as it is. A driver that runs scripts (`run_script`) evaluates locators as
they are; elsewhere `locator_values.py` evaluates them over the HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stepwell.core.errors import EnvError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.page import PageView
from stepwell.envs.web.webarena.answers import AnswerMatcher, judge_answer
from stepwell.envs.web.webarena.locator_values import read_html_value
from stepwell.envs.web.webarena.page_content import LAST, SiteFunction, judge_targets
from stepwell.envs.web.webarena.task import WebArenaTask
from stepwell.envs.web.webarena.urls import judge_url


def judge_episode(
    task: WebArenaTask,
    answer: str,
    view: PageView,
    driver: PageDriver,
    *,
    matcher: AnswerMatcher,
    functions: Mapping[str, SiteFunction],
) -> float:
    """1.0 if every evaluator of `task` is content, else 0.0; its URLs have been filled in."""
    assert task.evaluators, "a task without an evaluator is left to a judge of outcomes"
    if "string_match" in task.evaluators and not judge_answer(task, answer, matcher):
        return 0.0
    if "url_match" in task.evaluators and not judge_url(
        task.reference_url, view.url, rule=task.url_rule, rules=task.rules
    ):
        return 0.0
    if "program_html" in task.evaluators:
        return float(judge_targets(task, DriverReader(driver, view.url), functions, matcher))
    return 1.0


class DriverReader:
    """Reads pages through a driver; the page at `url` is where the agent stopped."""

    def __init__(self, driver: PageDriver, url: str) -> None:
        self.driver, self._url = driver, url

    @property
    def url(self) -> str:
        """Where the agent stopped."""
        return self._url

    def read_part(self, url: str, locator: str, prep_actions: Sequence[str] = ()) -> str:
        """The part of a page that `locator` names, or its HTML."""
        if url == LAST:
            return self._read_focused(locator, prep_actions)
        with self._open_beside(url) as is_open:
            return self._read_focused(locator, prep_actions) if is_open else ""

    def _read_focused(self, locator: str, prep_actions: Sequence[str]) -> str:
        if not locator.strip():
            return self.driver.raw_html()
        run_script: Any = getattr(self.driver, "run_script", None)
        if run_script is None:
            return read_html_value(self.driver.raw_html(), locator)
        for action in prep_actions:
            if _run_quietly(run_script, action) is None:
                break
        value = _run_quietly(run_script, locator)
        return "" if value is None else value[0]

    @contextmanager
    def _open_beside(self, url: str) -> Iterator[bool]:
        """Open `url` in a tab of its own; False if it cannot be opened (the notice says why)."""
        num_tabs = len(self.driver.view().tabs)
        if len(self.driver.act(WebAction("new_tab")).tabs) == num_tabs:
            raise EnvError("the page of an evaluator cannot be opened: too many tabs are open")
        try:
            yield not self.driver.act(WebAction("goto", argument=url)).notice
        finally:
            self.driver.act(WebAction("close_tab"))


def _run_quietly(run_script: Any, script: str) -> tuple[str] | None:
    """The value of a script as text; None if it fails, because the page is not what the task expects."""
    try:
        return (str(run_script(f"() => {script}")),)
    except EnvError:
        return None
