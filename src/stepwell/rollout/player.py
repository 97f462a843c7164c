"""One episode, turn by turn: the request to the engine, the action for the environment, the recorded step.

    begin_episode ─► ┌ make_request ─► (engine) ─► read_reply ─► (environment) ─► record_step ┐
                     │                              └─► record_summary (no action, no turn) ──┤
                     └──────────────────── while episode.status is None ◄─────────────────────┘
                     ─► build_trajectory

A `Player` knows neither engine nor environments nor time. Its caller decides when each call is made: many
episodes in lock step (`episodes.py`), or each as soon as it can continue (`workers/driver.py`). Both record
the same steps from the same answers. There is one player per kind of agent.

An unreadable reply is not an error. It is a turn without an action.

What the next prompt holds of the earlier turns is `agent.context`. A prompt either continues the exact ids
of the one before, or starts a conversation of its own (`observation`: always; `window`: once older turns are
left out; `summary`: after each summary). A summary is a step of the record too: its prompt is the dialogue so
far and the request for a summary, its action is the summary, its reward is 0, and the environment does not
see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict, Unpack

from stepwell.agents import Agent, Reply
from stepwell.config.run import RewardConfig
from stepwell.core import (
    JSON,
    ArrayState,
    ContextLengthError,
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
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart
from stepwell.rewards import (
    StepOutcome,
    compute_step_parts,
    list_part_names,
    load_own_parts,
    make_rule_judge,
    refuse_batch_settings,
    select_parts,
)
from stepwell.rollout.episode import Episode, PastMessages, make_past_turns
from stepwell.rollout.first_messages import make_user_message, start_conversation
from stepwell.rollout.jobs import Job

NEEDS_STATE = frozenset({"grounding", "world_modeling"})


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

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        """The next request to the engine."""

    def record_summary(self, episode: Episode, request: Request, sampled: Sampled) -> bool:
        """Record the reply if it is a summary that was asked for; False if it is an action."""

    def read_reply(self, sampled: Sampled) -> ParsedSample:
        """The action for the environment."""

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: Any, turn: Turn
    ) -> None:
        """Add the step. Sets `episode.status` if it was the last one."""

    def build_trajectory(self, episode: Episode, wall_s: float) -> Trajectory:
        """The trajectory of an episode that has ended."""


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
        writes_state = bool(NEEDS_STATE & set(list_part_names(agent.strategy, [agent.form], agent.form)))
        self.is_judged = self.weights.judge.kind != "match"  # else texts are matched word by word
        self.judge = make_rule_judge(agent.description) if self.is_judged and writes_state else None
        self.needs_state = writes_state or bool(NEEDS_STATE & {*self.parts, *self.optional_parts})

    def begin_episode(self, place: int, job: Job, turn: Turn) -> Episode:
        episode = Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.mark_failed(turn.error)
            return episode
        if not job.task.instruction and isinstance(turn.observation, Observation):
            episode.first_text = turn.observation.text
        try:
            episode.message = self._make_first_message(turn.observation)
            episode.own = self._start_conversation([episode.message])
            episode.state = self._select_state(turn)
            episode.golden = turn.info.get("golden")  # type: ignore[assignment]
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
        return episode

    def open_conversation(self, observation: Observation | ArrayState) -> Any:
        """The conversation of an episode that begins with `observation`, ready for the first action."""
        return self._start_conversation([self._make_first_message(observation)])

    def _make_first_message(self, observation: Observation | ArrayState) -> Message:
        assert isinstance(observation, Observation)
        return self._make_message(self.agent.first_prompt(observation), observation)

    def _start_conversation(self, messages: Sequence[Message]) -> Any:
        """A conversation that begins with these messages, after the system message."""
        raise NotImplementedError

    def _record_reply(self, episode: Episode, step: Step) -> Message:
        """Add the reply of a step to the conversation; returns it as a message."""
        raise NotImplementedError

    def _add_message(self, episode: Episode, message: Message) -> None:
        """Add the next message; `ContextLengthError` if the conversation gets too long."""
        raise NotImplementedError

    def _join_turns(self, turns: Sequence[PastMessages], message: Message) -> list[Message]:
        """The messages of a conversation that begins with `turns` and continues with `message`."""
        return [*(each for turn in turns for each in turn), message]

    def _make_message(self, text: str, observation: Observation) -> Message:
        return make_user_message(text, observation, self.image_store)

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        demonstration = None
        if episode.next_message is not None:
            demonstration = self.agent.list_turns(make_past_turns(episode.steps))
        seeded = episode.seed_params(params)
        return Request(episode.own.state, seeded, f"{episode.place}", demonstration=demonstration)

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: Reply, turn: Turn
    ) -> None:
        if episode.end_if_failed(turn, self.agent.description.name):
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
            turn=sum(not step.is_summary for step in episode.steps),
        )
        return {part.config.name: part.score(outcome) for part in self.own_parts}

    def _continue_conversation(
        self, episode: Episode, step: Step, observation: Observation | ArrayState
    ) -> None:
        assert isinstance(observation, Observation)
        text = self.agent.next_prompt(observation, make_past_turns(episode.steps))
        message = self._make_message(text, observation)
        try:
            if self.agent.config.context == "observation":
                episode.own = self._start_conversation([message])
            else:
                self._continue_dialogue(episode, step, message)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)

    def _continue_dialogue(self, episode: Episode, step: Step, message: Message) -> None:
        """Add a turn and the next message; leave out what `agent.context` does not keep."""
        config, reply = self.agent.config, self._record_reply(episode, step)
        assert episode.message is not None
        if config.context != "dialogue":
            episode.turns.append(PastMessages(episode.message, reply))
        episode.message = message
        if config.context == "window" and len(episode.turns) > config.context_turns:
            del episode.turns[: -config.context_turns]
            episode.own = self._start_conversation(self._join_turns(episode.turns, message))
            return
        if config.context == "summary" and len(episode.turns) == config.context_turns:
            episode.next_message = message
            message = _replace_text(message, self.agent.ask_for_summary(message.text))
        self._add_message(episode, message)

    def record_summary(self, episode: Episode, request: Request, sampled: Sampled) -> bool:
        if episode.next_message is None:
            return False
        step, message = sampled.step(request.state), episode.next_message
        summary = self.agent.read_summary(step.action.text)  # type: ignore[union-attr]
        step.assign_reward(dict.fromkeys(self.parts, 0.0))
        names = list_part_names(self.agent.strategy, [self.agent.form], self.agent.form, self.weights.parts)
        step.info = {"summary": summary, "actions": [], "parts": dict.fromkeys((*names, *self.parts), 0.0)}
        episode.steps.append(step)
        episode.message = _replace_text(message, self.agent.prompt_after_summary(summary, message.text))
        episode.turns.clear()
        episode.next_message = None
        try:
            episode.own = self._start_conversation([episode.message])
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
        return True

    def _describe_turn(self, reply: Reply, turn: Turn) -> dict[str, JSON]:
        """Problems and results of a turn, its tool calls, and at the end the measures of the environment."""
        lost = reply.lost if self.agent.reports_problems else ""
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
        if self.is_judged:
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
            | self._describe_last_state(episode)
            | _describe_view(episode),
        )

    def _describe_last_state(self, episode: Episode) -> dict[str, JSON]:
        """The state that the last prediction was about. No later step holds it."""
        return {"state": episode.state} if self.is_judged and episode.state else {}


class LanguagePlayer(TextPlayer):
    """Episodes whose actions an engine samples. Conversations are exact ids."""

    def __init__(self, agent: Agent, renderer: Renderer, **reward_options: Unpack[RewardOptions]) -> None:
        super().__init__(agent, renderer.image_store, **reward_options)
        self.renderer = renderer

    def _start_conversation(self, messages: Sequence[Message]) -> Conversation:
        return start_conversation(self.agent, self.renderer, *messages)

    def _record_reply(self, episode: Episode, step: Step) -> Message:
        return episode.own.record_action(step.action.action_ids)  # type: ignore[union-attr, no-any-return]

    def _add_message(self, episode: Episode, message: Message) -> None:
        episode.own.add(message)

    def read_reply(self, sampled: Sampled) -> Reply:
        return self.agent.read(sampled.action.text)  # type: ignore[union-attr]


def _describe_view(episode: Episode) -> dict[str, JSON]:
    """What a judge of the whole episode needs: what was seen at the end, and at the start without a task."""
    if not episode.steps or not isinstance(episode.observation, Observation):
        return {}
    first = {"first_observation": episode.first_text} if episode.first_text else {}
    return {**first, "last_observation": episode.observation.text}


def _replace_text(message: Message, text: str) -> Message:
    """A user message with the same images and another text."""
    shown = [part for part in message.parts if isinstance(part, ImagePart)]
    return Message.user([*shown, TextPart(text)]) if shown else Message.user(text)


def _compute_anchor(observation: Observation) -> str:
    """A key of the observation: equal exactly if text and images are equal."""
    if not observation.images:
        return observation.text if len(observation.text) <= 64 else hash_bytes(observation.text.encode())
    pixels = b"".join(image.tobytes() for image in observation.images)
    return hash_bytes(observation.text.encode() + b"\0" + pixels)
