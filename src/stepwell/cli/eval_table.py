"""`stepwell eval --table vagen`: several models in the environments of a paper, as its table has them.

    stepwell eval --table vagen runs/study-NAME runs/eval-A        what was measured already
    stepwell eval --table vagen runs/A runs/B                      runs, each in its own environment
    stepwell eval --table vagen smollm2-vlm                        a model in all environments
    stepwell eval --table vagen --endpoint URL --model NAME        an outside model in all environments

A row is a model, or the recipe of a run: runs of one recipe in several environments share a row. Evaluations
are kept in folders, one per environment and part; the same command with `--output` goes on where it stopped.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.cli.command import RUN_FILE

if TYPE_CHECKING:
    from stepwell.config.chat_api import ChatApiConfig
    from stepwell.config.run import RunConfig
    from stepwell.runs.evaluation.vagen_table import VagenTable

TABLES = ("vagen",)


def print_table(
    args: argparse.Namespace, words: Sequence[str], flags: Sequence[str], endpoint: ChatApiConfig | None
) -> int:
    """Collect or measure every row and print the table; `flags` are settings that options stand for."""
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.vagen_table import VagenTable

    settings = [*(word for word in words if "=" in word), *flags]
    sources = [word for word in words if "=" not in word]
    if not sources and endpoint is None:
        raise ConfigError("--table: name folders of studies, evaluations or runs, models, or an --endpoint")
    table = VagenTable()
    for source in sources:
        _add_source(table, source, settings, _choose_folder(args, source))
    if endpoint is not None:
        folder = _choose_folder(args, endpoint.model)
        _add_model(table, endpoint.model, settings, folder, endpoint)
    if args.output:
        Path(args.output).mkdir(parents=True, exist_ok=True)
        (Path(args.output) / "table.md").write_text(table.format_markdown(), encoding="utf-8")
    print(table.to_json() if args.json else table.format_markdown(), end="" if not args.json else "\n")
    return 0


def _add_source(table: VagenTable, source: str, settings: Sequence[str], folder: Path) -> None:
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.folders import FILE_NAME, read_evaluation
    from stepwell.runs.evaluation.vagen_table import add_evaluation, add_study

    path = Path(source)
    if (path / "results.json").exists():
        add_study(table, path / "results.json")
    elif (path / FILE_NAME).exists():
        add_evaluation(table, read_evaluation(path))
    elif (path / RUN_FILE).exists():
        _add_run(table, path, settings, folder)
    elif path.is_dir() and not (path / "config.json").exists():
        raise ConfigError(f"--table: {source} holds neither a study, an evaluation, a run nor a model")
    else:
        _add_model(table, source, settings, folder, None)


def _add_run(table: VagenTable, run: Path, settings: Sequence[str], folder: Path) -> None:
    """Evaluate a run in its own environment, part by part; its row is its recipe."""
    from stepwell.config.loading import load_config
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.vagen_table import ENVS, list_evaluations

    config = load_config(run / RUN_FILE, [])
    if config.env.name not in ENVS:
        raise ConfigError(f"--table: {run} was trained in {config.env.name}, which the table does not have")
    for _, part, options in list_evaluations((config.env.name,)):
        wanted = load_config(run / RUN_FILE, [*settings, *options])
        place = folder / "-".join(filter(None, (config.env.name, part)))
        _measure(table, str(run), wanted, place, None, row=config.recipe.name)


def _add_model(
    table: VagenTable, model: str, settings: Sequence[str], folder: Path, endpoint: ChatApiConfig | None
) -> None:
    """Evaluate a model in every environment, with the settings of that environment's preset."""
    from stepwell.config.loading import load_config
    from stepwell.runs.evaluation.vagen_table import list_evaluations

    thinking = ["agent.guide=true", "agent.strategy=grounding_world_modeling", "sampling.max_tokens=1024"]
    for env, part, options in list_evaluations():
        wanted = load_config(f"{env}-visual", [*thinking, "engine.max_length=4096", *settings, *options])
        place = folder / "-".join(filter(None, (env, part)))
        _measure(table, model, wanted, place, endpoint, row=model)


def _measure(
    table: VagenTable,
    model: str,
    config: RunConfig,
    folder: Path,
    endpoint: ChatApiConfig | None,
    *,
    row: str,
) -> None:
    """Evaluate into `folder`, or use the results in it; an interrupted evaluation of an endpoint resumes."""
    from stepwell.runs.evaluation.chat_evaluation import EndpointEvaluation
    from stepwell.runs.evaluation.evaluate import evaluate_run
    from stepwell.runs.evaluation.folders import FILE_NAME, read_evaluation
    from stepwell.runs.evaluation.vagen_table import add_evaluation

    known = read_evaluation(folder) if (folder / FILE_NAME).exists() else None
    if known is None or known.status != "finished":
        if endpoint is not None:
            EndpointEvaluation(config, endpoint, folder).run(resume=known is not None)
        else:
            evaluate_run(model, config, seed=config.seed, folder=folder)
    add_evaluation(table, read_evaluation(folder), row)


def _choose_folder(args: argparse.Namespace, source: str) -> Path:
    base = Path(args.output) if args.output else Path("runs") / "table-vagen"
    return base / re.sub(r"[^A-Za-z0-9._]+", "-", source).strip("-.")
