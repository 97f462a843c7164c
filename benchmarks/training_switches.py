"""Which layers, attention and recomputation are fastest in training on this GPU, each against the others.

The defaults of `policies/fused_layers.py` and `packing/sequences.py` come from this script. It measures:

* kernels: attention alone, forward and backward, on the trees of three rows of `training_speed.py`;
* rows: the packed update of some rows (with fewer groups), switch by switch, beside the plain loop;
* gaps: the gradient's distance from float32, without clip, switch by switch;
* peaks: memory per token, beside what `training/memory_budget.py` predicts.

    python benchmarks/training_switches.py                      # everything, about two minutes on an H200
    python benchmarks/training_switches.py --parts kernels gaps

A part that fails prints its error, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from training_speed import RESULTS, clear_gradients, free_memory, profile_row, wait_for
from training_ways import (
    ROWS,
    SHAPES,
    Batch,
    PlainLoop,
    Row,
    build_model,
    build_policy,
    choose_attention,
    choose_layers,
    prepare_way,
    run_packed,
)

from stepwell.packing import TreeLayout, pack, paths, segments, segments_cuda, sequences
from stepwell.packing.flex import flex_tree_attention, round_up_length
from stepwell.packing.kernel_inputs import ScoreOptions
from stepwell.policies.graph_recorder import measure_peak_bytes, note_peak
from stepwell.training.batch import MIN_RUN
from stepwell.training.memory_budget import count_token_bytes

DEVICE = torch.device("cuda")
SWITCHES = {
    "plain paths": ("plain", "paths", "selective"),
    "modules paths": ("modules", "paths", "selective"),
    "blocks paths": ("blocks", "paths", "selective"),
    "blocks paths mlp": ("blocks", "paths", "mlp"),
    "blocks cudnn": ("blocks", "cudnn", "selective"),
    "blocks cudnn mlp": ("blocks", "cudnn", "mlp"),
}
"""Layers, attention, checkpointing."""
SMALLER = {"3": 2, "5": 1, "6": 8, "7": 1}
"""Groups of the rows that would take long."""
Result = dict[str, Any]


def take_row(number: str) -> Row:
    return replace(ROWS[number], groups=SMALLER.get(number, ROWS[number].groups))


def time_calls(run: Callable[[], Any], repeats: int = 5) -> float:
    """Median milliseconds of a call, by events."""
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times)[len(times) // 2]


# --- attention alone --------------------------------------------------------------------


def measure_kernels(found: Result) -> None:
    how = None
    for number in ("3", "5", "7"):
        row = replace(ROWS[number], groups=1)
        shape = SHAPES[row.model]
        heads, key_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        size = shape["hidden_size"] // heads
        how = ScoreOptions(size**-0.5, None, None)
        steps = Batch.draw(row, torch.device("cpu")).steps
        tree = pack(steps, token_budget=row.budget, min_run=MIN_RUN).microbatches[0].tree
        assert tree is not None
        layout = TreeLayout(tree, DEVICE, round_up_length(tree.num_tokens))
        pairs = int((tree.positions + 1).sum())
        flops = 4.0 * pairs * heads * size
        compiled = ("flex",) if number == "3" else ()  # compiling takes seconds per shape
        for kernel in ("paths", "segments", "cudnn", *compiled):
            cell = found.setdefault(f"row {number}", {})
            try:
                cell[kernel] = time_kernel(kernel, layout, (heads, key_heads, size), how, flops)
                print(f"kernels: row {number} {kernel:9s} {cell[kernel]}", flush=True)
            except Exception as error:
                cell[kernel] = {"error": f"{type(error).__name__}: {error}"[:300]}
                traceback.print_exc(limit=3)
            free_memory(DEVICE)


def time_kernel(
    kernel: str, layout: TreeLayout, shape: tuple[int, int, int], how: ScoreOptions, flops: float
) -> Result:
    heads, key_heads, size = shape
    torch.manual_seed(0)
    sides = [
        torch.randn(1, layout.num_tokens, count, size, device=DEVICE, dtype=torch.bfloat16)
        .transpose(1, 2)
        .requires_grad_()
        for count in (heads, key_heads, key_heads)
    ]
    outer = torch.randn(1, layout.num_tokens, heads, size, device=DEVICE, dtype=torch.bfloat16)
    outer[:, layout.tree.num_tokens :] = 0
    choose_attention(kernel)

    def attend() -> torch.Tensor:
        if kernel == "segments":
            return segments.segment_attention(*sides, layout, how, segments_cuda)
        if kernel == "flex":
            return flex_tree_attention(*sides, layout, how)
        if kernel == "paths":
            assert paths.supports_paths(sides[0], sides[2], layout, how)
            return paths.path_attention(*sides, layout, how)
        assert sequences.supports_sequences(sides[0], sides[2], layout, how)
        return sequences.sequence_attention(*sides, layout, how)

    start = time.perf_counter()
    output = attend()
    grads = torch.autograd.grad(output, sides, outer)
    torch.cuda.synchronize()
    first_s = time.perf_counter() - start
    norms = [float(side.detach().float().norm()) for side in (output[:, : layout.tree.num_tokens], *grads)]
    forward = time_calls(attend)
    both = time_calls(lambda: torch.autograd.grad(attend(), sides, outer))
    backward = both - forward
    return {
        "forward_ms": round(forward, 3),
        "backward_ms": round(backward, 3),
        "forward_tflops": round(flops / forward / 1e9),
        "backward_tflops": round(2.5 * flops / backward / 1e9),
        "first_s": round(first_s, 2),
        "norms": [round(norm, 2) for norm in norms],
    }


# --- rows -------------------------------------------------------------------------------


def measure_rows(found: Result, numbers: list[str], names: list[str], repeats: int) -> None:
    for number in numbers:
        row = take_row(number)
        cell = found.setdefault(f"row {number}", {"row": row.name})
        for name in ["plain loop", *names]:
            layers, attention, checkpointing = SWITCHES.get(name, ("plain", "paths", "selective"))
            choose_layers(layers)
            choose_attention(attention)
            try:
                way = "plain" if name == "plain loop" else "packed"
                cell[name] = time_update(way, row, checkpointing, repeats)
                base = cell.get("plain loop", {}).get("seconds", 0.0)
                cell[name]["x plain"] = round(base / cell[name]["seconds"], 3)
                print(f"rows: {number} {name:18s} {cell[name]}", flush=True)
            except Exception as error:
                cell[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
                traceback.print_exc(limit=4)
            free_memory(DEVICE)


def time_update(way: str, row: Row, checkpointing: str, repeats: int) -> Result:
    runner = prepare_way(way, row, DEVICE, torch.bfloat16, checkpointing)
    first = time.perf_counter()
    runner.warm_up()
    clear_gradients(runner.module)
    wait_for(DEVICE)
    first_s = time.perf_counter() - first
    note_peak(is_new=True)
    times = []
    for _ in range(repeats if row.groups > 1 else 1):  # (one group has run already, as the warm-up)
        start = time.perf_counter()
        loss = runner.update()
        wait_for(DEVICE)
        times.append(time.perf_counter() - start)
        clear_gradients(runner.module)
    return {
        "seconds": round(min(times), 4),
        "first_s": round(first_s, 2),
        "peak_gb": round(measure_peak_bytes() / 1e9, 2),
        "loss": round(float(loss), 5),
    }


# --- gradients and memory ---------------------------------------------------------------


def collect_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().float() for name, p in module.named_parameters() if p.grad is not None}


def measure_gaps(found: Result, numbers: list[str]) -> None:
    """Distances from float32; the value head alone and the rest alone, since their sizes differ."""
    for number in numbers:
        row = ROWS[number].take_slice()
        batch = replace(Batch.draw(row, DEVICE), is_clipped=False)
        loop = PlainLoop(build_model(row.model, DEVICE, torch.bfloat16).float())
        loop.run_update(batch, 1 << 30)
        exact = collect_gradients(loop.module)
        del loop
        cell = found.setdefault(f"row {number}", {})
        for name in ("plain loop", "plain paths", "modules paths", "blocks paths", "blocks cudnn"):
            layers, attention, checkpointing = SWITCHES.get(name, ("plain", "paths", "selective"))
            choose_layers(layers)
            choose_attention(attention)
            sequences.SHORTEST, sequences.MOST_WORK, sequences.MOST_TOKENS = 1, 99, 99
            try:
                model = build_model(row.model, DEVICE, torch.bfloat16)
                if name == "plain loop":
                    loop = PlainLoop(model)
                    loop.run_update(batch, 1 << 30)
                    ours = collect_gradients(loop.module)
                else:
                    policy = build_policy(model, checkpointing)
                    run_packed(policy, batch, None)
                    ours = collect_gradients(policy.module)
                cell[name] = compare_gradients(ours, exact)
                print(f"gaps: {number} {name:16s} {cell[name]}", flush=True)
            except Exception as error:
                cell[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
                traceback.print_exc(limit=4)
            free_memory(DEVICE)
        sequences.SHORTEST, sequences.MOST_WORK, sequences.MOST_TOKENS = 1024, 1.15, 1.5


def compare_gradients(ours: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> Result:
    """Gaps of all gradients together, and of parts of the model."""

    def measure(kept: Callable[[str], bool]) -> float:
        names = [name for name in exact if kept(name)]
        off = sum(float((ours[name] - exact[name]).square().sum()) for name in names)
        return round((off / sum(float(exact[name].square().sum()) for name in names)) ** 0.5, 5)

    return {
        "all": measure(lambda name: True),
        "embeddings": measure(lambda name: "embed" in name),
        "first layer": measure(lambda name: "layers.0." in name),
        "middle layer": measure(lambda name: "layers.12." in name),
        "attention": measure(lambda name: "self_attn" in name),
        "mlp": measure(lambda name: "mlp" in name),
        "norms": measure(lambda name: "norm" in name),
        "value head": measure(lambda name: "critic" in name),
    }


def measure_peaks(found: Result) -> None:
    """Activation bytes per token by what they are predicted to be."""
    for number, checkpointing in (("2", "selective"), ("2", "mlp"), ("2", "full"), ("4", "mlp")):
        choose_layers("blocks")
        row = replace(ROWS[number], groups=2)
        model = build_model(row.model, DEVICE, torch.bfloat16)
        policy = build_policy(model, checkpointing)
        batch = Batch.draw(row, DEVICE)
        run_packed(policy, Batch.draw(row.take_group(), DEVICE), row.budget)
        note_peak(is_new=True)
        before = torch.cuda.memory_allocated()
        run_packed(policy, batch, row.budget)
        packed = pack(batch.steps, token_budget=row.budget, min_run=MIN_RUN)
        tokens = max(microbatch.num_tokens for microbatch in packed.microbatches)
        peak = torch.cuda.max_memory_allocated() - before
        cell = {
            "tokens": tokens,
            "bytes_per_token": round(peak / tokens),
            "predicted_per_token": round(count_token_bytes(policy)),
            "peak_gb": round(measure_peak_bytes() / 1e9, 2),
        }
        found[f"row {number} {checkpointing}"] = cell
        print(f"peaks: {number} {checkpointing:10s} {cell}", flush=True)
        del policy, model
        free_memory(DEVICE)


def show_profile(row: Row, settings: Any, found: Result) -> None:
    profile_row(row, DEVICE, torch.bfloat16, settings)


def run_part(name: str, measure: Callable[[Result], None], everything: Result) -> None:
    start = time.perf_counter()
    try:
        measure(everything.setdefault(name, {}))
    except Exception:
        traceback.print_exc()
    print(f"--- {name}: {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=["kernels", "gaps", "rows", "peaks"])
    parser.add_argument("--rows", nargs="+", default=["1", "3", "5", "6", "7"])
    parser.add_argument("--switches", nargs="+", default=list(SWITCHES), choices=list(SWITCHES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", nargs="*", default=[], help="rows whose kernels are listed")
    parser.add_argument("--output", type=Path, default=RESULTS / "training_switches_h200.json")
    options = parser.parse_args()
    everything: Result = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    parts: dict[str, Callable[[Result], None]] = {
        "kernels": measure_kernels,
        "gaps": lambda found: measure_gaps(found, ["1", "6"]),
        "rows": lambda found: measure_rows(found, options.rows, options.switches, options.repeats),
        "peaks": measure_peaks,
    }
    for name in options.parts:
        run_part(name, parts[name], everything)
        options.output.write_text(json.dumps(everything, indent=2) + "\n")
    for number in options.profile:
        choose_layers("blocks")
        choose_attention("paths")
        settings = argparse.Namespace(ways=["packed"], checkpointing="selective")
        row = take_row(number)
        run_part(f"profile {number}", partial(show_profile, row, settings), {})
    print("done", file=sys.stderr)


if __name__ == "__main__":
    main()
