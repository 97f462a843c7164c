"""The checker: the built-in environments pass, and every check fails for an environment broken in its way."""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.envs.tool_envs import Notes

from stepwell.core import (
    ActionSpace,
    EnvDescription,
    ExampleTurn,
    InputError,
    Observation,
    StateForm,
    Task,
    read_call,
)
from stepwell.envs import Effect, Env
from stepwell.envs.check import check_env, check_type
from stepwell.envs.check_text import CHECKS


class Sound(Env):
    """A small environment that keeps the contract: walk to the target along a line."""

    name: ClassVar[str] = "line"

    @property
    def description(self) -> EnvDescription:
        return EnvDescription(
            self.name, "Walk to the target.", ActionSpace(("More", "Less"), max_per_turn=3), max_turns=7
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        place, target = random.Random(seed).sample(range(20), 2)
        return Task(cls.name, {"place": place, "target": target}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.place, self.target = task.content["place"], task.content["target"]

    def act(self, action: str) -> Effect:
        self.place += 1 if action == "More" else -1
        done = self.place == self.target
        return Effect(1.0 if done else 0.0, terminated=done, success=done)

    def observe(self) -> Observation:
        return Observation(f"{self.place} -> {self.target}")

    def oracle(self) -> list[str]:
        gap = self.target - self.place
        return ["More"] * gap if gap > 0 else ["Less"] * -gap


class NoGuide(Sound):
    @property
    def description(self) -> EnvDescription:
        return EnvDescription(self.name, " ", ActionSpace(("More", "Less"), max_per_turn=3), max_turns=7)


class OtherName(Sound):
    @property
    def description(self) -> EnvDescription:
        return EnvDescription("circle", "Walk.", ActionSpace(("More", "Less"), max_per_turn=3), max_turns=7)


class ImpureTasks(Sound):
    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"place": 1 + random.randrange(40), "target": 0}, seed=seed)


class ForeignTasks(Sound):
    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task("circle", {"place": seed, "target": 0}, seed=seed)


class TuplesInContent(Sound):
    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"place": seed, "target": 0, "pair": (1, 2)}, seed=seed)


class SeedDecides(Sound):
    def begin(self, task: Task, seed: int) -> None:
        super().begin(task, seed)
        self.place += task.seed % 7


class WholeRewards(Sound):
    def act(self, action: str) -> Effect:
        return super().act(action)._replace(reward=float("nan"))


class TextInstead(Sound):
    def observe(self) -> Any:
        return "a plain text"


class NumpyFlags(Sound):
    def act(self, action: str) -> Effect:
        effect = super().act(action)
        return effect._replace(terminated=np.bool_(effect.terminated), success=np.bool_(effect.success))


class UnseededChance(Sound):
    def act(self, action: str) -> Effect:
        return super().act(random.choice(["More", "Less"]))


class BothEnds(Sound):
    def act(self, action: str) -> Effect:
        return Effect(0.0, terminated=True, truncated=True)


class EarlySuccess(Sound):
    def act(self, action: str) -> Effect:
        return super().act(action)._replace(terminated=False, success=True)


class NeverEnds(Sound):
    def step(self, actions: Any) -> Any:
        self._num_turns = 0
        return super().step(actions)


class PlaysOn(Sound):
    def step(self, actions: Any) -> Any:
        self._is_over = False
        return super().step(actions)


class PaidIdleness(Sound):
    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return observation, reward - 0.1, *rest


class MovesByItself(Sound):
    def step(self, actions: Any) -> Any:
        self.place += 1
        return super().step(actions)


class LimitTruncates(Sound):
    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(actions)
        cut = terminated and not info["success"]
        return observation, reward, terminated and not cut, truncated or cut, info


class TakesAnything(Sound):
    def step(self, actions: Any) -> Any:
        return super().step([action for action in actions if action in ("More", "Less")][:3])


class WrongOracle(Sound):
    def oracle(self) -> list[str]:
        return ["More"]


class SilentOracle(Sound):
    def oracle(self) -> list[str]:
        return []


class LuckyEnv(Sound):
    """Chance decides, and the oracle does no better than it."""

    @property
    def is_deterministic(self) -> bool:
        return False

    def oracle(self) -> list[str]:
        return []


class AlwaysWins(Sound):
    def act(self, action: str) -> Effect:
        return Effect(1.0, terminated=True, success=True)


class OneTask(Sound):
    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"place": 0, "target": 3}, seed=seed)


class SeedInContent(Sound):
    """Equal boards count as different tasks, and so stand in both splits."""

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        place, target = random.Random(seed).sample(range(4), 2)
        return Task(cls.name, {"place": place, "target": target, "seed": seed}, seed=seed)


class NoWords(Sound):
    def state(self) -> dict[StateForm, str]:
        return {StateForm.STRUCTURED: "{}"}


class EmptyWords(Sound):
    def state(self) -> dict[StateForm, str]:
        return {StateForm.NATURAL_LANGUAGE: ""}


class OracleMoves(Sound):
    def oracle(self) -> list[str]:
        way = super().oracle()
        self.place = self.target
        return way


class ExampleWithoutForm(Sound):
    @property
    def description(self) -> EnvDescription:
        plain = super().description
        examples = {StateForm.SYMBOLIC: ExampleTurn("P__G", "", "_P_G", "More")}
        return EnvDescription(plain.name, plain.guide, plain.actions, plain.max_turns, examples)


class GreyImage(Sound):
    def render(self) -> Any:
        return np.zeros((8, 8), np.uint8)


class Slow(Sound):
    def act(self, action: str) -> Effect:
        time.sleep(0.002)
        return super().act(action)


class Raises(Notes):
    def act(self, action: str) -> Effect:
        read_call(action)
        return super().act(action)


class Repeats(Notes):
    def act(self, action: str) -> Effect:
        effect = super().act(action)
        self.told.append(action)
        return effect


class SaysNothing(Notes):
    def observe(self) -> Observation:
        return Observation(super().observe().text.partition("\n")[0])


class GoldenTooLong(Notes):
    def golden_steps(self) -> int:
        return super().golden_steps() + 1


class GivenAway(Notes):
    def random_action(self, rng: random.Random) -> str:
        return self.oracle()[0]


BROKEN = [
    (Raises, "adversarial_actions_are_answered", "nothing: raised InputError: not valid JSON"),
    (Repeats, "adversarial_actions_are_answered", "a very long word: 1048"),
    (
        SaysNothing,
        "adversarial_actions_are_answered",
        "nothing: the observation does not say that the action failed",
    ),
    (GoldenTooLong, "no_plan_is_shorter_than_the_golden_one", "are called shortest"),
    (GivenAway, "random_play_does_not_suffice", "more than 0.1"),
    (NoGuide, "description_is_complete", "guide is empty"),
    (OtherName, "description_is_complete", "'circle'"),
    (ImpureTasks, "tasks_are_pure", "different tasks"),
    (ForeignTasks, "tasks_are_pure", "task.env is 'circle'"),
    (TuplesInContent, "tasks_are_pure", "stored as JSON"),
    (SeedDecides, "content_decides_the_task", "another task.seed"),
    (WholeRewards, "reset_and_step_return_the_right_types", "reward is nan"),
    (TextInstead, "reset_and_step_return_the_right_types", "observe must give an Observation"),
    (NumpyFlags, "reset_and_step_return_the_right_types", "is np.False_"),
    (UnseededChance, "same_actions_give_the_same_episode", "disagree"),
    (BothEnds, "episodes_end_by_the_rules", "terminated and truncated at once"),
    (EarlySuccess, "episodes_end_by_the_rules", "before the end"),
    (NeverEnds, "episodes_end_by_the_rules", "turns, limit 7"),
    (PlaysOn, "episodes_end_by_the_rules", "after the end was accepted"),
    (PaidIdleness, "an_empty_turn_only_counts", "gave reward -0.1"),
    (MovesByItself, "an_empty_turn_only_counts", "changed the observation"),
    (LimitTruncates, "an_empty_turn_only_counts", "truncated or succeeded"),
    (TakesAnything, "wrong_actions_are_refused", "were accepted"),
    (WrongOracle, "oracle_solves_the_tasks", "of 50 tasks"),
    (SilentOracle, "oracle_solves_the_tasks", "solved 0.000"),
    (LuckyEnv, "oracle_solves_the_tasks", "random play"),
    (AlwaysWins, "random_play_does_not_suffice", "every task"),
    (OneTask, "splits_are_disjoint_and_both_filled", "a split empty"),
    (SeedInContent, "splits_are_disjoint_and_both_filled", "alike in both splits"),
    (NoWords, "state_has_its_forms", "no natural language"),
    (EmptyWords, "state_has_its_forms", "is ''"),
    (OracleMoves, "state_has_its_forms", "changed the environment"),
    (ExampleWithoutForm, "state_has_its_forms", "state() lacks"),
    (GreyImage, "render_gives_an_image", "uint8 (8, 8)"),
    (Slow, "turns_are_fast_enough", "asked for 1000"),
]


@pytest.mark.parametrize(("kind", "check", "detail"), BROKEN, ids=[kind.__name__ for kind, _, _ in BROKEN])
def test_a_broken_env_is_caught(kind: type[Env], check: str, detail: str) -> None:
    slow = kind is Slow
    report = check_type(kind, num_tasks=3 if slow else 50, min_turns_per_s=1000.0 if slow else 1.0)
    assert not report.ok
    assert not report[check].ok
    assert detail in report[check].detail


def test_every_check_has_an_env_that_fails_it() -> None:
    assert {check for _, check, _ in BROKEN} == {check.__name__ for check in CHECKS}


def test_the_sound_env_they_are_made_from_passes() -> None:
    report = check_type(Sound)
    assert report.ok, str(report)
    assert report["oracle_solves_the_tasks"].detail == "solved 1.000 of 50 tasks"


def test_the_env_with_tools_they_are_made_from_passes() -> None:
    report = check_type(Notes)
    assert report.ok, str(report)
    assert report["adversarial_actions_are_answered"].detail == "63 odd actions"
    assert report["no_plan_is_shorter_than_the_golden_one"].detail == "50 tasks of 2 to 4 turns"


def test_an_oracle_may_be_allowed_to_fail_now_and_then() -> None:
    class Fallible(Notes):
        min_oracle_share = 0.2

        def oracle(self) -> list[str]:
            return super().oracle() if len(self.chains[0]) == 2 else []

    report = check_type(Fallible)
    assert report.ok and 0.2 <= float(report["oracle_solves_the_tasks"].detail.split()[1]) < 1.0


def test_an_error_inside_one_check_does_not_hide_the_others() -> None:
    class Crashes(Sound):
        def oracle(self) -> list[str]:
            raise RuntimeError("lost the way")

    report = check_type(Crashes)
    found = report["oracle_solves_the_tasks"].detail
    assert found.startswith("it raised:") and "RuntimeError: lost the way" in found
    assert "test_check.py" in found and "in oracle" in found  # the line of one's own
    assert [check.name for check in report.findings if not check.ok] == [
        "oracle_solves_the_tasks",
        "state_has_its_forms",
    ]
    assert "FAILED  oracle_solves_the_tasks" in str(report)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("frozenlake", {}),
        ("frozenlake", {"size": 6, "max_turns": 5, "observation": "both", "tile_size": 8}),
        ("frozenlake", {"is_slippery": True, "max_turns": 6}),
        ("sokoban", {}),
        ("sokoban", {"num_boxes": 2, "max_turns": 6, "observation": "image", "tile_size": 8}),
    ],
)
def test_built_in_envs_pass(name: str, options: dict) -> None:
    report = check_env(name, options)
    assert report.ok, str(report)


def test_too_few_tasks_to_check_with_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        check_type(Sound, num_tasks=1)
