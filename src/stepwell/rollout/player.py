"""One episode at a time: what is asked of the engine, what of the world, and what is recorded.

    begin ─► ┌ request ─► (engine) ─► read ─► (world) ─► record ┐ ─► finished
             └───────────── while episode.status is None ◄──────┘

A `Player` knows neither engine nor worlds nor time: whoever drives it (many episodes in step with
each other in `episodes.py`, or each as soon as it can go on) decides when each call is made, and
records the same steps from the same answers. There is one player per kind of agent.

An unreadable reply is not an error: it is a turn in which nothing is done.

An agent that keeps no dialogue gets a new conversation for every turn, made from the observation and
the steps so far: what a step's prompt says can always be made again from the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack

from stepwell.agents import Agent, PastTurn, Reply
from stepwell.config.run import RewardConfig
from stepwell.core import (
    JSON,
    ArrayState,
    ContextLengthError,
    EnvError,
    ImageStore,
    Observation,
    Request,
    Sampled,
    SamplingParams,
    Status,
    Step,
    Trajectory,
    hash_bytes,
    read_call,
)
from stepwell.envs.turns import Turn
from stepwell.rendering import Conversation, Message, Renderer
from stepwell.rewards import (
    RuleJudge,
    StepOutcome,
    compose,
    load_own_parts,
    needs_batch,
    part_names,
    step_parts,
)
from stepwell.rollout.jobs import Job
from stepwell.rollout.showing import begun, user_message

NEEDS_STATE = frozenset({"grounding", "world_modeling"})
_SEED_STEP = 1_000_003


@dataclass(slots=True)
class Episode:
    """An episode as far as it was played. `place` is the number of its world, `own` the player's."""

    place: int
    job: Job
    observation: Observation | ArrayState
    steps: list[Step] = field(default_factory=list)
    state: dict[str, JSON] = field(default_factory=dict)
    num_actions: int = 0
    golden: int | None = None
    status: Status | None = None
    error: str = ""
    engine_s: float = 0.0
    own: Any = None

    def fail(self, error: Exception) -> None:
        """End it for the system's reasons."""
        self.status, self.error = Status.INFRA_ERROR, str(error) or type(error).__name__

    def params(self, params: SamplingParams) -> SamplingParams:
        """How its next action is sampled: with a seed of its own, whoever else plays beside it."""
        return params.with_seed((self.job.seed + len(self.steps) * _SEED_STEP) % 2**63)


class Read(Protocol):
    """What was read out of a sample: `actions` is what the world's `step` takes."""

    @property
    def actions(self) -> Any: ...


class Player(Protocol):
    """Plays episodes of one kind of agent in one kind of world."""

    needs_state: bool
    """Whether turns must carry the true state (`EnvBatch(…, with_state=True)`)."""

    def begin(self, place: int, job: Job, turn: Turn) -> Episode:
        """The episode that a reset began."""
        ...

    def request(self, episode: Episode, params: SamplingParams) -> Request:
        """What the engine is to be asked now."""
        ...

    def read(self, sampled: Sampled) -> Read:
        """What the world is to be told."""
        ...

    def record(self, episode: Episode, request: Request, sampled: Sampled, read: Any, turn: Turn) -> None:
        """Add the step; sets `episode.status` where it was the last."""
        ...

    def finished(self, episode: Episode, wall_s: float) -> Trajectory:
        """The record of an episode whose status is known."""
        ...


class Rewarding(TypedDict, total=False):
    """How steps are rewarded.

    `parts` and `optional_parts` name the reward parts that are summed; every part is kept in
    `step.info["parts"]`, so that stored trajectories can be rewarded in another way later.
    `judged_later`: a `BatchJudge` goes over the trajectories, for what one step cannot be judged by.
    """

    parts: Sequence[str]
    optional_parts: Sequence[str]
    weights: RewardConfig | None
    reward_scale: float
    judged_later: bool


class TextPlayer:
    """Episodes of an agent that reads and writes text, whoever samples it.

    `Episode.own` is the conversation. What that is, and how it goes on, its two kinds know:
    `LanguagePlayer` here (exact ids) and `ChatPlayer` (messages to an API).
    """

    def __init__(
        self,
        agent: Agent,
        pictures: ImageStore,
        *,
        parts: Sequence[str] = ("task",),
        optional_parts: Sequence[str] = (),
        weights: RewardConfig | None = None,
        reward_scale: float = 1.0,
        judged_later: bool = False,
    ) -> None:
        self.agent = agent
        self.pictures = pictures
        self.parts, self.optional_parts = tuple(parts), tuple(optional_parts)
        self.weights = weights or RewardConfig()
        self.own_parts = load_own_parts(self.weights.parts)
        self.reward_scale = reward_scale
        if not judged_later:
            needs_batch(self.weights.judge)
        by_rule = self.weights.judge.kind != "match"
        self.judge = RuleJudge(agent.world.vocabulary) if by_rule else None
        self.needs_state = bool(NEEDS_STATE & {*self.parts, *self.optional_parts}) or bool(
            NEEDS_STATE & set(part_names(agent.strategy, [agent.form], agent.form))
        )

    def begin(self, place: int, job: Job, turn: Turn) -> Episode:
        episode = Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.fail(turn.error)
            return episode
        try:
            episode.own = self.open(turn.observation)
            episode.state = self._state(turn)
            episode.golden = turn.info.get("golden")  # type: ignore[assignment]
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
        return episode

    def open(self, observation: Observation | ArrayState) -> Any:
        """The conversation of an episode that begins with `observation`, ready for the first action."""
        assert isinstance(observation, Observation)
        return self._begun(self._shown(self.agent.first_prompt(observation), observation))

    def _begun(self, told: Message) -> Any:
        """The conversation that begins with what the agent is told."""
        raise NotImplementedError

    def _extend(self, episode: Episode, step: Step, told: Message) -> None:
        """Go on with what the agent did and is told now; `ContextLengthError` where it gets too long."""
        raise NotImplementedError

    def _shown(self, text: str, observation: Observation) -> Message:
        return user_message(text, observation, self.pictures)

    def request(self, episode: Episode, params: SamplingParams) -> Request:
        return Request(episode.own.state, episode.params(params), conversation=f"{episode.place}")

    def record(self, episode: Episode, request: Request, sampled: Sampled, read: Reply, turn: Turn) -> None:
        if turn.error is None and not math.isfinite(turn.reward):
            turn.error = EnvError(
                f"{self.agent.world.name} gave the reward {turn.reward}; rewards must be finite"
            )
        if turn.error is not None:
            episode.fail(turn.error)
            return
        step, next_state = sampled.step(request.state), self._state(turn)
        is_last, success = turn.terminated or turn.truncated, bool(turn.info.get("success"))
        self._reward(step, episode, read, turn, next_state)
        step.anchor = _anchor(episode.observation)  # type: ignore[arg-type]
        step.info |= self._told(read, turn)
        if episode.state:
            step.info["state"] = episode.state
        episode.steps.append(step)
        episode.num_actions += int(turn.info.get("num_actions", len(read.actions)))  # type: ignore[arg-type]
        episode.observation, episode.state = turn.observation, next_state
        if success and is_last:
            episode.status = Status.SUCCESS
        elif turn.terminated:
            episode.status = Status.FAILURE
        else:
            self._go_on(episode, step, turn.observation)  # a cut, too, has a state after it
            if turn.truncated:
                episode.status = Status.TRUNCATED

    def _reward(
        self, step: Step, episode: Episode, reply: Reply, turn: Turn, next_state: dict[str, JSON]
    ) -> None:
        parts = step_parts(
            turn_reward=turn.reward,
            reply=reply,
            is_last=turn.terminated or turn.truncated,
            success=bool(turn.info.get("success")),
            state=episode.state,  # type: ignore[arg-type]
            next_state=next_state,  # type: ignore[arg-type]
            form=self.agent.form,
            weights=self.weights,
            strategy=self.agent.strategy,
            process=turn.info.get("process"),  # type: ignore[arg-type]
            judge=self.judge,
        )
        parts |= self._own_parts_of(step, episode, reply, turn)
        chosen = compose(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.reward_scale * value for name, value in chosen.items()})
        step.info = {"actions": list(reply.actions), "parts": dict(parts), "strict": reply.is_strict}

    def _own_parts_of(self, step: Step, episode: Episode, reply: Reply, turn: Turn) -> dict[str, float]:
        """The parts of the user's own functions (`rewards.parts`)."""
        if not self.own_parts:
            return {}
        outcome = StepOutcome(
            text=step.action.text,  # type: ignore[union-attr]
            actions=tuple(reply.actions),
            observation=episode.observation,  # type: ignore[arg-type]
            next_observation=turn.observation,  # type: ignore[arg-type]
            env_reward=turn.reward,
            is_last=turn.terminated or turn.truncated,
            success=bool(turn.info.get("success")),
            task=episode.job.task,
            turn=len(episode.steps),
        )
        return {part.config.name: part.score(outcome) for part in self.own_parts}

    def _go_on(self, episode: Episode, step: Step, observation: Observation | ArrayState) -> None:
        assert isinstance(observation, Observation)
        known = episode.steps[-1:] if self.agent.keeps_dialogue else episode.steps
        text = self.agent.next_prompt(observation, [_past(step) for step in known])
        told = self._shown(text, observation)
        try:
            if self.agent.keeps_dialogue:
                self._extend(episode, step, told)
            else:
                episode.own = self._begun(told)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)

    def _told(self, reply: Reply, turn: Turn) -> dict[str, JSON]:
        """What was wrong with a reply, what came of it, tools called; at the end, what the world measures."""
        lost = reply.lost if self.agent.tells_problems else ""
        all_of_it = {"problem": reply.problem, "lost": lost, "result": turn.info.get("result")}
        told: dict[str, JSON] = {name: value for name, value in all_of_it.items() if value}
        if self.agent.world.actions.tools:
            told["calls"] = [read_call(action).name for action in reply.actions]
            told["num_lost"] = reply.num_lost
        measured = {k: v for k, v in turn.info.items() if isinstance(v, float) and k != "process"}
        if measured and (turn.terminated or turn.truncated):
            told["measures"] = measured
        return told

    def _state(self, turn: Turn) -> dict[str, JSON]:
        """The true state in the agent's form, where a reward part reads it; a judge reads every form."""
        form = self.agent.form.value
        if self.judge is not None:
            return dict(turn.state)
        return {form: turn.state[form]} if form in turn.state else {}

    def finished(self, episode: Episode, wall_s: float) -> Trajectory:
        assert episode.status is not None
        goes_on = episode.status is Status.TRUNCATED and not episode.error
        return Trajectory(
            task=episode.job.task,
            steps=episode.steps,
            status=episode.status,
            group=episode.job.group,
            final_state=episode.own.state if goes_on and episode.steps else None,
            error=episode.error,
            timings={"engine_s": episode.engine_s, "wall_s": wall_s},
            info={"num_actions": episode.num_actions, "seed": episode.job.seed}
            | ({} if episode.golden is None else {"golden": episode.golden})
            | self._last_state(episode),
        )

    def _last_state(self, episode: Episode) -> dict[str, JSON]:
        """The state that the last prediction was about: no later step holds it."""
        return {"state": episode.state} if self.judge is not None and episode.state else {}


class LanguagePlayer(TextPlayer):
    """Episodes whose actions an engine samples: conversations are exact ids."""

    def __init__(self, agent: Agent, renderer: Renderer, **rewarding: Unpack[Rewarding]) -> None:
        super().__init__(agent, renderer.pictures, **rewarding)
        self.renderer = renderer

    def _begun(self, told: Message) -> Conversation:
        return begun(self.agent, self.renderer, told)

    def _extend(self, episode: Episode, step: Step, told: Message) -> None:
        episode.own.sampled(step.action.action_ids)  # type: ignore[union-attr]
        episode.own.add(told)

    def read(self, sampled: Sampled) -> Reply:
        return self.agent.read(sampled.action.text)  # type: ignore[union-attr]


def _past(step: Step) -> PastTurn:
    """A recorded step as its agent is told of it later."""
    told: Any = step.info
    return PastTurn(tuple(told["actions"]), told.get("lost", ""), told.get("result", ""))


def _anchor(observation: Observation) -> str:
    """Key of what was seen: equal exactly where text and pictures are."""
    if not observation.images:
        return observation.text if len(observation.text) <= 64 else hash_bytes(observation.text.encode())
    pictures = b"".join(image.tobytes() for image in observation.images)
    return hash_bytes(observation.text.encode() + b"\0" + pictures)
