"""What benchmarks that train share: runs side by side, and the file of their results."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepwell.runs.machine import describe_machine

RESULTS = Path(__file__).parent / "results"


def run_side_by_side(
    train_one: Callable[..., None], calls: Sequence[tuple[Any, ...]], outputs: Sequence[Path]
) -> list[dict[str, Any]]:
    """One process per call, which writes the output of its place; what each of them saw."""
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=train_one, args=(*call, output))
        for call, output in zip(calls, outputs, strict=True)
    ]
    for child in children:
        child.start()
    for child, output in zip(children, outputs, strict=True):
        child.join()
        if child.exitcode != 0:
            print(f"the run {output.stem} ended with exit code {child.exitcode}")
    return [json.loads(output.read_text()) for output in outputs if output.exists()]


def add_result_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Where the result goes."""
    parser.add_argument("--name", required=True, help=f"of the result: {kind}_NAME.json")
    parser.add_argument("--output", type=Path, default=RESULTS, help="its folder")
    parser.add_argument("--no-write", action="store_true", help="print only")


def write_result(
    args: argparse.Namespace, kind: str, settings: Any, summary: Any, runs: Sequence[dict[str, Any]]
) -> None:
    """The result file: a line for each run."""
    if args.no_write:
        return
    result = {"machine": describe_machine(), "settings": settings, "summary": summary}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    lines.append('"runs": [\n' + ",\n".join(json.dumps(run) for run in runs) + "\n]")
    (args.output / f"{kind}_{args.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
