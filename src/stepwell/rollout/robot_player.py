"""Episodes of a robot policy: states go to the engine as they are, chunks to the world.

    observation ─► request ─► (engine) ─► chunk ─► (world executes up to C actions) ─► step

An episode may end inside a chunk. What was executed is known only when the world has answered, so
it is here that a sample becomes the step it was: `executed` keeps the actions that were carried out
and their share of the logprobs. For a token head those are the first n * D units. For a flow head
all K transitions remain, each with the logprob of the first n actions of the chunk alone (the
engine says what each action adds); the chain is kept whole, because the rows that count depend on
all of it. The policy scores a stored step by the same rule: n is the length of its chunk.

Reward parts: `task` (what the world gave), `outcome` (1 at the last step of a success) and
`process` (its weight times the simulator's own reward, where there is one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.config.run import RewardConfig
from stepwell.core import (
    ArrayAction,
    ArrayState,
    EnvError,
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
from stepwell.rewards import compose
from stepwell.rollout.jobs import Job
from stepwell.rollout.player import Episode

PARTS = ("task", "outcome", "process")
_ROW_LOGPROBS = "row_logprobs"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the world is told: actions [C, D]."""

    actions: AnyArray


class RobotPlayer:
    """Episodes of a policy that sees arrays and emits chunks. A `Player`."""

    needs_state = False

    def __init__(
        self,
        world_name: str,
        *,
        parts: Sequence[str] = ("task",),
        optional_parts: Sequence[str] = (),
        weights: RewardConfig | None = None,
    ) -> None:
        self.world_name = world_name
        self.parts, self.optional_parts = tuple(parts), tuple(optional_parts)
        self.weights = weights or RewardConfig()

    def begin(self, place: int, job: Job, turn: Turn) -> Episode:
        episode = Episode(place, job, turn.observation)
        if turn.error is not None:
            episode.fail(turn.error)
        return episode

    def request(self, episode: Episode, params: SamplingParams) -> Request:
        assert isinstance(episode.observation, ArrayState)
        return Request(episode.observation, episode.params(params), conversation=f"{episode.place}")

    def read(self, sampled: Sampled) -> Chunk:
        assert isinstance(sampled.action, ArrayAction)
        return Chunk(sampled.action.chunk)

    def record(self, episode: Episode, request: Request, sampled: Sampled, read: Chunk, turn: Turn) -> None:
        if turn.error is None and not math.isfinite(turn.reward):
            turn.error = EnvError(f"{self.world_name} gave the reward {turn.reward}; rewards must be finite")
        if turn.error is not None:
            episode.fail(turn.error)
            return
        count = int(turn.info["num_actions"])  # type: ignore[arg-type]
        step = executed(sampled, count).step(request.state)
        self._reward(step, turn)
        episode.steps.append(step)
        episode.num_actions += count
        episode.observation = turn.observation
        if turn.is_over and turn.info.get("success"):
            episode.status = Status.SUCCESS
        elif turn.terminated:
            episode.status = Status.FAILURE
        elif turn.truncated:
            episode.status = Status.TRUNCATED

    def _reward(self, step: Step, turn: Turn) -> None:
        parts = {
            "task": float(turn.reward),
            "outcome": float(turn.is_over and bool(turn.info.get("success"))),
        }
        process = turn.info.get("process")
        if process is not None:
            parts["process"] = self.weights.process * float(process)  # type: ignore[arg-type]
        chosen = compose(parts, self.parts, self.optional_parts)
        step.assign_reward({name: self.weights.scale * value for name, value in chosen.items()})
        step.info = {"parts": dict(parts)}

    def finished(self, episode: Episode, wall_s: float) -> Trajectory:
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


def executed(sampled: Sampled, num_actions: int) -> Sampled:
    """The sample as far as it was carried out: its first `num_actions` actions."""
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
