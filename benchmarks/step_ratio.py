"""How far one update moves a decision, by unit of the ratio and by the length of a step.

    python benchmarks/step_ratio.py      # a minute; writes results/step_ratio.json

A bandit that is as small as the question: each of 16 states wants one of five words. A step is that word and
then filler, words that are nearly certain, as in a reply that thinks before and after it decides. One update
is made of 256 such steps with a noisy reward: 8 minibatches, 2 passes, Adam, `ppo_loss` with the mean inside
each step. A ratio by step is the geometric mean over the step, so filler dilutes what the decision does.

`clipped` is the share of terms that were cut, `decisions` the share of decisions whose own ratio ended
outside 0.8 to 1.2, `kl` that of the decision alone, all as means over updates with other seeds.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from stepwell.algos import LossInputs, Timeline, losses

RESULT = Path(__file__).parent / "results" / "step_ratio.json"
NUM_STATES, NUM_WORDS, NUM_STEPS = 16, 5, 256
MINIBATCHES, PASSES, RATE, NOISE, SURE = 8, 2, 0.05, 0.5, 5.0
LENGTHS = (1, 6, 24, 73, 200)
USUAL = 0.2


def make_update(length: int, ratio: str, clip: float | None, seed: int) -> dict[str, float]:
    """One update from a fresh start; what it did to the decisions."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(NUM_STATES, length, NUM_WORDS, dtype=torch.float64)
    logits[:, 1:, 0] = SURE
    before = logits.log_softmax(-1)
    logits.requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=RATE)
    states = torch.randint(NUM_STATES, (NUM_STEPS,), generator=generator)
    words = torch.multinomial(before[states].exp().flatten(0, 1), 1, generator=generator)
    words = words.view(NUM_STEPS, length, 1)

    def read_logprobs(chosen: Tensor) -> Tensor:
        return logits.log_softmax(-1)[states[chosen]].gather(-1, words[chosen]).squeeze(-1)

    old = read_logprobs(torch.arange(NUM_STEPS)).detach()
    is_right = words[:, 0, 0] == states % NUM_WORDS
    rewards = is_right.double() + NOISE * torch.randn(NUM_STEPS, generator=generator, dtype=torch.float64)
    advantages = (rewards - rewards.mean()) / rewards.std()
    low, high = (1.0, 1e9) if clip is None else (clip, clip)
    shares = []
    for part in list(torch.randperm(NUM_STEPS, generator=generator).chunk(MINIBATCHES)) * PASSES:
        timeline = Timeline.from_lists(
            rewards=[[0.0]] * len(part), token_values=[[[0.0] * length]] * len(part)
        )
        credit = advantages[part].repeat_interleave(length)
        inputs = LossInputs(timeline, read_logprobs(part).flatten(), old[part].flatten(), credit)
        loss, metrics = losses.ppo_loss(
            inputs, ratio=ratio, clip_low=low, clip_high=high, aggregate="step_mean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares.append(float(metrics["clip_fraction"]))
    with torch.no_grad():
        ratios = (read_logprobs(torch.arange(NUM_STEPS)) - old)[:, 0].exp()
        first, last = before[:, 0], logits[:, 0].log_softmax(-1)
    return {
        "clipped": fmean(shares),
        "decisions": float(((ratios - 1).abs() > USUAL).double().mean()),
        "kl": float((first.exp() * (first - last)).sum(-1).mean()),
    }


def measure(num_seeds: int) -> list[dict[str, Any]]:
    """A row for each length, unit and clip."""
    rows = []
    for length in LENGTHS:
        for ratio, clip in (("step", USUAL), ("token", USUAL), ("step", USUAL / length), ("token", None)):
            found = [make_update(length, ratio, clip, seed) for seed in range(num_seeds)]
            means = {name: round(fmean(one[name] for one in found), 4) for name in found[0]}
            rows.append({"length": length, "ratio": ratio, "clip": clip and round(clip, 4), **means})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="How far one update moves a decision.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
    content = {"seeds": args.seeds, "machine": machine, "rows": measure(args.seeds)}
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
