"""Where the tasks of the web environment come from, and who judges them.

A task's content says `source`: "sites" (our own web), "webarena" or "miniwob". `open_source` finds the
class by that name. One source object serves one environment; what is expensive (a site host, a list of
tasks) is shared inside the source's own module.

    make_content   options, seed -> content        pure: the same on every machine
    start          content -> TaskStart            a fresh state of the sites for one episode
    judge          view, driver, answer -> float   1 solved, 0 not; asked once, when the agent exits. None
                   if the task has no checker: a judge of outcomes decides later
    plan           content -> view -> WebAction    the scripted oracle; from what is seen alone
    close          the episode is over

A source may also have `make_variant(options, content, relation, rng)`, a task made from another one,
`read_instruction(options, content, instruction)`, the task that free words stand for,
`has_checker(content)`, whether it can judge that task, `has_oracle` (False: no task has a script),
`name_family(content)`, under which name results are counted, and `has_ended(view)`, whether the page itself
has ended the task: it is judged then, without an exit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from stepwell.core import JSON, ConfigError
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.page import PageView

SOURCES: dict[str, str] = {
    "sites": "stepwell.envs.web.sites.source:SitesSource",
    "webarena": "stepwell.envs.web.webarena.source:WebArenaSource",
    "miniwob": "stepwell.envs.web.miniwob.source:MiniWobSource",
}


@dataclass(frozen=True, slots=True)
class TaskStart:
    """How an episode starts.

    `app` is an ASGI application that serves the allowed hosts in this process: the light driver calls it
    without a socket. `serve` starts it as a real HTTP server (once; later calls return the same port), which
    Chromium is sent to whenever it asks for one of the allowed hosts at their usual port: addresses in pages
    are the same under both drivers. None: the hosts are real and are contacted as they are.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    allowed_hosts: Sequence[str] = ()
    storage_state: Any = None
    more_urls: Sequence[str] = ()  # opened in tabs of their own; the first page keeps the focus
    keeps_nothing: bool = (
        False  # pages keep state in the browser's storage alone: a context can be used again
    )
    app: Any = None
    serve: Callable[[], int] | None = None


class TaskSource(Protocol):
    """Tasks of one kind: makes them, starts them, judges them, and plays them by script."""

    def make_content(self, options: Any, seed: int) -> dict[str, JSON]:
        """The content of the task of a seed; `instruction` is the text for the agent."""

    def start(self, content: Mapping[str, Any]) -> TaskStart:
        """Begin an episode; what an earlier one left is released."""

    def judge(self, view: PageView, driver: PageDriver, answer: str) -> float | None:
        """How well the started task was done (0 to 1), asked when the agent exits with `answer`."""

    def plan(self, content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
        """The scripted solution: the next action from the page alone."""

    def close(self) -> None:
        """Release what the started task holds; calling it twice is allowed."""


def open_source(name: str, options: Any = None) -> TaskSource:
    """The source of a name, imported now, with its part of the environment's options."""
    own = getattr(options, "source_options", {}).get(name)
    make = find_source_type(name)
    return make() if own is None else make(own)


def find_source_type(name: str) -> Callable[..., TaskSource]:
    """The class of a source, imported now."""
    if name not in SOURCES:
        raise ConfigError(f"env.options.source of web is one of {', '.join(SOURCES)}, not {name!r}")
    module, _, kind = SOURCES[name].partition(":")
    return cast("Callable[..., TaskSource]", getattr(import_module(module), kind))
