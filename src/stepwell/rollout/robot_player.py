"""Episodes of a robot policy: states go to the engine unchanged, chunks of actions to the environment.

    observation ─► request ─► (engine) ─► chunk ─► (environment executes up to C actions) ─► step

An episode may end inside a chunk. How much was executed is known only after the environment has answered.
`keep_executed` then keeps those n actions and their logprobs. For a token head these are the first n * D
units. For a flow head all K transitions remain, each with the logprob of the first n actions alone (the
engine says what each action adds). The chain stays complete, because those rows depend on all of it. The
policy scores a stored step by the same rule: n is the length of its chunk.

Reward parts: `task` (the environment's reward), `outcome` (1 at the last step of a success) and `process`
(its weight times the simulator's own reward, if there is one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.config.run import RewardConfig
from stepwell.core import (
    ArrayAction,
    ArrayState,
    InputError,
    Request,
    Sampled,
    SamplingParams,
    Status,
    Step,
    Trajectory,
)
from stepwell.core.arrays import AnyArray
from stepwell.envs.turns import Turn
from stepwell.rewards import select_parts
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job

PARTS = ("task", "outcome", "process")
_ROW_LOGPROBS = "row_logprobs"


@dataclass(frozen=True, slots=True)
class ActionChunk:
    """Actions for the environment, [C, D]."""

    actions: AnyArray


class RobotPlayer:
    """A `Player` for policies that see arrays and emit chunks."""

    needs_state = False

    def __init__(
        self,
        env_name: str,
        *,
        parts: Sequence[str] = ("task",),
        optional_parts: Sequence[str] = (),
        weights: RewardConfig | None = None,
    ) -> None:
        self.env_name = env_name
        self.parts, self.optional_parts = tuple(parts), tuple(optional_parts)
        self.weights = weights or RewardConfig()

    def begin_episode(self, place: int, job: Job, turn: Turn) -> Episode:
        episode = Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.mark_failed(turn.error)
        return episode

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        assert isinstance(episode.observation, ArrayState)
        return Request(episode.observation, episode.seed_params(params), conversation=f"{episode.place}")

    def record_summary(self, episode: Episode, request: Request, sampled: Sampled) -> bool:
        """Never asks for a summary."""
        return False

    def read_reply(self, sampled: Sampled) -> ActionChunk:
        assert isinstance(sampled.action, ArrayAction)
        return ActionChunk(sampled.action.chunk)

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: ActionChunk, turn: Turn
    ) -> None:
        if episode.end_if_failed(turn, self.env_name):
            return
        count = int(turn.info["num_actions"])  # type: ignore[arg-type]
        step = keep_executed(sampled, count).step(request.state)
        self._assign_reward(step, turn)
        episode.steps.append(step)
        episode.num_actions += count
        episode.observation = turn.observation
        if turn.is_over and turn.info.get("success"):
            episode.status = Status.SUCCESS
        elif turn.terminated:
            episode.status = Status.FAILURE
        elif turn.truncated:
            episode.status = Status.TRUNCATED

    def _assign_reward(self, step: Step, turn: Turn) -> None:
        parts = {
            "task": float(turn.reward),
            "outcome": float(turn.is_over and bool(turn.info.get("success"))),
        }
        process = turn.info.get("process")
        if process is not None:
            parts["process"] = self.weights.process * float(process)  # type: ignore[arg-type]
        chosen = select_parts(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.weights.scale * value for name, value in chosen.items()})
        step.info = {"parts": dict(parts)}

    def build_trajectory(self, episode: Episode, wall_s: float) -> Trajectory:
        assert episode.status is not None
        goes_on = episode.status is Status.TRUNCATED and bool(episode.steps)
        return Trajectory(
            task=episode.job.task,
            steps=episode.steps,
            status=episode.status,
            group=episode.job.group,
            final_state=episode.observation if goes_on else None,  # type: ignore[arg-type]
            error=episode.error,
            timings={"engine_s": episode.engine_s, "wall_s": wall_s},
            info={"num_actions": episode.num_actions, "seed": episode.job.seed},
        )


def keep_executed(sampled: Sampled, num_actions: int) -> Sampled:
    """The executed part of a sample: its first `num_actions` actions."""
    action = sampled.action
    assert isinstance(action, ArrayAction)
    chunk = action.chunk[:num_actions]
    if not 1 <= num_actions <= action.chunk.shape[0]:
        raise InputError(f"num_actions is {num_actions} of a chunk of {action.chunk.shape[0]}")
    if "chain" in action.draws:
        rows = action.draws[_ROW_LOGPROBS]
        logprobs = rows[:, :num_actions].sum(axis=1)
        kept = ArrayAction(chunk, action.num_units, {"chain": action.draws["chain"]})
    else:
        kept = ArrayAction(chunk, chunk.size, {name: d[:num_actions] for name, d in action.draws.items()})
        logprobs = sampled.logprobs[: chunk.size]
    return Sampled(kept, logprobs, sampled.sampling, sampled.policy_version)
