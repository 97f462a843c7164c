"""GRPO with TRL and with Stepwell: the same model, boards, prompts and settings, one after the other.

Both start from one model (`tiny-0.3m` after a short warm start) and make the same number of
updates on the same boards in the same order: as many prompts per update and trajectories per
prompt, one optimizer step per rollout, AdamW with the same rates, the same loss (token ratios,
mean over trajectories, no KL), the same advantages, and 1 for a success and 0 otherwise as reward.
(With the environment's own points, where a move costs 0.1, our side fell silent within three updates:
among failures, saying nothing costs least. Empty replies would then be all that is timed.) Environments,
prompts and the reading of replies are Stepwell's on both sides; sampling, credit, loss and
optimizer are each side's own. Afterwards both models are measured by Stepwell on the same held-out
boards, greedily.

    one turn       a plan of up to 4 moves; TRL generates by itself and asks a reward function
    three turns    up to 3 moves each; TRL through its `rollout_func`

TRL runs in `.venvs/trl`, which is made on first use (`peer_trl/constraints.txt`). Its settings
are the fastest found for a CPU (`peer_trl/trl_worker.py`): no logging, no checkpoints, float32, no
gradient checkpointing, passes of 64 trajectories; `generate`, because TRL's continuous batching
took about 30 times its CPU time here. The first update of each is left out of the speed.

    python benchmarks/peer_trl.py             # about six minutes; the table and results/peer_trl.json
    python benchmarks/peer_trl.py --quick     # two updates of each, to see that it works
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKERS = Path(__file__).resolve().parent / "peer_trl"
RESULT = Path(__file__).resolve().parent / "results" / "peer_trl.json"
VENV = ROOT / ".venvs" / "trl"
TRL = "trl==1.16.0"
TORCH = "torch==2.13.0"
LAKE = {"size": 4, "hole_rate": 0.2, "min_actions": 2}
SETUPS: dict[str, tuple[dict[str, Any], int]] = {  # options of the environment, updates
    "one turn": ({**LAKE, "max_turns": 1, "max_actions_per_turn": 4}, 40),
    "three turns": ({**LAKE, "max_turns": 3, "max_actions_per_turn": 3}, 25),
}
NUM_HELD_OUT = 512
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two small updates of each; nothing is written")
    parser.add_argument("--setup", choices=[*SETUPS], help="only this one; nothing is written")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the CPU, for both sides")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    make_environment()
    result = {"machine": machine(args.threads), "versions": versions(), "setups": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in [args.setup] if args.setup else SETUPS:
            result["setups"].append(compare(name, Path(folder), args.threads, args.quick))
    show(result)
    if not (args.quick or args.setup or args.no_write):
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


# --- TRL's environment -----------------------------------------------------------------------


def make_environment() -> None:
    """A virtual environment with TRL, made once and again when its constraints change."""
    constraints = WORKERS / "constraints.txt"
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == constraints.read_text():
        return
    print(f"making {VENV.relative_to(ROOT)} with {TRL} (once)", flush=True)
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for package in (TORCH, TRL):  # torch first and alone, so that nothing pulls another build
        done = subprocess.run([*pip, "-c", str(constraints), package], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"cannot install {package} into {VENV.relative_to(ROOT)}:\n{done.stderr[-2000:]}"
            )
    stamp.write_text(constraints.read_text())


def versions() -> dict[str, str]:
    """Of what runs on either side."""
    names = "trl", "torch", "transformers"
    code = f"from importlib.metadata import version; print(*(version(n) for n in {names}))"
    told = subprocess.run([VENV / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    theirs = dict(zip(names, told.stdout.split(), strict=True))
    ours = {name: version(name) for name in ("stepwell", "torch", "transformers")}
    return {f"trl side: {k}": v for k, v in theirs.items()} | {f"our side: {k}": v for k, v in ours.items()}


def machine(num_threads: int) -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {num_threads} threads, "
        f"Python {platform.python_version()}"
    )


# --- one comparison --------------------------------------------------------------------------


def compare(name: str, folder: Path, num_threads: int, quick: bool) -> dict[str, Any]:
    """Warm start, then TRL, then ours, then both measured."""
    import torch

    torch.set_num_threads(num_threads)
    options, num_updates = SETUPS[name]
    model = folder / f"{name} start"
    num_demos, num_prompts, num_held_out = (640, 4, 64) if quick else (4096, 16, NUM_HELD_OUT)
    num_updates = 2 if quick else num_updates
    print(f"{name}: warm start", flush=True)
    warm_start(options, num_demos, model)
    rows, before = {}, evaluate(model, options, num_held_out)
    for side in ("TRL", "Stepwell"):
        out = folder / f"{name} {side}"
        out.mkdir()
        job = write_job(out, model, options, num_updates, num_prompts, num_threads)
        print(f"{name}: {side}, {num_updates} updates", flush=True)
        load = round(
            os.getloadavg()[0], 1
        )  # of the machine; other work would slow one side and not the other
        run_worker(side, out / "job.json", num_threads)
        clock = json.loads((out / "clock.json").read_text())
        after = evaluate(out / "model", options, num_held_out)
        rows[side] = measured(clock, job) | {"success_after": after, "load_at_start": load}
    ratio = rows["Stepwell"]["updates_per_min"] / rows["TRL"]["updates_per_min"]
    settings = {key: value for key, value in job.items() if key not in ("tasks", "model", "out")}
    return {
        "name": name,
        "settings": settings,
        "success_before": before,
        "times_as_fast": round(ratio, 2),
    } | {"rows": rows}


def config_of(options: dict[str, Any], model: Path | str, **tables: Any) -> Any:
    from stepwell.config.run import RunConfig

    engine = {"max_batch_size": 256, "num_slots": 256, "max_length": 600, "prefill_tokens": 32768}
    return RunConfig.model_validate(
        {
            "seed": SEED,
            "env": {"name": "frozenlake", "options": options},
            "policy": {"model": str(model)},
            "engine": engine,
            "sampling": {"max_tokens": 12},
            "recipe": {"name": "grpo", "kl_coef": 0.0},
            "train": {"tasks_per_update": 256, "group_size": 1},
            **tables,
        }
    )


def warm_start(options: dict[str, Any], num_demos: int, out: Path) -> None:
    """The model both sides start from: it knows the form of a reply, and some of the task."""
    from stepwell.runs.build.components import Components
    from stepwell.training import imitate

    optimizer = {"kind": "muon", "learning_rate": 3e-3, "muon_learning_rate": 0.01}
    warm = {"num_demos": num_demos, "noise": 0.3, "batch_size": 64, "optimizer": optimizer}
    config = config_of(options, "tiny-0.3m", warm_start=warm)
    components = Components(config)
    shown = components.play_demonstrations(num_demos, config.warm_start.noise, SEED)
    for _ in imitate(components.policy, shown, config.warm_start, SEED):
        pass
    components.policy.save_pretrained(out)
    components.close()


def evaluate(model: Path, options: dict[str, Any], num_tasks: int) -> dict[str, float]:
    """Greedy success on held-out boards, with its 95 % interval, by our engine."""
    from stepwell.runs.build.components import Components
    from stepwell.runs.evaluation.held_out import evaluate as play

    components = Components(config_of(options, model))
    result = play(components, components.list_held_out_tasks(num_tasks), temperature=0.0)
    components.close()
    low, high = result.interval
    return {"success": round(result.success, 3), "low": round(low, 3), "high": round(high, 3)}


def write_job(
    out: Path, model: Path, options: dict[str, Any], num_updates: int, num_prompts: int, num_threads: int
) -> dict[str, Any]:
    """What a worker is told (see `peer_trl/job.py`)."""
    from stepwell.core import Split
    from stepwell.envs import draw_tasks

    tasks = draw_tasks("frozenlake", options, Split.TRAIN, num_updates * num_prompts, SEED + 1)
    job = {
        "model": str(model),
        "out": str(out),
        "options": options,
        "tasks": [{"content": task.content, "seed": task.seed} for task in tasks],
        "num_updates": num_updates,
        "prompts_per_update": num_prompts,
        "group_size": 8,
        "max_tokens": 12,
        "learning_rate": 1e-3,
        "beta2": 0.99,
        "grad_clip": 1.0,
        "std_eps": 1e-4,
        "num_threads": num_threads,
        "seed": SEED,
    }
    (out / "job.json").write_text(json.dumps(job))
    return job


def run_worker(side: str, job: Path, num_threads: int) -> None:
    python, script = {
        "TRL": (str(VENV / "bin" / "python"), "trl_worker.py"),
        "Stepwell": (sys.executable, "ours_worker.py"),
    }[side]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": str(num_threads)}
    done = subprocess.run([python, WORKERS / script, job], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")


def measured(clock: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Speed without the first update, and where the time of an update goes."""
    ends = clock["ends"]
    seconds = (ends[-1] - ends[0]) / (len(ends) - 1)
    size = job["prompts_per_update"] * job["group_size"]
    return {
        "updates_per_min": round(60 / seconds, 1),
        "trajectories_per_s": round(size / seconds, 1),
        "seconds_per_update": {name: round(s / len(ends), 3) for name, s in clock["parts"].items()},
        "tokens_per_trajectory": round(clock["num_tokens"] / (len(ends) * size), 1),
        "train_success": [round(share, 3) for share in clock["successes"]],
    }


# --- the table -------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"GRPO, {result['machine']}")
    for column in (
        "setup",
        "with",
        "updates/min",
        "trajectories/s",
        "seconds of an update",
        "held-out success",
    ):
        table.add_column(column)
    for setup in result["setups"]:
        for side, row in setup["rows"].items():
            spent = ", ".join(f"{name} {s:.2f}" for name, s in row["seconds_per_update"].items())
            success = f"{setup['success_before']['success']:.3f} -> {row['success_after']['success']:.3f}"
            speed = f"{row['updates_per_min']:.1f}", f"{row['trajectories_per_s']:.0f}"
            table.add_row(setup["name"], side, *speed, spent, success)
    console = Console()
    console.print(table)
    for setup in result["setups"]:
        console.print(
            f"{setup['name']}: Stepwell makes {setup['times_as_fast']:.1f} times as many updates per minute"
        )


if __name__ == "__main__":
    main()
