"""Packing steps with images against replaying them: one training step, forward and backward.

Siblings of one task in visual Sokoban play append-only dialogues: a system prompt, then turn after turn a
image of the room and an answer. All siblings see the first image; the later ones are their own, save
where two rooms happen to be equal. Both sides run the same model, steps and loss:

* packed: one prefix tree; an image's tokens are in it once per prefix, and each distinct image is
  encoded once;
* replay: whole sequences, equal lengths together, each distinct image of a block encoded once.

Beside them stands what a trainer without either computes: every step alone, with all its images.

    python benchmarks/packing_images.py            # the tiny model on the CPU
    python benchmarks/packing_images.py --quick    # few siblings and turns, one repetition
    python benchmarks/packing_images.py --device cuda --model PATH --dtype bfloat16

Times include packing and everything else from the list of steps on; pixels are prepared anew each time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.core import Step, TokenAction, TokenState
from stepwell.envs import make_env
from stepwell.packing import Packed, backward, pack
from stepwell.policies import VLMPolicy
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart, load_tokenizer

RESULTS = Path(__file__).parent / "results"


def played(policy: VLMPolicy, siblings: int, turns: int, answer_tokens: int) -> list[Step]:
    """The steps of `siblings` random walks through one room."""
    assert policy.source is not None
    tokenizer = load_tokenizer(policy.source)
    renderer = Renderer(tokenizer, image_format=policy.image_format, image_store=policy.image_store)
    words = np.random.default_rng(0)
    steps = []
    for sibling in range(siblings):
        env = make_env("sokoban", {"observation": "image", "max_turns": turns + 1})
        draw = random.Random(sibling)
        observation, _ = env.reset(seed=7)
        conversation = None
        for _ in range(turns):
            name = policy.image_store.add(observation.images[0])
            shown = Message.user([ImagePart(name), TextPart("What do you see, and where do you go?")])
            if conversation is None:
                conversation = Conversation(renderer, [Message.system("Push the box home."), shown])
            else:
                conversation.add(shown)
            ids = [*words.integers(0, 256, answer_tokens).tolist(), renderer.end_ids[0]]
            action = TokenAction(np.array(ids, dtype=np.int32))
            steps.append(Step(conversation.state, action, behavior_logprobs=np.zeros(0, dtype=np.float32)))
            conversation.record_action(ids)
            observation, *_ = env.step([draw.choice(env.description.actions.names)])
    return steps


def measure(policy: VLMPolicy, steps: list[Step], repetitions: int) -> dict[str, Any]:
    """Median seconds of a training step, what it computed, its logprobs and its gradients."""
    seconds = []
    for _ in range(repetitions + 1):
        for parameter in policy.parameters():
            parameter.grad = None
        _wait(policy.device)
        began = time.perf_counter()
        packed = pack(steps)
        _, _, outputs = backward(policy, packed, lambda outputs: (outputs.logprobs.mean(), {}))
        _wait(policy.device)
        seconds.append(time.perf_counter() - began)
    ready = policy.prepare_batch(pack(steps))
    return {
        "seconds": statistics.median(seconds[1:]),
        "tokens": ready.num_tokens,
        "pictures": sum(len(microbatch.cache["image_places"].names) for microbatch in ready.microbatches),
        "logprobs": outputs.logprobs,
        "gradient": torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def as_shown(packed: Packed, steps: list[Step]) -> dict[str, int]:
    """What every step alone would take."""
    states = [step.state for step in steps if isinstance(step.state, TokenState)]
    return {"tokens": packed.num_step_tokens, "pictures": sum(len(state.images) for state in states)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", default="tiny-vlm-0.5m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    siblings, turns, repetitions = (4, 3, 1) if arguments.quick else (8, 6, 5)
    options = {"dtype": arguments.dtype, "device": arguments.device}
    policies: dict[str, Callable[[], VLMPolicy]] = {
        "packed": lambda: VLMPolicy.from_pretrained(arguments.model, attention="tree", **options),
        "replay": lambda: VLMPolicy.from_pretrained(arguments.model, attention="replay", **options),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, opened in policies.items():
        policy = opened()
        steps = played(policy, siblings, turns, arguments.answer_tokens)
        found[name] = measure(policy, steps, repetitions)
    found["as shown"] = as_shown(pack(steps), steps)
    gap = float((found["packed"].pop("logprobs") - found["replay"].pop("logprobs")).abs().max())
    ours, theirs = found["packed"].pop("gradient"), found["replay"].pop("gradient")
    gradient_gap = float((ours - theirs).abs().max() / theirs.abs().max())
    ratios = {
        kind: found["replay"][kind] / found["packed"][kind] for kind in ("seconds", "tokens", "pictures")
    }
    print(
        f"{len(steps)} steps of {siblings} siblings x {turns} turns, {arguments.model} on {arguments.device}"
    )
    for name, row in found.items():
        spent = f"{row['seconds']:.3f} s" if "seconds" in row else "-"
        print(f"{name:9} {row['tokens']:7} tokens {row['pictures']:5} pictures encoded   {spent}")
    print("replay / packed:", ", ".join(f"{kind} {value:.2f}" for kind, value in ratios.items()))
    print(f"largest gap: logprobs {gap:.1e}, gradient {gradient_gap:.1e} of its largest element")
    assert gap < (0.1 if arguments.dtype == "bfloat16" else 1e-3), "packing must not change logprobs"
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    setting = {"siblings": siblings, "turns": turns, "model": arguments.model, **options}
    result = {**machine, **setting, "rows": found, "ratios": ratios, "logprob_gap": gap}
    out = arguments.out or RESULTS / f"packing_images_{arguments.device.partition(':')[0]}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({**result, "gradient_gap": gradient_gap}, indent=1) + "\n")


if __name__ == "__main__":
    main()
