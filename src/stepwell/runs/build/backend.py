"""What depends on who acts in a run: a language agent or a robot.

    Components ─► Backend ─┬─ LanguageBackend   agent, tokenizer, renderer, causal LM, EmbeddedEngine
                           └─ RobotBackend      vision-language-action model, ArrayEngine

Everything that one setting can get wrong about another component is refused here, before the run starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.core import SamplingParams, Task, Trajectory

if TYPE_CHECKING:
    from stepwell.engines import ArrayEngine, EmbeddedEngine, ServedEngine
    from stepwell.policies import CausalLMPolicy
    from stepwell.policies.vla import VLAPolicy
    from stepwell.pool import PoolImageStore
    from stepwell.rewards import BatchJudge
    from stepwell.rollout import LanguagePlayer, Rollout
    from stepwell.rollout.robot_player import RobotPlayer
    from stepwell.runs.build.agent_rollout import AgentRollout


class Backend(Protocol):
    """The components that differ between a language agent and a robot."""

    is_robot: bool

    @property
    def default_inflight(self) -> int:
        """Inference batches that one generator may have under way, unless settings say so."""

    @property
    def policy(self) -> CausalLMPolicy | VLAPolicy:
        """What the trainer trains."""

    @property
    def engine(self) -> EmbeddedEngine | ServedEngine | ArrayEngine:
        """Samples actions from its own copy of the policy's model."""

    @property
    def player(self) -> LanguagePlayer | RobotPlayer:
        """Turns observations into requests, and replies into actions and steps."""

    @property
    def batch_judge(self) -> BatchJudge | None:
        """Rewards an update's trajectories together, where one step alone cannot be judged."""

    @property
    def image_store(self) -> PoolImageStore | None:
        """Where the images of prompts are kept; None if the policy's states hold none."""

    @property
    def horizon(self) -> int | None:
        """The most steps of an episode, if the environment says so."""

    @property
    def state_form(self) -> str | None:
        """The form in which the agent writes states."""

    def sampling_params(self, temperature: float) -> SamplingParams:
        """The parameters of a request for one action."""

    def make_rollout(self) -> Rollout | AgentRollout:
        """Plays episodes in this process with the engine."""

    def check_observation(self, observation: Any) -> None:
        """Refuse an environment whose first observation the policy cannot use."""

    def repeat_tasks(self, tasks: Sequence[Task], num_demos: int) -> list[Task]:
        """The tasks of this many demonstrations."""

    def demonstrate(self, tasks: list[Task], noise: float, seed: int) -> list[Trajectory]:
        """One episode of the oracle per task."""

    def describe_imbalance(self, demonstrations: Sequence[Trajectory]) -> str | None:
        """A warning where reward for form can outweigh the task's; None where it cannot."""

    def close(self) -> None:
        """Stop the engine, if it was built."""
