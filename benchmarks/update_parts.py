"""Where the seconds of one update go: rollout, reference, start pass, actor, critic, optimizer, publishing.

The settings are a preset's (household-smollm2 by default). After a short imitation of demonstrations, so that
replies have the right form, a few updates run with a clock around every part; the table is of the last one.
Parts of the rollout are summed over its turns. `engine alone` is the same prompts and as many tokens of each,
given to the engine at once: what the rollout would take if nothing but the engine took time. The start pass
computes values, and proximal logprobs where samples are of older versions. Tokens of forward are counted by
the engine, exactly.

    python benchmarks/update_parts.py --device cuda --output benchmarks/results/update_parts_h200.json
    python benchmarks/update_parts.py --preset household-tiny --tasks 64  # on the CPU
    python benchmarks/update_parts.py --device cuda --set train.token_budget=32768
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stepwell.config.loading import load_config
from stepwell.core import Request, Split
from stepwell.core.ids import make_id
from stepwell.policies.graph_recorder import measure_peak_bytes
from stepwell.rollout import Job
from stepwell.runs.build.components import Components
from stepwell.training import imitate

RESULTS = Path(__file__).parent / "results"


class Clock:
    """Seconds and calls by part. A device is waited for at both ends of a part."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def wait(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Time every call of a method of one object."""
        inner: Callable[..., Any] = getattr(owner, method)

        def run(*given: Any, **named: Any) -> Any:
            start = self.wait()
            try:
                return inner(*given, **named)
            finally:
                self.seconds[part] += self.wait() - start
                self.calls[part] += 1

        setattr(owner, method, run)


def watch_parts(components: Components, clock: Clock) -> None:
    rollout: Any = components.runner.rollout
    for method in ("make_request", "read_reply", "record_step", "begin_episode", "build_trajectory"):
        clock.watch(rollout.player, method, f"rollout: {method}")
    clock.watch(rollout.envs, "reset", "rollout: environments reset")
    clock.watch(rollout.envs, "step", "rollout: environments step")
    engine = rollout.sampler
    clock.watch(engine, "generate_blocking", "rollout: engine")
    clock.watch(engine._core, "_admit_waiting", "engine: admission and copies")
    clock.watch(engine._core.runner, "prefill", "engine: prefill")
    clock.watch(engine._core.runner, "decode", "engine: decode")
    clock.watch(engine._core, "step", "engine: busy")
    trainer = components.trainer
    clock.watch(trainer, "_build_minibatches", "packing")
    clock.watch(trainer, "_build_objective", "reference")
    clock.watch(trainer, "_compute_credit", "credit")
    clock.watch(trainer, "_evaluate", "start pass")
    clock.watch(trainer, "_pull_gradients", "actor and critic")
    clock.watch(trainer.optimizer, "clip_gradients", "optimizer: clip")
    clock.watch(trainer.optimizer, "step", "optimizer: step")


def prepare(options: argparse.Namespace) -> Components:
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    overrides = [f"policy.device={options.device}", f"policy.dtype={dtype}", *options.set]
    config = load_config(options.preset, overrides)
    if options.tasks:
        config = load_config(config, [f"train.tasks_per_update={options.tasks}"])
    components = Components(config)
    shown = components.play_demonstrations(options.demos, config.warm_start.noise, 0)
    warm = config.warm_start.model_copy(update={"epochs": 1, "stop_at": None, "num_demos": options.demos})
    for _ in imitate(components.policy, shown, warm, 0):
        pass
    components.trainer.freeze_reference()
    components.runner.publish(0, components.policy)
    return components


def run_update(components: Components, clock: Clock, number: int) -> tuple[dict[str, float], list[Any]]:
    train = components.config.train
    tasks = components.tasks(Split.TRAIN, train.tasks_per_update, number)
    jobs = [
        Job(task, str(i), 7 * i + k + 100_000 * number)
        for i, task in enumerate(tasks)
        for k in range(train.group_size)
    ]
    components.runner.forget()
    counts = replace(components.engine.counts)
    start = clock.wait()
    trajectories = components.runner.run(jobs, components.sampling_params(1.0)).trajectories
    played = clock.wait()
    metrics = components.trainer.update(trajectories)
    learnt = clock.wait()
    components.runner.publish(number, components.policy)
    now = components.engine.counts
    return {
        "rollout": played - start,
        "update": learnt - played,
        "of it critic": metrics.get("time/critic_s", 0.0),
        "publish": clock.wait() - learnt,
        "packed_tokens": metrics["packed_tokens"],
        "prefilled_tokens": now.prefilled_tokens - counts.prefilled_tokens,
        "decoded_tokens": now.decoded_tokens - counts.decoded_tokens,
        "engine_steps": now.num_steps - counts.num_steps,
    }, trajectories


def build_table(whole: dict[str, float], parts: Counter[str], alone_s: float) -> dict[str, float]:
    """Seconds of each part of the last update, in its order; what no clock saw is `rest of the update`."""
    known = ("rollout: engine", "rollout: environments reset", "rollout: environments step")
    optimizer = parts["optimizer: clip"] + parts["optimizer: step"]
    critic = whole["of it critic"] - parts["start pass"] if whole["of it critic"] else 0.0
    both = parts["actor and critic"]
    seen = parts["reference"] + parts["start pass"] + both + optimizer
    return {
        "rollout": whole["rollout"],
        "  engine": parts["rollout: engine"],
        "  environments": parts["rollout: environments reset"] + parts["rollout: environments step"],
        "  rendering, reading, recording": sum(
            seconds for part, seconds in parts.items() if part.startswith("rollout: ") and part not in known
        ),
        "reference": parts["reference"],
        "start pass (values, proximal)": parts["start pass"],
        "actor": both - critic,
        "critic": critic,
        "optimizer": optimizer,
        "rest of the update": whole["update"] - seen,
        "publish": whole["publish"],
        "whole": whole["rollout"] + whole["update"] + whole["publish"],
        "engine alone, same tokens": alone_s,
    }


def print_table(table: dict[str, float], whole: dict[str, float], busy_s: float) -> None:
    for part, seconds in table.items():
        print(f"  {part:<34} {seconds:8.3f} s  {seconds / table['whole']:6.1%}")
    rollout, alone = table["rollout"], table["engine alone, same tokens"]
    forward = whole["prefilled_tokens"] + whole["decoded_tokens"]
    print(
        f"rollout is {rollout / alone:.2f} times the engine alone, {rollout / busy_s:.2f} times what the "
        f"engine was busy in it ({busy_s / rollout:.0%})"
    )
    print(
        f"tokens of forward {forward:.0f}: {whole['prefilled_tokens']:.0f} prefilled, "
        f"{whole['decoded_tokens']:.0f} decoded in {whole['engine_steps']:.0f} steps",
        flush=True,
    )


def time_engine_alone(components: Components, trajectories: list[Any], clock: Clock) -> tuple[float, int]:
    """Seconds of the engine for the same prompts and numbers of tokens, all known at once; and the tokens."""
    base = components.sampling_params(1.0)
    requests = [
        Request(
            step.state,
            replace(base, max_tokens=max(1, step.num_units), ignore_end=True, stop=(), seed=0),
            conversation=trajectory.id,
            id=make_id("req"),
        )
        for trajectory in trajectories
        for step in trajectory.steps
    ]
    components.runner.forget()
    start = clock.wait()
    sampled = components.engine.generate_blocking(requests)
    return clock.wait() - start, sum(len(one.action.action_ids) for one in sampled)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="household-smollm2")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tasks", type=int, help="tasks of an update; default: the preset's")
    parser.add_argument("--demos", type=int, default=256, help="demonstrations of the imitation before")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="more settings, key=value")
    parser.add_argument("--functions", action="store_true", help="list the functions of the rollout by time")
    parser.add_argument("--output", type=Path, help="file of the results")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    started = time.perf_counter()
    components = prepare(options)
    clock = Clock(torch.device(options.device))
    print(f"prepared in {time.perf_counter() - started:.1f} s", flush=True)
    watch_parts(components, clock)
    for number in range(1, options.updates + 1):
        clock.seconds.clear()
        clock.calls.clear()
        profiler = cProfile.Profile() if options.functions and number == options.updates else None
        if profiler is not None:
            profiler.enable()
        whole, trajectories = run_update(components, clock, number)
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
        print(f"update {number}: " + ", ".join(f"{k} {v:.3f}" for k, v in whole.items()), flush=True)
    parts, calls = Counter(clock.seconds), dict(clock.calls)
    alone_s, num_tokens = time_engine_alone(components, trajectories, clock)
    num_turns = sum(len(trajectory.steps) for trajectory in trajectories)
    num_prompt = sum(step.state.prompt_ids.size for one in trajectories for step in one.steps)
    print(
        f"{len(trajectories)} episodes, {num_turns} turns, {num_prompt} prompt tokens, "
        f"{num_tokens} sampled tokens ({num_tokens / alone_s:.0f} a second by the engine alone)"
    )
    table = build_table(whole, parts, alone_s)
    print_table(table, whole, parts["engine: busy"])
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {part:<34} {seconds:8.3f} s  {calls[part]:6d} calls")
    if torch.cuda.is_available():
        print(f"peak memory {measure_peak_bytes() / 1e9:.1f} GB")
    if options.output is not None:
        result = {
            "preset": options.preset,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "episodes": len(trajectories),
            "turns": num_turns,
            "prompt_tokens": num_prompt,
            "sampled_tokens": num_tokens,
            "table_s": {part.strip(): seconds for part, seconds in table.items()},
            "rollout_over_engine_alone": table["rollout"] / alone_s,
            "rollout_over_engine_busy": table["rollout"] / parts["engine: busy"],
            "engine_busy_share": parts["engine: busy"] / table["rollout"],
            "last_update": whole,
            "parts_s": parts,
            "calls": calls,
            "engine_alone_s": alone_s,
        }
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    components.close()


if __name__ == "__main__":
    main()
