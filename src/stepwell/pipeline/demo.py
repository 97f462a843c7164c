"""The demo: an agent learns to cross FrozenLake while its baseline learns beside it.

    this process    warm start ─► StepPO for a few minutes ─► before and after on held-out boards
    a second one    the same warm start ─► more imitation of the same demonstrations, as long
    at the end      the best blind plan, random play ─► summary and report

Each process has one core. The second one stops when the first has finished training, so that both
have had the same wall time, and plays the same held-out boards with the same decoding.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.envs.baselines import best_blind_plan, random_play
from stepwell.envs.tasks import draw_tasks
from stepwell.monitors.files import write_whole
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, read_summary, write_summary
from stepwell.pipeline.evaluation import evaluate, held_out_tasks, wilson
from stepwell.pipeline.parts import HELD_OUT_SEED, Parts
from stepwell.pipeline.run import new_folder, train
from stepwell.training import imitate

NUM_BLIND_BOARDS = 10_000
NUM_RANDOM_ROUNDS = 8
SFT_FILE = "sft.json"
_JOIN_S = 60.0
_MANY = 1_000_000


def run_demo(seed: int = 0, folder: Path = Path("runs"), overrides: tuple[str, ...] = ()) -> Path:
    """Train, compare, report; prints the result as its last line and returns the run's folder."""
    config = load_config("demo", [f"seed={seed}", f"folder={folder}", *overrides])
    run = new_folder(config)
    config = config.model_copy(update={"name": run.name})
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    beside = context.Process(
        target=_imitate_beside, args=(config, run.parent / f".{run.name}-{SFT_FILE}", done)
    )
    beside.start()
    try:
        train(config)
    finally:
        done.set()
        beside.join(_JOIN_S)
        if beside.is_alive():
            beside.terminate()
    scores = [*_without_looking(config), *_sft_score(run.parent / f".{run.name}-{SFT_FILE}")]
    return _told(run, scores)


def _told(run: Path, scores: list[Score]) -> Path:
    summary = read_summary(run)
    assert summary is not None and summary.success_before is not None and summary.success_after is not None
    summary.baselines = scores
    summary.command = f"stepwell demo --seed {summary.seed}"
    write_summary(run, summary)
    report = write_report(run)
    for score in scores:
        note = f"  ({score.note})" if score.note else ""
        print(f"{score.name:<28} {score.success:.2f}{note}")
    print(
        f"held-out success {summary.success_before:.2f} -> {summary.success_after:.2f}  report {report}",
        flush=True,
    )
    return run


def _without_looking(config: RunConfig) -> list[Score]:
    """What the best fixed plan and random moves solve of the same boards."""
    name, options, share = config.env.name, config.env.options, config.env.held_out_share
    held_out = draw_tasks(name, options, Split.HELD_OUT, config.eval.num_tasks, HELD_OUT_SEED, share)
    boards = draw_tasks(name, options, Split.TRAIN, NUM_BLIND_BOARDS, HELD_OUT_SEED, share)
    plan = best_blind_plan(name, options, boards, held_out)
    luck = random_play(name, options, held_out * NUM_RANDOM_ROUNDS, config.seed)
    return [
        _score("blind plan", plan.success, len(held_out), f"always {', '.join(plan.actions)}"),
        _score("random play", luck, len(held_out) * NUM_RANDOM_ROUNDS, ""),
    ]


def _score(name: str, success: float, count: int, note: str) -> Score:
    low, high = wilson(round(success * count), count)
    return Score(success, low, high, count, name, note)


def _sft_score(path: Path) -> list[Score]:
    if not path.exists():
        return [Score(float("nan"), name="SFT, same wall time", note="it did not finish")]
    content: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    note = f"{content['updates']} updates in {content['wall_s']:.0f} s on the same demonstrations"
    return [_score("SFT, same wall time", content["success"], content["num_tasks"], note)]


def _imitate_beside(config: RunConfig, path: Path, done: Event) -> None:
    """Imitate the demonstrations until told to stop, then play the held-out boards."""
    import torch

    torch.set_num_threads(config.num_threads or 1)
    started = time.perf_counter()
    warm = config.warm_start
    parts = Parts(config)
    shown = parts.demonstrations(warm.num_demos, warm.noise, config.seed)
    number = 0
    for _ in imitate(parts.policy, shown, warm.model_copy(update={"epochs": _MANY}), config.seed):
        number += 1
        if done.is_set():
            break
    wall_s = time.perf_counter() - started
    parts.engine.load_weights(1, parts.policy.model_weights())
    tasks = held_out_tasks(parts)
    result = evaluate(parts, tasks, temperature=config.eval.temperature)
    content = {"success": result.success, "num_tasks": len(tasks), "updates": number, "wall_s": wall_s}
    write_whole(path, json.dumps(content))
    parts.close()
