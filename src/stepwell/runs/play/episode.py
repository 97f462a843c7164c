"""An interactive episode: a person or the agent acts, turn by turn.

    PlaySession ──► EnvBatch (one env)        executes actions
        │      └──► Agent                     writes prompts and parses replies
        └─ LiveAgent ─► Conversation ─► engine    the agent's actions, and the critic's values

A person's turn is added to the conversation as the reply that the agent should have written: in exactly the
required form, with the true states if the strategy uses states. The agent can therefore take over at any
turn, with a history that looks like its own.

Invariants
* The agent gets the same input as in training: the same messages, ids and parsing of replies.
* Turns of both players get the same reward parts.
* Without an agent, nothing heavy is imported, so viewing an environment starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from stepwell.agents import Agent, PastTurn, Reply
from stepwell.config.run import RunConfig
from stepwell.core import InputError, Observation, StateForm, Task
from stepwell.envs import EnvBatch, Turn
from stepwell.rewards import StepOutcome, compute_step_parts, load_own_parts

if TYPE_CHECKING:
    from stepwell.runs.play.agent import LiveAgent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn: who acted, the text, and the result."""

    player: Literal["person", "agent"]
    text: str
    reply: Reply
    parts: dict[str, float]
    observation: Observation
    is_over: bool
    success: bool


class PlaySession:
    """Episodes of one environment, one after the other. Without a `live_agent`, only the person acts."""

    def __init__(self, config: RunConfig, live_agent: LiveAgent | None = None) -> None:
        self._config = config
        self._batch = EnvBatch(config.env.name, config.env.options, 1)
        self.env = self._batch.envs[0]
        self.agent = Agent(self.env.description, config.agent)
        self.live_agent = live_agent
        self.observation = Observation()
        self.is_over = True
        self.num_turns = 0
        self.total_reward = 0.0
        self._past: list[PastTurn] = []
        self._own_parts = load_own_parts(config.rewards.parts)

    def start(self, task: Task) -> Observation:
        """Start an episode."""
        (turn,) = self._batch.reset([task])
        if turn.error is not None:
            raise turn.error
        assert isinstance(turn.observation, Observation)
        self.observation, self.is_over, self.num_turns, self.total_reward = turn.observation, False, 0, 0.0
        self._past, self._task = [], task
        if self.live_agent is not None:
            self.live_agent.start(self.agent, self.agent.first_prompt(self.observation), self.observation)
        return self.observation

    def act(self, actions: Sequence[str]) -> PlayedTurn:
        """Play a person's turn."""
        self._refuse_after_end()
        before = self.ask(_read_truth)
        turn = self._step_env(actions)
        after = self.ask(_read_truth)
        form = self.agent.form
        text = self.agent.write(actions, observation=before.get(form, ""), prediction=after.get(form, ""))
        if self.live_agent is not None:
            self.live_agent.note(text)
        return self._finish_turn("person", text, before, turn, after)

    def let_agent_act(self) -> PlayedTurn:
        """Play the agent's turn."""
        self._refuse_after_end()
        if self.live_agent is None:
            raise InputError("there is no agent here; give one with --run RUN or --model MODEL")
        before = self.ask(_read_truth)
        text = self.live_agent.answer()
        turn = self._step_env(self.agent.read(text).actions)
        return self._finish_turn("agent", text, before, turn, self.ask(_read_truth))

    def value(self) -> float | None:
        """The critic's value of the current state, if there is a critic."""
        return None if self.live_agent is None or self.is_over else self.live_agent.value()

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer of the environment to anything but a turn."""
        return self._batch.ask(0, question)

    def close(self) -> None:
        self._batch.close()
        if self.live_agent is not None:
            self.live_agent.close()

    def _refuse_after_end(self) -> None:
        if self.is_over:
            raise InputError("the episode is over; start another one")

    def _step_env(self, actions: Sequence[str]) -> Turn:
        (turn,) = self._batch.step([0], [actions])
        if turn.error is not None:
            raise turn.error
        return turn

    def _finish_turn(
        self,
        player: Literal["person", "agent"],
        text: str,
        before: dict[StateForm, str],
        turn: Turn,
        after: dict[StateForm, str],
    ) -> PlayedTurn:
        assert isinstance(turn.observation, Observation)
        reply = self.agent.read(text)
        success = bool(turn.info["success"])
        parts = compute_step_parts(
            turn_reward=turn.reward,
            reply=reply,
            is_last=turn.is_over,
            success=success,
            state=before,
            next_state=after,
            form=self.agent.form,
            weights=self._config.rewards,
            strategy=self.agent.strategy,
        )
        outcome = StepOutcome(
            text=text,
            actions=reply.actions,
            observation=self.observation,
            next_observation=turn.observation,
            env_reward=turn.reward,
            is_last=turn.is_over,
            success=success,
            task=self._task,
            turn=self.num_turns,
        )
        parts |= {part.config.name: part.score(outcome) for part in self._own_parts}
        self.observation, self.is_over = turn.observation, turn.is_over
        self.num_turns += 1
        self.total_reward += turn.reward
        self._past.append(PastTurn(reply.actions, reply.lost, str(turn.info.get("result", ""))))
        if self.live_agent is not None and not self.is_over:
            self._tell_agent(self.live_agent)
        return PlayedTurn(player, text, reply, parts, self.observation, self.is_over, success)

    def _tell_agent(self, live_agent: LiveAgent) -> None:
        """Give the agent its next prompt, as in training (`rollout/player.py`)."""
        agent, observation, num_past = self.agent, self.observation, len(self._past)
        text = agent.next_prompt(observation, self._past)
        context, num_turns = agent.config.context, agent.config.context_turns
        if context == "observation":
            live_agent.start(agent, text, observation)
        elif context == "window" and num_past > num_turns:
            live_agent.start(agent, text, observation, num_turns=num_turns)
        elif context == "summary" and num_past % num_turns == 0:
            live_agent.tell(agent.ask_for_summary(text), observation)
            summary = agent.read_summary(live_agent.answer())
            live_agent.start(agent, agent.prompt_after_summary(summary, text), observation)
        else:
            live_agent.tell(text, observation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_truth(env: Any) -> dict[StateForm, str]:
    state: dict[StateForm, str] = env.state()
    return state


def open_live_agent(model: str | Path, config: RunConfig, temperature: float = 0.0) -> LiveAgent:
    """The agent of a model directory, a checkpoint or a built-in name."""
    from stepwell.policies import CausalLMPolicy, VLMPolicy, accepts_images
    from stepwell.policies.numerics import set_numerics
    from stepwell.runs.play.agent import LiveAgent

    set_numerics(config.num_threads)
    kind = VLMPolicy if accepts_images(model) else CausalLMPolicy
    policy = kind.from_pretrained(model, dtype=config.policy.dtype, device=config.policy.device)
    return LiveAgent(policy, config, temperature)
