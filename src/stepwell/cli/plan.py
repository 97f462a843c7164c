"""`stepwell plan`: what a run will do, and what throughput to expect on which devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, add_settings, console, read_settings

if TYPE_CHECKING:
    from rich.status import Status

    from stepwell.config.profile import PipelineProfile
    from stepwell.config.run import RunConfig
    from stepwell.runs.planner.case_pool import CasePool
    from stepwell.runs.planner.forecast import Forecast

_EXAMPLES = (
    (
        "stepwell plan metaworld-reach --save-profile reach.toml",
        "time the parts here, then forecast every mode",
    ),
    ("stepwell plan metaworld-reach --profile reach.toml --devices 1 8 64", "the same parts on more GPUs"),
    ("stepwell plan sokoban --profile p.toml --svg plan.svg --json plan.json", "a chart, and all numbers"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "plan",
        run,
        summary="forecast the throughput of a run, and recommend settings",
        description="Times the parts of a run (environment, engine, trainer, weights) or reads their times "
        "from a profile, then models whole runs in every mode and placement, with the code that schedules "
        "real ones (docs/planner.md). Nothing is trained.",
        examples=_EXAMPLES,
    )
    add_settings(parser)
    parser.add_argument("--profile", metavar="FILE", type=Path, help="read times from this file")
    parser.add_argument(
        "--measure", action="store_true", help="time the parts here; the default without --profile"
    )
    parser.add_argument(
        "--save-profile", metavar="FILE", type=Path, help="write the times to this file (TOML)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long to measure (default: 20)")
    parser.add_argument(
        "--devices", type=int, nargs="+", metavar="N", help="accelerators to forecast for; 0: cores only"
    )
    parser.add_argument("--per-machine", type=int, default=8, help="accelerators of one machine (default: 8)")
    parser.add_argument(
        "--cores",
        type=float,
        help="cores of one machine; default: those here, by the work that they do together",
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw the forecast into this file")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers to this file")


def run(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    config = read_settings(args.settings)
    if args.profile is not None and args.measure:
        raise ConfigError("--profile reads times and --measure takes them; give one of the two")
    if args.cores is not None and args.cores <= 0:
        raise ConfigError(f"--cores must be above 0, got {args.cores:g}")
    profile = _get_profile(args, config)
    if args.save_profile is not None:
        profile.write_file(args.save_profile)
    from stepwell.runs.planner.case_pool import CasePool

    with CasePool() as pool:
        _forecast(args, config, profile, pool)
    return 0


def _get_profile(args: argparse.Namespace, config: RunConfig) -> PipelineProfile:
    if args.profile is not None:
        from stepwell.config.profile import PipelineProfile

        return PipelineProfile.read_file(args.profile)
    from stepwell.runs.plan.run_plan import plan_run
    from stepwell.runs.planner.measurement import measure_profile

    print(plan_run(config))
    return measure_profile(config, args.seconds)


def _show_work(text: str, num_devices: int) -> Status:
    """What is being done, on standard error; nothing where that is not a terminal."""
    from rich.console import Console

    size = f" on {num_devices} accelerators; this takes minutes" if num_devices > 16 else ""
    return Console(stderr=True).status(f"{text}{size}")


def _forecast(args: argparse.Namespace, config: RunConfig, profile: PipelineProfile, pool: CasePool) -> None:
    from stepwell.core.errors import ConfigError
    from stepwell.envs.registry import find_env_type
    from stepwell.runs.planner import report
    from stepwell.runs.planner.core_speed import measure_cores
    from stepwell.runs.planner.forecast import (
        Cluster,
        choose_best,
        choose_smaller,
        compare_weight_syncs,
        forecast_run,
        recommend_settings,
    )

    default = [0] if config.policy.device == "cpu" else [1]
    sizes = tuple(sorted(set(args.devices or default)))
    if min(sizes) < 0 or args.per_machine < 1:
        raise ConfigError("--devices must be at least 0, --per-machine at least 1")
    cores = args.cores or measure_cores()
    cluster = Cluster(sizes, args.per_machine, cores)
    max_inflight = 1 if find_env_type(config.env.name).is_robot else 4
    with _show_work("modelling every mode and placement", max(sizes)):
        rows = forecast_run(config, profile, cluster, max_inflight=max_inflight, pool=pool)
    print(*report.describe_profile(profile), sep="\n")
    _print_table(rows)
    recommended = {}
    for size in sizes:
        best = choose_best(rows, size)
        with _show_work("looking for better settings", size):
            smaller = choose_smaller(config, profile, cluster, best, max_inflight)
            better, chosen = recommend_settings(best, smaller, pool=pool)
            ways = compare_weight_syncs(best)
        both = {way: report.dump_forecast(row) for way, row in ways.items()}
        recommended[size] = {"settings": chosen, **report.dump_forecast(better), "weight_syncs": both}
        print(f"\n{size or 'no'} accelerator{'' if size == 1 else 's'}, {cores:g} cores per machine")
        print(*report.describe_limits(best), *report.describe_weight_syncs(ways), sep="\n")
        print(*report.describe_settings(better, chosen), sep="\n")
    title = f"{profile.name}: modelled throughput"
    if args.svg is not None:
        args.svg.write_text(report.draw_forecast(rows, title))
    if args.json is not None:
        found = {"profile": profile.model_dump(), "forecasts": [report.dump_forecast(row) for row in rows]}
        args.json.write_text(json.dumps(found | {"recommended": recommended}, indent=2) + "\n")


def _print_table(rows: list[Forecast]) -> None:
    from rich.table import Table

    from stepwell.runs.planner import report

    table = Table(box=None, pad_edge=False, title="modelled, not measured (* recommended)")
    for heading in report.HEADINGS:
        table.add_column(heading, justify="left" if heading in report.HEADINGS[1:3] else "right")
    for cells in report.list_rows(rows):
        table.add_row(*cells)
    console().print(table)
