"""What it costs an engine to mark the positions at which it reads every token.

Two engines answer the same groups of siblings in turn: one as it is, and one that notes and marks nothing.
Nothing else may run beside it.

    python benchmarks/position_log_cost.py --name h200                        # SmolLM2-135M, bfloat16
    python benchmarks/position_log_cost.py --model tiny-0.3m --device cpu --dtype float32 --name cpu

The result, results/position_log_cost_NAME.json, has the median seconds of a round of either engine, and their
ratio in each round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from stepwell.config.engine import EngineConfig
from stepwell.core import Request, SamplingParams, TokenState
from stepwell.engines import EmbeddedEngine
from stepwell.engines.position_log import PositionLog
from stepwell.runs.machine import describe_machine

RESULTS = Path(__file__).parent / "results"
GROUPS, SIBLINGS, PROMPT, REPLY = 12, 8, 300, 24


class SilentLog(PositionLog):
    """A log that notes nothing and marks nothing."""

    def note_tokens(self, *_: object) -> None:
        pass

    def forget_rest(self, *_: object) -> None:
        pass

    def compute_mark(self, *_: object) -> int:
        return 0


def open_engine(args: argparse.Namespace, is_silent: bool) -> EmbeddedEngine:
    settings = EngineConfig(max_length=1024, max_batch_size=128, num_slots=128, prefill_tokens=32768)
    engine = EmbeddedEngine.from_pretrained(args.model, settings, dtype=args.dtype, device=args.device)
    store = engine._core.runner.store
    if is_silent:
        store.positions = SilentLog(store.num_slots + 1, store.length, store.device)
    return engine


def time_round(engine: EmbeddedEngine, number: int) -> float:
    """Seconds in which an engine answers siblings that share their prompts, from an empty cache."""
    rng = np.random.default_rng(number)
    prompts = rng.integers(3, 500, (GROUPS, PROMPT), dtype=np.int32).repeat(SIBLINGS, axis=0)
    params = [SamplingParams(max_tokens=REPLY, seed=i, ignore_end=True) for i in range(len(prompts))]
    engine.forget()
    began = time.perf_counter()
    engine.generate_blocking([Request(TokenState(p), q) for p, q in zip(prompts, params, strict=True)])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--name", required=True)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with open_engine(args, is_silent=False) as marking, open_engine(args, is_silent=True) as silent:
        for engine in (marking, silent):
            time_round(engine, 0)  # captures graphs
        pairs = []
        for i in range(1, args.rounds + 1):
            order = (marking, silent) if i % 2 else (silent, marking)
            took = {engine: time_round(engine, i) for engine in order}
            pairs.append((took[marking], took[silent]))
    ratios = sorted(own / other for own, other in pairs)
    result = {
        "machine": describe_machine(),
        "model": args.model,
        "dtype": args.dtype,
        "requests": GROUPS * SIBLINGS,
        "prompt_tokens": PROMPT,
        "reply_tokens": REPLY,
        "marking_s": round(statistics.median(own for own, _ in pairs), 4),
        "silent_s": round(statistics.median(other for _, other in pairs), 4),
        "median_ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    print(json.dumps(result, indent=1))
    (args.output / f"position_log_cost_{args.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
