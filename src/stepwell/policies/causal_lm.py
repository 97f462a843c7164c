"""A causal language model as a policy: logprobs, values and entropies of packed steps.

    from_pretrained ─► prepare_batch (checks, tree or replay) ─► run (one microbatch) ─► save_pretrained

Any Hugging Face causal LM directory works. Batches run as prefix trees with tree attention
if the model passes a probe (see `attention.py`), otherwise by replay, with one warning. An
optional critic gives L+1 values per step, an optional frozen reference gives
`reference_logprobs`, and LoRA trains adapters instead of the model.

Invariants
* Dropout is off, in training too: the same weights and tokens give the same logprobs.
* Logits are divided by the temperature with which the step was sampled.
* Logprobs, entropies and values are at least float32, whatever the weights are. With
  `dtype="bfloat16"` the weights themselves are bfloat16 (adapters and value head float32); the
  optimizer keeps float32 originals of them.
* The reference is never trained and is in neither `parameters()` nor `state_dict()`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepwell.config import PolicyConfig
from stepwell.core import ConfigError, ContextLengthError, InputError, Step, TokenAction
from stepwell.core.weight_parts import WeightParts
from stepwell.packing import Microbatch, Outputs, Packed, check_finite, evaluate, pack, replay
from stepwell.policies import directory, fused_layers, lora, policy_files
from stepwell.policies.activations import resolve_checkpointing
from stepwell.policies.actor_scores import Scores, score_actions
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.policies.attention import install_tree_attention
from stepwell.policies.captured_passes import install_passes
from stepwell.policies.critic import CriticKind, CriticModel
from stepwell.policies.forward import (
    ForwardInputs,
    compute_hidden_rows,
    find_backbone,
    get_inputs,
)
from stepwell.policies.head import find_plain_head
from stepwell.policies.numerics import check_dtype
from stepwell.policies.policy_parts import (
    checkpoint_gradients,
    disable_dropout,
    make_critic,
    open_actor,
    open_critic,
    open_instruction_critic,
    open_reference,
)
from stepwell.policies.recompute import recompute_outputs
from stepwell.policies.step_scorer import StepScorer, split_by_step
from stepwell.policies.weight_loading import PolicyWeights, list_parts, load_module_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
ATTENTIONS = ("auto", "tree", "replay")


class CausalLMPolicy(PolicyWeights, StepScorer[Packed]):
    """A language policy with optional critic, reference and adapters.

    >>> policy = CausalLMPolicy.from_pretrained("path/to/model", critic="shared")  # doctest: +SKIP
    >>> policy.logprobs(pack(steps))  # one tensor per step  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        *,
        critic: CriticModel | None = None,
        instruction_critic: CriticModel | None = None,
        reference: Any | None = None,
        adapters: Any | None = None,
        source: Path | None = None,
        attention: str = "auto",
    ) -> None:
        """Wrap parts that are already loaded; usually called by `from_pretrained`."""
        self.model = model
        self.critic = critic
        self.instruction_critic = instruction_critic
        self.adapters, self.source = adapters, source
        self.reference = reference
        self._attention = attention
        parts = {"model": model, "critic": critic, "instruction_critic": instruction_critic}
        self.module = nn.ModuleDict({name: part for name, part in parts.items() if part is not None})
        self.is_replayed = attention == "replay"
        self.runs_all_parts = False
        """Whether a microbatch without actions runs the actor too, as ranks that share layers must."""
        self.recomputes_outputs = True
        """Whether fused layers make cheap outputs again in the backward pass instead of keeping them."""
        self.captures_passes = False
        """Whether passes over few tokens are captured (`captured_passes.py`), as far as they can be."""
        self.gate_way = "keep"
        """What becomes of their products for gate and up: keep, again or offload (`fused_layers.py`)."""
        for part in self._list_models():
            self._prepare_model(part)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        critic: CriticKind | None = None,
        reference: bool | str | Path = False,
        lora: dict[str, Any] | None = None,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
        gradient_checkpointing: bool | str = "auto",
        cuda_graphs: bool = False,
        attention: str = "auto",
    ) -> CausalLMPolicy:
        """Open a directory, or a built-in model by name.

        `critic` adds a critic if the directory has none, and must agree with an existing one;
        `critic=None` uses what the directory has. `reference=True` freezes a copy of these
        weights (with LoRA: the base model, at no cost); a path opens another model as reference.
        `lora` adds adapters with these `LoraConfig` fields ({} for the defaults).
        `gradient_checkpointing` is what the backward pass computes again to save memory: nothing (`"none"`),
        outputs that are cheap to make (`"selective"`, on a GPU), also the first products of feed-forward
        parts (`"mlp"`, on a GPU), or whole layers (`"full"` or True). `"auto"` is `"mlp"` for narrow models,
        where it costs a few per cent of the time, and `"selective"` for others.
        `cuda_graphs` replays passes over few tokens as captured graphs (`captured_passes.py`).
        `attention="replay"` never uses trees, `"tree"` refuses a model that does not support them.
        """
        kind = _check_choice(dtype, DTYPES, "dtype")
        check_dtype(dtype, device)
        _check_choice(attention, dict.fromkeys(ATTENTIONS), "attention")
        path = directory.locate_model(name_or_path)
        model, adapters = open_actor(path, kind, lora, cls._open_model)
        if reference is True and adapters is not None:
            reference = False  # without its adapters the model is the reference
        frozen = open_reference(model, reference, kind, cls._open_model)
        policy = cls(
            model.to(device),
            critic=open_critic(path, model, critic, kind, torch.device(device)),
            instruction_critic=open_instruction_critic(path, model, kind, torch.device(device)),
            reference=None if frozen is None else frozen.to(device),
            adapters=adapters,
            source=path,
            attention=attention,
        )
        policy.captures_passes = cuda_graphs
        policy.set_checkpointing(gradient_checkpointing)
        return policy

    @classmethod
    def from_config(cls, config: PolicyConfig) -> CausalLMPolicy:
        """Open the policy that settings describe."""
        return cls.from_pretrained(
            config.model,
            critic=None if config.critic == "none" else config.critic,
            reference=config.reference,
            lora=None if config.lora is None else lora.to_peft_fields(config.lora),
            dtype=config.dtype,
            device=config.device,
            gradient_checkpointing=config.gradient_checkpointing,
            cuda_graphs=config.cuda_graphs,
        )

    # --- outputs of steps ---------------------------------------------------------------

    def reference_logprobs(self, packed: Packed) -> list[Tensor]:
        """Compute, per step, the logprobs of its action tokens under the frozen reference; no gradient."""
        with self._open_reference() as model:
            outputs = evaluate(self if model is self.model else self._copy_around(model), packed)
        check_finite(outputs)
        return split_by_step(outputs.logprobs, packed.action_lengths)

    @contextmanager
    def _open_reference(self) -> Iterator[Any]:
        """Give the frozen reference, without gradients: a model of its own, or ours without its adapters."""
        if self.reference is None and self.adapters is None:
            raise ConfigError("this policy has no reference; load it with reference=True")
        is_own = self.reference is not None
        with torch.no_grad(), nullcontext() if is_own else self.adapters.disable_adapter():  # type: ignore[union-attr]
            yield self.reference if is_own else self.model

    # --- the critic of instructions -----------------------------------------------------

    def add_instruction_critic(self) -> None:
        """Add a second critic, of the same kind and link, unless there is one."""
        if self.instruction_critic is not None:
            return
        if self.critic is None:
            raise ConfigError("a critic of instructions needs a critic beside it; set critic to 'shared'")
        made = make_critic(self.model, self.critic.kind, self.model.dtype, self.critic.link).to(self.device)
        self.instruction_critic = self.module["instruction_critic"] = made
        if made.backbone is not None:
            self._prepare_model(made.backbone)
            fused_layers.plan_gates(made.backbone, self.gate_way)
            if self.model.is_gradient_checkpointing:
                checkpoint_gradients(made.backbone)

    # --- how it runs --------------------------------------------------------------------

    def prepare_batch(self, packed: Packed) -> Packed:
        """Check the batch against this model, and lay it out the way this model runs it."""
        if packed.longest > self.context_length:
            raise ContextLengthError(
                f"the longest step has {packed.longest} tokens (prompt_ids and action_ids), but the model's "
                f"context is {self.context_length}; shorten the prompt or use a model with a longer context"
            )
        size = self.model.get_input_embeddings().num_embeddings
        if packed.highest_token_id >= size:
            raise InputError(
                f"prompt_ids or action_ids contain id {packed.highest_token_id}, but the model's vocabulary "
                f"has {size} tokens; the steps were made with another tokenizer"
            )
        if packed.table.has_images:
            self._check_images(packed)
        return replay(packed) if self.is_replayed else packed

    def run(
        self, microbatch: Microbatch, *, logprobs: bool, values: bool, entropies: bool, ref_kls: bool = False
    ) -> Outputs:
        """Compute the outputs of one microbatch, in its own order."""
        if values and self.critic is None:
            raise ConfigError("values need a critic; load the policy with critic='shared' or critic='own'")
        is_kept = self.device.type != "cuda" or not (self.recomputes_outputs and torch.is_grad_enabled())
        with nullcontext() if is_kept else recompute_outputs():
            return self._run_models(self.get_inputs(microbatch), logprobs, values, entropies, ref_kls)

    def _run_models(
        self, inputs: ForwardInputs, logprobs: bool, values: bool, entropies: bool, ref_kls: bool
    ) -> Outputs:
        hidden = None
        scores: Scores | tuple[None, None, None] = (None, None, None)
        is_shared = values and self.critic is not None and self.critic.backbone is None
        if logprobs or entropies or ref_kls:
            scores, hidden = self._run_actor(
                inputs, with_hidden=is_shared, with_entropies=entropies, with_kls=ref_kls
            )
        if values and hidden is None:
            assert self.critic is not None
            hidden = compute_hidden_rows(self.critic.backbone or find_backbone(self.model), inputs)
        return Outputs(
            scores[0] if logprobs else None,
            self.critic.head(hidden)[inputs.value_rows] if values and self.critic is not None else None,
            scores[1] if entropies else None,
            scores[2] if ref_kls else None,
        )

    def get_inputs(self, microbatch: Microbatch) -> ForwardInputs:
        """Return a prepared microbatch as inputs of the model."""
        return get_inputs(microbatch, self.device)

    def _run_actor(
        self, inputs: ForwardInputs, *, with_hidden: bool, with_entropies: bool, with_kls: bool
    ) -> tuple[Scores, Tensor | None]:
        """Compute scores per action token, and hidden states for a shared critic."""
        if inputs.targets.numel() == 0 and not self.runs_all_parts:  # only value-only steps
            wide = torch.promote_types(self.model.dtype, torch.float32)
            nothing = torch.zeros(0, dtype=wide, device=self.device)
            return (nothing, nothing, nothing), None
        return score_actions(
            self.model,
            inputs,
            with_hidden=with_hidden,
            with_entropies=with_entropies,
            open_reference=self._open_reference if with_kls else None,
        )

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and action together."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31)

    def set_checkpointing(self, kind: bool | str) -> None:
        """What the backward pass keeps or makes again: a level of `policy.gradient_checkpointing`."""
        kind = resolve_checkpointing(kind, self.model.config.get_text_config().hidden_size)
        self.recomputes_outputs = kind != "none"
        self.gate_way = {"mlp": "again", "offload": "offload"}.get(kind, "keep")
        can_capture = self.captures_passes and self.adapters is None and kind not in ("offload", "full")
        for part in self._list_models():
            fused_layers.plan_gates(part, self.gate_way)
            install_passes(
                part, can_capture, is_backbone=part is not self.model and part is not self.reference
            )
        if kind == "full":
            self.enable_gradient_checkpointing()

    def enable_gradient_checkpointing(self) -> None:
        """Keep only layer inputs in the forward pass; the backward pass computes the rest again."""
        for part in self._list_models():
            if part is not self.reference:
                checkpoint_gradients(part)

    # --- weights ------------------------------------------------------------------------

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Load weights from `state_dict` of a policy of the same kind; anything else is refused."""
        load_module_weights(self.module, weights, "model with the same critic and lora settings")

    def model_weights(self) -> dict[str, Tensor]:
        """Return the actor's weights under Hugging Face's names, adapters merged in: what an engine loads."""
        return lora.merge_weights(self.model) if self.adapters is not None else self.model.state_dict()

    def weight_parts(self) -> WeightParts:
        """Return the actor's weights with adapters as parts of their own: what generators are sent."""
        return list_parts(self.model) if self.adapters is None else lora.split_weights(self.model)

    def save_pretrained(self, path: str | Path, *, merge_lora: bool = False) -> None:
        """Write a directory that `AutoModelForCausalLM` and `from_pretrained` open, all or nothing.

        With LoRA only the adapters are written, unless `merge_lora` asks for the merged model.
        """
        with write_directory_atomically(Path(path)) as folder:
            merged = None
            if merge_lora and self.adapters is not None:
                merged = copy.deepcopy(self.adapters).merge_and_unload()
            policy_files.write_content(self, folder, self.read_content(), merged)

    def read_content(self) -> policy_files.PolicyContent:
        """Return what the files of this policy hold: its own tensors, not copies."""
        return policy_files.read_content(self)

    def write_content(self, folder: Path, content: policy_files.PolicyContent) -> None:
        """Write the files of this policy with weights that were read before."""
        policy_files.write_content(self, folder, content)

    # --- inside -------------------------------------------------------------------------

    _open_model = staticmethod(directory.open_causal_lm)

    def _pack_steps(self, steps: Sequence[Step]) -> Packed:
        return pack(steps)

    def _make_empty_action(self) -> TokenAction:
        return TokenAction(np.zeros(0, dtype=np.int32))

    def _check_images(self, packed: Packed) -> None:
        raise InputError(
            "a state contains images, but this policy is a text model; use a vision-language model"
        )

    def _find_attending(self, part: Any) -> Any:
        """Return the part of a model whose attention runs over the tree."""
        return part

    def _copy_around(self, model: Any) -> CausalLMPolicy:
        """Copy this policy, without a critic, around another model that is already prepared."""
        policy = copy.copy(self)
        policy.model, policy.critic = model, None
        return policy

    def list_critics(self) -> list[tuple[str, CriticModel]]:
        """Return the critics there are, by their names in `state_dict`."""
        both = (("critic", self.critic), ("instruction_critic", self.instruction_critic))
        return [(name, critic) for name, critic in both if critic is not None]

    def _list_models(self) -> list[Any]:
        own = [critic.backbone for _, critic in self.list_critics()]
        return [part for part in (self.model, self.reference, *own) if part is not None]

    def _prepare_model(self, part: Any) -> None:
        disable_dropout(part)
        if not self.is_replayed:
            self._install_tree_attention(part, self._attention)
        if fused_layers.IS_ENABLED:
            fused_layers.install_fused_layers(part)
        if part is self.model or part is self.reference:
            find_plain_head(part)

    def _install_tree_attention(self, part: Any, attention: str) -> None:
        if part is not self.model and part is not self.reference:
            native = self._find_attending(self.model).config._attn_implementation
            self._find_attending(part).set_attn_implementation(native)
            return
        refusal = install_tree_attention(part, self._find_attending(part))
        if refusal is None:
            return
        self.is_replayed = True
        message = f"{type(part).__name__} cannot run prefix trees: {refusal}"
        if attention == "tree":
            raise ConfigError(f"attention='tree' was requested, but {message}; use attention='auto'")
        if part is self.model:
            warnings.warn(f"{message}. Steps are replayed one by one, which is slower", stacklevel=4)


def _check_choice(value: str, allowed: dict[str, Any], field: str) -> Any:
    if value not in allowed:
        raise ConfigError(f"{field} must be one of {', '.join(allowed)}, got {value!r}")
    return allowed[value]
