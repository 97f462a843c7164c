"""`stepwell eval`: measure a trained agent or an outside model on held-out tasks."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import RUN_FILE, add_command, add_settings, console, list_newest_runs, read_settings
from stepwell.cli.eval_table import TABLES, print_table

if TYPE_CHECKING:
    from stepwell.config.chat_api import ChatApiConfig
    from stepwell.runs.evaluation.chat_evaluation import EndpointEvaluation
    from stepwell.runs.evaluation.result import EvalReport

_EXAMPLES = (
    ("stepwell eval runs/NAME", "the best checkpoint of a run, with the settings of the run"),
    ("stepwell eval runs/NAME --num-tasks 512 --samples 8 --temperature 1", "pass@1 to pass@8"),
    ("stepwell eval runs/NAME --checkpoint update-000050", "another one"),
    ("stepwell eval smollm2-135m sokoban", "an untrained model, on a preset's tasks"),
    ("stepwell eval --endpoint https://HOST/v1 --model NAME sokoban", "an outside model on the same tasks"),
    ("stepwell eval --compare runs/eval-A runs/eval-B", "several evaluations in one table"),
    ("stepwell eval --table vagen runs/study-vagen-environments", "a study in the layout of VAGEN's table 2"),
    ("stepwell eval --table vagen --endpoint https://HOST/v1 --model NAME", "an outside model in all five"),
)
_ONLY_ENDPOINT = {
    "model": "--model",
    "api_key_env": "--api-key-env",
    "concurrency": "--concurrency",
    "rate": "--rate",
    "timeout_s": "--timeout-s",
    "max_retries": "--max-retries",
    "tools": "--tools",
    "prompt_price": "--prompt-price",
    "completion_price": "--completion-price",
}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "eval",
        run,
        summary="measure an agent on held-out tasks",
        description="Prints success with its 95 % confidence interval, pass@k, reward and turns.",
        examples=_EXAMPLES,
        after_interrupt=_describe_resume,
    )
    parser.add_argument("agent", nargs="?", metavar="RUN | MODEL", help="a run folder, a checkpoint, a model")
    add_settings(parser)
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="of a run: a folder under checkpoints/, such as update-000050"
    )
    parser.add_argument("--num-tasks", type=int, metavar="N", help="distinct held-out tasks")
    parser.add_argument("--samples", type=int, metavar="K", help="attempts per task; pass@k up to K")
    parser.add_argument("--temperature", type=float, metavar="T", help="temperature of sampling; 0 is greedy")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of tasks and sampling")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--report", action="store_true", help="write figures, episodes and a report page to a folder"
    )
    parser.add_argument("--output", metavar="FOLDER", help="folder of the report; default runs/eval-NAME-ENV")
    outside = parser.add_argument_group("outside models, instead of RUN | MODEL")
    outside.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible API, up to /v1")
    outside.add_argument("--model", metavar="NAME", help="the model's name there")
    outside.add_argument(
        "--api-key-env", metavar="VAR", help="environment variable with the API key; default OPENAI_API_KEY"
    )
    outside.add_argument("--concurrency", type=int, metavar="N", help="episodes at once; default 16")
    outside.add_argument("--rate", type=float, metavar="N", help="calls per second; default no limit")
    outside.add_argument(
        "--timeout-s", type=float, metavar="SECONDS", help="longest wait for one call; default 120"
    )
    outside.add_argument(
        "--max-retries", type=int, metavar="N", help="attempts after a failed call; default 5"
    )
    outside.add_argument(
        "--tools", choices=("auto", "api", "text"), help="how the model gets its tools; default auto"
    )
    outside.add_argument("--prompt-price", type=float, metavar="P", help="price of a million prompt tokens")
    outside.add_argument(
        "--completion-price", type=float, metavar="P", help="price of a million answer tokens"
    )
    outside.add_argument("--resume", metavar="FOLDER", help="continue an evaluation that was interrupted")
    parser.add_argument(
        "--table", choices=TABLES, help="print several models in the layout of a paper's table"
    )
    parser.add_argument("--compare", nargs="+", metavar="FOLDER", help="print evaluations side by side")


def run(args: argparse.Namespace) -> int:
    words = [*([] if args.agent is None else [args.agent]), *args.settings]
    if args.compare:
        return _print_comparison([*args.compare, *words], as_json=args.json)
    if args.table:
        endpoint = _read_endpoint(args) if args.endpoint else None
        return print_table(args, words, _list_flags(args), endpoint)
    report = _evaluate_outside(args, words) if args.endpoint or args.resume else _evaluate_own(args, words)
    print(report.to_json() if args.json else report.table())
    if args.folder is not None and not args.json:
        print(f"report     {args.folder / 'report.html'}")
    return 0


def _evaluate_own(args: argparse.Namespace, words: Sequence[str]) -> EvalReport:
    """Evaluate a run, a checkpoint or a local model."""
    from stepwell.core.errors import ConfigError

    if given := [flag for name, flag in _ONLY_ENDPOINT.items() if getattr(args, name) is not None]:
        raise ConfigError(f"{given[0]} is only for outside models; add --endpoint URL")
    if not words:
        raise ConfigError("name a run folder, a checkpoint or a model, or use --endpoint and --model")
    agent, *settings = words
    _check_agent(agent)
    config = read_settings([*settings, *_list_flags(args)], default=find_agent_settings(agent))
    from stepwell.runs.evaluation.evaluate import evaluate_run, find_checkpoint
    from stepwell.runs.evaluation.folders import make_eval_folder

    if args.checkpoint is not None:
        if not (Path(agent) / RUN_FILE).is_file():
            raise ConfigError(f"--checkpoint names one of a run, and {agent!r} is not a run folder")
        agent = str(find_checkpoint(Path(agent), args.checkpoint))
    wanted, args.folder = config.eval, None
    if args.report or args.output:
        args.folder = _choose_output(args) if args.output else make_eval_folder(config, _make_name(agent))
    return evaluate_run(
        agent,
        config,
        num_tasks=wanted.num_tasks,
        samples_per_task=wanted.samples_per_task,
        temperature=wanted.temperature,
        seed=config.seed,
        folder=args.folder,
        command=shlex.join(["stepwell", "eval", agent, *settings, *_list_flags(args), "--report"]),
    )


def _evaluate_outside(args: argparse.Namespace, words: Sequence[str]) -> EvalReport:
    """Evaluate a model behind an API."""
    from stepwell.runs.evaluation.chat_progress import ChatProgress

    endpoint = _read_resumed(args) if args.resume else _read_endpoint(args)
    with ChatProgress(endpoint.model) as progress:
        return _start_evaluation(args, words, endpoint, progress).run(resume=bool(args.resume))


def _start_evaluation(
    args: argparse.Namespace, words: Sequence[str], endpoint: ChatApiConfig, progress: Any
) -> EndpointEvaluation:
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.chat_evaluation import EndpointEvaluation
    from stepwell.runs.evaluation.folders import make_eval_folder

    if args.resume and (words or _list_flags(args)):
        raise ConfigError("--resume uses the settings of the first start; remove the other arguments")
    config = read_settings([*words, *_list_flags(args)], default=Path(args.resume) if args.resume else None)
    if args.resume:
        args.folder = Path(args.resume)
    else:
        args.folder = _choose_output(args) if args.output else make_eval_folder(config, endpoint.model)
    command = ["stepwell", "eval", "--endpoint", endpoint.url, "--model", endpoint.model, *words]
    command += _list_flags(args)
    return EndpointEvaluation(
        config,
        endpoint,
        args.folder,
        command=shlex.join(command),
        on_start=progress.start,
        on_done=progress.count_episode,
    )


def _choose_output(args: argparse.Namespace) -> Path:
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.folders import is_empty

    folder = Path(args.output)
    if not is_empty(folder):
        raise ConfigError(f"--output: {folder} is not empty; choose another, or continue it with --resume")
    return folder


def _read_endpoint(args: argparse.Namespace) -> ChatApiConfig:
    from pydantic import ValidationError

    from stepwell.config.chat_api import ChatApiConfig
    from stepwell.config.schema import describe_problem
    from stepwell.core.errors import ConfigError

    if not args.model:
        raise ConfigError("--endpoint needs --model NAME, the name of the model at that address")
    given = {
        "key_variable": args.api_key_env,
        "max_concurrent": args.concurrency,
        "rate_per_s": args.rate,
        "timeout_s": args.timeout_s,
        "max_retries": args.max_retries,
        "tools": args.tools,
        "prompt_price": args.prompt_price,
        "completion_price": args.completion_price,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return ChatApiConfig(url=args.endpoint, model=args.model, **chosen)
    except ValidationError as error:
        key, words = describe_problem(ChatApiConfig, error.errors(include_url=False)[0])
        raise ConfigError(f"{key}: {words}") from None


def _read_resumed(args: argparse.Namespace) -> ChatApiConfig:
    from stepwell.config.chat_api import ChatApiConfig
    from stepwell.core.errors import ConfigError
    from stepwell.runs.evaluation.folders import read_evaluation

    kept = read_evaluation(Path(args.resume)).endpoint
    if not kept:
        raise ConfigError(
            f"--resume: {args.resume} evaluates a local model and cannot be resumed; start it again"
        )
    return ChatApiConfig(**kept)


def _print_comparison(folders: Sequence[str], *, as_json: bool) -> int:
    import json

    from stepwell.runs.evaluation.folders import compare_evaluations, read_evaluation

    named = [(folder, read_evaluation(Path(folder))) for folder in folders]
    heads, rows, notes = compare_evaluations(named)
    if as_json:
        evaluations = [{"folder": folder, "model": one.model, **one.values} for folder, one in named]
        print(json.dumps({"env": named[0][1].env, "evaluations": evaluations, "notes": notes}, indent=2))
        return 0
    from rich.table import Table

    table = Table(*heads, title=f"{named[0][1].env}, {len(named[0][1].tasks)} held-out tasks")
    for row in rows:
        table.add_row(*row)
    console().print(table)
    for note in notes:
        print(f"note: {note}")
    return 0


def _check_agent(agent: str) -> None:
    """Refuse a name that is neither a run nor a model. An id of the hub (`org/name`) is accepted unseen."""
    from stepwell.config.presets import list_preset_names
    from stepwell.core.errors import ConfigError
    from stepwell.core.names import suggest_name
    from stepwell.policies.model_resolver import KNOWN_MODELS

    folder = Path(agent).expanduser()
    if agent in KNOWN_MODELS or find_agent_settings(agent) is not None or (folder / "config.json").is_file():
        return
    if folder.is_dir():
        known = ", ".join(map(str, list_newest_runs(folder)[:5]))
        raise ConfigError(
            f"{agent!r} is neither a run folder (it has no {RUN_FILE}) nor a model (it has no config.json)"
            f"{f'. Runs in it: {known}' if known else ''}"
        )
    if "/" not in agent or folder.parts[0] == "runs" or folder.parent.is_dir():
        if "/" in agent and (beside := list_newest_runs(folder.parent)):
            known = ", ".join(map(str, beside[:5]))
            raise ConfigError(f"there is no run folder {agent!r}. Runs there: {known}")
        models = suggest_name(agent, KNOWN_MODELS, "Built-in models")
        if (Path("runs") / agent / RUN_FILE).is_file():
            models = f"; did you mean 'runs/{agent}'?"
        if agent in list_preset_names():
            models = f". It is a preset; name what plays first: stepwell eval {KNOWN_MODELS[0]} {agent}"
        raise ConfigError(f"there is no run folder {agent!r}, and no built-in model has this name{models}")


def find_agent_settings(agent: str) -> Path | None:
    """The run that a run folder or one of its checkpoints belongs to; None for any other model."""
    folder = Path(agent).expanduser()
    candidates = (folder, *folder.absolute().parents[:2])
    return next((path for path in candidates if (path / RUN_FILE).is_file()), None)


def _make_name(agent: str) -> str:
    """The name of a run, or of a run and its checkpoint."""
    path = Path(agent)
    return f"{path.parent.parent.name}-{path.name}" if path.parent.name == "checkpoints" else path.name


def _describe_resume(args: argparse.Namespace) -> str:
    folder = getattr(args, "folder", None)
    if not (args.endpoint or args.resume) or folder is None or not folder.exists():
        return ""
    return f"Finished episodes are stored; continue with: stepwell eval --resume {folder}"


def _list_flags(args: argparse.Namespace) -> list[str]:
    """Options as settings, so that they are checked with the same messages."""
    named = {
        "eval.num_tasks": args.num_tasks,
        "eval.samples_per_task": args.samples,
        "eval.temperature": args.temperature,
        "seed": args.seed,
    }
    return [f"{key}={value}" for key, value in named.items() if value is not None]
