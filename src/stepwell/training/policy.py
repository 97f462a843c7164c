"""The interface of a policy for the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stepwell.core import Step
from stepwell.core.arrays import FloatArray
from stepwell.core.weight_parts import WeightParts
from stepwell.packing import Outputs
from stepwell.policies.policy_files import PolicyContent


class Policy(Protocol):
    """`CausalLMPolicy` and `VLAPolicy`: an `Evaluator` with weights to train, publish and keep."""

    model: Any
    critic: Any
    instruction_critic: Any
    reference: Any
    adapters: Any

    @property
    def device(self) -> torch.device: ...

    def prepare_batch(self, packed: Any) -> Any:
        """Check the batch and return it in the form this policy runs."""

    def run(self, microbatch: Any, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of one microbatch, in its own order; language policies also have `ref_kls`."""

    def values(self, packed: Any) -> list[Tensor]:
        """Per step L + 1 values."""

    def add_instruction_critic(self) -> None:
        """Add a second critic, of the same kind and link, unless there is one."""

    def read_instructions(self) -> Policy:
        """This policy with the critic of instructions in place of the critic; weights are shared."""

    def reference_logprobs(self, packed: Any) -> list[Tensor]:
        """Per step, the logprobs of its units under the frozen reference."""

    def score(self, steps: Sequence[Step]) -> list[FloatArray]:
        """Logprobs of actions already taken."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained; names of critics begin with `critic.` and `instruction_critic.`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Every weight of actor and critic."""

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Take weights of a policy of the same kind."""

    def model_weights(self) -> dict[str, Tensor]:
        """What an engine loads."""

    def weight_parts(self) -> WeightParts:
        """The same as parts: adapters apart, and what is never trained."""

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory, all or nothing; the class's `from_pretrained` opens it."""

    def read_content(self) -> PolicyContent:
        """What the files of this policy hold: its own tensors, not copies."""

    def write_content(self, folder: Path, content: PolicyContent) -> None:
        """Write the files of this policy with weights that were read before."""


def move_to_host(policy: Policy) -> None:
    """Move the policy's weights to the host: ranks have them on their devices."""
    any_policy: Any = policy
    any_policy.module.to("cpu")
    if policy.reference is not None:
        policy.reference.to("cpu")
