"""The full KL to a reference in a training pass: seconds, memory, and how exact its gradient is.

Forward and backward of a clipped policy loss, a value loss and a KL term over append-only dialogues (row 1 of
`training_speed.py`, and the same with a vocabulary of 152k), in bfloat16 with random weights. The reference
is the policy's model with other weights nearby. Three ways to the KL:

* k3: the reference's logprobs first (a pass without gradients), then the estimate from sampled tokens.
* full: the KL of whole distributions, computed from hidden states in chunks; the reference runs in the pass.
* all logits: the same by the plain formula, with the logits of both models in memory (on fewer groups).

The gap is |g - g32| / |g32| of the gradient of the mean KL alone, on a small slice, where g32 is the plain
formula in float32 with transformers' own models.

    python benchmarks/full_kl.py --device cuda        # about a minute on an H200
    python benchmarks/full_kl.py --quick              # a tiny model on the CPU
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training_speed import RESULTS, clear_gradients, free_memory, wait_for
from training_ways import QUICK, ROWS, Batch, PackedLoss, Row, build_model, build_policy

from stepwell.algos.kl import full, k3
from stepwell.packing import Outputs, backward, pack
from stepwell.policies import actor_scores
from stepwell.policies.head import find_plain_head
from stepwell.training.batch import MIN_RUN

COEF = 0.1
WAYS = ("no KL", "k3", "full", "all logits")


class KLLoss(PackedLoss):
    """The loss of the rows of `training_speed.py` and a KL term; a sum over steps."""

    def __init__(self, batch: Batch, ref_logprobs: Tensor | None) -> None:
        super().__init__(batch)
        self.ref_logprobs = ref_logprobs

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
        loss, metrics = super().__call__(outputs)
        kls = outputs.ref_kls
        if self.ref_logprobs is not None:
            assert outputs.logprobs is not None
            kls = k3(outputs.logprobs, self.ref_logprobs)
        return (loss, metrics) if kls is None else (loss + COEF * kls.mean(), {"kl": kls.detach().mean()})

    def is_separate(self, steps: Any) -> bool:
        return False  # (every row here is one microbatch)


def add_reference(policy: Any, dtype: torch.dtype) -> None:
    """Other weights nearby: each moved by a fifth of its matrix's size."""
    policy.reference = copy.deepcopy(policy.model).requires_grad_(False)
    draw = torch.Generator(policy.device).manual_seed(3)
    with torch.no_grad():
        for parameter in policy.reference.parameters():
            noise = torch.randn(parameter.shape, generator=draw, device=policy.device)
            parameter += (0.2 * parameter.float().std().nan_to_num() * noise).to(dtype)


def measure_way(way: str, row: Row, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    policy = build_policy(build_model(row.model, device, dtype))
    add_reference(policy, dtype)
    batch = Batch.draw(row, device)

    def run() -> dict[str, Any]:
        packed = pack(batch.steps, token_budget=None, min_run=MIN_RUN)
        ref = torch.cat(policy.reference_logprobs(packed)) if way == "k3" else None
        is_full = way in ("full", "all logits")
        return backward(policy, packed, KLLoss(batch, ref), values=True, ref_kls=is_full)[1]

    choose_head(way)
    run()
    wait_for(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(3):
        clear_gradients(policy.module)
        start = time.perf_counter()
        metrics = run()
        wait_for(device)
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    return {
        "seconds": min(times),
        "all_seconds": times,
        "peak_gb": peak,
        **{name: float(value) for name, value in metrics.items()},
    }


def choose_head(way: str) -> None:
    """Let a policy take its head as one product, or as something that must make all logits."""
    scores: Any = actor_scores
    scores.find_plain_head = (lambda model: None) if way == "all logits" else find_plain_head


def measure_gaps(row: Row, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Gradient of the mean KL alone, beside the plain formula in float32."""
    small = row.take_slice()
    batch = replace(Batch.draw(small, device), is_clipped=False)
    grads: dict[str, dict[str, Tensor]] = {}
    for way in ("float32", "full", "all logits"):
        policy = build_policy(build_model(row.model, device, dtype))
        add_reference(policy, dtype)
        if way == "float32":
            assert policy.reference is not None
            exact_kl = compute_plain_kl(policy.model.float(), policy.reference.float(), batch)
            exact_kl.backward()  # type: ignore[no-untyped-call]
        else:
            choose_head(way)
            packed = pack(batch.steps, token_budget=None, min_run=MIN_RUN)
            backward(policy, packed, take_mean_kl, ref_kls=True)
        named = policy.model.named_parameters()
        grads[way] = {name: p.grad.float() for name, p in named if p.grad is not None}
        free_memory(device)
    exact = grads.pop("float32")
    size = sum(float(g.square().sum()) for g in exact.values()) ** 0.5
    return {
        way: sum(float((ours[name] - exact[name]).square().sum()) for name in exact) ** 0.5 / size
        for way, ours in grads.items()
    }


def take_mean_kl(outputs: Outputs) -> tuple[Tensor, dict[str, Any]]:
    assert outputs.ref_kls is not None
    return outputs.ref_kls.mean(), {}


def compute_plain_kl(model: Any, reference: Any, batch: Batch) -> Tensor:
    """Mean KL of all actions from whole trajectories, all logits in memory."""
    row = batch.row
    for one in (model, reference):
        one.set_attn_implementation("sdpa")
    starts = torch.arange(row.turns)[:, None] * (row.action + row.observation)
    places = (row.prompt - 1 + starts + torch.arange(row.action)).flatten().to(model.device)
    found = []
    for ids in batch.sequences:
        ours = model(input_ids=ids[None], use_cache=False).logits[0, places]
        with torch.no_grad():
            theirs = reference(input_ids=ids[None], use_cache=False).logits[0, places]
        found.append(full(ours, theirs))
    return torch.cat(found).mean()


def measure_row(row: Row, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    result: dict[str, Any] = {
        "row": row.name,
        "logit_rows": row.groups * row.siblings * row.turns * row.action,
    }
    for way in WAYS:
        few = replace(row, groups=max(1, row.groups // 4)) if way == "all logits" else row
        try:
            result[way] = {"groups": few.groups, **measure_way(way, few, device, dtype)}
        except torch.OutOfMemoryError as error:
            result[way] = {"groups": few.groups, "error": str(error)[:200]}
        free_memory(device)
        print(f"{row.name}, {way}: {result[way]}", flush=True)
    result["gradient_gap"] = measure_gaps(row, device, dtype)
    print(f"{row.name}, gaps: {result['gradient_gap']}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small row with a tiny model")
    parser.add_argument("--output", type=Path, default=RESULTS / "full_kl_h200.json")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    large = replace(ROWS["1"], model="0.5b", groups=4)
    rows = []
    for row in [QUICK["1"]] if options.quick else [ROWS["1"], large]:
        rows.append(measure_row(row, device, dtype))
        if not options.no_write and not options.quick:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            made = {"machine": name, "torch": torch.__version__, "weights": f"random, {dtype}", "rows": rows}
            options.output.write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
