"""The shop as a world for language agents: one action a turn, paid when something is bought.

The reward is the score of the purchase (0 to 1), nothing before it; a purchase ends the episode, and one
with a score of 1 is a success. `info` of the last turn holds the score and its parts. The shop runs in
this process, or (`transport = "http"`, `url`) is asked over HTTP: pages, scores and plans are the same,
and a server that is gone is an `EnvError`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, EnvDescription, InputError, Observation, StateForm, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.shop.client import RemoteShop
from stepwell.envs.shop.goal import Goal
from stepwell.envs.shop.guide import examples, guide
from stepwell.envs.shop.hosting import hosted_shop, let_go
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.pages import SEARCH
from stepwell.envs.shop.shop import Counter, Seen, open_shop

_MAX_RANDOM_WORDS = 3


class ShopEnv(Env):
    """Find, choose and buy what an instruction asks for."""

    name: ClassVar[str] = "shop"
    Options: ClassVar[type[Settings]] = ShopOptions
    tells_golden: ClassVar[bool] = True
    options: ShopOptions

    @cached_property
    def world(self) -> EnvDescription:
        """What agents are told."""
        return EnvDescription(self.name, guide(self.options), ActionSpace(), self.options.turns, examples())

    @cached_property
    def counter(self) -> Counter:
        """Who serves: the shop itself, or a way to it."""
        return hosted_shop(self.options, self) if self._is_hosted else open_counter(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A goal that the products fulfil."""
        counter = open_counter(options)
        goal = counter.goal(seed)
        content: dict[str, JSON] = {"catalogue": counter.about()["digest"], "goal": goal.to_json()}
        return Task(cls.name, content, goal.instruction, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Open the search page."""
        if self._is_hosted:
            self.counter = hosted_shop(self.options, self)  # another one, if it died under an earlier episode
        digest = self.counter.about()["digest"]
        if task.content.get("catalogue") != digest:
            raise InputError(
                f"task {task.id} was made for another catalogue than {digest}; check env.options"
            )
        self.goal = Goal.from_json(task.content.get("goal"))
        self.seen: Seen = self.counter.enter(self.goal)

    def act(self, action: str) -> Effect:
        """Do it in the shop."""
        self.seen = self.counter.step(self.goal, self.seen.view, action)
        score = self.seen.score
        if score is None:
            return Effect()
        return Effect(score.total, terminated=True, success=score.is_success)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """As every world's, with the score of a purchase in `info`."""
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.seen.score is not None:
            info["score"] = self.seen.score.total
            info["score_parts"] = dict(self.seen.score.to_json())
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """The page."""
        return Observation(self.seen.text)

    def random_action(self, rng: random.Random) -> str:
        """One of the page's actions; a search is for some words of the task."""
        action = rng.choice(self.seen.actions) if self.seen.actions else SEARCH
        if action != SEARCH:
            return action
        told = re.findall(r"[\w-]+", self.goal.instruction)
        return f"search[{' '.join(rng.sample(told, min(len(told), rng.randint(1, _MAX_RANDOM_WORDS))))}]"

    def oracle(self) -> list[str]:
        """A shortest way to a full score."""
        return self.counter.plan(self.goal, self.seen.view).actions

    def golden_steps(self) -> int | None:
        """The length of that way, where it is proven to be the shortest."""
        plan = self.counter.plan(self.goal, self.seen.view)
        return len(plan.actions) if plan.actions and plan.is_shortest else None

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        return self.counter.state(self.goal, self.seen.view)

    def close(self) -> None:
        """Let go of a server that was started for this world."""
        if self.__dict__.pop("counter", None) is not None and self._is_hosted:
            let_go(self.options, self)

    @property
    def _is_hosted(self) -> bool:
        return self.options.transport == "http" and self.options.url is None


def open_counter(options: ShopOptions) -> Counter:
    """The shop of these options: at its address, or in this process."""
    if options.url is not None:
        return RemoteShop.at(options.url, options.timeout_s)
    return open_shop(options)
