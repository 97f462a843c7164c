"""The web as an environment for language agents: one of fourteen actions a turn, judged when the agent exits.

    task ─► source.start ─► driver.open ─► view ─► observation
                                            ▲          │
    source.judge ◄─ exit ◄─ parse_action ◄──┼──────────┘
                                └─► driver.act

A reply that is not an action, or an action that cannot be done, costs a turn; the notice says why. The
reward is the judge's (0 to 1) at the exit, and nothing before it; an episode without an exit fails. A task
without a checker ends with 0 until a judge of outcomes decides. Where a
page ends a task by itself (`has_ended` of the source), that is the exit. A
browser that dies or a start page that does not answer raises `EnvError`: the episode is a fault of the
system and never trained on.

Everything an observation says above the line `Page:` is ours; below it stands only the page.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    UNCHECKED_TAG,
    ActionSpace,
    EnvDescription,
    EnvError,
    InputError,
    Observation,
    Split,
    StateForm,
    Task,
    TaskRelation,
)
from stepwell.core.names import describe_missing_module
from stepwell.envs.base import Effect, Env
from stepwell.envs.fixed_splits import assign_split
from stepwell.envs.tiles import Image, draw_text
from stepwell.envs.web.actions import ActionError, WebAction, parse_action, print_action
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.guide import make_examples, write_guide
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.observation import count_tokens, write_notice, write_observation
from stepwell.envs.web.options import WebOptions
from stepwell.envs.web.page import PageView
from stepwell.envs.web.short_page import shorten_page
from stepwell.envs.web.sources import SOURCES, TaskSource, TaskStart, find_source_type, open_source

if TYPE_CHECKING:
    from stepwell.envs.web.chromium import ChromiumDriver

MAX_HISTORY = 20
HISTORY_LINE_CHARS = 2000  # an action with its `# Note:` is kept whole


class WebEnv(Env):
    """Do a task in a web browser."""

    name: ClassVar[str] = "web"
    Options: ClassVar[type[Settings]] = WebOptions
    waits: ClassVar[bool] = True  # for pages: many contexts work at the same time
    options: WebOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self.has_oracle = getattr(find_source_type(self.options.source), "has_oracle", True)  # type: ignore[misc]
        self._source: TaskSource | None = None
        self._source_name = ""
        self._driver: PageDriver | None = None
        self._view: PageView | None = None
        self._plan: Callable[[PageView], WebAction] | None = None
        self._planned: str | None = None  # the script's next action, until a turn is taken
        self._has_strayed = False  # something else was done than the script's next action
        self._first_url = ""
        self._done: list[str] = []

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        guide, turns = write_guide(self.options), self.options.turn_limit
        return EnvDescription(
            self.name, guide, ActionSpace(), turns, make_examples(), history_line_chars=HISTORY_LINE_CHARS
        )

    @classmethod
    def require(cls) -> None:
        """Selectolax reads pages for the light driver; Chromium says itself what it misses."""
        try:
            import selectolax.lexbor  # noqa: F401
        except ImportError as error:
            raise InputError(describe_missing_module("selectolax")) from error

    @classmethod
    def count_places(cls, options: Any) -> int | None:
        """An episode in Chromium holds a context."""
        if options.driver != "chromium":
            return None
        from stepwell.envs.web.browser import choose_max_contexts

        return choose_max_contexts()

    @classmethod
    def check_unopened(cls, options: Any) -> str | None:
        """Chromium takes seconds to start; here it is only looked for."""
        if options.driver != "chromium":
            return None
        from stepwell.envs.web.browser import find_chromium, require_playwright

        require_playwright()
        return f"Chromium is there ({find_chromium()}) and was not started"

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The task that the source makes of a seed; all splits but `train` that it names are held out."""
        source = open_source(options.source, options)
        content = {"source": options.source, **source.make_content(options, seed)}
        return _make_source_task(cls.name, options, content, seed)

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """A variant that the source makes, where it can."""
        make = getattr(open_source(str(task.content["source"]), options), "make_variant", None)
        content = None if make is None else make(options, task.content, relation, rng)
        return None if content is None else _make_source_task(cls.name, options, content, task.seed)

    @classmethod
    def read_instruction(cls, options: Any, parent: Task, instruction: str) -> Task | None:
        """The task that the source reads from an instruction, where it can."""
        read = getattr(open_source(str(parent.content["source"]), options), "read_instruction", None)
        content = None if read is None else read(options, parent.content, instruction)
        return None if content is None else _make_source_task(cls.name, options, content, parent.seed)

    @classmethod
    def name_family(cls, task: Task) -> str:
        """The site, where there are several; else the source."""
        name = str(task.content["source"])
        own = getattr(find_source_type(name), "name_family", None)
        return str(task.content.get("site") or (name if own is None else own(task.content)))

    @classmethod
    def count_requirements(cls, task: Task) -> int | None:
        """The values that the instruction of a task of our own sites names."""
        if task.content["source"] != "sites" or not task.has_checker:
            return None
        from stepwell.envs.web.sites.tasks import count_named_values  # other sources do without the sites

        return count_named_values(task.content)

    def begin(self, task: Task, seed: int) -> None:
        """Start the sites afresh and open the first page."""
        name = task.content.get("source")
        if name not in SOURCES:
            raise InputError(f"task {task.id} has the source {name!r}; it is one of {', '.join(SOURCES)}")
        if self._source is None or self._source_name != name:
            self.close()
            self._source, self._source_name = open_source(str(name), self.options), str(name)
        if task.has_checker and not _find_checker(task.content):
            raise InputError(f"task {task.id} has no checker; mark it with the tag {UNCHECKED_TAG!r}")
        start = self._source.start(task.content)
        self._driver = self._make_driver(start)
        self._view = self._driver.open(
            start.url,
            headers=start.headers,
            allowed_hosts=start.allowed_hosts,
            storage_state=start.storage_state,
        )
        for url in start.more_urls:
            self._driver.act(WebAction("new_tab"))
            self._driver.act(WebAction("goto", argument=url))
        if start.more_urls:
            self._view = self._driver.act(WebAction("tab_focus", argument="0"))
        self._instruction, self._first_url = task.instruction, self._view.url
        self._plan, self._planned, self._has_strayed, self._done = None, None, False, []

    def act(self, action: str) -> Effect:
        """Do one action in the browser, or exit and be judged."""
        view, driver = self._require_view()
        try:
            parsed = parse_action(action)
        except ActionError as error:
            self._view = replace(view, notice=f"not an action: {error}")
            return Effect()
        if action != self._planned and not self._is_planned(parsed):
            self._plan, self._has_strayed = None, True
        self._planned = None
        self._done.append(" ".join(print_action(parsed).split("\n")))
        assert self._source is not None
        if parsed.name == "exit":
            self._view = view = replace(view, notice="")  # what the turn before was told
        else:
            self._view = view = driver.act(parsed)
            has_ended = getattr(self._source, "has_ended", None)
            if has_ended is None or not has_ended(view):
                return Effect()
        score = self._source.judge(view, driver, parsed.argument) or 0.0
        return Effect(score, terminated=True, success=score >= 1.0)

    def observe(self) -> Observation:
        """Task, address, notice and page; with a screenshot if asked for."""
        is_wanted = self.options.screenshot != "none"
        images = (image,) if is_wanted and (image := self.take_screenshot()) is not None else ()
        return Observation(self._write_text(), images)

    def result(self) -> str:
        """The notice of the turn: what went wrong, or what a dialog said."""
        return "" if self._view is None else write_notice(self._view, 200)

    def oracle(self) -> list[str]:
        """The next action of the scripted solution; asked again before it is done, the same one.

        A script follows its own actions. After others it goes back to the first page and starts again; if
        they have left no way (what it needs is gone), there is none.
        """
        if self._planned is None:
            self._planned = self._plan_action()
        return [] if self._planned is None else [self._planned]

    def _is_planned(self, done: WebAction) -> bool:
        """Whether this is the script's next action, whatever the comments say."""
        if self._planned is None:
            return False
        planned = parse_action(self._planned)
        return replace(planned, element_comment="", note="") == replace(done, element_comment="", note="")

    def _plan_action(self) -> str | None:
        view, _ = self._require_view()
        assert self._source is not None
        if self._plan is None and self._has_strayed and view.url != self._first_url:
            return print_action(WebAction("goto", argument=self._first_url))
        self._plan = self._plan or self._source.plan(self.task.content)
        try:
            return print_action(self._plan(view))
        except EnvError:
            if not self._has_strayed:
                raise
            self._plan = None
            return None

    def golden_steps(self) -> int | None:
        """Unknown: the script is not proven to be the shortest way."""
        return None

    def random_action(self, rng: random.Random) -> str:
        """A click, a word of the task typed somewhere, a move, or an exit with a word of the task."""
        view, _ = self._require_view()
        words = re.findall(r"[\w-]+", self._instruction) or ["done"]
        fields = [e.id for e in view.elements if e.tag in ("input", "textarea")]
        name = rng.choice(["click"] * 6 + ["type", "search", "scroll", "go_back", "exit"])
        if name == "click" and view.elements:
            return print_action(WebAction("click", rng.choice(view.elements).id))
        if name in ("type", "search") and fields:
            return print_action(WebAction(name, rng.choice(fields), rng.choice(words)))
        if name == "exit":
            return print_action(WebAction("exit", argument=rng.choice(words)))
        if name == "scroll":
            return print_action(WebAction("scroll", argument=rng.choice(("up", "down"))))
        return print_action(WebAction("go_back"))

    def state(self) -> dict[StateForm, str]:
        """What is on the page."""
        return {StateForm.NATURAL_LANGUAGE: self._write_text()}

    def render(self) -> Image:
        """The page as an image, or its text if the driver cannot see."""
        image = self.take_screenshot()
        return draw_text(self._write_text()) if image is None else image

    def take_screenshot(self) -> Image | None:
        """The page in the browser, with marks if they are asked for; none under the light driver."""
        if not _is_chromium(self._driver):
            return None
        return self._driver.screenshot(with_marks=self.options.screenshot == "marks")

    def close(self) -> None:
        """Give back the browser context and the sites' state."""
        if self._driver is not None:
            self._driver.close()
        if self._source is not None:
            self._source.close()
        self._driver = self._source = self._view = None

    def _make_driver(self, start: TaskStart) -> PageDriver:
        if _is_chromium(self._driver) and self._driver.reuses_context and start.keeps_nothing:
            return self._driver
        if self._driver is not None:
            self._driver.close()
        if self.options.driver == "light":
            return LightDriver(start.app, self.options.timeout_s)
        from stepwell.envs.web.chromium import ChromiumDriver  # the light driver does without

        return ChromiumDriver(
            start.serve,
            self.options.timeout_s,
            self.options.viewport,
            reuses_context=start.keeps_nothing,
        )

    def _require_view(self) -> tuple[PageView, PageDriver]:
        if self._view is None or self._driver is None:
            raise InputError("the web environment has no page yet; call reset first")
        return self._view, self._driver

    def _write_text(self) -> str:
        view, _ = self._require_view()
        head = [f"Task: {' '.join(self._instruction.split())}"]
        if self.options.show_history and self._done:
            head += ["Done so far:", *self._list_done()]
        text = "\n".join(head)
        budget = max(1, self.options.token_budget - count_tokens(text))
        whole = f"{text}\n{write_observation(view, budget, with_url=self.options.show_url)}"
        if self.options.page_form == "short":
            above, mark, page = whole.partition("\nPage:\n")
            whole = f"{above}{mark}{shorten_page(page)}"
        return whole

    def _list_done(self) -> Sequence[str]:
        first = max(0, len(self._done) - MAX_HISTORY)
        return [f"{number + 1}. {self._done[number]}" for number in range(first, len(self._done))]

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """As every environment's, with the address in `info`."""
        observation, reward, terminated, truncated, info = super().step(actions)
        view, _ = self._require_view()
        info["url"] = view.url
        return observation, reward, terminated, truncated, info


def _is_chromium(driver: PageDriver | None) -> TypeGuard[ChromiumDriver]:
    chromium = sys.modules.get("stepwell.envs.web.chromium")  # not imported: no driver is of it
    return chromium is not None and isinstance(driver, chromium.ChromiumDriver)


def _find_checker(content: Mapping[str, Any]) -> bool:
    """Whether the source of a content can judge its task."""
    has_checker = getattr(find_source_type(str(content["source"])), "has_checker", None)
    return has_checker is None or bool(has_checker(content))


def _make_source_task(name: str, options: Any, content: dict[str, JSON], seed: int) -> Task:
    """The task of a content, of the split that its source says, and marked if its source cannot judge it."""
    tags = () if _find_checker(content) else (UNCHECKED_TAG,)
    task = Task(name, content, str(content.get("instruction", "")), seed=seed, tags=tags)
    if "split" not in content:
        return task
    return assign_split(task, Split.TRAIN if content["split"] == Split.TRAIN else Split.HELD_OUT)
