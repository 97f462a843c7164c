"""Any benchmark of BrowserGym as an environment for language agents.

    env.name = "stepwell.envs.web.browsergym.env:BrowserGymEnv"
    env.options.tasks = ["browsergym/miniwob.click-test"]
    env.options.modules = ["browsergym.miniwob"]

BrowserGym pins an old Playwright, so it lives in a Python environment of its own
(`scripts/test_extra_browsergym.sh` makes one). Observation, actions and rewards are BrowserGym's own: the
goal, the page's accessibility tree with ids, and calls such as `click("12")`, which its own parser reads.

Invariants
* A task is one of `tasks` with a seed. The same seed gives the same page, if the benchmark keeps its word.
* Success is a total reward above 0 when the benchmark ends the episode. Its own end is `terminated`.
* An action that BrowserGym refuses costs the turn, and the next observation says why.
* There is no oracle: nothing is known about a benchmark but its interface.
"""

from __future__ import annotations

import importlib
import random
from functools import cached_property, partial
from typing import Any, ClassVar

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, ConfigError, EnvDescription, InputError, Observation, StateForm, Task
from stepwell.core.errors import EnvError
from stepwell.envs.base import Effect, Env
from stepwell.envs.options import declare_host_option
from stepwell.envs.tiles import Image, draw_text
from stepwell.envs.web.browser import find_chromium

MAX_CHARS = 20_000
GUIDE = """You work in a web browser. The page is shown as a tree; an element's id stands in brackets.
Each turn, answer with one call, for example click("12"), fill("7", "lamp"), select_option("9", "Red"),
press("7", "Enter"), scroll(0, 300), goto("http://…"), go_back(), new_tab(), tab_focus(0),
send_msg_to_user("the answer"), report_infeasible("why the task cannot be done")."""


class BrowserGymOptions(Settings):
    """Which tasks are played, and how the browser is started."""

    tasks: tuple[str, ...] = Field(
        ("browsergym/miniwob.click-test",), min_length=1, description="ids of Gymnasium, drawn alike"
    )
    modules: tuple[str, ...] = declare_host_option(
        ("browsergym.miniwob",), description="modules that register the tasks when they are imported"
    )
    task_kwargs: dict[str, str] = declare_host_option(
        {}, description="arguments of the tasks, such as start_url and goal of browsergym/openended"
    )
    browser: str | None = declare_host_option(
        None, description="path of a Chromium; None: the one on this machine"
    )
    max_turns: int = Field(30, ge=1, le=1000, description="turns of an episode; reaching them is a failure")
    max_seed: int = Field(1_000_000, ge=1, description="seeds of a task lie below this")
    delay_s: float = Field(0.5, ge=0, le=60, description="wait after an action before the page is read")


class BrowserGymEnv(Env):
    """Do a task of a published benchmark in a web browser."""

    name: ClassVar[str] = "browsergym"
    Options: ClassVar[type[Settings]] = BrowserGymOptions
    has_oracle: ClassVar[bool] = False
    options: BrowserGymOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._env: Any = None
        self._task_id = ""
        self._seen: dict[str, Any] = {}
        self._total = 0.0

    @classmethod
    def require(cls) -> None:
        """BrowserGym must be importable."""
        try:
            import browsergym.core  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "BrowserGym is not installed here: it pins an old Playwright and needs a Python environment "
                "of its own (scripts/test_extra_browsergym.sh makes one)"
            ) from error

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        return EnvDescription(self.name, GUIDE, ActionSpace(), self.options.max_turns)

    @property
    def is_deterministic(self) -> bool:
        """Benchmarks differ; none is trusted."""
        return False

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A task of the list, with a seed of its own."""
        rng = random.Random(seed)
        name = rng.choice(options.tasks)
        return Task(
            cls.name, {"task": name, "seed": rng.randrange(options.max_seed)}, seed=seed, tags=(name,)
        )

    def begin(self, task: Task, seed: int) -> None:
        """Open the task's page."""
        name, number = task.content.get("task"), task.content.get("seed")
        if name not in self.options.tasks or not isinstance(number, int):
            raise InputError("a task of browsergym holds a 'task' of the option tasks, and a 'seed'")
        if self._env is None or self._task_id != name:
            self.close()
            self._env, self._task_id = self._make_env(str(name)), str(name)
        try:
            self._seen, _ = self._env.reset(seed=number)
        except Exception as error:
            raise EnvError(f"BrowserGym cannot start {name}: {error}") from error
        self._total = 0.0

    def act(self, action: str) -> Effect:
        """Send one call to BrowserGym."""
        try:
            self._seen, reward, terminated, truncated, _ = self._env.step(action)
        except Exception as error:
            raise EnvError(f"BrowserGym failed in {self._task_id}: {error}") from error
        self._total += float(reward)
        is_over = bool(terminated or truncated)
        return Effect(float(reward), bool(terminated), bool(truncated), success=is_over and self._total > 0)

    def observe(self) -> Observation:
        """Goal, address, what went wrong, and the page as a tree."""
        return Observation(self._write_text())

    def result(self) -> str:
        """Why the last call was refused."""
        return str(self._seen.get("last_action_error") or "")[:200]

    def oracle(self) -> list[str]:
        """None."""
        return []

    def random_action(self, rng: random.Random) -> str:
        """A click on one of the page's elements, by its id."""
        ids = [name for name, seen in self._seen["extra_element_properties"].items() if seen.get("clickable")]
        return f'click("{rng.choice(ids)}")' if ids else "noop()"

    def state(self) -> dict[StateForm, str]:
        """What is shown."""
        return {StateForm.NATURAL_LANGUAGE: self._write_text()}

    def golden_steps(self) -> int | None:
        """Not known."""
        return None

    def render(self) -> Image:
        """The screenshot, if BrowserGym made one."""
        image = self._seen.get("screenshot")
        return draw_text(self._write_text()) if image is None else image

    def close(self) -> None:
        """Close the browser."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _make_env(self, name: str) -> Any:
        self.require()
        import gymnasium

        for module in self.options.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ConfigError(f"the module {module!r} of BrowserGym is not installed: {error}") from error
        _name_browser(self.options.browser or find_chromium())
        arguments: dict[str, Any] = (
            {"task_kwargs": self.options.task_kwargs} if self.options.task_kwargs else {}
        )
        try:
            return gymnasium.make(
                name,
                disable_env_checker=True,
                pre_observation_delay=self.options.delay_s,
                **arguments,
            )
        except gymnasium.error.Error as error:
            raise ConfigError(
                f"there is no task {name!r} among those that modules register: {error}"
            ) from error

    def _write_text(self) -> str:
        from browsergym.utils.obs import flatten_axtree_to_str

        seen = self._seen
        tree = flatten_axtree_to_str(
            seen["axtree_object"], seen["extra_element_properties"], filter_visible_only=True
        )
        lines = [f"Task: {seen['goal']}", f"Address: {seen['url']}"]
        if seen.get("last_action_error"):
            lines.append(f"Notice: {str(seen['last_action_error'])[:500]}")
        return "\n".join([*lines, "Page:", tree[:MAX_CHARS]])


def _name_browser(path: str) -> None:
    """Have BrowserGym start this Chromium everywhere; its chat window takes no path from its settings."""
    from browsergym.core import _get_global_playwright

    kind = _get_global_playwright().chromium
    if not isinstance(kind.launch, partial) or kind.launch.keywords != {"executable_path": path}:
        kind.launch = partial(type(kind).launch, kind, executable_path=path)
