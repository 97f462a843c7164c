"""The demo: a courier learns to fetch a parcel and to bring it to a door.

    first     warm start ─► a fixed number of StepPO updates ─► before and after on held-out tasks
    beside    the best blind plan, random play, greedy decoding ─► summary and report
    shown     one held-out task before and after, turn by turn (`trace.py`), the scores, one line

Everything is compared on the same held-out tasks with the same decoding: sampling at temperature 1, as in
training. The report also shows greedy decoding.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.core.statistics import compute_wilson_interval
from stepwell.envs.baselines import find_blind_plan, measure_random_play
from stepwell.envs.tasks import draw_tasks
from stepwell.monitors.replays import FILE_NAME, load_replays
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import SuccessScore, describe_success, read_summary, write_summary
from stepwell.runs.build.components import HELD_OUT_SEED
from stepwell.runs.demo.trace import write_traces
from stepwell.runs.evaluation.evaluate import evaluate_run
from stepwell.runs.run import make_run_folder, raise_if_interrupted, train
from stepwell.runs.run_lock import hold_run_folder
from stepwell.training import list_checkpoints

NUM_BLIND_TASKS, BLIND_WIDTH, NUM_BLIND_SHOWN = 1000, 1000, 6
NUM_RANDOM_ROUNDS = 8


def run_demo(seed: int = 0, folder: Path = Path("runs"), overrides: tuple[str, ...] = ()) -> Path:
    """Train, compare, report; prints the result as its last line and returns the run's folder."""
    config = load_config("demo", [f"seed={seed}", f"folder={folder}", *overrides])
    run = make_run_folder(config)
    config = config.model_copy(update={"name": run.name})
    print("training (the time left is shown), then a comparison with simpler ways to play", flush=True)
    train(config)
    raise_if_interrupted(run)
    with hold_run_folder(run):
        with Console(stderr=True).status("playing the baselines"):
            scores = [*_score_blind_play(config), *_score_greedy(run, config)]
        return _finish_report(run, scores)


def _finish_report(run: Path, scores: list[SuccessScore]) -> Path:
    summary = read_summary(run)
    assert summary is not None
    summary.baselines = scores
    summary.command = f"stepwell demo --seed {summary.seed}"
    write_summary(run, summary)
    report = write_report(run)
    print(write_traces(load_replays(run / FILE_NAME)))
    for score in scores:
        note = f"  ({score.note})" if score.note else ""
        print(f"{score.name:<28} {score.success:.2f}{note}")
    print(f"{describe_success(summary)}  report {report}", flush=True)
    return run


def _score_blind_play(config: RunConfig) -> list[SuccessScore]:
    """How many of the same tasks the best fixed plan and random actions solve."""
    name, options, share = config.env.name, config.env.options, config.env.held_out_share
    held_out = draw_tasks(name, options, Split.HELD_OUT, config.eval.num_tasks, HELD_OUT_SEED, share)
    tasks = draw_tasks(name, options, Split.TRAIN, NUM_BLIND_TASKS, HELD_OUT_SEED, share)
    plan = find_blind_plan(name, options, tasks, held_out, beam_width=BLIND_WIDTH)
    shown = ", ".join(plan.actions[:NUM_BLIND_SHOWN])
    rest = len(plan.actions) - NUM_BLIND_SHOWN
    note = f"always {shown}{f' and {rest} more' if rest > 0 else ''}"
    luck = measure_random_play(name, options, held_out * NUM_RANDOM_ROUNDS, config.seed)
    return [
        _make_score("blind plan", plan.success, len(held_out), note),
        _make_score("random play", luck, len(held_out) * NUM_RANDOM_ROUNDS, ""),
    ]


def _make_score(name: str, success: float, count: int, note: str) -> SuccessScore:
    low, high = compute_wilson_interval(round(success * count), count)
    return SuccessScore(success, low, high, count, name, note)


def _score_greedy(run: Path, config: RunConfig) -> list[SuccessScore]:
    """The policy before and after, decoded greedily: shows how much of the rise is more than sharpening."""
    first, last = (list_checkpoints(run / "checkpoints")[i] for i in (0, -1))
    scores = []
    for path, name in ((first, "warm start, greedy decoding"), (last, "trained, greedy decoding")):
        result = evaluate_run(path, config, temperature=0.0).result
        scores.append(SuccessScore(result.success, *result.interval, result.num_tasks, name))
    return scores
