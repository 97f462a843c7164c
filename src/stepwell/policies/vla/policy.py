"""The robot policy for training: logprobs, values and entropies of packed array steps.

    from_config ─► prepare_batch (checks) ─► run (one microbatch) ─► save_pretrained

It is an `Evaluator` over `pack_arrays`, with the same methods as `CausalLMPolicy`. The critic gives one value
per state, repeated to the L + 1 places of a step. Step-level credit reads the first one.

    DIRECTORY/  config.json            model_type, shapes of the environment, settings of the model
                model.safetensors      the actor
                critic.safetensors     the critic, if there is one
                instruction_critic.safetensors    that of instructions, if there is one

Invariants
* The same weights and steps give the same outputs, in any microbatch, up to rounding.
* A step that was cut short by the end of its episode is scored by its executed actions alone, like its stored
  behaviour logprobs (`rollout/robot_player.py`).
* The reference is never trained and is in neither `parameters()` nor `state_dict()`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stepwell.config import PolicyConfig
from stepwell.config.vla import VLAConfig
from stepwell.core import (
    ArrayAction,
    ArrayState,
    ConfigError,
    InputError,
    ModelError,
    RobotEnvDescription,
    State,
    Step,
)
from stepwell.core.text import take_first_line
from stepwell.core.weight_parts import WeightParts
from stepwell.packing import ArrayMicrobatch, Outputs, PackedArrays, pack_arrays
from stepwell.packing.arrays import stack_states
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.policies.critic import CriticKind, CriticModel, ValueHead
from stepwell.policies.policy_files import PolicyContent, describe_critics
from stepwell.policies.step_scorer import StepScorer
from stepwell.policies.vla.encoder import Encoder
from stepwell.policies.vla.heads import FlowHead
from stepwell.policies.vla.inputs import VLAInputs, get_inputs
from stepwell.policies.vla.model import VLAModel, VLAShape
from stepwell.policies.weight_loading import PolicyWeights, list_parts, load_module_weights

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_FILES = {
    "model": "model.safetensors",
    "critic": "critic.safetensors",
    "instruction_critic": "instruction_critic.safetensors",
}
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)


class VLAPolicy(PolicyWeights, StepScorer[PackedArrays]):
    """A robot policy with optional critic and reference."""

    adapters = None  # only language policies have adapters; robot policies train the whole model

    def __init__(
        self,
        model: VLAModel,
        *,
        critic: CriticModel | None = None,
        instruction_critic: CriticModel | None = None,
        reference: VLAModel | None = None,
    ) -> None:
        self.model, self.critic, self.reference = model, critic, reference
        self.instruction_critic = instruction_critic
        self.runs_all_parts = False
        """Whether a microbatch without actions has gradients too, as ranks that share layers need."""
        parts = {"model": model, "critic": critic, "instruction_critic": instruction_critic}
        self.module = nn.ModuleDict({name: part for name, part in parts.items() if part is not None})

    @classmethod
    def from_config(cls, config: PolicyConfig, description: RobotEnvDescription, seed: int = 0) -> VLAPolicy:
        """Build the policy from its settings: opened if `model` is a directory, otherwise fresh."""
        critic: CriticKind | None = None if config.critic == "none" else config.critic
        if config.lora is not None:
            raise ConfigError("policy.lora: robot policies are trained whole; leave it out")
        if Path(config.model).is_dir():
            policy = cls.from_pretrained(
                config.model, critic=critic, dtype=config.dtype, device=config.device
            )
            policy.check_env(description)
        else:
            shape = VLAShape.for_env(config.vla or VLAConfig(), description)
            policy = cls.from_shape(shape, critic=critic, dtype=config.dtype, device=config.device, seed=seed)
        if config.reference:
            policy.reference = _copy_frozen(policy.model)
        return policy

    @classmethod
    def from_shape(
        cls,
        shape: VLAShape,
        *,
        critic: CriticKind | None = None,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> VLAPolicy:
        """Fresh weights; the same seed gives the same weights."""
        kind = _check_dtype(dtype)
        value = None if critic is None else _make_critic(critic, shape, kind, seed)
        return cls(VLAModel(shape, seed).to(device, kind), critic=None if value is None else value.to(device))

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        critic: CriticKind | None = None,
        reference: bool = False,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
    ) -> VLAPolicy:
        """Open a directory that `save_pretrained` wrote. `critic` adds a critic if the directory has none."""
        path, kind = Path(path), _check_dtype(dtype)
        try:
            content = json.loads((path / "config.json").read_text())
            shape, saved = VLAShape.from_json(content), content["critic"]
            model = VLAModel(shape)
            model.load_state_dict(load_file(path / "model.safetensors"))
            if critic is not None and saved is not None and saved != critic:
                raise ValueError(f"it holds a critic of kind {saved!r}, not {critic!r}")
            value = None if (critic or saved) is None else _make_critic(critic or saved, shape, kind, 0)
            second = _make_critic(saved, shape, kind, 0) if content.get("instruction_critic") else None
            critics = ((value if saved else None, "critic"), (second, "instruction_critic"))
            for one, file in ((one, _FILES[name]) for one, name in critics):
                if one is not None:
                    one.load_state_dict(load_file(path / file))
                    one.link = content.get("critic_link")
        except (*_BROKEN, RuntimeError) as error:
            raise ModelError(
                f"{path} cannot be opened as a robot policy: {take_first_line(error)}. "
                "Give a directory written by VLAPolicy.save_pretrained"
            ) from error
        model = model.to(device, kind)
        return cls(
            model,
            critic=None if value is None else value.to(device, kind),
            instruction_critic=None if second is None else second.to(device, kind),
            reference=_copy_frozen(model) if reference else None,
        )

    # --- scores of steps ----------------------------------------------------------------

    def reference_logprobs(self, packed: PackedArrays) -> list[Tensor]:
        """Per step, the logprobs of its units under the frozen reference, without a gradient."""
        if self.reference is None:
            raise ConfigError("this policy has no reference; load it with reference=True")
        with torch.no_grad():
            return VLAPolicy(self.reference).logprobs(packed)

    def _pack_steps(self, steps: Sequence[Step]) -> PackedArrays:
        return pack_arrays(steps)

    def _make_empty_action(self) -> ArrayAction:
        return ArrayAction(np.zeros((0, self.model.shape.action_dim), np.float32), 0)

    # --- the critic of instructions -----------------------------------------------------

    def add_instruction_critic(self) -> None:
        """Add a second critic, of the same kind and link, unless there is one."""
        if self.instruction_critic is not None:
            return
        if self.critic is None:
            raise ConfigError("a critic of instructions needs a critic beside it; set critic to 'shared'")
        made = _make_critic(self.critic.kind, self.model.shape, self.critic.head.weight.dtype, 1)
        made.link = self.critic.link
        self.instruction_critic = self.module["instruction_critic"] = made.to(self.device)

    # --- forward passes -----------------------------------------------------------------

    def prepare_batch(self, packed: PackedArrays) -> PackedArrays:
        """Check the batch against this model and return it."""
        head, shape = self.model.head, self.model.shape
        for microbatch in packed.microbatches:
            self.model.encoder.check_arrays(microbatch.arrays)
            if microbatch.kind not in (None, head.kind):
                raise InputError(
                    f"actions were drawn as {microbatch.kind}, this policy's head draws {head.kind}; "
                    "they come from a policy with another policy.vla.head"
                )
            wanted, found = (shape.config.chunk, shape.action_dim), microbatch.chunks.shape[1:]
            if microbatch.acting.size and (found[0] > wanted[0] or found[1] != wanted[1]):
                raise InputError(f"chunks are {list(found)}, this policy's {list(wanted)} (policy.vla.chunk)")
            if isinstance(head, FlowHead) and microbatch.kind == "chain":
                _check_chain(microbatch, head.num_steps, wanted)
        return packed

    def run(self, microbatch: ArrayMicrobatch, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of one microbatch, in its own order."""
        if values and self.critic is None:
            raise ConfigError("values need a critic; load the policy with critic='shared' or critic='own'")
        batch = get_inputs(microbatch, self.model)
        hidden: Tensor | None = None
        is_shared = values and self.critic is not None and self.critic.backbone is None
        if logprobs or entropies or is_shared:
            hidden = self.model.encode(batch.arrays, batch.instructions, batch.rows)
        scores: tuple[Tensor | None, Tensor | None] = (None, None)
        if logprobs or entropies:
            assert hidden is not None
            scores = self._score_actions(hidden, batch)
        return Outputs(
            scores[0] if logprobs else None,
            self._compute_values(hidden, batch) if values else None,
            scores[1] if entropies else None,
        )

    def _score_actions(self, hidden: Tensor, batch: VLAInputs) -> tuple[Tensor, Tensor]:
        if batch.acting.numel() == 0:  # all steps are value-only
            nothing = hidden[batch.acting].sum(1) if self.runs_all_parts else hidden.new_zeros(0)
            return nothing, nothing
        return self.model.head.score(hidden[batch.acting], batch.actions)

    def _compute_values(self, hidden: Tensor | None, batch: VLAInputs) -> Tensor:
        assert self.critic is not None
        if self.critic.backbone is not None:
            hidden = self.critic.backbone(batch.arrays, batch.instructions, batch.rows)
        return self.critic.head(hidden).repeat_interleave(batch.num_values)  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self.model.device

    def fit_inputs(self, states: Sequence[State]) -> None:
        """Set centre and scale of the encoders' inputs from these states, before training starts."""
        kept = [state for state in states if isinstance(state, ArrayState)]
        arrays = stack_states(kept)
        self.model.encoder.check_arrays(arrays)
        own = [one.backbone for one in (self.critic, self.instruction_critic) if one is not None]
        for encoder in (self.model.encoder, *own):
            if encoder is not None:
                encoder.fit_scaling(arrays)

    def check_env(self, description: RobotEnvDescription) -> None:
        """Refuse an environment that this policy was not built for."""
        shape = self.model.shape
        if shape.arrays != description.arrays or shape.action_dim != description.action_dim:
            raise ConfigError(
                f"policy.model was made for arrays {_describe_arrays(shape.arrays)} and {shape.action_dim} "
                f"action dimensions; {description.name} has {_describe_arrays(description.arrays)} and "
                f"{description.action_dim}"
            )

    # --- weights ------------------------------------------------------------------------

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Load the `state_dict` of a policy of the same kind; anything else is refused as a whole."""
        load_module_weights(self.module, weights, "policy.vla settings, environment and critic")

    def model_weights(self) -> dict[str, Tensor]:
        """The actor's weights, as engines load them."""
        return self.model.state_dict()

    def weight_parts(self) -> WeightParts:
        """The same, and which of them are never trained."""
        return list_parts(self.model)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory that `from_pretrained` opens, atomically."""
        with write_directory_atomically(Path(path)) as folder:
            self.write_content(folder, self.read_content())

    def read_content(self) -> PolicyContent:
        """What the files of this policy hold: its own tensors, not copies."""
        parts = {"model": self.model, "critic": self.critic, "instruction_critic": self.instruction_critic}
        weights = {name: _copy_contiguous_weights(part) for name, part in parts.items() if part is not None}
        return PolicyContent(weights, describe_critics(self))

    def write_content(self, folder: Path, content: PolicyContent) -> None:
        """Write the files of this policy with weights that were read before."""
        described = self.model.shape.to_json() | content.description
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
        for name, weights in content.weights.items():
            save_file(weights, folder / _FILES[name])


def _make_critic(kind: CriticKind, shape: VLAShape, dtype: torch.dtype, seed: int) -> CriticModel:
    if kind not in ("shared", "own"):
        raise ConfigError(f"critic must be 'shared', 'own' or None, got {kind!r}")
    backbone = None
    if kind == "own":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            backbone = Encoder(shape.config, shape.arrays).to(dtype)
    return CriticModel(ValueHead(shape.config.width, dtype), backbone)


def _check_chain(microbatch: ArrayMicrobatch, num_steps: int, wanted: tuple[int, int]) -> None:
    assert microbatch.draws is not None
    if microbatch.draws.shape[1:] != (num_steps + 1, *wanted):
        raise InputError(
            f"chains are {list(microbatch.draws.shape[1:])}, this policy's {[num_steps + 1, *wanted]} "
            "(policy.vla.denoising_steps and chunk)"
        )


def _check_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ConfigError(f"policy.dtype: robot policies run in {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def _copy_frozen(model: VLAModel) -> VLAModel:
    return copy.deepcopy(model).requires_grad_(False)


def _copy_contiguous_weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}


def _describe_arrays(arrays: dict[str, Any]) -> str:
    return ", ".join(f"{name} {list(spec.shape)}" for name, spec in arrays.items())
