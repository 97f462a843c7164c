"""How fast credit and losses are, on one thread, against the plain recursion.

Batch: 1,000 trajectories of 20 steps of 128 action tokens (2.56 M tokens), float32. Each function
is timed on a fresh timeline (its index tensors not yet made) and on one used before; losses are
timed forward, and forward with backward. The naive way is the recursion that textbooks show, one
Python iteration per action token (or per step, where credit is per step), timed on a few of the
trajectories and scaled up. It is written out for the GAE family and the clipped token loss, computes
the same numbers as ours (checked in the run), and is left out where there is no such loop to compare.

    python benchmarks/credit_speed.py            # the full table, and results/credit_speed.json
    python benchmarks/credit_speed.py --small    # a hundredth of the batch; writes nothing
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stepwell.algos import LossInputs, Timeline, credit, losses

RESULT = Path(__file__).parent / "results" / "credit_speed.json"
NUM_STEPS, NUM_TOKENS = 20, 128
NAIVE_TRAJECTORIES = 10

LOSS_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ppo_loss", {"ratio": "token", "aggregate": "token_mean"}),
    ("ppo_loss", {"ratio": "step", "aggregate": "step_mean"}),
    ("ppo_loss", {"ratio": "trajectory", "aggregate": "trajectory_mean"}),
    ("webrl_loss", {}),
    ("awr_loss", {}),
    ("reinforce_loss", {}),
    ("sft_loss", {}),
    ("filtered_bc_loss", {}),
    ("dpo_loss", {}),
]


def make_timeline(num_trajectories: int) -> Timeline:
    generator = torch.Generator().manual_seed(0)
    num_steps = num_trajectories * NUM_STEPS
    n = num_steps * NUM_TOKENS
    return Timeline(
        torch.full((num_trajectories,), NUM_STEPS),
        torch.full((num_steps,), NUM_TOKENS),
        rewards=torch.rand(num_steps, generator=generator),
        token_values=torch.rand(n, generator=generator),
        end_values=torch.rand(num_steps, generator=generator),
        token_rewards=0.01 * torch.randn(n, generator=generator),
        groups=torch.arange(num_trajectories) // 8,
        anchors=torch.arange(num_steps) // 2 % 200,
        instruction_values=torch.rand(num_trajectories, generator=generator),
    )


def fresh(timeline: Timeline) -> Timeline:
    """The same tensors without the index tensors made so far."""
    return Timeline(**{field.name: getattr(timeline, field.name) for field in fields(timeline)})


def make_inputs(timeline: Timeline) -> LossInputs:
    generator = torch.Generator().manual_seed(1)
    behavior = -torch.rand(timeline.num_tokens, generator=generator)

    def near() -> Tensor:
        return behavior + 0.1 * torch.randn(timeline.num_tokens, generator=generator)

    return LossInputs(
        timeline,
        near().requires_grad_(),
        behavior,
        torch.randn(timeline.num_tokens, generator=generator),
        ref_logprobs=near(),
        proximal_logprobs=near(),
        pairs=torch.arange(timeline.num_steps).reshape(-1, 2),
    )


def best_time(call: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of some runs, after one that does not count."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


# The naive way: one Python iteration per item


def naive_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    advantages, advantage, next_value = [], 0.0, 0.0
    for i in range(len(rewards) - 1, -1, -1):
        advantage = rewards[i] + gamma * next_value - values[i] + gamma * lam * advantage
        next_value = values[i]
        advantages.append(advantage)
    return advantages[::-1]


def spread(per_step: list[float]) -> list[float]:
    return [value for value in per_step for _ in range(NUM_TOKENS)]


def naive_credit(name: str, part: Timeline) -> list[float]:
    """Advantages of every action token by plain loops over lists, with the function's own defaults."""
    assert part.token_values is not None and part.end_values is not None and part.token_rewards is not None
    lists = (part.rewards.tolist(), part.end_values.tolist())
    per_token = (part.token_values.tolist(), part.token_rewards.tolist())
    size = NUM_STEPS * NUM_TOKENS
    advantages = []
    for j in range(part.num_trajectories):
        r, u = (x[j * NUM_STEPS : (j + 1) * NUM_STEPS] for x in lists)
        v, k = (x[j * size : (j + 1) * size] for x in per_token)
        advantages += NAIVE_CREDIT[name](r, v, u, k)
    return advantages


def naive_token_gae(r: list[float], v: list[float], u: list[float], k: list[float]) -> list[float]:
    return naive_gae([*k[:-1], k[-1] + sum(r)], v, 0.99, 1.0)


def naive_step_gae(r: list[float], v: list[float], u: list[float], k: list[float]) -> list[float]:
    rewards = [x + sum(k[t * NUM_TOKENS : (t + 1) * NUM_TOKENS]) for t, x in enumerate(r)]
    return spread(naive_gae(rewards, v[::NUM_TOKENS], 0.99, 1.0))


def naive_turn_gae(r: list[float], v: list[float], u: list[float], k: list[float]) -> list[float]:
    return spread(naive_gae(r, v[::NUM_TOKENS], 0.99, 1.0))


def naive_bilevel_gae(r: list[float], v: list[float], u: list[float], k: list[float]) -> list[float]:
    advantages = []
    for t, turn in enumerate(naive_gae(r, u, 0.95, 1.0)):
        inside = slice(t * NUM_TOKENS, (t + 1) * NUM_TOKENS)
        rewards = k[inside]
        rewards[-1] += u[t] + turn
        advantages += naive_gae(rewards, v[inside], 1.0, 1.0)
    return advantages


NAIVE_CREDIT = {
    "token_gae": naive_token_gae,
    "step_gae": naive_step_gae,
    "turn_gae": naive_turn_gae,
    "bilevel_gae": naive_bilevel_gae,
}


def naive_loss(inputs: LossInputs) -> float:
    """The clipped token loss with its correction for older data, by a plain loop."""
    total = 0.0
    tensors = (
        inputs.policy_logprobs,
        inputs.read_proximal(),
        inputs.read_behavior(),
        inputs.read_advantages(),
    )
    lists = [tensor.tolist() for tensor in tensors]
    for policy, proximal, behavior, advantage in zip(*lists, strict=True):
        w = math.exp(policy - proximal)
        term = min(w * advantage, min(max(w, 0.8), 1.2) * advantage)
        total -= term * min(math.exp(proximal - behavior), 2.0)
    return total / len(lists[0])


def naive_times(few: Timeline, few_inputs: LossInputs) -> dict[str, float]:
    """Seconds of each naive loop, after a check that it computes what ours computes."""
    times = {}
    for name in NAIVE_CREDIT:
        ours = credit.CREDIT[name](few).advantages
        torch.testing.assert_close(ours, torch.tensor(naive_credit(name, few)), rtol=1e-3, atol=1e-3)
        times[name] = best_time(lambda n=name: naive_credit(n, few), repeats=2)  # type: ignore[misc]
    name, kwargs = LOSS_CALLS[0]
    ours = losses.LOSSES[name](few_inputs, **kwargs)[0].detach()
    torch.testing.assert_close(ours, torch.tensor(naive_loss(few_inputs)), rtol=1e-3, atol=1e-5)
    times[label_of(name, kwargs)] = best_time(lambda: naive_loss(few_inputs), repeats=2)
    return times


def label_of(name: str, kwargs: dict[str, Any]) -> str:
    return " ".join([name, *(str(value) for value in kwargs.values())])


def measure(num_trajectories: int) -> dict[str, Any]:
    timeline = make_timeline(num_trajectories)
    few = make_timeline(min(NAIVE_TRAJECTORIES, num_trajectories))
    scale = num_trajectories / few.num_trajectories
    rows: dict[str, dict[str, float]] = {}
    for name, function in credit.CREDIT.items():
        cold = best_time(lambda f=function: f(fresh(timeline)))  # type: ignore[misc]
        warm = best_time(lambda f=function: f(timeline))  # type: ignore[misc]
        rows[name] = {"fresh_s": cold, "warm_s": warm}
    white = torch.randn(timeline.num_tokens)
    rows["whiten"] = {"warm_s": best_time(lambda: credit.whiten(white))}
    inputs, few_inputs = make_inputs(timeline), make_inputs(few)
    for name, kwargs in LOSS_CALLS:
        rows[label_of(name, kwargs)] = time_loss(losses.LOSSES[name], inputs, kwargs)
    for label, seconds in naive_times(few, few_inputs).items():
        rows[label]["naive_s"] = seconds * scale
    rows |= time_value_losses(timeline)
    return {"batch": describe_batch(timeline), "machine": describe_machine(), "rows": rows}


def time_loss(function: Callable[..., Any], inputs: LossInputs, kwargs: dict[str, Any]) -> dict[str, float]:
    """Including the checks that building LossInputs makes, as a trainer pays for them every time."""

    def forward() -> Tensor:
        loss: Tensor = function(LossInputs(**vars_of(inputs)), **kwargs)[0]
        return loss

    return {"warm_s": best_time(forward), "backward_s": best_time(lambda: forward().backward())}


def vars_of(inputs: LossInputs) -> dict[str, Any]:
    return {field.name: getattr(inputs, field.name) for field in fields(inputs)}


def time_value_losses(timeline: Timeline) -> dict[str, dict[str, float]]:
    values = torch.rand(timeline.num_tokens, requires_grad=True)
    targets = torch.rand(timeline.num_tokens)
    calls: dict[str, Callable[[], Any]] = {
        "value_mse": lambda: losses.value_mse(values, targets),
        "value_mse clip": lambda: losses.value_mse(values, targets, clip=0.2, old_values=targets),
        "value_bce": lambda: losses.value_bce(values, targets),
        "entropy_bonus": lambda: losses.entropy_bonus(values, timeline),
    }
    return {
        name: {"warm_s": best_time(call), "backward_s": best_time(lambda c=call: c()[0].backward())}  # type: ignore[misc]
        for name, call in calls.items()
    }


def describe_batch(timeline: Timeline) -> dict[str, Any]:
    return {
        "trajectories": timeline.num_trajectories,
        "steps": timeline.num_steps,
        "action_tokens": timeline.num_tokens,
        "dtype": "float32",
        "naive_trajectories": min(NAIVE_TRAJECTORIES, timeline.num_trajectories),
    }


def describe_machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def show(result: dict[str, Any]) -> None:
    batch, machine = result["batch"], result["machine"]
    table = Table(
        title=f"{batch['action_tokens']:,} action tokens, {machine['threads']} thread, {machine['cpu']} (ms)"
    )
    for column in ("function", "fresh", "warm", "with backward", "naive", "naive / ours"):
        table.add_column(column, justify="left" if column == "function" else "right")
    for name, row in result["rows"].items():
        times = [row.get(key) for key in ("fresh_s", "warm_s", "backward_s", "naive_s")]
        cells = ["" if seconds is None else f"{1e3 * seconds:,.1f}" for seconds in times]
        ours = row.get("fresh_s", row["warm_s"])
        table.add_row(name, *cells, f"{row['naive_s'] / ours:,.0f}×" if "naive_s" in row else "")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="10 trajectories, for a quick look")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(10 if arguments.small else 1000)
    show(result)
    if not arguments.small:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
