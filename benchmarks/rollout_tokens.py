"""What the engine computes in a rollout of the household with SmolLM2's prompts: tokens, exactly.

Episodes of the oracle give prompts and replies as long as real ones. They are played turn by turn, all
episodes at once, as a rollout does. How many tokens the engine computes depends on the prompts alone, so the
model here has few parameters, and a cache with SmolLM2-135M's heads (3 of 64) in two layers instead of 30.
`copies_per_layer` are the operations, of keys and of values, that copy prefixes between slots.

    every prompt alone      all prompt tokens, and every sampled token
    the engine              what it prefilled and decoded
    distinct prefixes       what any cache must compute at least: prefixes that differ, once each

Seconds are CPU seconds of this process in one thread, the least of some repetitions.

    python benchmarks/rollout_tokens.py --output benchmarks/results/rollout_tokens_cpu.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Request, SamplingParams, TokenState
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.runs.build.components import Components

NUM_LAYERS = 2  # of the 30: copies of the others cost the same each
Episodes = list[list[tuple[TokenState, int]]]


def play_oracle(config: RunConfig, count: int) -> Episodes:
    """Prompts and lengths of replies of the oracle's episodes."""
    components = Components(config)
    shown = components.play_demonstrations(count, config.warm_start.noise, 0)
    components.close()
    return [[(step.state, step.num_units) for step in one.steps] for one in shown]  # type: ignore[misc]


def build_engine(config: RunConfig) -> EmbeddedEngine:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=24,
        intermediate_size=16,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=config.engine.max_length or 1024,
    )
    return EmbeddedEngine(LlamaForCausalLM(shape), None, config.engine, copy=False)


def watch(owner: Any, method: str, part: str, seconds: Counter[str], calls: Counter[str]) -> None:
    """Add up the CPU seconds and the calls of a method of one object."""
    inner: Callable[..., Any] = getattr(owner, method)

    def run(*given: Any, **named: Any) -> Any:
        start = time.thread_time()
        try:
            return inner(*given, **named)
        finally:
            seconds[part] += time.thread_time() - start
            calls[part] += 1

    setattr(owner, method, run)


def play_turns(engine: EmbeddedEngine, episodes: Episodes) -> None:
    for turn in range(max(map(len, episodes))):
        requests = [
            Request(
                episode[turn][0],
                SamplingParams(max_tokens=episode[turn][1], temperature=0.0, ignore_end=True),
                str(place),
            )
            for place, episode in enumerate(episodes)
            if turn < len(episode)
        ]
        engine.generate_blocking(requests)


def count_distinct_prefixes(episodes: Episodes) -> int:
    """Prefixes of prompts that differ, without each prompt's last token, which is decoded."""
    found: set[bytes] = set()
    for episode in episodes:
        for state, _ in episode:
            whole = state.prompt_ids.tobytes()
            found.update(whole[: 4 * size] for size in range(1, state.prompt_ids.size))
    return len(found)


def measure_engine(config: RunConfig, episodes: Episodes) -> dict[str, float]:
    with build_engine(config) as engine:
        core, seconds, calls = engine._core, Counter[str](), Counter[str]()
        store = core.runner.store
        tokens = Counter[str]()
        for method in ("prefill", "decode"):
            inner = getattr(core.runner, method)

            def run(slots: Any, *more: Any, inner: Any = inner, method: str = method) -> Any:
                tokens[method] += int(more[0].sum()) if more else len(slots)
                return inner(slots, *more)

            setattr(core.runner, method, run)
        watch(store, "copy_prefixes", "copies", seconds, calls)
        watch(core.table, "place_prompt", "placing", seconds, calls)
        watch(core, "_admit_waiting", "admission", seconds, calls)
        watch(core, "step", "engine", seconds, calls)
        play_turns(engine, episodes)
    return {
        "prefilled_tokens": tokens["prefill"],
        "decoded_tokens": tokens["decode"],
        "forward_tokens": tokens["prefill"] + tokens["decode"],
        "engine_steps": calls["engine"],
        "copies_per_layer": 2 * calls["copies"],
        "copies_cpu_s": round(seconds["copies"], 3),
        "placing_cpu_s": round(seconds["placing"], 3),
        "admission_cpu_s": round(seconds["admission"], 3),
        "engine_cpu_s": round(seconds["engine"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="household-smollm2")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, help="file of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(options.preset, ["policy.device=cpu", "policy.dtype=float32"])
    episodes = play_oracle(config, options.episodes)
    turns = [turn for episode in episodes for turn in episode]
    sampled = sum(count for _, count in turns)
    alone = sum(state.prompt_ids.size - 1 for state, _ in turns) + sampled
    runs = [measure_engine(config, episodes) for _ in range(options.repeats)]
    found: dict[str, float] = {name: min(run[name] for run in runs) for name in runs[0]}
    least = count_distinct_prefixes(episodes) + sampled
    print(f"{len(episodes)} episodes, {len(turns)} turns, {sampled} sampled tokens")
    print(f"  every prompt alone   {alone:8d} tokens of forward")
    fewer = alone / found["forward_tokens"]
    print(f"  the engine           {found['forward_tokens']:8.0f}  ({fewer:.1f} times fewer)")
    print(f"  distinct prefixes    {least:8d}")
    for name, value in found.items():
        print(f"  {name:<20} {value:10g}")
    if options.output is not None:
        result = {
            "preset": options.preset,
            "machine": platform.machine(),
            "episodes": len(episodes),
            "turns": len(turns),
            "sampled_tokens": sampled,
            "tokens_every_prompt_alone": alone,
            "tokens_distinct_prefixes": least,
            "engine": found,
        }
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
