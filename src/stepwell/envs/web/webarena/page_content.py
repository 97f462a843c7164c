"""Judges what pages contain after the episode: `program_html`.

    target ─► which page: "last", a URL, or a function of the sites
           ─► which part: the whole HTML, a locator, or a function of the sites
           ─► does the part meet the required contents?

All targets must hold. A `PageReader` reads pages without disturbing the one where the agent stopped.

Invariant: no text of a task is ever run as Python. Functions are calls of fixed names with constant texts.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stepwell.core import InputError
from stepwell.envs.web.webarena.answers import AnswerMatcher, judge_text
from stepwell.envs.web.webarena.task import CONTENT_RULES, PageTarget, WebArenaTask

SiteFunction = Callable[..., str]
LAST = "last"
_FUNCTION = "func:"


class PageReader(Protocol):
    """Reads parts of pages after the episode."""

    @property
    def url(self) -> str:
        """Where the agent stopped."""

    def read_part(self, url: str, locator: str, prep_actions: Sequence[str] = ()) -> str:
        """The part of the page at `url` ("last": where the agent stopped); without a locator, its HTML."""


def judge_targets(
    task: WebArenaTask,
    reader: PageReader,
    functions: Mapping[str, SiteFunction],
    matcher: AnswerMatcher,
) -> bool:
    """Whether every target of `task` holds."""
    return all(_judge_target(task, target, reader, functions, matcher) for target in task.targets)


def _judge_target(
    task: WebArenaTask,
    target: PageTarget,
    reader: PageReader,
    functions: Mapping[str, SiteFunction],
    matcher: AnswerMatcher,
) -> bool:
    url = target.url
    if url.startswith(_FUNCTION):
        url = call_function(url, functions, url=reader.url)
    if target.locator.startswith(_FUNCTION):
        page = reader.read_part(url, "") if "__page__" in target.locator else ""
        found = call_function(target.locator, functions, url=reader.url, page=page)
    else:
        found = reader.read_part(url, target.locator, target.prep_actions)
    if task.rules == "webarena":
        found = html.unescape(found)
    name = next(name for name in CONTENT_RULES if name in target.required)
    value = target.required[name]
    if name == "fuzzy_match":
        texts = [value] if isinstance(value, str) else value
        if task.rules == "lite":  # all of them, in one question
            return matcher.matches_answer(task.intent, ", ".join(texts), found)
        return any(
            matcher.matches_answer(task.intent, part, found) for part in " |OR| ".join(texts).split(" |OR| ")
        )
    return judge_text(name, value, found, task.rules, in_page=True)


def call_function(call: str, functions: Mapping[str, SiteFunction], *, url: str, page: str = "") -> str:
    """The result of `func:name('text', …)`; `__last_url__` and `__page__` stand for what they say."""
    text = call.removeprefix(_FUNCTION).strip()
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise InputError(f"cannot read the function call {text!r}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise InputError(f"{text!r} is not a function call with string arguments")
    if node.func.id not in functions:
        raise InputError(f"unknown function {node.func.id!r}; known: {', '.join(sorted(functions))}")
    return functions[node.func.id](*(_read_argument(argument, text, url, page) for argument in node.args))


def _read_argument(argument: ast.expr, text: str, url: str, page: str) -> str:
    if isinstance(argument, ast.Name) and argument.id == "__page__":
        return page
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value.replace("__last_url__", url)
    raise InputError(f"an argument in {text!r} is not a text")
