"""`stepwell export`: a trained policy as a Hugging Face directory, here or on the hub."""

from __future__ import annotations

import argparse
from typing import Any

from stepwell.cli.command import add_command, run_folder

_EXAMPLES = (
    ("stepwell export runs/NAME --to my-model", "a directory that transformers opens"),
    ("stepwell export runs/NAME --to my-model --card", "only its model card, with the learning curve"),
    ("stepwell export runs/NAME --to hub:org/name --license mit", "a model of the Hugging Face hub"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "export",
        run,
        summary="write a trained policy for transformers, or upload it",
        description="Weights with LoRA merged, tokenizer, chat template and a model card (README.md). "
        "Without --checkpoint it is the best one, else the last.",
        examples=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--to", required=True, metavar="DIR | hub:ORG/NAME", help="the directory or repository to write to"
    )
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="a folder under checkpoints/, such as update-000050"
    )
    parser.add_argument("--license", default="other", metavar="ID", help="licence for the model card (other)")
    parser.add_argument(
        "--card", action="store_true", help="write only the model card with the learning curve"
    )
    parser.add_argument("--private", action="store_true", help="make the hub's repository private")


def run(args: argparse.Namespace) -> int:
    folder = run_folder(args.folder)
    from stepwell.runs.export.policy import export_card, export_run

    if args.card:
        print(export_card(folder, args.to, checkpoint=args.checkpoint, licence=args.license))
        return 0
    place = export_run(
        folder, args.to, checkpoint=args.checkpoint, licence=args.license, private=args.private
    )
    print(f"exported to {place}")
    return 0
