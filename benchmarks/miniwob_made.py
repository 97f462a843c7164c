"""A tiny model imitates right clicks on made-up pages: can it find a word of the instruction on a page?

Pages are made up in the form of six click pages of MiniWoB++ (`miniwob_made_pages.py`); nearly all pages of
`click-button` and `click-widget` are different. The model learns the reply and, with a fifth of the weight,
the prompt: words that occur twice teach it to look back. What it knows is then measured in Chromium, on the
real pages:

    python benchmarks/miniwob_made.py --name h200 --device cuda --seeds 0 1 2   # 7,500 updates of 64 pages
    stepwell train miniwob-tiny policy.model=made/seed-0 name=made warm_start.num_demos=0 train.num_updates=0
    python benchmarks/miniwob.py --runs runs/made --output by_page.json

Every 500 updates it measures what is solved of 512 fresh made-up pages.
The result is results/miniwob/made_pages_NAME.json. On two cores of a CPU this takes hours.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from stepwell.policies.tiny_models import TINY_SIZES, build_tiny
from stepwell.rendering.tiny import build_tokenizer

sys.path.insert(0, str(Path(__file__).parent))  # tests import this file from the repository's root
from miniwob_made_pages import make_page
from side_by_side import RESULTS, add_result_options, run_side_by_side, write_result

HEAD = (
    "<|im_start|>system\nYour answer is one action in text.\nReply: <answer>...</answer><|im_end|>\n"
    "<|im_start|>user\n"
)
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
WIDTH = 256
NUM_PARTS = 8
PROMPT_WEIGHT = 0.2
HELD_OUT_SEED = 10**6 + 7
Rows = tuple[torch.Tensor, torch.Tensor]
"""Token ids of pages, and for each where its reply begins and ends."""


def write_reply(right: int | str) -> str:
    """The right click, as the preset's agent writes it."""
    return f'<answer>do(action="Click", element="{right}")</answer><|im_end|>'


def make_rows(seed: int, count: int) -> Rows:
    """Made-up pages as tokens, as the preset's agent would see and answer them."""
    tokenizer, rng = build_tokenizer(), random.Random(seed)
    ids, spans = np.zeros((count, WIDTH), np.int16), np.zeros((count, 2), np.int32)
    made = 0
    while made < count:
        text, right = make_page(rng)
        prompt = tokenizer.encode(HEAD + text + TAIL, add_special_tokens=False)
        whole = [*prompt, *tokenizer.encode(write_reply(right), add_special_tokens=False)]
        if len(whole) <= WIDTH:
            ids[made, : len(whole)], spans[made] = whole, (len(prompt), len(whole))
            made += 1
    return torch.from_numpy(ids), torch.from_numpy(spans)


def make_many_rows(seed: int, count: int, processes: int) -> Rows:
    """Rows from several processes, at least so many; the same ones whatever the number of processes."""
    seeds = [NUM_PARTS * seed + part for part in range(NUM_PARTS)]
    with ProcessPoolExecutor(processes) as pool:
        rows = list(pool.map(make_rows, seeds, [-(-count // NUM_PARTS)] * NUM_PARTS))
    return torch.cat([ids for ids, _ in rows]), torch.cat([spans for _, spans in rows])


class Fitting:
    """A model and its optimizer."""

    def __init__(self, args: argparse.Namespace, seed: int) -> None:
        model, self.tokenizer = build_tiny(args.model, seed)
        self.args, self.seed, self.device = args, seed, torch.device(args.device)
        self.model = model.to(self.device).train()
        self.parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in self.parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))

    def learn(self, rows: Rows, number: int) -> torch.Tensor:
        """Draw a batch and make update `number`: a hundred to warm up, the last quarter to come to rest."""
        share = number / self.args.updates
        scale = min(1.0, (number + 1) / 100) * min(1.0, max(0.02, (1 - share) / 0.25))
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.learning_rate * scale
        rng = np.random.default_rng([self.seed, number])
        loss = self.compute_loss(self.pick(rows, rng.integers(len(rows[0]), size=self.args.batch)))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()

    def compute_loss(self, rows: Rows) -> torch.Tensor:
        """Cross-entropy of the tokens, those of prompts with a smaller weight or none."""
        ids, spans = rows
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
        reply, known = mark_tokens(spans, ids.shape[1])
        weight = reply if self.args.reply_only else known * torch.where(reply > 0, 1.0, PROMPT_WEIGHT)
        losses = F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
        return (losses * weight).sum() / weight.sum()

    def pick(self, rows: Rows, places: Any) -> Rows:
        """Some rows on the device, no wider than the longest of them."""
        spans = rows[1][places]
        ids = rows[0][places, : int(spans.max())]
        return ids.to(self.device, torch.long), spans.to(self.device)

    @torch.no_grad()
    def measure_solved(self, rows: Rows) -> float:
        """The share of pages whose whole reply is the likeliest one."""
        solved = 0.0
        for start in range(0, len(rows[0]), 128):
            ids, spans = self.pick(rows, slice(start, start + 128))
            likeliest = self.model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
            is_reply = mark_tokens(spans, ids.shape[1])[0] > 0
            solved += float(((likeliest == ids[:, 1:]) | ~is_reply).all(1).sum())
        return solved / len(rows[0])


def mark_tokens(spans: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which predicted tokens are of a reply, and which are of a row at all."""
    place = torch.arange(1, width, device=spans.device)[None]
    known = (place < spans[:, 1:]).float()
    return known * (place >= spans[:, :1]), known


def train_one(args: argparse.Namespace, seed: int, output: Path) -> None:
    """Train one model and keep it; write what it solved to `output`."""
    rows, fresh = make_many_rows(seed, args.pages, args.processes), make_rows(HELD_OUT_SEED, 512)
    fitting, began, measured = Fitting(args, seed), time.perf_counter(), []
    for number in range(args.updates):
        loss = fitting.learn(rows, number)
        if (number + 1) % 500 == 0 or number + 1 == args.updates:
            row = {"update": number + 1, "loss": float(loss), "fresh": fitting.measure_solved(fresh)}
            measured.append(row | {"seconds": round(time.perf_counter() - began, 1)})
            print(f"seed {seed}: {json.dumps(measured[-1])}", flush=True)
    fitting.model.save_pretrained(args.to / f"seed-{seed}")
    fitting.tokenizer.save_pretrained(args.to / f"seed-{seed}")
    output.write_text(json.dumps({"seed": seed, "measured": measured}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("made"), help="directory for the models (made)")
    parser.add_argument("--model", choices=list(TINY_SIZES), default="tiny-1m", help="its size")
    parser.add_argument("--updates", type=int, default=7500, help="updates (7500)")
    parser.add_argument("--batch", type=int, default=64, help="pages of an update (64)")
    parser.add_argument("--pages", type=int, default=480_000, help="pages to make up (480000)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at its highest (0.001)")
    parser.add_argument("--reply-only", action="store_true", help="learn no prompts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of model, pages and batches")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=2, help="that make the pages of each seed")
    add_result_options(parser, "made_pages")
    parser.set_defaults(output=RESULTS / "miniwob")
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    outputs = [args.to / f"seed-{seed}.json" for seed in args.seeds]
    runs = run_side_by_side(train_one, [(args, seed) for seed in args.seeds], outputs)
    names = ("model", "updates", "batch", "pages", "learning_rate", "reply_only")
    summary = [{"seed": run["seed"]} | run["measured"][-1] for run in runs]
    write_result(args, "made_pages", {name: getattr(args, name) for name in names}, summary, runs)


if __name__ == "__main__":
    main()
