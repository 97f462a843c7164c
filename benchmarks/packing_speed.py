"""Packing against replay: one training step, forward and backward, actor and critic.

8 siblings x 10 append-only steps, at two sizes (prompt / action / observation tokens:
96/16/48 and 512/32/64). Replay is a strong one: steps of equal length run together,
attention is SDPA's causal kernel, logits only at action tokens, backward per block. Both
sides have the same model, critic, steps and loss, and their losses and gradients are
compared. Times include packing and everything else from the list of steps on.

The claim: replay's time / packing's time >= 0.8 x replay's tokens / packing's tokens.

    python benchmarks/packing_speed.py                 # a 5M-parameter model on the CPU
    python benchmarks/packing_speed.py --device cuda   # SmolLM2-135M's and 1.7B's shapes in bfloat16

The small shape shows a GPU that waits for the host to launch kernels, the large one a busy GPU.

Weights are random: the speed does not depend on them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from stepwell.core import Step
from stepwell.packing import Outputs, Packed, backward, pack, paths, replay, segments_cuda
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.critic import CriticModel, ValueHead

SIZES = {"96/16/48": (96, 16, 48), "512/32/64": (512, 32, 64)}
SIBLINGS, TURNS = 8, 10
REQUIRED = 0.8
RESULTS = Path(__file__).parent / "results"


SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "smollm2-1.7b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    },
}  # fmt: skip
MODELS = {"cpu": ("tiny-5m",), "cuda": tuple(SHAPES)}


def build_model(name: str) -> Any:
    torch.manual_seed(0)
    if name in SHAPES:
        rope = {"rope_type": "default", "rope_theta": 100000.0}
        common = {"vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}
        return LlamaForCausalLM(LlamaConfig(**SHAPES[name], **common, rope_parameters=rope))
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=1024, hidden_size=256, intermediate_size=768, num_hidden_layers=6, head_dim=32,
            num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def build_policy(model: Any, attention: str) -> CausalLMPolicy:
    head = ValueHead(model.config.hidden_size, model.dtype).to(model.device)
    return CausalLMPolicy(model, critic=CriticModel(head, None), attention=attention)


def build_steps(lengths: tuple[int, int, int], vocab: int) -> list[Step]:
    prompt_length, action_length, observation_length = lengths
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, vocab, size=prompt_length)
    steps = []
    for _ in range(SIBLINGS):
        context = prompt
        for _ in range(TURNS):
            action = draw.integers(0, vocab, size=action_length)
            logprobs = np.full(action_length, -np.log(vocab))
            steps.append(Step.from_tokens(context, action, behavior_logprobs=logprobs))
            context = np.concatenate([context, action, draw.integers(0, vocab, size=observation_length)])
    return steps


class Loss:
    """A clipped policy loss and a value loss, as sums over tokens divided by the whole batch's count."""

    def __init__(self, steps: list[Step], device: torch.device) -> None:
        draw = np.random.default_rng(1)
        counts = [step.num_units for step in steps]
        self.behavior = torch.tensor(np.concatenate([s.behavior_logprobs for s in steps]), device=device)
        self.advantages = torch.tensor(draw.normal(size=sum(counts)), dtype=torch.float32, device=device)
        self.targets = torch.tensor(
            draw.normal(size=sum(counts) + len(steps)), dtype=torch.float32, device=device
        )

    def __call__(
        self, outputs: Outputs, tokens: Any = slice(None), values: Any = slice(None)
    ) -> torch.Tensor:
        assert outputs.logprobs is not None and outputs.values is not None
        ratio = (outputs.logprobs - self.behavior[tokens]).exp()
        advantages = self.advantages[tokens]
        policy = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
        value = (outputs.values - self.targets[values]).square().sum()
        return policy / self.behavior.numel() + 0.5 * value / self.targets.numel()


def packed_step(policy: CausalLMPolicy, steps: list[Step], loss: Loss) -> torch.Tensor:
    return backward(policy, pack(steps), lambda outputs: (loss(outputs), {}), values=True)[0]


def replayed_step(policy: CausalLMPolicy, blocks: Packed, loss: Loss) -> torch.Tensor:
    total = torch.zeros((), device=policy.device)
    for block in blocks.microbatches:
        outputs = policy.run(block, logprobs=True, values=True, entropies=False)
        slots = [torch.from_numpy(s).to(policy.device) for s in (block.logprob_indices, block.value_indices)]
        part = loss(outputs, *slots)
        part.backward()
        total += part.detach()
    return total


def measure(
    step: Callable[[], torch.Tensor], policy: CausalLMPolicy
) -> tuple[float, torch.Tensor, list[torch.Tensor]]:
    """Seconds of one step, its loss and its gradients."""
    for parameter in policy.parameters():
        parameter.grad = None
    _wait(policy.device)
    start = time.perf_counter()
    loss = step()
    _wait(policy.device)
    seconds = time.perf_counter() - start
    return seconds, loss, [p.grad for p in policy.parameters() if p.grad is not None]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(name: str, model: Any, repeats: int, warmup: int) -> dict[str, Any]:
    """Packed before and after every replay, so that a busy machine slows both alike; medians."""
    ours, theirs = build_policy(copy.deepcopy(model), "tree"), build_policy(model, "replay")
    steps = build_steps(SIZES[name], model.config.vocab_size)
    loss = Loss(steps, ours.device)
    runs = {
        "packed": (lambda: packed_step(ours, steps, loss), ours),
        "replay": (lambda: replayed_step(theirs, replay(pack(steps)), loss), theirs),
    }
    times: dict[str, list[float]] = {"packed": [], "replay": []}
    last: dict[str, Any] = {}
    for round_number in range(warmup + repeats):
        for kind in ("packed", "replay", "packed"):
            seconds, value, grads = measure(*runs[kind])
            last[kind] = (float(value), grads)
            if round_number >= warmup:
                times[kind].append(seconds)
    return _row(name, pack(steps), {kind: statistics.median(seen) for kind, seen in times.items()}, last)


def _row(name: str, packed: Packed, seconds: dict[str, float], last: dict[str, Any]) -> dict[str, Any]:
    token_ratio = packed.num_step_tokens / packed.num_tokens
    speed_ratio = seconds["replay"] / seconds["packed"]
    pairs = list(zip(last["packed"][1], last["replay"][1], strict=True))
    apart = sum(float((a - b).float().square().sum()) for a, b in pairs) ** 0.5
    size = sum(float(b.float().square().sum()) for _, b in pairs) ** 0.5
    return {
        "lengths": name,
        "packed_tokens": packed.num_tokens,
        "replay_tokens": packed.num_step_tokens,
        "packed_s": seconds["packed"],
        "replay_s": seconds["replay"],
        "token_ratio": token_ratio,
        "speed_ratio": speed_ratio,
        "share_of_token_ratio": speed_ratio / token_ratio,
        "loss_packed": last["packed"][0],
        "loss_replay": last["replay"][0],
        "gradient_gap": apart / size,
    }


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    chip = names[0].split(":", 1)[1].strip() if names else platform.machine()
    return f"{chip}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=["tiny-5m", *SHAPES], help="default: all for the device")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument(
        "--kernel", choices=["auto", "flex"], default="auto", help="CUDA: flex never uses flash attention"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    device = torch.device(options.device)
    is_cuda = device.type == "cuda"
    torch.set_num_threads(options.threads)
    if options.kernel == "flex":
        segments_cuda.MOST_LEVELS = -1
        paths.MOST_KEYS = 0
    repeats, warmup = options.repeats or (8 if is_cuda else 5), options.warmup or (3 if is_cuda else 1)
    rows = []
    for name in (options.model,) if options.model else MODELS[device.type]:
        with device:  # random weights are drawn where they live: on a GPU in no time
            model = build_model(name).to(torch.bfloat16 if is_cuda else torch.float32)
        for size in SIZES:
            rows.append({"model": name} | compare(size, copy.deepcopy(model), repeats, warmup))
            print(f"{name} {size}: {rows[-1]['speed_ratio']:.2f} times as fast", file=sys.stderr, flush=True)
    result = {
        "machine": machine(device),
        "torch": torch.__version__,
        "weights": f"random, {model.dtype}",
        "kernel": options.kernel,
        "siblings": SIBLINGS,
        "turns": TURNS,
        "required_share": REQUIRED,
        "rows": rows,
    }
    show(result)
    if not options.no_write:
        RESULTS.mkdir(exist_ok=True)
        target = RESULTS / f"packing_speed_{'h200' if is_cuda else 'cpu'}.json"
        target.write_text(json.dumps(result, indent=2) + "\n")


def show(result: dict[str, Any]) -> None:
    print(f"{result['machine']}; weights {result['weights']}; torch {result['torch']}")
    head = (
        "model",
        "lengths",
        "tokens packed/replay",
        "ratio",
        "packed s",
        "replay s",
        "speed",
        "share",
        "gap",
    )
    print("{:>13} {:>10} {:>20} {:>6} {:>9} {:>9} {:>6} {:>6} {:>8}".format(*head))
    for row in result["rows"]:
        tokens = f"{row['packed_tokens']}/{row['replay_tokens']}"
        print(
            f"{row['model']:>13} {row['lengths']:>10} {tokens:>20} {row['token_ratio']:6.2f} "
            f"{row['packed_s']:9.4f} {row['replay_s']:9.4f} {row['speed_ratio']:6.2f} "
            f"{row['share_of_token_ratio']:6.3f} {row['gradient_gap']:8.1e}"
        )
    worst = min(row["share_of_token_ratio"] for row in result["rows"])
    verdict = "met" if worst >= result["required_share"] else "MISSED"
    print(f"worst share of the token ratio: {worst:.3f}; required: {result['required_share']}: {verdict}")


if __name__ == "__main__":
    main()
