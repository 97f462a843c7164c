"""`stepwell eval`: how often a trained agent succeeds on held-out tasks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.cli.command import RUN_FILE, add_command, add_settings, read_settings

_EXAMPLES = (
    ("stepwell eval runs/NAME", "the best checkpoint of a run, with the run's own settings"),
    ("stepwell eval runs/NAME --num-tasks 512 --samples 8 --temperature 1", "pass@1 to pass@8"),
    ("stepwell eval runs/NAME/checkpoints/update-000050", "one checkpoint"),
    ("stepwell eval smollm2-135m sokoban", "a model as it is, on a preset's tasks"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "eval",
        run,
        summary="measure an agent on held-out tasks",
        description="Prints success with its 95 % confidence interval, pass@k, reward and turns.",
        examples=_EXAMPLES,
    )
    parser.add_argument("agent", metavar="RUN | MODEL", help="a run folder, a checkpoint, or a model")
    add_settings(parser)
    parser.add_argument("--num-tasks", type=int, metavar="N", help="distinct held-out tasks")
    parser.add_argument("--samples", type=int, metavar="K", help="attempts per task; pass@k up to K")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="S", help="of tasks and sampling")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    config = read_settings([*args.settings, *_flags(args)], default=settings_of_agent(args.agent))
    from stepwell.pipeline.evaluation import evaluate_run

    wanted = config.eval
    report = evaluate_run(
        args.agent,
        config,
        num_tasks=wanted.num_tasks,
        samples_per_task=wanted.samples_per_task,
        temperature=wanted.temperature,
        seed=config.seed,
    )
    print(report.to_json() if args.json else report.table())
    return 0


def settings_of_agent(agent: str) -> Path | None:
    """The run that a run folder or one of its checkpoints belongs to; None for any other model."""
    folder = Path(agent).expanduser()
    candidates = (folder, *folder.absolute().parents[:2])
    return next((path for path in candidates if (path / RUN_FILE).is_file()), None)


def _flags(args: argparse.Namespace) -> list[str]:
    """Options as the settings they stand for, so that they are checked and told of in one voice."""
    named = {
        "eval.num_tasks": args.num_tasks,
        "eval.samples_per_task": args.samples,
        "eval.temperature": args.temperature,
        "seed": args.seed,
    }
    return [f"{key}={value}" for key, value in named.items() if value is not None]
