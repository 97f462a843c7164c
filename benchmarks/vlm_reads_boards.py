"""A tiny vision-language model learns to read images of boards, on one core, in minutes.

Images of FrozenLake (4 x 4) and Sokoban (6 x 6) boards, drawn by the environments themselves at 32 pixels
per tile; the model writes the board down in symbols, says where things are (row and column of the player
and the goal; of the player, the box and the target) and which action comes first on a shortest way. It
starts from random weights and is trained by supervised learning on distinct boards, with packing; it is
judged on boards of the held-out split, none of which it has seen (splits are by content), by what it says
when decoding greedily.

By default the encoder and the projector keep their random weights and the decoder alone is trained: random
eyes tell tiles apart already, and what they show stays the same while the decoder learns to read it.

A board counts as read when every symbol and every coordinate is right, and the action as right when it
begins a shortest solution, whichever that is.

    python benchmarks/vlm_reads_boards.py --quick                # both environments, minutes on one core
    python benchmarks/vlm_reads_boards.py                        # more updates
    python benchmarks/vlm_reads_boards.py --train-vision all     # everything is trained

The claim: more than 0.9 of held-out boards are read, in either environment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.config.training import OptimizerConfig
from stepwell.core import Split, StateForm, Step, TokenAction, TokenState
from stepwell.envs import Env, list_distinct_tasks, make_env
from stepwell.packing import backward, pack
from stepwell.policies import VLMPolicy, resolve_model
from stepwell.policies.forward import compute_actor_rows
from stepwell.rendering import ImagePart, Message, Renderer, TextPart, load_tokenizer
from stepwell.runs.build.vision import freeze_vision
from stepwell.training.optimizer import Optimizer

WORLDS = {"frozenlake": ("player", "goal"), "sokoban": ("player", "boxes", "targets")}
REQUIRED = 0.9
BATCH = 32
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Board:
    """An image's prompt, what is to be said about it, and every action that begins a shortest way."""

    state: TokenState
    answer: str
    actions: tuple[str, ...]


def boards(world: str, split: Split, renderer: Renderer, seed: int) -> Iterator[Board]:
    """Distinct boards of a split, their images added to the renderer's."""
    env = make_env(world, {"observation": "image"})
    for task in list_distinct_tasks(world, {}, split, seed):
        observation, _ = env.reset(seed=0, options={"task": task})
        name = renderer.image_store.add(observation.images[0])
        asked = Message.user([ImagePart(name), TextPart(f"{world}: where is what, and what is next?")])
        states = env.state()
        found = json.loads(states[StateForm.STRUCTURED])
        said = []
        for thing in WORLDS[world]:
            place = found[thing]
            row, column = place[0] if isinstance(place[0], list) else place
            said.append(f"{thing} {row} {column}")
        actions = first_actions(env, world, task)
        answer = f"{states[StateForm.SYMBOLIC]}\n{', '.join(said)}. {actions[0]}"
        yield Board(renderer.start([asked]).state, answer, actions)


def first_actions(env: Env, world: str, task: Any) -> tuple[str, ...]:
    """Every action that begins a shortest solution, the oracle's first."""
    way = env.oracle()
    good = [way[0]]
    for action in env.description.actions.names:
        env.reset(seed=0, options={"task": task})
        env.step([action])
        rest = env.oracle() if len(way) > 1 else []
        if action != way[0] and len(way) > 1 and 0 < len(rest) < len(way):
            good.append(action)
    return tuple(good)


class Reader:
    """A policy that answers about boards, and how it is trained and judged."""

    def __init__(
        self, model: str, world: str, trained: Any, rates: tuple[float, float], seed: int, device: str
    ) -> None:
        self.policy = VLMPolicy.from_pretrained(resolve_model(model, seed=seed), device=device)
        freeze_vision(self.policy, trained)
        assert self.policy.source is not None
        tokenizer = load_tokenizer(self.policy.source)
        self.renderer = Renderer(
            tokenizer, image_format=self.policy.image_format, image_store=self.policy.image_store
        )
        self.world = world
        settings = OptimizerConfig(kind="muon", learning_rate=rates[0], muon_learning_rate=rates[1])
        self.optimizer = Optimizer(self.policy.named_parameters(), settings)

    def boards(self, split: Split, count: int) -> list[Board]:
        return list(itertools.islice(boards(self.world, split, self.renderer, seed=0), count))

    def update(self, shown: list[Board], share: float) -> float:
        """One step of supervised learning at this share of the rate; gives the mean loss per token."""
        self.optimizer.set_rate(share)
        self.optimizer.zero_grad()
        steps = [self._step(board) for board in shown]
        loss, _, _ = backward(self.policy, pack(steps), lambda outputs: (-outputs.logprobs.mean(), {}))
        torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, 1.0)
        self.optimizer.step()
        return float(loss)

    def judged(self, unseen: list[Board]) -> tuple[float, float, float]:
        """The share of tokens foreseen, of boards read, and of first actions that are right.

        Greedy decoding says the answer exactly when the likeliest token at every place is the answer's.
        """
        num_read = num_right = 0
        shares = []
        for start in range(0, len(unseen), BATCH):
            group = unseen[start : start + BATCH]
            for board, tokens in zip(group, self._likeliest(group), strict=True):
                answer = self._answer(board)
                shares.append(np.mean([a == b for a, b in zip(tokens, answer, strict=True)]))
                num_read += tokens[:-2] == answer[:-2]
                num_right += self.renderer.template.decode(tokens[-2:-1]).strip() in board.actions
        return float(np.mean(shares)), num_read / len(unseen), num_right / len(unseen)

    def _likeliest(self, group: list[Board]) -> list[list[int]]:
        packed = self.policy.prepare_batch(pack([self._step(board) for board in group]))
        (microbatch,) = packed.microbatches
        with torch.no_grad():
            rows, _ = compute_actor_rows(
                self.policy.model, self.policy.get_inputs(microbatch), with_hidden=False
            )
        best = rows.argmax(-1)[torch.from_numpy(microbatch.logit_rows)]
        return [part.tolist() for part in best.split(packed.action_lengths)]

    def _answer(self, board: Board) -> list[int]:
        return [*self.renderer.template.encode(board.answer), self.renderer.end_ids[0]]

    def _step(self, board: Board) -> Step:
        ids = TokenAction(np.array(self._answer(board), dtype=np.int32))
        return Step(board.state, ids, behavior_logprobs=np.zeros(0, dtype=np.float32))


def learn(world: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on boards of one environment and judge on unseen ones, with the curve."""
    rates = (arguments.learning_rate, arguments.muon_learning_rate)
    reader = Reader(arguments.model, world, arguments.train_vision, rates, arguments.seed, arguments.device)
    began = time.perf_counter()
    seen = reader.boards(Split.TRAIN, arguments.boards)
    unseen = reader.boards(Split.HELD_OUT, arguments.held_out)
    drawn = time.perf_counter() - began
    order = np.random.default_rng(arguments.seed)
    curve, training = [], 0.0
    for number in range(1, arguments.updates + 1):
        began = time.process_time()
        shown = [seen[i] for i in order.choice(len(seen), BATCH, replace=False)]
        share = min(1.0, number / 20) * (0.5 + 0.5 * math.cos(math.pi * number / arguments.updates))
        loss = reader.update(shown, share)
        training += time.process_time() - began
        if number % arguments.every == 0 or number == arguments.updates:
            tokens, read, right = reader.judged(unseen)
            point = {"update": number, "loss": loss, "tokens": tokens, "read": read, "action": right}
            curve.append(point | {"cpu_s": training})
            print(f"{world:10}", *(f"{name} {value:.3f}" for name, value in curve[-1].items()), flush=True)
    return {"train_boards": len(seen), "held_out_boards": len(unseen), "drawing_s": drawn, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer updates")
    parser.add_argument("--world", choices=tuple(WORLDS), action="append", help="only this world")
    parser.add_argument("--model", default="tiny-vlm-0.5m")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--boards", type=int, default=3000)
    parser.add_argument("--held-out", type=int, default=400)
    parser.add_argument("--train-vision", choices=("all", "projector", "none"), default="none")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="of AdamW (embeddings, norms)")
    parser.add_argument("--muon-learning-rate", type=float, default=0.01, help="of hidden matrices")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "vlm_reads_boards.json")
    arguments = parser.parse_args()
    arguments.updates = arguments.updates or (300 if arguments.quick else 1000)
    torch.set_num_threads(1)
    found = {world: learn(world, arguments) for world in arguments.world or WORLDS}
    for world, result in found.items():
        last = result["curve"][-1]
        count = result["held_out_boards"]
        print(f"{world}: {last['read']:.3f} of {count} unseen boards read (claim: > {REQUIRED})")
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps({**machine, "settings": settings, "worlds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
