"""The shop as an environment for language agents: one action a turn, paid when something is bought.

The reward is the score of the purchase (0 to 1), nothing before it; a purchase ends the episode, and one
with a score of 1 is a success. `info` of the last turn holds the score and its parts. All environments of a
process with the same catalogue share one `Shop`.
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
from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.guide import make_examples, write_guide
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.pages import SEARCH
from stepwell.envs.shop.shop import Shop, ShopPageView, open_shop

_MAX_RANDOM_WORDS = 3


class ShopEnv(Env):
    """Find, choose and buy what an instruction asks for."""

    name: ClassVar[str] = "shop"
    Options: ClassVar[type[Settings]] = ShopOptions
    tells_golden: ClassVar[bool] = True
    options: ShopOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        return EnvDescription(
            self.name, write_guide(self.options), ActionSpace(), self.options.turns, make_examples()
        )

    def __new__(cls, options: Settings | None = None) -> Any:
        """Create the environment; with the deprecated option `url`, the remote one that stands for it."""
        remote = _find_remote_type(options)
        return super().__new__(cls) if remote is None else remote(_list_other_options(options))

    @cached_property
    def shop(self) -> Shop:
        """The shop, shared by all environments of this process with the same catalogue."""
        return open_shop(self.options)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A goal that the products fulfil."""
        remote = _find_remote_type(options)
        if remote is not None:
            task: Task = remote.make_task(_list_other_options(options), seed)
            return task
        shop = open_shop(options)
        goal = shop.goal(seed)
        content: dict[str, JSON] = {"catalogue": shop.store.digest, "goal": goal.to_json()}
        return Task(cls.name, content, goal.instruction, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Open the search page."""
        digest = self.shop.store.digest
        if task.content.get("catalogue") != digest:
            raise InputError(
                f"task {task.id} was made for another catalogue than {digest}; check env.options"
            )
        self.goal = ShopGoal.from_json(task.content.get("goal"))
        self.seen: ShopPageView = self.shop.enter(self.goal)

    def act(self, action: str) -> Effect:
        """Do it in the shop."""
        self.seen = self.shop.step(self.goal, self.seen.view, action)
        score = self.seen.score
        if score is None:
            return Effect()
        return Effect(score.total, terminated=True, success=score.is_success)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """As every environment's, with the score of a purchase in `info`."""
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
        words = re.findall(r"[\w-]+", self.goal.instruction)
        return f"search[{' '.join(rng.sample(words, min(len(words), rng.randint(1, _MAX_RANDOM_WORDS))))}]"

    def oracle(self) -> list[str]:
        """A shortest way to a full score."""
        return self.shop.plan(self.goal, self.seen.view).actions

    def golden_steps(self) -> int | None:
        """The length of that way, where it is proven to be the shortest."""
        plan = self.shop.plan(self.goal, self.seen.view)
        return len(plan.actions) if plan.actions and plan.is_shortest else None

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON."""
        return self.shop.state(self.goal, self.seen.view)


def _find_remote_type(options: Any) -> Any:
    """Find the remote environment that the deprecated option `url` names; None without it."""
    url = getattr(options, "url", None)
    if url is None:
        return None
    from stepwell.envs.remote import make_remote_type

    return make_remote_type(f"{url}#shop")


def _list_other_options(options: Any) -> Any:
    from stepwell.envs.remote.env import RemoteOptions

    gone = {"url", "transport", "timeout_s"}
    return RemoteOptions(**options.model_dump(mode="json", exclude_unset=True, exclude=gone))
