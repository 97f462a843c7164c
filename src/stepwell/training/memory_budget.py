"""The tokens of a microbatch: as set, or as many as the device's free memory holds (`"auto"`).

    TokenBudget("auto", policy) ─► read_tokens ─► a first guess from free memory and the model's shape
                                   fit_memory  ─► run; out of memory: half the tokens, and run again

Gradients do not depend on the budget, so a minibatch that ran out of memory is cut finer and run again from
its start: nothing of the update is lost. What fitted is remembered for the next update.

The guess counts what the backward pass keeps of a token in every layer, with a share left free for what comes
and goes. It need not be exact: if it is too high, the first update runs out of memory once and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch

from stepwell.core import TokenState, Trajectory
from stepwell.packing import Packed
from stepwell.policies import fused_layers
from stepwell.policies.activations import (
    ActivationSize,
    count_fitting_tokens,
    count_plain_bytes,
    read_free_bytes,
)
from stepwell.policies.captured_passes import refuse_passes
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy

Result = TypeVar("Result")


class TokenBudget:
    """The budget of one policy's microbatches."""

    def __init__(self, setting: int | Literal["auto"] | None, policy: Policy) -> None:
        self._setting, self._policy = setting, policy
        self._tokens = None if setting == "auto" else setting

    def read_tokens(self, trajectories: Sequence[Trajectory] = ()) -> int | None:
        """Tokens of a microbatch now; None: no limit. An automatic one holds every step of `trajectories`."""
        if self._setting != "auto" or not hasattr(self._policy, "recomputes_outputs"):
            return self._tokens  # (a robot policy has no tokens)
        if self._tokens is None:
            self._tokens = guess_tokens(self._policy)
        return max([self._tokens, *(_find_longest(trajectory) for trajectory in trajectories)])

    def limit_tokens(self, tokens: int | None) -> None:
        """Use what the ranks' devices hold for an automatic budget."""
        if self._setting == "auto" and tokens is not None:
            self._tokens = tokens

    def fit_memory(
        self,
        minibatches: Sequence[TrajectoryMinibatch],
        run: Callable[[], Result],
        prepare_retry: Callable[[], None] = lambda: None,
    ) -> Result:
        """The result of `run`, again without captured passes if memory runs out.

        With an automatic budget, minibatches are cut finer until it fits.
        """
        while True:
            try:
                return run()
            except torch.OutOfMemoryError:
                if not refuse_passes() and (self._setting != "auto" or not self._lower(minibatches)):
                    raise
            prepare_retry()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _lower(self, minibatches: Sequence[TrajectoryMinibatch]) -> bool:
        """Half the tokens of the largest microbatch; False if they are single steps already."""
        packed = [one.packed for one in minibatches if isinstance(one.packed, Packed)]
        if not packed:
            return False
        largest = max(microbatch.num_tokens for one in packed for microbatch in one.microbatches)
        if largest <= max(one.longest for one in packed):
            return False
        self._tokens = max(largest // 2, 1)
        for minibatch in minibatches:
            minibatch.cut_again(self._tokens)
        return True


def _find_longest(trajectory: Trajectory) -> int:
    states = [(step.state, step.num_units) for step in trajectory.steps] + [(trajectory.final_state, 0)]
    return max(state.prompt_ids.size + units for state, units in states if isinstance(state, TokenState))


def guess_tokens(policy: Any) -> int:
    """Tokens whose activations fit the free memory of the policy's device."""
    num_pending = sum(p.numel() for _, p in policy.named_parameters() if p.grad is None)
    return count_fitting_tokens(read_free_bytes(str(policy.device)), num_pending, count_token_bytes(policy))


def count_token_bytes(policy: Any) -> float:
    """Bytes that the backward pass keeps of one token."""
    shape, unit = policy.model.config.get_text_config(), policy.model.dtype.itemsize
    width, inner = shape.hidden_size, getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    num_models = 1 + (policy.critic is not None and policy.critic.backbone is not None)
    if policy.device.type == "cuda" and unit == 2:
        head = getattr(shape, "head_dim", None) or width // shape.num_attention_heads
        key_heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
        size = ActivationSize(
            layers=shape.num_hidden_layers,
            width=width,
            query_width=shape.num_attention_heads * head,
            kv_width=key_heads * head,
            mlp_width=inner,
            vocabulary=shape.vocab_size,
            unit=unit,
            checkpointing=describe_checkpointing(policy),
            is_fused=fused_layers.IS_ENABLED and fused_layers.has_fused_blocks(policy.model),
        )
        return float(size.count_token_bytes(num_models))
    is_full = policy.model.is_gradient_checkpointing
    return float(num_models * count_plain_bytes(shape.num_hidden_layers, width, inner, unit, is_full=is_full))


def describe_checkpointing(policy: Any) -> str:
    """What the backward pass of a policy computes again: none, selective, mlp, offload or full."""
    if policy.model.is_gradient_checkpointing:
        return "full"
    if not policy.recomputes_outputs:
        return "none"
    return {"keep": "selective", "again": "mlp", "offload": "offload"}[policy.gate_way]


def read_options(policy: Policy) -> dict[str, Any]:
    """Settings of a language policy that its directory does not contain."""
    if not hasattr(policy, "is_replayed"):
        return {}
    return {
        "attention": "replay" if policy.is_replayed else "auto",
        "gradient_checkpointing": describe_checkpointing(policy),
    }
