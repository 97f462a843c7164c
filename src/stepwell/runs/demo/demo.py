"""The demo: an agent learns to cross FrozenLake, and what it is to be compared with.

    first         each kind of work once, timed ─► how long it will take here (`demo_pace.py`)
    one core      warm start ─► a fixed number of StepPO updates ─► before and after on held-out boards
    the other     imitation of the same demonstrations, from the same first weights, just as long
    then          the best blind plan, random play, greedy decoding ─► summary and report

Whatever is compared plays the same held-out boards with the same decoding, which is sampling at
temperature 1, as in training; greedy decoding stands beside it in the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.envs.baselines import best_blind_plan, random_play
from stepwell.envs.tasks import draw_tasks
from stepwell.monitors.console import duration
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Score, describe_success, read_summary, write_summary
from stepwell.runs.build.components import HELD_OUT_SEED
from stepwell.runs.demo.imitation import ImitationBeside
from stepwell.runs.demo.pace import measure_pace
from stepwell.runs.evaluation.evaluate import evaluate_run, wilson
from stepwell.runs.run import new_folder, raise_if_interrupted, train
from stepwell.runs.run_lock import hold_run_folder
from stepwell.training import list_checkpoints

NUM_BLIND_BOARDS = 4000
NUM_RANDOM_ROUNDS = 8


def run_demo(seed: int = 0, folder: Path = Path("runs"), overrides: tuple[str, ...] = ()) -> Path:
    """Train, compare, report; prints the result as its last line and returns the run's folder."""
    config = load_config("demo", [f"seed={seed}", f"folder={folder}", *overrides])
    run = new_folder(config)
    config = config.model_copy(update={"name": run.name})
    with Console(stderr=True).status("measuring how fast this machine is"):
        expected_s = measure_pace(config).whole_s(config)
    print(f"about {duration(expected_s)} of training on this machine, then the comparison", flush=True)
    with ImitationBeside(config) as beside:
        train(config, expected_s=expected_s)
        raise_if_interrupted(run)
    with hold_run_folder(run):
        with Console(stderr=True).status("what it is to be compared with"):
            scores = [*_without_looking(config), _imitation(beside.result()), *_greedy(run, config)]
        return _told(run, scores)


def _told(run: Path, scores: list[Score]) -> Path:
    summary = read_summary(run)
    assert summary is not None
    summary.baselines = scores
    summary.command = f"stepwell demo --seed {summary.seed}"
    write_summary(run, summary)
    report = write_report(run)
    for score in scores:
        note = f"  ({score.note})" if score.note else ""
        print(f"{score.name:<28} {score.success:.2f}{note}")
    print(f"{describe_success(summary)}  report {report}", flush=True)
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


def _imitation(told: dict[str, Any]) -> Score:
    note = "{num_updates} updates on the same {num_demos} demonstrations in {wall_s:.0f} s".format(**told)
    return _score("SFT, same wall time", told["success"], told["num_tasks"], note)


def _greedy(run: Path, config: RunConfig) -> list[Score]:
    """The policy before and after, decoded greedily: how much of the rise is more than sharpening."""
    first, last = (list_checkpoints(run / "checkpoints")[i] for i in (0, -1))
    scores = []
    for path, name in ((first, "warm start, greedy decoding"), (last, "trained, greedy decoding")):
        result = evaluate_run(path, config, temperature=0.0).result
        scores.append(Score(result.success, *result.interval, result.num_tasks, name))
    return scores
