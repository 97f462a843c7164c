"""What a publish costs: the trainer's wait, and the time in which generators do not answer.

A policy with random weights publishes to generator processes that sample all the while. Between two publishes
the trainer works (matrix products) and changes its weights. Two ways take turns:

    blocking     all weights in one message, loaded and read back by the engine; the trainer waits for it
    overlapped   a copy of the weights; generators take it in buckets, beside their work (the default of runs)

and a third, with LoRA: adapters only. Gaps are seen from outside: a client sends one short request after the
other to every generator, and the longest time without an answer counts, beside the longest one between two
publishes.

    python benchmarks/weight_sync.py                # the table, and results/weight_sync.json
    python benchmarks/weight_sync.py --quick        # the tiny model alone, no file
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from stepwell.core import Request, SamplingParams, TokenState
from stepwell.engines import fingerprint_of
from stepwell.policies import CausalLMPolicy
from stepwell.runs.build.runner import check_fingerprint
from stepwell.runs.build.weight_publisher import WeightPublisher
from stepwell.workers import ProcessGenerator
from stepwell.workers.engine_builders import EMBEDDED
from stepwell.workers.weight_bytes import PackedWeights

RESULT = Path(__file__).parent / "results" / "weight_sync.json"
CONSOLE = Console(width=130)
SHAPES: dict[str, dict[str, int]] = {
    "tiny (0.5m)": {"hidden": 96, "layers": 4, "heads": 4, "kv": 2, "inner": 256, "vocab": 1024},
    "135m": {"hidden": 576, "layers": 30, "heads": 9, "kv": 3, "inner": 1536, "vocab": 49152},
}


def write_model(folder: Path, shape: dict[str, int]) -> None:
    """A model with random weights, from its shape alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv"],
        intermediate_size=shape["inner"],
        vocab_size=shape["vocab"],
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


class Workers:
    """Generator processes, each with a client that never stops asking."""

    def __init__(self, folder: Path, count: int) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        settings = {"model": str(folder), "config": {"max_batch_size": 2, "num_slots": 2}}
        self.generators = [
            ProcessGenerator(f"generator {i}", EMBEDDED, settings, num_threads=1, hang_s=600)
            for i in range(count)
        ]
        self.answered: list[list[float]] = [[] for _ in range(count)]
        self._asking: list[asyncio.Task[None]] = []

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _ask(self, i: int) -> None:
        prompt = np.arange(5, 21)
        for number in range(10**9):
            params = SamplingParams(max_tokens=2, seed=number, ignore_end=True)
            await self.generators[i].generate([Request(TokenState(prompt), params, f"{i}-{number}")])
            self.answered[i].append(time.perf_counter())

    async def start(self) -> None:
        await asyncio.gather(*(one.start() for one in self.generators))
        self._asking = [asyncio.create_task(self._ask(i)) for i in range(len(self.generators))]
        while min(map(len, self.answered)) < 20:
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self.generators))

    def find_gaps(self, begin: float, end: float) -> list[float]:
        """Per generator, the longest time without an answer."""
        return [
            max(np.diff([begin, *[t for t in times if begin < t < end], end]), default=0.0)
            for times in self.answered
        ]


def work(seconds: float) -> None:
    """What a trainer does between two publishes."""
    until, matrix = time.perf_counter() + seconds, torch.ones(256, 256)
    while time.perf_counter() < until:
        matrix @ matrix


def change_weights(policy: CausalLMPolicy) -> None:
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.mul_(1.001).add_(1e-5)


def publish_blocking(workers: Workers, policy: CausalLMPolicy, version: int) -> dict[str, float]:
    """As runs did before: whole weights in one message, and everybody waits."""

    async def load_all() -> list[Any]:
        header, arrays = await asyncio.to_thread(PackedWeights(weights).pack_once)
        sent.append(sum(array.nbytes for array in arrays) / 1e6)
        loads = (one._worker.call("load_weights", {"version": version, **header}, arrays) for one in every)
        return list(await asyncio.gather(*loads))

    every, sent, began = workers.generators, list[float](), time.perf_counter()
    weights = policy.model_weights()
    published = fingerprint_of(weights, torch.float32)
    answers = workers.call(load_all())
    for answer in answers:
        check_fingerprint(version, published, answer.header["fingerprint"], "a generator")
    took_s, pause_s = time.perf_counter() - began, max(answer.header["paused_s"] for answer in answers)
    return {"trainer_wait_s": took_s, "pause_max_s": pause_s, "sent_mb": len(every) * sent[0]}


def publish_overlapped(
    workers: Workers, publisher: WeightPublisher, policy: CausalLMPolicy, version: int, work_s: float
) -> dict[str, float]:
    publisher.publish(version, policy)
    work(work_s)
    publisher.finish()  # what is left of the way is a wait of the trainer
    found = publisher.take_metrics()
    return {
        "trainer_wait_s": found["sync/trainer_wait_s"],
        "snapshot_s": found["sync/snapshot_s"],
        "transfer_s": found["sync/transfer_s"],
        "pause_max_s": found["sync/pause_max_s"],
        "sent_mb": found["sync/sent_mb"],
    }


def measure(
    folder: Path, rounds: int, num_warm_ups: int, work_s: float, num_generators: int
) -> dict[str, Any]:
    """The three ways in turn, on generators that stay."""
    whole = CausalLMPolicy.from_pretrained(folder)
    adapted = CausalLMPolicy.from_pretrained(folder, lora={})
    workers = Workers(folder, num_generators)
    workers.call(workers.start())

    def submit(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, workers.loop)

    rows: dict[str, list[dict[str, float]]] = {"blocking": [], "overlapped": [], "overlapped, LoRA": []}
    publishers = {name: WeightPublisher(workers.generators, torch.float32, submit) for name in list(rows)[1:]}
    quiet, version = list[float](), 0
    for number in range(-num_warm_ups, rounds):
        for name in rows:
            policy = adapted if "LoRA" in name else whole
            change_weights(policy)
            if "LoRA" in name:  # the frozen base, which a run sends once
                publish_overlapped(workers, publishers[name], policy, version := version + 1, 0.0)
                change_weights(policy)
            began = time.perf_counter()
            work(min(work_s, 3.0))
            quiet += workers.find_gaps(began, time.perf_counter())
            version, began = version + 1, time.perf_counter()
            if name == "blocking":
                row = publish_blocking(workers, policy, version)
            else:
                row = publish_overlapped(workers, publishers[name], policy, version, work_s)
            row["longest_gap_s"] = max(workers.find_gaps(began, time.perf_counter()))
            print(f"round {number}, {name}: {json.dumps(row)}", file=sys.stderr, flush=True)
            if number >= 0:
                rows[name].append(row)
    workers.call(workers.close())
    workers.loop.call_soon_threadsafe(workers.loop.stop)
    found: dict[str, Any] = {
        name: {key: round(statistics.median(row[key] for row in of), 4) for key in of[0]}
        for name, of in rows.items()
    }
    weights_mb = sum(one.nbytes for one in dict(whole.model.named_parameters()).values()) / 1e6
    blocking, overlapped = found["blocking"], found["overlapped"]
    return found | {
        "weights_mb": round(weights_mb, 2),
        "longest_gap_without_publish_s": round(statistics.median(quiet), 4),
        "pause_ratio": round(overlapped["pause_max_s"] / blocking["pause_max_s"], 4),
        "wait_ratio": round(overlapped["trainer_wait_s"] / blocking["trainer_wait_s"], 4),
        "gap_ratio": round(overlapped["longest_gap_s"] / blocking["longest_gap_s"], 4),
    }


def show(name: str, found: dict[str, Any]) -> None:
    quiet, mb = found["longest_gap_without_publish_s"], found["weights_mb"]
    table = Table(title=f"{name}: {mb:g} MB of float32; longest gap without a publish {quiet:.3g} s")
    for title in ("", "trainer waits, s", "longest gap, s", "engine pauses, s", "on the way, s", "MB sent"):
        table.add_column(title, justify="right" if title else "left")
    for way in ("blocking", "overlapped", "overlapped, LoRA"):
        row = found[way]
        keys = ("trainer_wait_s", "longest_gap_s", "pause_max_s", "transfer_s", "sent_mb")
        table.add_row(way, *(f"{row[key]:.3g}" if key in row else "-" for key in keys))
    CONSOLE.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of the larger model")
    parser.add_argument("--work", type=float, default=10.0, help="seconds between publishes, larger model")
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load, found = os.getloadavg()[0], dict[str, Any]()
    for name, shape in SHAPES.items():
        if options.quick and name != next(iter(SHAPES)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), shape)
            is_large = shape["layers"] > 4  # the small one is cheap: more rounds, and one to warm up
            plan = (options.rounds, 0, options.work) if is_large else (5, 1, 1.0)
            found[name] = measure(Path(folder), *plan, options.generators)
        show(name, found[name])
    if not options.quick:
        machine = {
            "machine": os.uname().machine,
            "cores": os.cpu_count(),
            "load_at_start": round(load, 1),
            "load_at_end": round(os.getloadavg()[0], 1),
            "torch": torch.__version__,
        }
        settings = {"rounds": options.rounds, "work_s": options.work, "generators": options.generators}
        RESULT.write_text(json.dumps({"on": machine, "settings": settings, "shapes": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
