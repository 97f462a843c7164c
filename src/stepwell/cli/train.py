"""`stepwell train`: train an agent, or print what training would do."""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command, add_settings, list_newest_runs, read_settings, run_folder
from stepwell.cli.summary import describe_run

if TYPE_CHECKING:
    from stepwell.config.run import RunConfig

_EXAMPLES = (
    ("stepwell train frozenlake", "a preset"),
    ("stepwell train --env my_module:MyEnv", "an environment of your own, with settings fitted to it"),
    ("stepwell train my.toml recipe.name=grpo train.group_size=8", "a file, two settings changed"),
    ("stepwell train sokoban --dry-run", "what it would do, and how much memory it needs"),
    ("stepwell train --resume runs/NAME", "continue from the last checkpoint"),
    ("stepwell train --resume runs/NAME train.num_updates=600", "continue for longer"),
    ("stepwell train demo --agent my_agent.py:agent", "an agent of your own, through the gateway"),
    ("stepwell train my.toml workers.mode=stream --address auto", "workers on a Ray cluster"),
    ("stepwell train my.toml recipe.name=awr offline.pool=pool.db", "from stored trajectories"),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        run,
        summary="train an agent",
        description="A run keeps everything in one folder: config.toml, metrics.jsonl, "
        "summary.json, checkpoints, the pool of trajectories and report.html.",
        examples=_EXAMPLES,
        after_interrupt=_describe_resume,
    )
    add_settings(parser)
    parser.add_argument(
        "--env",
        metavar="MODULE:CLASS",
        help="train in this environment (module:Class, file.py:Class or a name); without CONFIG: by the "
        "preset `own`, fitted to it",
    )
    parser.add_argument("--resume", metavar="RUN", help="continue this run; key=value changes a setting")
    parser.add_argument(
        "--agent",
        metavar="MODULE:FUNCTION",
        help="play episodes with this function, which talks to a chat API (own_agent.function)",
    )
    parser.add_argument(
        "--tasks",
        metavar="FILE",
        help="the agent's tasks: JSONL, Parquet, CSV, … (own_agent.tasks); default: the environment's",
    )
    parser.add_argument(
        "--address",
        metavar="CLUSTER",
        help="place workers on a Ray cluster: auto, HOST:6379, ray://HOST:10001, or local "
        "(workers.backend and workers.ray.address)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument(
        "--open-env",
        action="store_true",
        help="with --dry-run: start the browser of an environment that has one, and measure its pages",
    )
    parser.set_defaults(folder=None, began=0.0)


def run(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    resume = run_folder(args.resume) if args.resume else None
    settings = _collect_settings(args, resume)
    config = (
        read_settings(settings, default=resume) if args.env is None else _read_for_env(args.env, settings)
    )
    if args.open_env and not args.dry_run:
        raise ConfigError("--open-env belongs to --dry-run; training opens every environment")
    if args.address and config.workers.mode == "off":
        raise ConfigError("--address places workers, and this run has none: set workers.mode=stream")
    if args.dry_run and resume is not None:
        from stepwell.runs.run_record import check_changes, read_record

        check_changes(read_record(resume, config), resume, config)
    _warn_of_foreign_preset(settings, config)
    _refuse_broken_recipe(config)
    if args.dry_run:
        _print_plan(config, args)
        return 0
    from stepwell.runs.run import raise_if_interrupted, train

    if (code := _join_as_rank(config)) is not None:
        return code
    args.folder, args.began = Path(config.folder), time.time()
    folder = train(config, resume=resume)
    print(describe_run(folder))
    args.resume = folder
    raise_if_interrupted(folder)  # it has saved and stopped in order; the message is the same
    return 0


def _collect_settings(args: argparse.Namespace, resume: Path | None) -> list[str]:
    """CONFIG and overrides of the command line, those that its options stand for included."""
    from stepwell.cli.command import split_settings
    from stepwell.core.errors import ConfigError

    source, _ = split_settings(args.settings)
    if resume is None and args.env is None and source is None:
        raise ConfigError(_describe_missing_config(args))
    for option in ("agent", "tasks", "env"):
        if getattr(args, option) == "":
            raise ConfigError(f"--{option} is empty (a variable of the shell that is not set?)")
    if resume is not None:
        _refuse_other_run(args, resume, source)
    given = {"own_agent.function": args.agent, "own_agent.tasks": args.tasks}
    settings = [*args.settings, *(f"{key}={json.dumps(value)}" for key, value in given.items() if value)]
    if args.address:
        settings += ["workers.backend=ray", f"workers.ray.address={json.dumps(args.address)}"]
    return settings


def _refuse_other_run(args: argparse.Namespace, resume: Path, source: str | None) -> None:
    """Refuse what `--resume` takes from the run's folder."""
    from stepwell.core.errors import ConfigError

    moved = [text for text in args.settings if text.partition("=")[0] in ("name", "folder")]
    if source is not None:
        raise ConfigError(f"--resume continues with the run's own settings; leave out {source!r}")
    if args.env:
        raise ConfigError("--resume continues in the run's own environment; leave out --env")
    if moved:
        raise ConfigError(
            f"--resume continues in {resume}, so leave out {moved[0]}; copy the folder to keep it"
        )
    if args.agent or args.tasks:
        raise ConfigError(
            "--resume continues with the run's own agent and tasks; leave out --agent and --tasks"
        )


def _print_plan(config: RunConfig, args: argparse.Namespace) -> None:
    gc.disable()  # a plan ends soon: looking for garbage, now and at the exit, is a tenth of its time
    atexit.register(gc.freeze)
    try:
        from stepwell.runs.plan.run_plan import plan_run

        print(plan_run(config, opens_env=args.open_env))
    finally:
        if not args.is_whole_process:
            gc.enable()  # and it looks at once


def _refuse_broken_recipe(config: RunConfig) -> None:
    """Look at the recipe before anything heavy is imported, and call functions of the user's own once."""
    from stepwell.contracts.before_a_run import refuse_broken_functions
    from stepwell.runs.build.recipe import resolve_recipe

    refuse_broken_functions(resolve_recipe(config.recipe))


def _describe_missing_config(args: argparse.Namespace) -> str:
    from stepwell.config.presets import list_preset_names

    named = [text.partition("=")[2] for text in args.settings if text.startswith("env.name=")]
    hint = f". For an environment of your own: --env {named[-1]}" if named else ""
    if args.agent:
        hint = f". For an agent of your own: stepwell train demo --agent {args.agent} …"
    presets = ", ".join(list_preset_names())
    return f"give a TOML file or a preset ({presets}), --env MODULE:CLASS, or --resume RUN{hint}"


def _join_as_rank(config: RunConfig) -> int | None:
    """Join the run of another process if torchrun made this one a rank of it; None if this process leads."""
    from stepwell.training.rank_join import Rendezvous, join_ranks

    meeting = Rendezvous.read_environment(os.environ)
    if meeting is None or meeting.rank == 0:
        return None
    device = meeting.choose_device(config.policy.device)
    return join_ranks(meeting.host, meeting.port, rank=meeting.rank, device=device, token=meeting.token)


def _warn_of_foreign_preset(settings: list[str], config: RunConfig) -> None:
    """Warn that a preset was made for another environment than the user's own."""
    from stepwell.cli.command import split_settings
    from stepwell.config.loading import load_config
    from stepwell.config.presets import list_preset_names
    from stepwell.envs.registry import find_env_type

    source, _ = split_settings(settings)
    if source not in list_preset_names() or source == "own" or ":" not in config.env.name:
        return
    fitting = f" For settings that fit: stepwell train --env {config.env.name}"
    if find_env_type(config.env.name).is_robot:
        fitting = ""  # such settings are for language agents
    print(
        f"warning: the preset {source} is tuned for {load_config(source).env.name}; its rewards, warm start "
        f"and limits may not fit {config.env.name}.{fitting}"
    )


def _read_for_env(env: str, settings: list[str]) -> RunConfig:
    """The configuration for `--env`: CONFIG's with that environment, or the preset `own` fitted to it.

    Options of another environment are left out.
    """
    from stepwell.cli.command import split_settings
    from stepwell.runs.build.env_defaults import load_own_config

    source, overrides = split_settings(settings)
    if source is not None:
        is_other = read_settings([source]).env.name != env
        return read_settings(
            [source, f"env.name={env}", *(["env.options={}"] if is_other else []), *overrides]
        )
    config, notes = load_own_config(env, overrides)
    for note in notes:
        print(note)
    return config


def _describe_resume(args: argparse.Namespace) -> str:
    if int(os.environ.get("RANK", "0")) > 0:
        return "This was a rank; the run is the process with RANK=0."
    if args.resume:
        return f"Continue with: stepwell train --resume {args.resume}"
    begun = list_newest_runs(args.folder, since=args.began) if args.folder else []
    return f"Continue with: stepwell train --resume {begun[0]}" if begun else "Nothing was trained yet."
