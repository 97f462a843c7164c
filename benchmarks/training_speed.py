"""One update's gradient, three ways: a plain loop on whole trajectories, per-step replay, packed.

Append-only dialogues: groups x siblings x turns, each turn an action and an observation. All ways compute the
same loss (clipped policy loss and value loss with given advantages and targets), forward and backward, in
bfloat16 with random weights of the right shape:

* plain: what a person writes with transformers. A trajectory is one sequence, SDPA's causal attention, logits
  at action tokens only, a value head, one pass, a backward pass per microbatch.
* replay: every step alone, in blocks of equal length. Measured on a sample of trajectories where the whole
  batch would take minutes; its seconds are then those of all tokens at the measured speed.
* packed: `stepwell.packing.backward` on the prefix tree, with packing itself in the time.

Tokens per second are of the tokens that the way runs. MFU is (6 x parameters x tokens + attention) per second
over 989 TFLOP/s, where attention is 12 x layers x width x pairs of tokens that see each other; `work_mfu`
counts the head only where logits are computed. Peak memory contains weights and gradients. The gradient gap
is |g - g32| / |g32| against the plain loop in float32, on a small slice. There the policy loss is not
clipped: rounding moves some ratios over the edge of the clip range, and one such token of a few hundred moves
the gradient by a tenth, in either way and by chance.

    python benchmarks/training_speed.py --device cuda               # all rows, about three minutes on an H200
    python benchmarks/training_speed.py --device cuda --rows 1 3    # some of them
    python benchmarks/training_speed.py --device cuda --rows 3 --profile
    python benchmarks/training_speed.py --quick                     # a tiny model on the CPU

Results are written after every row.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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

RESULTS = Path(__file__).parent / "results"
PEAK_FLOPS = 989e12
WAYS = ("plain", "replay", "packed")
KERNELS = ("paths", "segments", "flex", "flash", "cudnn")
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
    "4": Row("1.7b", 4, 8, 10, 512, 32, 64),
    "5": Row("1.7b", 4, 8, 20, 1024, 128, 256, 32768),
    "6": Row("135m", 16, 1, 20, 1024, 128, 256, 32768),
    "7": Row("135m", 2, 2, 40, 1024, 256, 512, 65536),
}
QUICK = {
    "1": Row("tiny", 2, 2, 3, 24, 4, 8),
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
    sequences.KERNEL = kind if kind in ("cudnn", "flash") else "none"
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


# --- measuring --------------------------------------------------------------------------


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
    policy = build_policy(model, checkpointing)
    if way == "packed":
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


def measure_way(way: str, row: Row, device: torch.device, dtype: torch.dtype, options: Any) -> dict[str, Any]:
    """Seconds of the best of a few updates, tokens per second, MFU and peak memory."""
    runner = prepare_way(way, row, device, dtype, options.checkpointing)
    start = time.perf_counter()
    runner.warm_up()
    clear_gradients(runner.module)
    wait_for(device)
    warm_up_s = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times: list[float] = []
    while len(times) < options.repeats and (not times or sum(times) + times[-1] < options.seconds):
        start = time.perf_counter()
        loss = runner.update()
        wait_for(device)
        times.append(time.perf_counter() - start)
        clear_gradients(runner.module)
    packed = pack(Batch.draw(row, torch.device("cpu")).steps, token_budget=row.budget, min_run=MIN_RUN)
    work, seconds = count_work(way, row, packed), min(times) / runner.share
    shape, is_cuda = SHAPES[row.model], device.type == "cuda"
    return {
        "seconds": seconds,
        "all_seconds": times,
        "measured_share": runner.share,
        "warm_up_s": warm_up_s,
        "tokens": work.tokens,
        "tokens_per_s": work.tokens / seconds,
        "mfu": work.count_flops(shape, is_strict=False) / seconds / PEAK_FLOPS if is_cuda else None,
        "work_mfu": work.count_flops(shape, is_strict=True) / seconds / PEAK_FLOPS if is_cuda else None,
        "peak_gb": torch.cuda.max_memory_allocated(device) / 1e9 if is_cuda else None,
        "microbatches": len(packed.microbatches) if way == "packed" else None,
        "loss": float(loss),
    }


def measure_gaps(row: Row, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Gradient gaps of plain and packed against the plain loop in float32, on a small slice."""
    small = row.take_slice()
    batch = replace(Batch.draw(small, device), is_clipped=False)
    grads: dict[str, list[Tensor]] = {}
    for name, kind in (("float32", torch.float32), ("plain", dtype), ("packed", dtype)):
        model = build_model(row.model, device, dtype).to(kind)
        if name == "packed":
            policy = build_policy(model)
            module: torch.nn.Module = policy.module
            run_packed(policy, batch, None)
        else:
            loop = PlainLoop(model)
            module = loop.module
            loop.run_update(batch, 1 << 30)
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        grads[name] = [found[key].detach() for key in sorted(found)]
        clear_gradients(module)
    exact = grads.pop("float32")
    size = sum(float(g.square().sum()) for g in exact) ** 0.5
    return {
        name: sum(float((a.float() - b).square().sum()) for a, b in zip(ours, exact, strict=True)) ** 0.5
        / size
        for name, ours in grads.items()
    }


def clear_gradients(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


_GAPS: dict[Row, dict[str, float]] = {}


def measure_row(row: Row, device: torch.device, dtype: torch.dtype, options: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"row": row.name, **asdict(row)}
    for way in options.ways:
        try:
            result[way] = measure_way(way, row, device, dtype, options)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            result[way] = {"error": str(error).split("\n")[0][:300]}
            print(f"{row.name}, {way}: {result[way]['error']}", file=sys.stderr, flush=True)
        free_memory(device)
    if not options.no_gaps:
        small = row.take_slice()  # the same for several rows
        if small not in _GAPS:
            _GAPS[small] = measure_gaps(row, device, dtype)
        result["gradient_gap"] = _GAPS[small]
        free_memory(device)
    plain, packed = result.get("plain", {}), result.get("packed", {})
    if "seconds" in plain and "seconds" in packed:
        result["faster_than_plain"] = plain["seconds"] / packed["seconds"]
        result["bound"] = 0.9 * plain["tokens"] / packed["tokens"]
    if "seconds" in result.get("replay", {}) and "seconds" in packed:
        result["faster_than_replay"] = result["replay"]["seconds"] / packed["seconds"]
    return result


def profile_row(row: Row, device: torch.device, dtype: torch.dtype, options: Any) -> None:
    """Print where one update's time goes."""
    from torch.profiler import ProfilerActivity, profile

    way = options.ways[-1]
    runner = prepare_way(way, row, device, dtype, options.checkpointing)
    runner.warm_up()
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=kinds) as seen:
        runner.update()
        wait_for(device)
    by = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(f"{row.name}, {way}")
    print(seen.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=70))


def list_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    head = ("row", "way", "tokens", "seconds", "tokens/s", "MFU", "work", "GB", "gap", "x plain", "bound")
    yield "{:<44} {:<7} {:>9} {:>9} {:>10} {:>6} {:>6} {:>7} {:>8} {:>8} {:>6}".format(*head)
    for row in rows:
        for way in WAYS:
            found = row.get(way)
            if found is None:
                continue
            if "error" in found:
                yield f"{row['row']:<44} {way:<7} {found['error'][:90]}"
                continue
            gap = row.get("gradient_gap", {}).get(way)
            is_packed = way == "packed"
            cells = [
                _show(found["mfu"], 3),
                _show(found["work_mfu"], 3),
                _show(found["peak_gb"], 1),
                _show(gap, 5),
                _show(row.get("faster_than_plain") if is_packed else None, 2),
                _show(row.get("bound") if is_packed else None, 2),
            ]
            yield (
                f"{row['row']:<44} {way:<7} {found['tokens']:>9} {found['seconds']:>9.4f} "
                f"{found['tokens_per_s']:>10.0f} " + "{:>6} {:>6} {:>7} {:>8} {:>8} {:>6}".format(*cells)
            )


def _show(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rows", nargs="+", help="numbers of rows; default: all")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--checkpointing",
        choices=["auto", "none", "selective", "mlp", "full"],
        default="auto",
        help="of the packed way",
    )
    parser.add_argument(
        "--attention", choices=["auto", *KERNELS], default="auto", help="CUDA: the packed way's attention"
    )
    parser.add_argument(
        "--layers", choices=["auto", *LAYERS], default="auto", help="CUDA: the layers of packed and replay"
    )
    parser.add_argument("--repeats", type=int, default=3, help="updates of each way, at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="time of the updates of each way, about")
    parser.add_argument("--quick", action="store_true", help="small rows with a tiny model")
    parser.add_argument("--profile", action="store_true", help="where the time of the packed way goes")
    parser.add_argument("--no-gaps", action="store_true", help="leave out the gradients in float32")
    parser.add_argument("--output", type=Path, help="file of the results")
    parser.add_argument("--no-write", action="store_true", help="print only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    options = read_options(arguments)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    choose_layers(options.layers)
    choose_attention(options.attention)
    chosen = QUICK if options.quick else ROWS
    chosen = {name: chosen[name] for name in options.rows or chosen}
    if options.profile:
        for row in chosen.values():
            profile_row(row, device, dtype, options)
        return []
    target = options.output or RESULTS / f"training_speed_{'h200' if device.type == 'cuda' else 'cpu'}.json"
    rows: list[dict[str, Any]] = []
    for number, row in chosen.items():
        start = time.perf_counter()
        rows.append({"number": number, **measure_row(row, device, dtype, options)})
        print(f"row {number}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if not options.no_write:
            target.parent.mkdir(exist_ok=True)
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            made = {"machine": name, "torch": torch.__version__, "weights": f"random, {dtype}", "rows": rows}
            target.write_text(json.dumps(made, indent=2) + "\n")
        print("\n".join(list_lines(rows[-1:])), flush=True)
    print("\n".join(list_lines(rows)))
    return rows


if __name__ == "__main__":
    main()
