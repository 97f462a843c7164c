"""The three ways of `training_speed.py`: rows, batch and loss, each way as one update, and its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from stepwell.core import Step
from stepwell.packing import Outputs, Packed, backward, pack, paths, replay, segments_cuda, sequences
from stepwell.packing.device_copies import copy_to_device
from stepwell.packing.tree import IntArray
from stepwell.policies import fused_layers
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.critic import CriticModel, ValueHead
from stepwell.training.batch import MIN_RUN

WAYS = ("plain", "replay", "packed", "lean")
KERNELS = ("paths", "segments", "flex", "cudnn")
LAYERS = ("plain", "modules", "blocks")
PLAIN_TOKENS = {"135m": 65536, "1.7b": 32768, "tiny": 512}
"""Tokens of a microbatch of the plain loop and of replay where the row has no budget."""
REPLAY_TOKENS = {"135m": 400_000, "1.7b": 100_000, "tiny": 4000}
"""Replay is measured on so many tokens at most."""
SHAPES: dict[str, dict[str, int]] = {
    "135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    },
    "1.7b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 49152,
    },
    "0.5b": {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement: a model's shape, a batch of dialogues and a token budget."""

    model: str
    groups: int
    siblings: int
    turns: int
    prompt: int
    action: int
    observation: int
    budget: int | None = None
    lean_level: str | None = None
    """The level of recomputation of the way `lean`; None: the packed way is lean already."""

    @property
    def name(self) -> str:
        batch = f"{self.groups}x{self.siblings}x{self.turns} {self.prompt}/{self.action}/{self.observation}"
        return f"{self.model} {batch}" + (f" budget {self.budget}" if self.budget else "")

    @property
    def length(self) -> int:
        """Tokens of a whole trajectory; what follows the last action is not run."""
        return self.prompt + self.turns * (self.action + self.observation) - self.observation

    def take_slice(self) -> Row:
        """A small batch of the same kind, for gradients in float32."""
        return Row(self.model, 1, min(2, self.siblings), min(3, self.turns), min(256, self.prompt), 32, 64)

    def take_group(self) -> Row:
        """One group, for warming up."""
        return Row(**(asdict(self) | {"groups": 1}))


ROWS = {
    "1": Row("135m", 8, 8, 10, 512, 32, 64),
    "2": Row("135m", 8, 8, 10, 512, 32, 64, 16384),
    "3": Row("135m", 4, 8, 20, 1024, 128, 256, 32768),
    "4": Row("1.7b", 4, 8, 10, 512, 32, 64, lean_level="mlp"),
    "5": Row("1.7b", 4, 8, 20, 1024, 128, 256, 32768, lean_level="offload"),
    "6": Row("135m", 16, 1, 20, 1024, 128, 256, 32768),
    "7": Row("135m", 2, 2, 40, 1024, 256, 512, 65536),
}
QUICK = {
    "1": Row("tiny", 2, 2, 3, 24, 4, 8, lean_level="full"),
    "2": Row("tiny", 2, 2, 3, 24, 4, 8, 128),
    "6": Row("tiny", 3, 1, 3, 24, 4, 8, 128),
}


def choose_layers(kind: str) -> None:
    """Plain layers, fused modules, fused blocks, or what policies use by default."""
    if kind != "auto":
        fused_layers.IS_ENABLED = kind != "plain"
        fused_layers.USES_BLOCKS = kind == "blocks"


def choose_attention(kind: str) -> None:
    """One kernel for all trees that it supports, or what policies use by default."""
    if kind == "auto":
        return
    sequences.KERNEL = kind if kind == "cudnn" else "none"
    paths.MOST_KEYS = 0 if kind in ("segments", "flex") else 2.0
    segments_cuda.MOST_LEVELS = -1 if kind == "flex" else 3


def build_model(shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model with random weights, the same every time."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 100000.0}
    config = LlamaConfig(
        **SHAPES[shape], max_position_embeddings=65536, tie_word_embeddings=True, rope_parameters=rope
    )
    with device:  # random weights are drawn where they live: on a GPU in no time
        return LlamaForCausalLM(config).to(dtype)


def build_policy(model: Any, checkpointing: str = "auto") -> CausalLMPolicy:
    head = ValueHead(model.config.hidden_size, model.dtype).to(model.device)
    policy = CausalLMPolicy(model, critic=CriticModel(head, None), attention="tree")
    policy.captures_passes = True
    policy.set_checkpointing(checkpointing)
    return policy


@dataclass(frozen=True)
class Batch:
    """Dialogues as steps and as whole sequences, with the numbers of the loss.

    `advantages` has one element per action token, `targets` one per value, in step order.
    """

    row: Row
    steps: list[Step]
    sequences: Tensor
    behavior: Tensor
    advantages: Tensor
    targets: Tensor
    is_clipped: bool = True

    @classmethod
    def draw(cls, row: Row, device: torch.device) -> Batch:
        draw = np.random.default_rng(0)
        vocab = SHAPES[row.model]["vocab_size"]
        steps, sequences = [], []
        for _ in range(row.groups):
            prompt = draw.integers(0, vocab, size=row.prompt)
            for _ in range(row.siblings):
                context = prompt
                for _ in range(row.turns):
                    action = draw.integers(0, vocab, size=row.action)
                    steps.append(Step.from_tokens(context, action))
                    whole = np.concatenate([context, action])
                    context = np.concatenate([whole, draw.integers(0, vocab, size=row.observation)])
                sequences.append(whole)
        count = len(steps) * row.action

        def to_device(array: Any) -> Tensor:
            return torch.tensor(array, dtype=torch.float32, device=device)

        return cls(
            row,
            steps,
            torch.tensor(np.stack(sequences), device=device),
            to_device(np.full(count, -np.log(vocab))),
            to_device(draw.normal(size=count)),
            to_device(draw.normal(size=count + len(steps))),
        )

    def compute_loss(self, outputs: Outputs, tokens: Any, values: Any) -> Tensor:
        """The share of some tokens and values in the loss of the whole batch."""
        assert outputs.logprobs is not None and outputs.values is not None
        ratio = (outputs.logprobs - self.behavior[tokens]).exp()
        advantages = self.advantages[tokens]
        terms = ratio * advantages
        if self.is_clipped:
            terms = torch.minimum(terms, ratio.clamp(0.8, 1.2) * advantages)
        policy = -terms.sum()
        value = (outputs.values - self.targets[values]).square().sum()
        return policy / self.behavior.numel() + 0.5 * value / self.targets.numel()


class PackedLoss:
    """The loss as `backward` takes it: a sum over steps."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def is_separate(self, steps: IntArray) -> bool:
        return True

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
        return self.batch.compute_loss(outputs, slice(None), slice(None)), {}

    def compute_part(self, outputs: Outputs, steps: IntArray) -> tuple[Tensor, dict[str, Any]]:
        device, length = self.batch.behavior.device, self.batch.row.action
        tokens, values = (
            copy_to_device((steps[:, None] * size + np.arange(size)).ravel(), device)
            for size in (length, length + 1)
        )
        return self.batch.compute_loss(outputs, tokens, values), {}

    def measure_whole(self, outputs: Outputs) -> dict[str, Any]:
        return {}


# --- the three ways ---------------------------------------------------------------------


class PlainLoop:
    """Whole trajectories as sequences of equal length, with plain transformers."""

    def __init__(self, model: Any) -> None:
        self.model = model
        model.set_attn_implementation("sdpa")
        self.head = ValueHead(model.config.hidden_size, model.dtype).to(model.device)
        self.module = torch.nn.ModuleDict(
            {"model": model, "critic": torch.nn.ModuleDict({"head": self.head})}
        )

    def run_update(self, batch: Batch, budget: int) -> Tensor:
        row = batch.row
        rows = max(1, budget // row.length)
        starts = row.prompt - 1 + np.arange(row.turns) * (row.action + row.observation)
        places = torch.from_numpy((starts[:, None] + np.arange(row.action + 1)).ravel()).to(self.model.device)
        is_logit = torch.ones(row.turns, row.action + 1, dtype=torch.bool, device=self.model.device)
        is_logit[:, -1] = False
        total = torch.zeros((), device=self.model.device)
        for first in range(0, len(batch.sequences), rows):
            ids = batch.sequences[first : first + rows]
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, places]
            values = self.head(hidden).flatten()
            logits = self.model.lm_head(hidden[:, is_logit.flatten()]).float()
            targets = ids[:, places[is_logit.flatten()] + 1]
            logprobs = logits.log_softmax(-1).gather(-1, targets[..., None]).flatten()
            tokens = slice(first * row.turns * row.action, (first + rows) * row.turns * row.action)
            sites = slice(first * row.turns * (row.action + 1), (first + rows) * row.turns * (row.action + 1))
            loss = batch.compute_loss(Outputs(logprobs, values, None), tokens, sites)
            loss.backward()
            total += loss.detach()
        return total


def run_packed(policy: CausalLMPolicy, batch: Batch, budget: int | None) -> Tensor:
    packed = pack(batch.steps, token_budget=budget, min_run=MIN_RUN)
    return backward(policy, packed, PackedLoss(batch), values=True)[0]


def run_replay(policy: CausalLMPolicy, batch: Batch, blocks: Packed) -> Tensor:
    loss, total = PackedLoss(batch), torch.zeros((), device=policy.device)
    for block in blocks.microbatches:
        outputs = policy.run(block, logprobs=True, values=True, entropies=False)
        part, _ = loss.compute_part(outputs, block.steps)
        part.backward()
        total += part.detach()
    return total


# --- their work ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Tokens that a way runs, logits it computes, and pairs of tokens that see each other."""

    tokens: int
    logits: int
    pairs: int

    def count_flops(self, shape: dict[str, int], *, is_strict: bool) -> float:
        width, layers = shape["hidden_size"], shape["num_hidden_layers"]
        key_width = width // shape["num_attention_heads"] * shape["num_key_value_heads"]
        backbone = layers * (2 * width * (width + key_width) + 3 * width * shape["intermediate_size"])
        head = width * shape["vocab_size"]
        linear = backbone * self.tokens + head * (self.logits if is_strict else self.tokens)
        return 6.0 * linear + 12.0 * layers * width * self.pairs


def count_work(way: str, row: Row, packed: Packed) -> Work:
    """The work of a whole update."""
    if way == "plain":
        count = row.groups * row.siblings
        return Work(count * row.length, len(packed) * row.action, count * _count_pairs(row.length))
    if way == "replay":
        lengths = packed.table.lengths
        pairs = int((lengths * (lengths + 1) // 2).sum())
        return Work(packed.num_step_tokens, len(packed) * row.action, pairs)
    pairs = sum(int((microbatch.positions + 1).sum()) for microbatch in packed.microbatches)
    logits = sum(microbatch.logit_sites.size for microbatch in packed.microbatches)
    return Work(packed.num_tokens, logits, pairs)


def _count_pairs(length: int) -> int:
    return length * (length + 1) // 2


@dataclass
class Runner:
    """A way, ready to run: its weights, one update, and the share of the update that is measured."""

    module: torch.nn.Module
    update: Callable[[], Tensor]
    warm_up: Callable[[], Tensor]
    share: float = 1.0


def prepare_way(way: str, row: Row, device: torch.device, dtype: torch.dtype, checkpointing: str) -> Runner:
    batch = Batch.draw(row, device)
    first = Batch.draw(row.take_group(), device)
    budget = row.budget or PLAIN_TOKENS[row.model]
    model = build_model(row.model, device, dtype)
    if way == "plain":
        loop = PlainLoop(model)
        return Runner(
            loop.module, lambda: loop.run_update(batch, budget), lambda: loop.run_update(first, budget)
        )
    policy = build_policy(model, (row.lean_level or "auto") if way == "lean" else checkpointing)
    if way in ("packed", "lean"):
        return Runner(
            policy.module,
            lambda: run_packed(policy, batch, row.budget),
            lambda: run_packed(policy, first, row.budget),
        )
    per_trajectory = sum(step.state.prompt_ids.size + step.num_units for step in batch.steps[: row.turns])
    count = max(1, min(row.groups * row.siblings, REPLAY_TOKENS[row.model] // per_trajectory))
    blocks = replay(pack(batch.steps[: count * row.turns], token_budget=budget))
    few = replay(pack(batch.steps[: row.turns], token_budget=budget))
    share = count / (row.groups * row.siblings)
    return Runner(
        policy.module,
        lambda: run_replay(policy, batch, blocks),
        lambda: run_replay(policy, batch, few),
        share,
    )
