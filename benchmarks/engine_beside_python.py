"""How much slower the engine is beside a thread of the same process that runs Python.

The engine's thread gives Python's lock up in every operation of torch and needs it again after each. A thread
that renders prompts or steps environments keeps it for a switch interval (`sys.setswitchinterval`; Python's
own is 5 ms), so the engine waits that long many times in a step. The rows are intervals; the engine sets its
own on an event loop (`batcher.SWITCH_INTERVAL_S`), which this script overrides.

    python benchmarks/engine_beside_python.py --output benchmarks/results/engine_beside_python_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepwell.config.engine import EngineConfig
from stepwell.core import Request, SamplingParams, TokenState
from stepwell.engines.embedded import EmbeddedEngine

INTERVALS_S = (0.005, 0.0005, 0.0001)


class PythonThread:
    """Work as rendering is: dictionaries, strings, lists. Counts its rounds."""

    def __init__(self) -> None:
        self.num_rounds, self._is_stopped = 0, False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_stopped:
            found = {str(i): [i] * 3 for i in range(200)}
            self.num_rounds += len(found) // 200

    def __enter__(self) -> PythonThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._thread.join()


def build_engine() -> EmbeddedEngine:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return EmbeddedEngine(LlamaForCausalLM(shape), None, EngineConfig(max_batch_size=64), copy=False)


def time_batch(engine: EmbeddedEngine) -> float:
    engine.forget()
    params = SamplingParams(max_tokens=24, ignore_end=True)
    prompts = [list(range(1 + i, 60 + i + i % 7)) for i in range(64)]
    requests = [Request(TokenState(ids), params.with_seed(i)) for i, ids in enumerate(prompts)]
    start = time.perf_counter()
    engine.generate_blocking(requests)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="file of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    alone: list[float] = []
    beside: dict[float, list[float]] = {interval: [] for interval in INTERVALS_S}
    rounds: dict[float, list[float]] = {interval: [] for interval in INTERVALS_S}
    with build_engine() as engine:
        time_batch(engine)
        for _ in range(options.repeats):  # interleaved: load changes all of them alike
            alone.append(time_batch(engine))
            for interval in INTERVALS_S:
                sys.setswitchinterval(interval)
                with PythonThread() as python:
                    beside[interval].append(time_batch(engine))
                rounds[interval].append(python.num_rounds / beside[interval][-1])
    base = statistics.median(alone)
    print(f"alone: {base:.3f} s")
    for interval, seconds in beside.items():
        slower, done = statistics.median(seconds) / base, statistics.median(rounds[interval])
        print(
            f"interval {interval * 1e3:g} ms: {slower:.2f} times as long, beside {done:.0f} rounds a second"
        )
    if options.output is not None:
        result = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
            "alone_s": alone,
            "beside_s": {str(interval): seconds for interval, seconds in beside.items()},
            "rounds_per_s": {str(interval): each for interval, each in rounds.items()},
        }
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
