"""`stepwell sft`: train a model on chats before reinforcement learning."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.cli.command import add_command

_EXAMPLES = (
    ("stepwell sft tiny-1m chats.jsonl --to warm", "train on the assistant's turns"),
    ("stepwell train frozenlake policy.model=warm", "continue from there"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "sft",
        run,
        summary="train a model on chats, before reinforcement learning",
        description='FILE holds one chat per row: {"messages": [...], "tools": [...]} in OpenAI\'s form '
        "(JSONL, JSON, Parquet or a data set). Only the assistant's turns are learnt.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a built-in model, a Hugging Face directory or a hub id"
    )
    parser.add_argument("file", metavar="FILE", help="the file with the chats")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="directory for the model")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the chats (3)")
    parser.add_argument("--batch-size", type=int, default=8, help="chats per update (8)")
    parser.add_argument("--learning-rate", type=float, default=2e-5, help="learning rate of AdamW (2e-5)")
    parser.add_argument("--max-updates", type=int, help="stop after this many updates")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the order of chats and of new weights (0)"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="precision (float32)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (cpu)")


def run(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError
    from stepwell.runs.sft.sft import train_on_chats
    from stepwell.workers.placement import check_device

    check_device("--device", args.device)

    numbers = ("epochs", "batch_size", "learning_rate", "max_updates")
    for name in numbers:
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0, got {getattr(args, name)}")
    try:
        args.to.parent.mkdir(parents=True, exist_ok=True)  # found now, not after the training
    except OSError as error:
        raise _refuse_folder(args.to, error) from error
    settings = {name: getattr(args, name) for name in (*numbers, "seed", "dtype", "device")}
    from safetensors import SafetensorError

    try:
        train_on_chats(args.model, args.file, args.to, _print_update, **settings)
    except (OSError, SafetensorError) as error:  # a full disk is either
        raise _refuse_folder(args.to, error) from error
    print(f"wrote {args.to}\nnow run\n  stepwell train CONFIG policy.model={args.to}")
    return 0


def _refuse_folder(folder: Path, error: Exception) -> Exception:
    from stepwell.core.errors import ConfigError

    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"--to: cannot write {folder} ({reason}); choose another directory")


def _print_update(number: int, total: int, values: dict[str, float]) -> None:
    if number == 1 or number == total or number % 10 == 0:
        print(f"update {number} of {total}: loss {values['loss/policy']:.3f}")
