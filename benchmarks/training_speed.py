"""One update's gradient, three ways: a plain loop on whole trajectories, per-step replay, packed.

Append-only dialogues: groups x siblings x turns, each turn an action and an observation. All ways compute the
same loss (clipped policy loss and value loss with given advantages and targets), forward and backward, in
bfloat16 with random weights of the right shape:

* plain: what a person writes with transformers. A trajectory is one sequence, SDPA's causal attention, logits
  at action tokens only, a value head, one pass, a backward pass per microbatch.
* replay: every step alone, in blocks of equal length. Measured on a sample of trajectories where the whole
  batch would take minutes; its seconds are then those of all tokens at the measured speed.
* packed: `stepwell.packing.backward` on the prefix tree, with packing itself in the time.
* lean: the same with less memory, in the rows of the wide model: gate and up are made again, or half of them
  wait in the host's memory (`policy.gradient_checkpointing`, `Row.lean_level`).

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

Results are written after every row. `--continue` measures only the rows that the file does not hold yet, for
a machine that is lent for a few minutes at a time; each row says when it was measured. Rows, batches and the
ways themselves are in `training_ways.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training_ways import (
    KERNELS,
    LAYERS,
    QUICK,
    ROWS,
    SHAPES,
    WAYS,
    Batch,
    PlainLoop,
    Row,
    build_model,
    build_policy,
    choose_attention,
    choose_layers,
    count_work,
    prepare_way,
    run_packed,
)

from stepwell.packing import pack
from stepwell.policies.graph_recorder import measure_peak_bytes, note_peak
from stepwell.training.batch import MIN_RUN

RESULTS = Path(__file__).parent / "results"
PEAK_FLOPS = 989e12


def measure_way(way: str, row: Row, device: torch.device, dtype: torch.dtype, options: Any) -> dict[str, Any]:
    """Seconds of the best of a few updates, tokens per second, MFU and peak memory."""
    if way in ("packed", "lean") and options.packed_budget is not None:
        row = replace(row, budget=options.packed_budget)
    runner = prepare_way(way, row, device, dtype, options.checkpointing)
    start = time.perf_counter()
    runner.warm_up()
    clear_gradients(runner.module)
    wait_for(device)
    warm_up_s = time.perf_counter() - start
    if device.type == "cuda":
        note_peak(is_new=True)
    times: list[float] = []
    # at least two: passes are captured in the first, which is not the time of an update
    least = 1 if way == "replay" else 2
    while len(times) < max(options.repeats, least) and (
        len(times) < least or sum(times) + times[-1] < options.seconds
    ):
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
        "peak_gb": measure_peak_bytes() / 1e9 if is_cuda else None,
        "captured_passes": count_passes(runner.module),
        "microbatches": len(packed.microbatches) if way in ("packed", "lean") else None,
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


def count_passes(module: torch.nn.Module) -> int:
    """How many passes of a policy were captured."""
    found = [getattr(each, "captured_passes", None) for each in module.modules()]
    return sum(len(each.passes) for each in found if each is not None)


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
        if way == "lean" and row.lean_level is None:
            continue
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
    plain, packed, lean = (result.get(way, {}) for way in ("plain", "packed", "lean"))
    if "seconds" in plain and "seconds" in packed:
        result["faster_than_plain"] = plain["seconds"] / packed["seconds"]
        result["bound"] = 0.9 * plain["tokens"] / packed["tokens"]
    if "seconds" in plain and "seconds" in lean:
        result["lean_faster_than_plain"] = plain["seconds"] / lean["seconds"]
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
            name = {"packed": "faster_than_plain", "lean": "lean_faster_than_plain"}.get(way, "")
            cells = [
                _show(found["mfu"], 3),
                _show(found["work_mfu"], 3),
                _show(found["peak_gb"], 1),
                _show(gap, 5),
                _show(row.get(name), 2),
                _show(row.get("bound") if name else None, 2),
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
        choices=["auto", "none", "selective", "mlp", "offload", "full"],
        default="auto",
        help="of the packed way",
    )
    parser.add_argument(
        "--attention", choices=["auto", *KERNELS], default="auto", help="CUDA: the packed way's attention"
    )
    parser.add_argument(
        "--layers", choices=["auto", *LAYERS], default="auto", help="CUDA: the layers of packed and replay"
    )
    parser.add_argument("--packed-budget", type=int, help="tokens of the packed way's microbatches")
    parser.add_argument("--repeats", type=int, default=3, help="updates of each way, at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="time of the updates of each way, about")
    parser.add_argument("--quick", action="store_true", help="small rows with a tiny model")
    parser.add_argument("--profile", action="store_true", help="where the time of the packed way goes")
    parser.add_argument("--no-gaps", action="store_true", help="leave out the gradients in float32")
    parser.add_argument("--output", type=Path, help="file of the results")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument(
        "--continue", action="store_true", dest="continues", help="keep the rows that the file holds already"
    )
    return parser.parse_args(arguments)


def read_rows(target: Path, made: dict[str, str]) -> list[dict[str, Any]]:
    """The rows that a file of results holds; they must be of the same machine and torch."""
    if not target.exists():
        return []
    found = json.loads(target.read_text())
    if (other := {key: found.get(key) for key in made}) != made:
        raise SystemExit(f"{target} is of {other}, not {made}; write to another file")
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def _get_number(row: dict[str, Any]) -> str:
    return str(row["number"])


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
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    made = {"machine": name, "torch": torch.__version__, "weights": f"random, {dtype}"}
    rows = read_rows(target, made) if options.continues else []
    for number in sorted(set(chosen) - {row["number"] for row in rows}):
        start = time.perf_counter()
        measured = {"measured_at": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
        rows.append({"number": number, **measured, **measure_row(chosen[number], device, dtype, options)})
        print(f"row {number}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if not options.no_write:
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps({**made, "rows": sorted(rows, key=_get_number)}, indent=2) + "\n")
        print("\n".join(list_lines(rows[-1:])), flush=True)
    rows.sort(key=_get_number)
    print("\n".join(list_lines(rows)))
    return rows


if __name__ == "__main__":
    main()
