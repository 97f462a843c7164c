"""The interface of an environment: Gymnasium's reset and step, where one step is one turn of an agent.

`Env` implements what all environments share: resolving the task, checking and counting actions, the turn
limit. An environment implements the rest:

    make_task   options, seed -> Task     pure: the same board on every machine
    begin       task, seed                puts the environment into the task's first state
    act         one action -> Effect      one primitive action, its reward, and whether it ended
    observe     -> Observation            what the agent sees now
    oracle      -> actions                a shortest solution from here, which proves that one exists
    make_variant  task -> Task            optional: an easier, similar or harder task (docs/curriculum.md)
    description -> EnvDescription         the text for agents, valid for the current options

If actions are tool calls, `act` gets the JSON of one call (`core.read_call` reads it). The agent wrote that
call, so an impossible call leads to an observation and never to an exception.

Invariants
* A turn holds at most `description.actions.max_per_turn` actions. It stops at the one that ends the episode;
  `info["num_actions"]` counts the executed ones.
* An empty turn (from an unreadable reply) does nothing, costs nothing and counts as a turn.
* The turn limit is part of the environment: reaching it is `terminated`, a failure, never `truncated`.
* A task's content determines the episode. `seed` at reset affects only the randomness of an environment that
  has any (see `is_deterministic`); without it the task's own seed is used.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ConfigError,
    EnvDescription,
    EnvError,
    InputError,
    Observation,
    StateForm,
    Task,
    TaskRelation,
    draw_random_call,
)
from stepwell.envs.tables import StateTable
from stepwell.envs.tiles import Image, draw_text

T = TypeVar("T")


class Effect(NamedTuple):
    """The effect of one primitive action. `process` is its progress towards the goal, if known."""

    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    process: float = 0.0


NOTHING = Effect()


class Env(ABC):
    """An environment that agents act in, one task at a time."""

    name: ClassVar[str]
    Options: ClassVar[type[Settings]] = Settings
    is_robot: ClassVar[bool] = False  # robot environments have another base class: `robots.base.RobotEnv`
    has_oracle: ClassVar[bool] = True
    min_oracle_share: ClassVar[float] = 1.0  # share of tasks that the oracle must solve
    has_process: ClassVar[bool] = False  # whether effects report progress towards the goal
    tells_golden: ClassVar[bool] = False  # whether reset reports `golden_steps`, which costs an oracle's plan
    waits: ClassVar[bool] = False  # whether it mostly waits (for a browser, a server): see `waiting.py`
    is_quick: ClassVar[bool] = False  # whether turns and resets to tasks take microseconds, in any thread
    is_vector: ClassVar[bool] = False  # a robot's simulator may be: see `robots/vector.py`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        above = [base for base in cls.__bases__ if issubclass(base, Env)]
        if cls.oracle is Env.oracle:
            cls.has_oracle = False
        elif "has_oracle" not in vars(cls) and all(base.oracle is Env.oracle for base in above):
            cls.has_oracle = True

    def __init__(self, options: Settings | None = None) -> None:
        self.options: Any = self.Options() if options is None else options
        if not isinstance(self.options, self.Options):
            raise InputError(
                f"options of {type(self).__name__} must be a {self.Options.__qualname__}, "
                f"got {type(options).__name__}; from plain values use make_env"
            )
        self._task: Task | None = None
        self._is_over = True
        self._num_turns = 0
        self._limits: tuple[frozenset[str], int, int] | None = None

    @property
    @abstractmethod
    def description(self) -> EnvDescription:
        """The text for agents: guide, actions, turn limit, examples."""

    @classmethod
    def check_unopened(cls, options: Any) -> str | None:
        """For an environment that takes seconds to open: look whether it could be opened.

        Raises `ConfigError` if what it needs is missing, else says what was found. None: it opens quickly, so
        that a plan opens it and looks.
        """
        return None

    @classmethod
    def count_places(cls, options: Any) -> int | None:
        """How many episodes one process can have under way with these options; None: as many as you like."""
        return None

    @classmethod
    @abstractmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The task of a seed; its content determines the episode."""

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """Make a task from one that was not solved: easier, alike or harder; None if this draw gives none.

        It need not be solvable: the caller tests it with the oracle. An environment that does not define this
        has no variants.
        """
        return None

    @classmethod
    def read_instruction(cls, options: Any, parent: Task, instruction: str) -> Task | None:
        """Make the training task that a new instruction stands for, on the same data as `parent`.

        None if the environment cannot tell when it would be solved. An environment that does not define this
        takes no instructions.
        """
        return None

    @classmethod
    def name_family(cls, task: Task) -> str:
        """The family under which results of a task are counted; by default its first tag."""
        return task.tags[0] if task.tags else cls.name

    @classmethod
    def count_requirements(cls, task: Task) -> int | None:
        """How many things a task asks for at once; None if the environment does not say."""
        return None

    @classmethod  # noqa: B027 (most environments need nothing)
    def require(cls) -> None:
        """Raise `ConfigError` with an install command if a dependency of the environment is missing."""

    @abstractmethod
    def begin(self, task: Task, seed: int) -> None:
        """Put the environment into the first state of `task`; `seed` drives its randomness, if any."""

    @abstractmethod
    def act(self, action: str) -> Effect:
        """Execute one primitive action; its name has been checked."""

    @abstractmethod
    def observe(self) -> Observation:
        """What the agent sees now."""

    def oracle(self) -> list[str]:
        """The remaining actions of a shortest solution from the current state; [] if there is none.

        Only those of the next turn if the environment is random or if a call needs the result of another. A
        class that does not define it has no oracle (`has_oracle`).
        """
        return []

    def begin_turn(self) -> None:  # noqa: B027 (most environments show a state, not what the turn brought)
        """Start a turn with at least one action; results of the previous turn may be dropped."""

    def result(self) -> str:
        """The result of the turn in a few words, for lists of past turns; empty if not worth mentioning."""
        return ""

    def random_action(self, rng: random.Random) -> str:
        """The action of random play; environments with free text define their own, if any."""
        actions = self.description.actions
        if actions.tools:
            return draw_random_call(actions.tools, rng).text
        if actions.is_text:
            raise ConfigError(f"{self.name} takes free text; there is no uniform choice among texts")
        return rng.choice(actions.names)

    def golden_steps(self) -> int | None:
        """Turns of a proven shortest plan from the current state; None if unknown.

        By default the length of the oracle's plan, with as many actions per turn as allowed. Override it if
        the oracle's plan is not the shortest, or if its actions cannot share turns in this way.
        """
        if not self.has_oracle or not self.is_deterministic:
            return None
        plan = self.oracle()
        num_turns = 0
        while plan:
            plan = plan[len(self.description.actions.first_turn(plan)) :]
            num_turns += 1
        return num_turns or None

    def state(self) -> dict[StateForm, str]:
        """The true state in every form of this environment; by default the text of the observation."""
        return {StateForm.NATURAL_LANGUAGE: self.observe().text}

    def table(self) -> StateTable | None:
        """The task from its current state as a table of states; None if it is random or too large."""
        return None

    def render(self) -> Image:
        """The current state as an image; by default the text of the observation."""
        return draw_text(self.observe().text)

    def take_screenshot(self) -> Image | None:
        """What a person sees on a screen, where there is one beside the text."""
        return None

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Release the environment's resources; calling it twice is allowed."""

    @property
    def is_deterministic(self) -> bool:
        """Whether the same actions on the same task always have the same result."""
        return True

    @property
    def task(self) -> Task:
        """The task being played."""
        if self._task is None:
            raise InputError(f"{self.name} has no task yet; call reset first")
        return self._task

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, JSON]]:
        """Start an episode: of `options["task"]`, or else of the task that `seed` makes."""
        task = self._prepare_episode(seed, options)
        self.begin(task, task.seed if seed is None else seed)
        self._task, self._is_over, self._num_turns = task, False, 0
        return require_type(self, "observe", self.observe(), Observation), self._describe_start()

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn: `actions` in order until one ends the episode."""
        self._check_turn(actions)
        reward, process, num_actions, effect = 0.0, 0.0, 0, NOTHING
        for action in actions:
            effect = require_type(self, "act", self.act(action), Effect)
            try:
                reward += effect.reward
                process += effect.process
            except TypeError:
                raise EnvError(
                    f"{type(self).__name__}.act: reward and process must be numbers, got {effect!r}"
                ) from None
            num_actions += 1
            if effect.terminated or effect.truncated:
                break
        terminated, info = self._end_turn(effect, num_actions, process)
        observation = require_type(self, "observe", self.observe(), Observation)
        return observation, reward, terminated, effect.truncated, info

    def _prepare_episode(self, seed: int | None, options: Mapping[str, Any] | None) -> Task:
        """The task to begin. There is no episode until it has begun: a failed begin leaves no half of one."""
        task = choose_task(self, seed, options)
        if self._limits is None:
            actions = self.description.actions
            self._limits = frozenset(actions.names), actions.max_per_turn, self.description.max_turns
        self._task = None
        self._is_over = True
        return task

    def _describe_start(self) -> dict[str, JSON]:
        """The info of a reset."""
        return {"golden": self.golden_steps()} if self.tells_golden else {}

    def _check_turn(self, actions: Sequence[str]) -> None:
        """Refuse a turn that cannot be played; otherwise begin it."""
        limits = self._limits
        if self._is_over or limits is None:
            raise InputError(f"the episode of {self.name} is over; call reset before step")
        names, max_per_turn, _ = limits
        if isinstance(actions, str) or len(actions) > max_per_turn:
            raise InputError(f"a turn takes a list of at most {max_per_turn} actions, got {actions!r}")
        if names and not names.issuperset(actions):
            known = ", ".join(self.description.actions.names)
            raise InputError(f"unknown action in {list(actions)}; {self.name} knows {known}")
        if actions:
            self.begin_turn()

    def _end_turn(self, effect: Effect, num_actions: int, process: float) -> tuple[bool, dict[str, JSON]]:
        """Count the turn; whether it terminated the episode, and its info."""
        assert self._limits is not None
        if isinstance(effect.success, str) or isinstance(effect.terminated, str):
            raise EnvError(
                f"{type(self).__name__}.act: success and terminated must be True or False, got {effect!r}"
            )
        self._num_turns += 1
        terminated = effect.terminated or (self._num_turns >= self._limits[2] and not effect.truncated)
        self._is_over = terminated or effect.truncated
        info: dict[str, JSON] = {"success": effect.success, "num_actions": num_actions}
        if self.has_process:
            info["process"] = process
        if num_actions and (result := self.result()):
            info["result"] = result
        return terminated, info

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_type(env: Any, method: str, value: T, kind: type[T]) -> T:
    """What a method of an environment returned, refused if it is of another type."""
    if isinstance(value, kind):
        return value
    owner = env.__name__ if isinstance(env, type) else type(env).__name__
    raise EnvError(
        f"{owner}.{method} must give {_describe_kind(kind)}, got {value!r:.60} ({type(value).__name__})"
    )


def _describe_kind(kind: type) -> str:
    """`an Observation`, `a Task`: with where to import it from."""
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    return f"{article} {kind.__name__} (from stepwell.{kind.__module__.split('.')[1]})"


def choose_task(env: Any, seed: int | None, options: Mapping[str, Any] | None) -> Task:
    """The task for a reset of `env`: the given one, or else that of the seed."""
    given = options or {}
    task: Task | None = given.get("task")
    if len(given) > ("task" in given):
        raise InputError(f"reset options know only 'task', got {', '.join(sorted(set(given) - {'task'}))}")
    if task is None:
        if seed is None:
            raise InputError("reset needs a seed, or a task as options={'task': task}")
        task = env.make_task(env.options, seed)
    require_type(env, "make_task", task, Task)
    if task.env != env.name:
        raise InputError(f"task {task.id} belongs to {task.env!r}, not to {env.name!r}")
    return task
