"""`stepwell orm`: train a model that judges whether a task was done, measure it, and judge with it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command
from stepwell.cli.pool_text import print_table, show_progress

if TYPE_CHECKING:
    from stepwell.rewards.outcome_model.judges import OutcomeJudge
    from stepwell.rewards.outcome_model.measures import JudgeScore

_SOURCES = "the folder of a run, a pool's file or folder, or a URL; several are read together"
_HEAD = ("", "episodes", "success", "accuracy", "precision", "recall", "f1", "auc", "ece", "brier")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "orm",
        help="train, measure and use a model that judges whether a task was done",
        description="An outcome reward model reads the task, the actions and what was seen at the end, and "
        "says YES or NO.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_train(actions)
    _add_eval(actions)
    _add_score(actions)


def _add_train(actions: Any) -> None:
    examples = (
        ("stepwell orm train runs/NAME --to orm", "from the trajectories that a run kept"),
        ("stepwell orm train runs/A runs/B pool.db --model tiny-1m --to orm", "from several"),
        ("stepwell orm train pool.db --model runs/A/checkpoints/best --to orm", "starting from a policy"),
    )
    parser = add_command(
        actions,
        "train",
        run_train,
        summary="train an outcome model on roll-outs whose truth is known",
        description="Truth is what the environment's checker said. Tasks, not episodes, are split into "
        "training and validation; validation stops training early and calibrates the probabilities. The same "
        "command continues after a kill.",
        examples=examples,
        after_interrupt=lambda args: "The same command continues after the last whole epoch.",
    )
    _add_sources(parser)
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="where the model goes")
    parser.add_argument(
        "--model", default="tiny-0.3m", help="a built-in model, a model's or policy's directory, or a hub id"
    )
    parser.add_argument("--epochs", type=int, default=8, help="maximum passes over the roll-outs (8)")
    parser.add_argument("--patience", type=int, default=3, help="epochs without improvement (3)")
    parser.add_argument("--batch-size", type=int, default=16, help="roll-outs per update (16)")
    parser.add_argument(
        "--learning-rate", type=float, help="default 2e-3 for built-in tiny models, 2e-5 for others"
    )
    parser.add_argument("--max-tokens", type=int, default=1024, help="longest question in tokens (1024)")
    parser.add_argument(
        "--page-tokens", type=int, default=640, help="tokens of the question for the last observation (640)"
    )
    parser.add_argument(
        "--action-chars", type=int, default=2000, help="characters of an action; the rest of it is cut (2000)"
    )
    parser.add_argument("--validation", type=float, default=0.2, help="share of tasks for validation (0.2)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the split, the order and new weights (0)"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="precision (float32)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (cpu)")


def _add_eval(actions: Any) -> None:
    examples = (
        ("stepwell orm eval orm runs/OTHER", "accuracy and calibration against the checkers"),
        ("stepwell orm eval orm runs/OTHER --plot calibration.svg", "predicted beside observed, drawn"),
        ("stepwell orm eval http://127.0.0.1:8000/v1 pool.db --endpoint-model NAME", "a judge behind an API"),
    )
    parser = add_command(
        actions,
        "eval",
        run_eval,
        summary="measure a judge against the environment's checkers",
        description="Give roll-outs that it was not trained on. Families of tasks and trivial judges are "
        "listed beside it. The key of an API is read from STEPWELL_JUDGE_KEY.",
        examples=examples,
    )
    _add_judge(parser)
    _add_sources(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw predicted beside observed success as SVG"
    )


def _add_score(actions: Any) -> None:
    examples = (
        ("stepwell orm score orm service.db", "judge what agents did in production"),
        ("stepwell train my.toml offline.pool=service.db recipe.name=awr", "then learn from it"),
    )
    parser = add_command(
        actions,
        "score",
        run_score,
        summary="judge the episodes of pools and write the outcomes into them",
        description="The newest outcome of an episode counts. What this judge has judged already is left as "
        "it is, so the command can be stopped and given again.",
        examples=examples,
        after_interrupt=lambda args: "The same command continues; every outcome so far is kept.",
    )
    _add_judge(parser)
    _add_sources(parser)
    parser.add_argument("--over-human", action="store_true", help="judge also what a person has judged")


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="RUN | POOL", help=_SOURCES)
    parser.add_argument("--channel", choices=("train", "eval", "user"), help="only this channel")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="only with this tag")


def _add_judge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "judge", metavar="JUDGE", help="a folder of `stepwell orm train`, or the URL of a chat API"
    )
    parser.add_argument(
        "--endpoint-model", default="", metavar="NAME", help="the model there, if it is a URL"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (cpu)")


def run_train(args: argparse.Namespace) -> int:
    from stepwell.policies.tiny_models import TINY_SIZES
    from stepwell.rewards.outcome_model.question import TextLimits
    from stepwell.runs.outcome_model.rollouts import read_rollouts
    from stepwell.runs.outcome_model.training import OutcomeTraining, train_outcome_model
    from stepwell.training.answer_model import AnswerTraining
    from stepwell.workers.placement import check_device

    check_device("--device", args.device)
    rate = args.learning_rate or (2e-3 if args.model in TINY_SIZES else 2e-5)
    settings = OutcomeTraining(
        model=args.model,
        limits=TextLimits(args.max_tokens, args.page_tokens, args.action_chars),
        answers=AnswerTraining(args.epochs, args.batch_size, rate, args.patience),
        validation_share=args.validation,
        seed=args.seed,
        dtype=args.dtype,
        device=args.device,
    )
    rollouts = read_rollouts(args.sources, channel=args.channel, tags=args.tag)
    num_yes = sum(one.is_success for one in rollouts)
    print(f"{len(rollouts)} roll-outs, {num_yes} of them successes")
    with show_progress("training", None) as show:
        model = train_outcome_model(
            rollouts, args.to, settings, tell=lambda done, total: show(done), note=print
        )
    figures = model.figures["validation"]
    print(
        f"validation: right {figures['accuracy']:.3f}, F1 {figures['f1']:.3f}, calibration error "
        f"{figures['calibration_error']:.3f} on {figures['count']} roll-outs. Written to {args.to}"
    )
    return 0


def run_eval(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from stepwell.runs.outcome_model.rollouts import read_rollouts
    from stepwell.runs.outcome_model.scoring import evaluate_judge

    judge = _open_judge(args)
    rollouts = read_rollouts(args.sources, channel=args.channel, tags=args.tag)
    with show_progress("judging", len(rollouts)) as show:
        report = evaluate_judge(judge, rollouts, show)
    rows = [_format_score(report.judge, report.score)]
    rows += [_format_score(f"  {name}", score) for name, score in report.families.items()]
    rows += [_format_score(f"({name})", score) for name, score in report.baselines.items()]
    print_table(_HEAD, rows)
    print("predicted -> observed: " + "  ".join(_format_bin(one) for one in report.reliability))
    if report.num_unjudged:
        print(f"{report.num_unjudged} episodes got no answer and are not counted")
    if args.json is not None:
        args.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    if args.plot is not None:
        from stepwell.monitors.calibration import draw_calibration

        args.plot.write_text(draw_calibration(report.judge, report.reliability), encoding="utf-8")
    return 0


def run_score(args: argparse.Namespace) -> int:
    from stepwell.runs.outcome_model.rollouts import open_source
    from stepwell.runs.outcome_model.scoring import score_source

    judge, is_complete = _open_judge(args), True
    for source in args.sources:
        with open_source(source, for_writing=True) as pool, show_progress(source, pool.count()) as show:
            counts = score_source(
                judge, pool, channel=args.channel, tags=args.tag, over_human=args.over_human, tell=show
            )
        print(
            f"{source}: {counts.num_judged} judged, {counts.num_yes} of them successes; "
            f"{counts.num_known} judged before, {counts.num_human} kept from a person"
        )
        if counts.num_unjudged:
            is_complete = False
            print(f"{source}: {counts.num_unjudged} got no answer and stay unjudged; give the command again")
    return 0 if is_complete else 1


def _open_judge(args: argparse.Namespace) -> OutcomeJudge:
    from stepwell.config.judge import EndpointConfig
    from stepwell.rewards.outcome_model.endpoint import EndpointOutcomeJudge
    from stepwell.runs.outcome_model.model import OutcomeModel
    from stepwell.workers.placement import check_device

    if args.judge.startswith(("http://", "https://")):
        return EndpointOutcomeJudge(EndpointConfig(url=args.judge, model=args.endpoint_model))
    check_device("--device", args.device)
    return OutcomeModel.load(args.judge, device=args.device)


def _format_score(name: str, score: JudgeScore) -> tuple[str, ...]:
    number: Callable[[float | None], str] = lambda value: "–" if value is None else f"{value:.3f}"  # noqa: E731
    values = (score.accuracy, score.precision, score.recall, score.f1, score.auc, score.calibration_error)
    return (name, str(score.count), number(score.success_share), *map(number, values), number(score.brier))


def _format_bin(one: dict[str, float]) -> str:
    return f"{one['predicted']:.2f} -> {one['observed']:.2f} ({int(one['count'])})"
