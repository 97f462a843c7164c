"""`stepwell study`: many configurations and seeds, one table and one plot.

Exit codes: 0 every run has finished; 1 some run failed; 3 the time (`--limit-s`) was up first; 130
interrupted. After 1, 3 and 130 the same command continues.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command

if TYPE_CHECKING:
    from stepwell.studies.study import StudySession

RESUME_HINT = "Finished runs are kept: the same command continues where it stopped."
TIME_IS_UP = 3
_EXAMPLES = (
    ("stepwell study --list", "the studies that come with the package"),
    ("stepwell study steppo --quick", "one of them, its short form"),
    ("stepwell study studies/recipes.toml --quick", "the short form, in minutes on a CPU"),
    ("stepwell study studies/recipes.toml --dry-run", "the runs it would start; trains nothing"),
    ("stepwell study studies/recipes.toml --workers 16 --device cuda", "runs side by side on one GPU"),
    ("stepwell study studies/recipes.toml --address auto", "runs on the nodes of a Ray cluster"),
    ("stepwell study studies/recipes.toml --limit-s 540", "save and stop after nine minutes; continue later"),
    ("stepwell study studies/recipes.toml --only grpo-seed0 seed1", "only runs with such names"),
    (
        "stepwell study studies/recipes.toml --join a/results.json b/results.json",
        "parts that ran elsewhere, in one table",
    ),
)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "study",
        run,
        summary="run many configurations and seeds and compare them",
        description=f"{RESUME_HINT} Writes results.json, table.md, a plot per environment and study.html.",
        examples=_EXAMPLES,
        after_interrupt=lambda args: RESUME_HINT,
    )
    parser.add_argument(
        "study", metavar="STUDY", nargs="?", help="a TOML file that describes it, or a name of --list"
    )
    parser.add_argument("--list", action="store_true", help="list the studies that come with the package")
    parser.add_argument("--quick", action="store_true", help="run the short form that the file describes")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="runs at the same time; default: one per core"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of each run; default: an equal share of the cores"
    )
    parser.add_argument(
        "--address",
        metavar="CLUSTER",
        help="spread the runs over a Ray cluster whose nodes share the folder: auto, HOST:6379, or local",
    )
    parser.add_argument("--device", metavar="DEVICE", help="cpu or cuda; default: as the file says")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="folder of the study; default: runs/study-NAME"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only runs whose names (ENV-VARIANT-seedN) match one of these patterns, in their order",
    )
    parser.add_argument("--limit-s", type=float, metavar="SECONDS", help="save and stop after this time")
    parser.add_argument(
        "--join",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="run nothing; one table of the results.json of parts (of a run in several, the last counts)",
    )
    parser.add_argument(
        "--select",
        action="store_true",
        help="choose each variant's settings first, as the file's [select] says",
    )
    parser.add_argument(
        "--gate", action="store_true", help="check first whether variants may be compared, as [gate] says"
    )
    parser.add_argument(
        "--selected", type=Path, metavar="FILE", help="choices to use; default: where --select wrote them"
    )
    parser.add_argument("--restart", action="store_true", help="delete the runs in the folder")
    parser.add_argument("--dry-run", action="store_true", help="print the runs and stop")


def run(args: argparse.Namespace) -> int:
    from stepwell.config.studies import find_study
    from stepwell.core.errors import ConfigError

    if args.list:
        return _print_studies()
    if args.study is None:
        raise ConfigError("give a TOML file, or a name of `stepwell study --list`")
    file = find_study(args.study)
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {args.workers}")
    if args.threads is not None and args.threads < 1:
        raise ConfigError(f"--threads must be at least 1, got {args.threads}")
    if args.limit_s is not None and args.limit_s <= 0:
        raise ConfigError(f"--limit-s must be above 0, got {args.limit_s:g}")
    from stepwell.studies.study import join_study, run_study

    if args.dry_run:
        return _print_plan(file, args)
    if args.join:
        session = join_study(file, args.join, quick=args.quick, folder=args.folder, only=args.only)
        return _report_session(session)
    session = run_study(
        file,
        quick=args.quick,
        workers=args.workers,
        threads=args.threads,
        device=args.device,
        folder=args.folder,
        only=args.only,
        limit_s=args.limit_s,
        restart=args.restart,
        select=args.select,
        gate=args.gate,
        selected=args.selected,
        address=args.address,
        command=shlex.join(["stepwell", *sys.argv[1:]]),
    )
    return _report_session(session, is_gate=args.gate)


def _print_plan(file: Path, args: argparse.Namespace) -> int:
    from stepwell.studies.study import describe_plan, plan_study

    plan = plan_study(
        file,
        quick=args.quick,
        device=args.device,
        folder=args.folder,
        only=args.only,
        select=args.select,
        gate=args.gate,
        selected=args.selected,
    )
    print(*describe_plan(plan), sep="\n")
    return 0


def _print_studies() -> int:
    from stepwell.config.studies import find_study, list_study_names
    from stepwell.config.study import load_study

    for name in list_study_names():
        print(f"{name:<12} {load_study(find_study(name)).title}")
    return 0


def _report_session(session: StudySession, *, is_gate: bool = False) -> int:
    if session.failed:
        names = ", ".join(session.failed)
        print(f"{len(session.failed)} of {session.num_runs} runs failed: {names}", file=sys.stderr)
    for line in session.choices:
        print(f"chosen  {line}")
    for line in session.failures:
        print(f"gate not passed  {line}", file=sys.stderr)
    if is_gate and session.ending == "complete" and not session.failures:
        print("gate passed: variants may be compared")
    if session.differences and not session.choices and not is_gate:
        print("differences in held-out success, pair by pair (95 % interval):")
        print("\n".join(f"  {line}" for line in [*session.differences, *session.power]))
    print(
        f"{session.num_done} of {session.num_runs} runs done  "
        f"table {session.folder / 'table.md'}  page {session.folder / 'study.html'}"
    )
    if session.ending == "interrupted":
        raise KeyboardInterrupt
    if session.ending == "limit":
        print(RESUME_HINT)
    if is_gate and session.failures:
        return 1
    return {"complete": 0, "limit": TIME_IS_UP}.get(session.ending, 1)
