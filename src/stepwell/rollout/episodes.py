"""The episode loop: many episodes in step with each other, one engine call per turn.

    jobs ─► reset ─► ┌ render ─► engine.generate ─► read ─► env.step ─► reward ┐ ─► trajectories
                     └───────── every episode that is not over ◄──────────────┘

All episodes that wait for an action ask for it in one call, in the order of their jobs, with
seeds that follow from the job's seed and the turn. So a rollout is a pure function of weights,
jobs and settings, and repeats bit for bit.

What ends an episode
* the world: success, or failure (its own turn limit included);
* our budget: no room left in the context, or `timeout_s` over: truncated. A first prompt that
  does not fit ends an episode without a step;
* the system: a world that raises. The job is tried again up to `retries` times; what still
  fails is handed back in `Rolled.failures` and is never trained on.

An unreadable reply is not an error: it is a turn in which nothing is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stepwell.agents import Agent, Reply
from stepwell.config.run import RewardConfig
from stepwell.core import (
    JSON,
    ContextLengthError,
    EnvError,
    Observation,
    Request,
    Sampled,
    SamplingParams,
    Status,
    Step,
    Task,
    Trajectory,
    hash_bytes,
)
from stepwell.envs.batch import EnvBatch, Turn
from stepwell.rendering import Conversation, Message, Renderer
from stepwell.rewards import compose, part_names, step_parts

NEEDS_STATE = frozenset({"grounding", "world_modeling"})
_SEED_STEP = 1_000_003


class BlockingSampler(Protocol):
    """An engine that answers a whole list at once."""

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play: a task, the group it is compared in, the seed of its sampling.

    `channel` says where in the pool it belongs (`train` or `eval`).
    """

    task: Task
    group: str
    seed: int
    channel: str = "train"


@dataclass(slots=True)
class Rolled:
    """What came of a rollout: one trajectory per job that could be played, in order, and the rest."""

    trajectories: list[Trajectory]
    failures: list[Trajectory] = field(default_factory=list)
    num_retries: int = 0
    is_stored: bool = False  # whether whoever played has put them into the pool already


@dataclass(slots=True)
class _Episode:
    index: int
    job: Job
    observation: Observation
    conversation: Conversation = field(init=False)
    steps: list[Step] = field(default_factory=list)
    state: dict[str, JSON] = field(default_factory=dict)
    num_actions: int = 0
    status: Status | None = None
    error: str = ""
    engine_s: float = 0.0

    def fail(self, error: Exception) -> None:
        """End it for the system's reasons."""
        self.status, self.error = Status.INFRA_ERROR, str(error) or type(error).__name__


class Rollout:
    """Plays jobs in one world with one agent.

    `parts` and `optional_parts` name the reward parts that are summed; every part is kept in
    `step.info["parts"]`, so that stored trajectories can be rewarded in another way later.
    """

    def __init__(
        self,
        envs: EnvBatch,
        agent: Agent,
        renderer: Renderer,
        sampler: BlockingSampler,
        *,
        parts: Sequence[str] = ("task",),
        optional_parts: Sequence[str] = (),
        weights: RewardConfig | None = None,
        reward_scale: float = 1.0,
    ) -> None:
        self.envs = envs
        self.agent = agent
        self.renderer = renderer
        self.sampler = sampler
        self.parts, self.optional_parts = tuple(parts), tuple(optional_parts)
        self.weights = weights or RewardConfig()
        self.reward_scale = reward_scale
        self._needs_state = bool(NEEDS_STATE & {*self.parts, *self.optional_parts}) or bool(
            NEEDS_STATE & set(part_names(agent.strategy, [agent.form], agent.form))
        )
        self._system = Message.system(agent.system())

    def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        retries: int = 0,
        timeout_s: float | None = None,
    ) -> Rolled:
        """Play every job once, and again where the system failed."""
        rolled = Rolled([])
        results: dict[int, Trajectory] = {}
        waiting = list(enumerate(jobs))
        for attempt in range(retries + 1):
            size = len(self.envs.envs)
            played = [
                pair
                for start in range(0, len(waiting), size)
                for pair in self._play(waiting[start : start + size], params, timeout_s)
            ]
            results.update(played)
            waiting = [(i, jobs[i]) for i, _ in waiting if results[i].status is Status.INFRA_ERROR]
            if not waiting:
                break
            rolled.num_retries += len(waiting) if attempt < retries else 0
        for i in range(len(jobs)):
            failed = results[i].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(results[i])
        return rolled

    def _play(
        self, jobs: Sequence[tuple[int, Job]], params: SamplingParams, timeout_s: float | None
    ) -> list[tuple[int, Trajectory]]:
        started = time.perf_counter()
        turns = self.envs.reset([job.task for _, job in jobs], seeds=[job.seed % 2**32 for _, job in jobs])
        episodes = [
            self._begin(place, job, turn)
            for place, ((_, job), turn) in enumerate(zip(jobs, turns, strict=True))
        ]
        live = [episode for episode in episodes if episode.status is None]
        turn_number = 0
        while live:
            if timeout_s is not None and time.perf_counter() - started > timeout_s:
                for episode in live:
                    episode.status = Status.TRUNCATED
                break
            live = self._turn(live, params, turn_number)
            turn_number += 1
        wall_s = time.perf_counter() - started
        return [
            (number, self._finished(episode, wall_s))
            for (number, _), episode in zip(jobs, episodes, strict=True)
        ]

    def _begin(self, place: int, job: Job, turn: Turn) -> _Episode:
        episode = _Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.fail(turn.error)
            return episode
        try:
            episode.conversation = self.open(turn.observation)
            episode.state = self._state(place)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
        except EnvError as error:
            episode.fail(error)
        return episode

    def open(self, observation: Observation) -> Conversation:
        """The conversation of an episode that begins with `observation`, ready for the first action."""
        return Conversation(self.renderer, (self._system, Message.user(self.agent.first(observation))))

    def _turn(self, live: list[_Episode], params: SamplingParams, number: int) -> list[_Episode]:
        """One action for every live episode; returns those that go on."""
        requests = [
            Request(
                episode.conversation.state,
                _with_seed(params, (episode.job.seed + number * _SEED_STEP) % 2**63),
                conversation=f"{episode.index}",
            )
            for episode in live
        ]
        asked = time.perf_counter()
        samples = self.sampler.generate_blocking(requests)
        engine_s = time.perf_counter() - asked
        replies = [self.agent.read(sample.action.text) for sample in samples]  # type: ignore[union-attr]
        turns = self.envs.step([episode.index for episode in live], [reply.actions for reply in replies])
        for episode, request, sample, reply, turn in zip(
            live, requests, samples, replies, turns, strict=True
        ):
            episode.engine_s += engine_s
            self._record(episode, sample.step(request.state), reply, turn)
        return [episode for episode in live if episode.status is None]

    def _record(self, episode: _Episode, step: Step, reply: Reply, turn: Turn) -> None:
        if turn.error is None and not math.isfinite(turn.reward):
            turn.error = EnvError(f"{self.envs.name} gave the reward {turn.reward}; rewards must be finite")
        try:
            next_state = {} if turn.error is not None else self._state(episode.index)
        except EnvError as error:
            turn.error = error
        if turn.error is not None:
            episode.fail(turn.error)
            return
        is_last = turn.terminated or turn.truncated
        success = bool(turn.info.get("success"))
        parts = step_parts(
            turn_reward=turn.reward,
            reply=reply,
            is_last=is_last,
            success=success,
            state=episode.state,  # type: ignore[arg-type]
            next_state=next_state,  # type: ignore[arg-type]
            form=self.agent.form,
            weights=self.weights,
            strategy=self.agent.strategy,
            process=turn.info.get("process"),  # type: ignore[arg-type]
        )
        chosen = compose(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.reward_scale * value for name, value in chosen.items()})
        step.anchor = _anchor(episode.observation)
        step.info = {"actions": list(reply.actions), "parts": dict(parts), "strict": reply.is_strict}
        if reply.problem:
            step.info["problem"] = reply.problem
        if episode.state:
            step.info["state"] = episode.state
        episode.steps.append(step)
        episode.num_actions += int(turn.info.get("num_actions", len(reply.actions)))  # type: ignore[arg-type]
        episode.observation, episode.state = turn.observation, next_state
        if success and is_last:
            episode.status = Status.SUCCESS
        elif turn.terminated:
            episode.status = Status.FAILURE
        else:
            self._go_on(episode, step, turn.observation)  # a cut, too, has a state after it
            if turn.truncated:
                episode.status = Status.TRUNCATED

    def _go_on(self, episode: _Episode, step: Step, observation: Observation) -> None:
        episode.conversation.sampled(step.action.action_ids)  # type: ignore[union-attr]
        try:
            episode.conversation.add(Message.user(self.agent.next(observation)))
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)

    def _state(self, index: int) -> dict[str, JSON]:
        """The true state in the agent's form, where a reward part reads it."""
        if not self._needs_state:
            return {}
        try:
            truth = self.envs.envs[index].state()
        except Exception as error:
            raise EnvError(f"{self.envs.name}: state() raised {type(error).__name__}: {error}") from error
        return {self.agent.form.value: truth[self.agent.form]} if self.agent.form in truth else {}

    def _finished(self, episode: _Episode, wall_s: float) -> Trajectory:
        assert episode.status is not None
        goes_on = episode.status is Status.TRUNCATED and not episode.error
        return Trajectory(
            task=episode.job.task,
            steps=episode.steps,
            status=episode.status,
            group=episode.job.group,
            final_state=episode.conversation.state if goes_on and episode.steps else None,
            error=episode.error,
            timings={"engine_s": episode.engine_s, "wall_s": wall_s},
            info={"num_actions": episode.num_actions, "seed": episode.job.seed},
        )


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return SamplingParams(
        params.max_tokens,
        params.temperature,
        params.top_p,
        seed,
        params.stop,
        params.stop_ids,
        params.ignore_end,
    )


def _anchor(observation: Observation) -> str:
    """Key of what was seen: equal exactly where text and pictures are."""
    if not observation.images:
        return observation.text if len(observation.text) <= 64 else hash_bytes(observation.text.encode())
    pictures = b"".join(image.tobytes() for image in observation.images)
    return hash_bytes(observation.text.encode() + b"\0" + pictures)
