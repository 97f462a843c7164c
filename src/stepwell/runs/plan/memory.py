"""How much memory and disk a language agent's run needs: an estimate.

Activations of 16-bit training on a GPU are predicted to about 15 % (`policies/activations.py`). What depends
on lengths that are not known yet is good to about a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.policies.activations import (
    ActivationSize,
    count_fitting_tokens,
    count_plain_bytes,
    read_free_bytes,
    resolve_checkpointing,
)
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.text import format_bytes, format_line

_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
# Floats kept per token and layer for the backward pass: so many times the width, and the MLP's width.
_PER_WIDTH, _PER_MLP = 20, 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a run, from its settings, its model's size and the tokens of an update."""

    config: RunConfig
    recipe: Recipe
    size: ModelSize
    critic_kind: str
    update_tokens: float  # that one update learns from
    most_tokens: float  # the same, if every episode is as long as it can be
    sampled_tokens: float  # that one update samples
    longest: int  # tokens of the longest sequence
    context_limit: int

    @property
    def num_trained(self) -> int:
        """Parameters that get a gradient, the critic's own backbone included."""
        size = self.size
        own = size.num_hidden_matrices if self.critic_kind == "own" else 0
        head = 0 if self.critic_kind == "none" else size.width + 1
        num_critics = 2 if self.recipe.needs_instruction_critic else 1
        actor = size.num_parameters if self.config.policy.lora is None else size.num_linear
        return actor + num_critics * (own + head)

    def count_bytes_by_use(self) -> dict[str, float]:
        """Bytes by what they hold, at the moment when most are in use."""
        config = self.config
        num_minibatches = max(1, min(config.train.minibatches, config.train.tasks_per_update))
        per = self.update_tokens / num_minibatches
        if self.token_budget is not None:  # agents that fail use all their turns: some are full
            per = min(self.most_tokens / num_minibatches, self.token_budget)
        rows = per * self.sampled_tokens / self.update_tokens
        return {
            "weights": self._standing["weights"],
            "gradients": self.num_trained * _BYTES[config.policy.dtype],
            "optimizer": self.optimizer_bytes,
            **{name: count for name, count in self._standing.items() if name != "weights"},
            "activations": self._count_activations(per, rows),
        }

    @property
    def _standing(self) -> dict[str, float]:
        """Bytes that are in use before the first update begins."""
        policy = self.config.policy
        unit, is_whole = _BYTES[policy.dtype], policy.lora is None
        weights, trained = self.size.num_parameters * unit, self.num_trained * unit
        return {
            "weights": trained if is_whole else weights + trained,
            "reference": weights if self.recipe.needs_reference and is_whole else 0,
            "engine's weights": weights,
            "engine's cache": self._cache_floats * unit,
        }

    @cached_property
    def token_budget(self) -> int | None:
        """Tokens of a microbatch; `"auto"`: as many as free memory holds now, at least a sequence."""
        config, size = self.config, self.size
        if not isinstance(config.train.token_budget, str):
            return config.train.token_budget
        num_models = 1 + (self.critic_kind == "own")
        kind = resolve_checkpointing(config.policy.gradient_checkpointing, size.width)
        if (on_gpu := self._describe_activations()) is not None:
            per_token = on_gpu.count_token_bytes(num_models)
        else:
            per_token = num_models * count_plain_bytes(
                size.layers,
                size.width,
                size.mlp_width,
                _BYTES[config.policy.dtype],
                is_full=kind == "full",
            )
        free = read_free_bytes(config.policy.device) - sum(self._standing.values())
        return max(count_fitting_tokens(free, self.num_trained, per_token), self.longest)

    def _count_activations(self, tokens: float, rows: float) -> float:
        """Bytes of a microbatch of this many tokens, with logits at `rows` of them."""
        policy, size = self.config.policy, self.size
        unit, own = _BYTES[policy.dtype], int(self.critic_kind == "own")
        if (on_gpu := self._describe_activations()) is not None:
            of_critic = tokens * on_gpu.count_kept_bytes() + on_gpu.count_captured_bytes(tokens)
            return on_gpu.predict_bytes(tokens, rows) + own * of_critic
        kind = resolve_checkpointing(policy.gradient_checkpointing, size.width)
        floats = size.layers * (_PER_WIDTH * size.width + _PER_MLP * size.mlp_width)
        if kind == "full":
            floats = size.layers * size.width + floats // size.layers
        return tokens * floats * unit + rows * size.vocabulary * 8

    def _describe_activations(self) -> ActivationSize | None:
        """What 16-bit layers keep on a GPU; None elsewhere."""
        policy, size = self.config.policy, self.size
        if not policy.device.startswith("cuda") or _BYTES[policy.dtype] != 2:
            return None
        return ActivationSize(
            layers=size.layers,
            width=size.width,
            query_width=size.query_width,
            kv_width=size.kv_width,
            mlp_width=size.mlp_width,
            vocabulary=size.vocabulary,
            unit=2,
            checkpointing=resolve_checkpointing(policy.gradient_checkpointing, size.width),
            is_fused=policy.lora is None,
            is_captured=policy.cuda_graphs and policy.lora is None,
        )

    @property
    def optimizer_bytes(self) -> int:
        """AdamW keeps two numbers per parameter, Muon one; 16-bit weights have a float32 original."""
        unit, hidden = max(_BYTES[self.config.policy.dtype], 4), 0
        if self.config.train.optimizer.kind == "muon":
            whole = self.config.policy.lora is None
            hidden = self.size.num_hidden_matrices if whole else self.size.num_linear
        per_moment = {"full": float(unit), "8bit": 1 + 4 / 256, "offload": 0.0}
        moments = 2 * (self.num_trained - hidden) * per_moment[self.config.train.optimizer.state]
        originals = 0
        if self.config.policy.dtype == "bfloat16" and self.config.policy.lora is None:
            originals = self.num_trained
        return round(moments) + (hidden + originals) * unit

    @property
    def _cache_floats(self) -> int:
        """On a GPU every slot has its full length at once; on a CPU lengths double as needed."""
        length = self.context_limit
        if self.config.policy.device == "cpu":
            length = min(length, 2 ** math.ceil(math.log2(max(self.longest, 256))))
        return (self.config.engine.slots + 1) * self.size.layers * 2 * self.size.kv_width * length

    @property
    def checkpoint_bytes(self) -> float:
        """Weights, critic and optimizer of one numbered checkpoint; moments in host memory are in it too."""
        unit, held = _BYTES[self.config.policy.dtype], self.optimizer_bytes
        if self.config.train.optimizer.state == "offload":
            held += 2 * self.num_trained * max(unit, 4)
        return self.num_trained * unit + held + 3e5

    def lines(self) -> Iterator[str]:
        """Memory by use, then disk."""
        by_use, checkpoint = self.count_bytes_by_use(), self.config.checkpoint
        total = format_bytes(sum(by_use.values()))
        yield format_line("memory", f"about {total}, besides Python and torch themselves")
        uses = [f"{name} {format_bytes(count)}" for name, count in by_use.items() if count]
        yield format_line("", ", ".join(uses[:4]) + ",")
        yield format_line("", ", ".join(uses[4:]))
        yield format_line(
            "disk",
            f"{format_bytes(self.checkpoint_bytes)} per checkpoint, {checkpoint.keep} and the best are kept; "
            f"trajectories up to {format_bytes(checkpoint.trajectories_mb * 1e6)}",
        )
        if self.config.train.sharding != "full":
            copied = format_bytes(self.checkpoint_bytes)
            yield format_line("host memory", f"{copied} more for the copy that a checkpoint is written from")
