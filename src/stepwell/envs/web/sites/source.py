"""The own web as a source of tasks for the web environment.

Hosts are shared by all environments of a process, one per world and size: an episode is only a snapshot.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepwell.core import JSON, InputError, TaskRelation
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.driver import PageDriver
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sites.episode import SiteEpisode
from stepwell.envs.web.sites.host import SiteHost
from stepwell.envs.web.sites.instructions import read_site_instruction
from stepwell.envs.web.sites.tasks import check_task, find_template, make_site_task, plan_task
from stepwell.envs.web.sites.templates.template import TaskSplit, find_user
from stepwell.envs.web.sites.variants import make_content_variant
from stepwell.envs.web.sources import TaskStart

ALLOWED_HOSTS = ("*.localhost",)
HELD_OUT: dict[str, tuple[TaskSplit, ...] | None] = {
    "all": None,
    "parameters": ("train", "parameters"),
    "templates": ("train", "templates"),
}
_HOSTS: dict[tuple[int, str], SiteHost] = {}
_LOCK = threading.Lock()


def find_host(world: int, size: Any) -> SiteHost:
    """This process's host of a world."""
    with _LOCK:
        if (world, size) not in _HOSTS:
            _HOSTS[world, size] = SiteHost(world, size)
        return _HOSTS[world, size]


class SitesSource:
    """Tasks of the five sites; one object plays one episode at a time."""

    def __init__(self) -> None:
        self._content: Mapping[str, Any] = {}
        self._episode: SiteEpisode | None = None

    def make_content(self, options: Any, seed: int) -> dict[str, JSON]:
        """The task of a seed, among those that the options name."""
        return make_site_task(
            seed,
            getattr(options, "size", "tiny"),
            HELD_OUT[getattr(options, "held_out", "all")],
            sites=getattr(options, "sites", None) or (),
            kinds=getattr(options, "kinds", None) or (),
            templates=getattr(options, "templates", None) or (),
            world=getattr(options, "world", 0) + seed % getattr(options, "num_worlds", 1),
        )

    def make_variant(
        self, options: Any, content: Mapping[str, Any], relation: TaskRelation, rng: random.Random
    ) -> dict[str, JSON] | None:
        """A task of the same site, with another template or other parameters; none of one in free words."""
        if not self.has_checker(content):
            return None
        return make_content_variant(
            content,
            relation,
            rng,
            kinds=getattr(options, "kinds", None) or (),
            templates=getattr(options, "templates", None) or (),
        )

    def read_instruction(
        self, options: Any, content: Mapping[str, Any], instruction: str
    ) -> dict[str, JSON] | None:
        """The task of the same site that an instruction stands for; without a checker if no template words
        it so."""
        return read_site_instruction(
            instruction,
            content,
            kinds=getattr(options, "kinds", None) or (),
            templates=getattr(options, "templates", None) or (),
        )

    @staticmethod
    def has_checker(content: Mapping[str, Any]) -> bool:
        """Whether a template made the task."""
        return content.get("template") != ""

    def start(self, content: Mapping[str, Any]) -> TaskStart:
        """A fresh snapshot, with the person of the task logged in."""
        self.close()
        host = find_host(int(content["world"]), content["size"])
        self._content, self._episode = content, host.open_episode()
        if self.has_checker(content):
            template = find_template(content)
            self._episode.log_in(template.site, template.user(host.size))
        else:
            site = str(content["site"])
            self._episode.log_in(site, find_user(site, host.size))
        return TaskStart(
            str(content["start_url"]), self._episode.headers, ALLOWED_HOSTS, app=host.app, serve=host.serve
        )

    def judge(self, view: PageView, driver: PageDriver, answer: str) -> float | None:
        """1 if the started task is solved; None for a task in free words."""
        if self._episode is None:
            raise InputError("no task is started: call start() first")
        if not self.has_checker(self._content):
            return None
        return float(check_task(self._content, view=view, episode=self._episode, answer=answer))

    def plan(self, content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
        """The scripted oracle."""
        return plan_task(content)

    def close(self) -> None:
        """Forget the snapshot."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None
