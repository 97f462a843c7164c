"""One episode, turn by turn: the request to the engine, the action for the environment, the recorded step.

    begin_episode ─► ┌ make_request ─► (engine) ─► read_reply ─► (environment) ─► record_step ┐
                     └──────────────────── while episode.status is None ◄─────────────────────┘
                     ─► build_trajectory

A `Player` knows neither engine nor environments nor time. Its caller decides when each call is made: many
episodes in lock step (`episodes.py`), or each as soon as it can continue (`workers/driver.py`). Both record
the same steps from the same answers. There is one player per kind of agent.

An unreadable reply is not an error. It is a turn without an action.

An agent that keeps no dialogue gets a new conversation in every turn, made from the observation and the steps
so far. So the prompt of a step can always be rebuilt from the record.
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
    compute_step_parts,
    list_part_names,
    load_own_parts,
    refuse_batch_settings,
    select_parts,
)
from stepwell.rollout.first_messages import make_user_message, start_conversation
from stepwell.rollout.jobs import Job

NEEDS_STATE = frozenset({"grounding", "world_modeling"})
_SEED_STEP = 1_000_003


@dataclass(slots=True)
class Episode:
    """An episode so far. `place` is the number of its environment; `own` belongs to the player."""

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

    def mark_failed(self, error: Exception) -> None:
        """End it because the system failed."""
        self.status, self.error = Status.INFRA_ERROR, str(error) or type(error).__name__

    def seed_params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters of its next action, with a seed that depends on nothing but the episode."""
        return params.with_seed((self.job.seed + len(self.steps) * _SEED_STEP) % 2**63)


class ParsedSample(Protocol):
    """A parsed sample. `actions` is the argument of the environment's `step`."""

    @property
    def actions(self) -> Any: ...


class Player(Protocol):
    """Plays episodes of one kind of agent in one kind of environment."""

    needs_state: bool
    """Whether turns must carry the true state (`EnvBatch(…, with_state=True)`)."""

    def begin_episode(self, place: int, job: Job, turn: Turn) -> Episode:
        """The episode after a reset."""
        ...

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        """The next request to the engine."""
        ...

    def read_reply(self, sampled: Sampled) -> ParsedSample:
        """The action for the environment."""
        ...

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: Any, turn: Turn
    ) -> None:
        """Add the step. Sets `episode.status` if it was the last one."""
        ...

    def build_trajectory(self, episode: Episode, wall_s: float) -> Trajectory:
        """The trajectory of an episode that has ended."""
        ...


class RewardOptions(TypedDict, total=False):
    """How steps are rewarded.

    `parts` and `optional_parts` name the reward parts that are summed. Every part is kept in
    `step.info["parts"]`, so that stored trajectories can be rewarded differently later.
    `judged_later`: a `BatchJudge` scores whole batches of trajectories afterwards.
    """

    parts: Sequence[str]
    optional_parts: Sequence[str]
    weights: RewardConfig | None
    reward_scale: float
    judged_later: bool


class TextPlayer:
    """Episodes of an agent that reads and writes text.

    `Episode.own` is the conversation. There are two kinds: exact ids in `LanguagePlayer`, messages to an API
    in `ChatPlayer`.
    """

    def __init__(
        self,
        agent: Agent,
        image_store: ImageStore,
        *,
        parts: Sequence[str] = ("task",),
        optional_parts: Sequence[str] = (),
        weights: RewardConfig | None = None,
        reward_scale: float = 1.0,
        judged_later: bool = False,
    ) -> None:
        self.agent = agent
        self.image_store = image_store
        self.parts, self.optional_parts = tuple(parts), tuple(optional_parts)
        self.weights = weights or RewardConfig()
        self.own_parts = load_own_parts(self.weights.parts)
        self.reward_scale = reward_scale
        if not judged_later:
            refuse_batch_settings(self.weights.judge)
        by_rule = self.weights.judge.kind != "match"
        self.judge = RuleJudge(agent.description.vocabulary) if by_rule else None
        self.needs_state = bool(NEEDS_STATE & {*self.parts, *self.optional_parts}) or bool(
            NEEDS_STATE & set(list_part_names(agent.strategy, [agent.form], agent.form))
        )

    def begin_episode(self, place: int, job: Job, turn: Turn) -> Episode:
        episode = Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.mark_failed(turn.error)
            return episode
        try:
            episode.own = self.open_conversation(turn.observation)
            episode.state = self._select_state(turn)
            episode.golden = turn.info.get("golden")  # type: ignore[assignment]
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
        return episode

    def open_conversation(self, observation: Observation | ArrayState) -> Any:
        """The conversation of an episode that begins with `observation`, ready for the first action."""
        assert isinstance(observation, Observation)
        return self._start_conversation(self._make_message(self.agent.first_prompt(observation), observation))

    def _start_conversation(self, message: Message) -> Any:
        """A conversation that begins with this message."""
        raise NotImplementedError

    def _extend_conversation(self, episode: Episode, step: Step, message: Message) -> None:
        """Add the reply of a step and the next message; `ContextLengthError` if it gets too long."""
        raise NotImplementedError

    def _make_message(self, text: str, observation: Observation) -> Message:
        return make_user_message(text, observation, self.image_store)

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        return Request(episode.own.state, episode.seed_params(params), conversation=f"{episode.place}")

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: Reply, turn: Turn
    ) -> None:
        if turn.error is None and not math.isfinite(turn.reward):
            turn.error = EnvError(
                f"{self.agent.description.name} gave the reward {turn.reward}; rewards must be finite"
            )
        if turn.error is not None:
            episode.mark_failed(turn.error)
            return
        step, next_state = sampled.step(request.state), self._select_state(turn)
        is_last, success = turn.terminated or turn.truncated, bool(turn.info.get("success"))
        self._assign_reward(step, episode, read, turn, next_state)
        step.anchor = _compute_anchor(episode.observation)  # type: ignore[arg-type]
        step.info |= self._describe_turn(read, turn)
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
            self._continue_conversation(episode, step, turn.observation)  # a truncated one needs it too
            if turn.truncated:
                episode.status = Status.TRUNCATED

    def _assign_reward(
        self, step: Step, episode: Episode, reply: Reply, turn: Turn, next_state: dict[str, JSON]
    ) -> None:
        parts = compute_step_parts(
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
        parts |= self._score_own_parts(step, episode, reply, turn)
        chosen = select_parts(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.reward_scale * value for name, value in chosen.items()})
        step.info = {"actions": list(reply.actions), "parts": dict(parts), "strict": reply.is_strict}

    def _score_own_parts(self, step: Step, episode: Episode, reply: Reply, turn: Turn) -> dict[str, float]:
        """The reward parts of the user's own functions (`rewards.parts`)."""
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

    def _continue_conversation(
        self, episode: Episode, step: Step, observation: Observation | ArrayState
    ) -> None:
        assert isinstance(observation, Observation)
        known = episode.steps[-1:] if self.agent.keeps_dialogue else episode.steps
        text = self.agent.next_prompt(observation, [_make_past(step) for step in known])
        message = self._make_message(text, observation)
        try:
            if self.agent.keeps_dialogue:
                self._extend_conversation(episode, step, message)
            else:
                episode.own = self._start_conversation(message)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)

    def _describe_turn(self, reply: Reply, turn: Turn) -> dict[str, JSON]:
        """Problems and results of a turn, its tool calls, and at the end the measures of the environment."""
        lost = reply.lost if self.agent.tells_problems else ""
        notes = {"problem": reply.problem, "lost": lost, "result": turn.info.get("result")}
        found: dict[str, JSON] = {name: value for name, value in notes.items() if value}
        if self.agent.description.actions.tools:
            found["calls"] = [read_call(action).name for action in reply.actions]
            found["num_lost"] = reply.num_lost
        measured: dict[str, JSON] = {
            k: v for k, v in turn.info.items() if isinstance(v, float) and k != "process"
        }
        if measured and (turn.terminated or turn.truncated):
            found["measures"] = measured
        return found

    def _select_state(self, turn: Turn) -> dict[str, JSON]:
        """The true state in the agent's form, or in every form if there is a judge."""
        form = self.agent.form.value
        if self.judge is not None:
            return dict(turn.state)
        return {form: turn.state[form]} if form in turn.state else {}

    def build_trajectory(self, episode: Episode, wall_s: float) -> Trajectory:
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
            | self._describe_last_state(episode),
        )

    def _describe_last_state(self, episode: Episode) -> dict[str, JSON]:
        """The state that the last prediction was about. No later step holds it."""
        return {"state": episode.state} if self.judge is not None and episode.state else {}


class LanguagePlayer(TextPlayer):
    """Episodes whose actions an engine samples. Conversations are exact ids."""

    def __init__(self, agent: Agent, renderer: Renderer, **reward_options: Unpack[RewardOptions]) -> None:
        super().__init__(agent, renderer.image_store, **reward_options)
        self.renderer = renderer

    def _start_conversation(self, message: Message) -> Conversation:
        return start_conversation(self.agent, self.renderer, message)

    def _extend_conversation(self, episode: Episode, step: Step, message: Message) -> None:
        episode.own.record_action(step.action.action_ids)  # type: ignore[union-attr]
        episode.own.add(message)

    def read_reply(self, sampled: Sampled) -> Reply:
        return self.agent.read(sampled.action.text)  # type: ignore[union-attr]


def _make_past(step: Step) -> PastTurn:
    """A recorded step as its agent sees it later."""
    info: Any = step.info
    return PastTurn(tuple(info["actions"]), info.get("lost", ""), info.get("result", ""))


def _compute_anchor(observation: Observation) -> str:
    """A key of the observation: equal exactly if text and images are equal."""
    if not observation.images:
        return observation.text if len(observation.text) <= 64 else hash_bytes(observation.text.encode())
    pixels = b"".join(image.tobytes() for image in observation.images)
    return hash_bytes(observation.text.encode() + b"\0" + pixels)
