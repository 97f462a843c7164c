"""`stepwell pool`: look at a data pool, curate it, move it, keep it small."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.command import add_command
from stepwell.cli.pool_options import (
    add_filter_options,
    add_pool_argument,
    make_filter,
    parse_age,
    parse_size,
)
from stepwell.cli.pool_text import (
    format_counts,
    format_number,
    format_outcome,
    format_row,
    format_size,
    print_table,
    show_progress,
    summary_to_json,
    trajectory_to_json,
)

if TYPE_CHECKING:
    from stepwell.pool import Pool, StoredTrajectory


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "pool",
        help="look at stored trajectories, curate, export and import them",
        description="POOL is a file, a folder that holds pool.db (such as runs/NAME/pool), or a "
        "postgresql:// URL.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_ls(actions)
    _add_show(actions)
    _add_stats(actions)
    _add_export(actions)
    _add_import(actions)
    _add_tag(actions)
    _add_judge(actions)
    _add_gc(actions)


# --- arguments of the actions ---------------------------------------------------------------------


def _add_ls(actions: Any) -> None:
    examples = (
        ("stepwell pool ls runs/NAME/pool", "the newest twenty"),
        ("stepwell pool ls pool.db --channel user --min-reward 1 --limit 0", "all that fit"),
        ("stepwell pool ls pool.db --json | jq .id", "one JSON object per line"),
    )
    parser = add_command(
        actions, "ls", run_ls, summary="list trajectories, the newest first", examples=examples
    )
    add_pool_argument(parser)
    add_filter_options(parser)
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="number of trajectories; 0: all (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _add_show(actions: Any) -> None:
    examples = (("stepwell pool show pool.db traj-4f2a", "by its id, or the beginning of it"),)
    parser = add_command(
        actions, "show", run_show, summary="show one trajectory, step by step", examples=examples
    )
    add_pool_argument(parser)
    parser.add_argument("id", help="id of the trajectory; its first characters are enough if they are unique")
    parser.add_argument("--json", action="store_true", help="as JSON, with token ids and logprobs")


def _add_stats(actions: Any) -> None:
    examples = (("stepwell pool stats pool.db", ""),)
    parser = add_command(actions, "stats", run_stats, summary="count what the pool holds", examples=examples)
    add_pool_argument(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_export(actions: Any) -> None:
    examples = (
        ("stepwell pool export pool.db wins.parquet --status success", "by the ending: Parquet or JSONL"),
        ("stepwell pool export pool.db all.jsonl", "images go to a folder beside it"),
    )
    parser = add_command(
        actions, "export", run_export, summary="write finished trajectories to a file", examples=examples
    )
    add_pool_argument(parser)
    parser.add_argument("file", type=Path, help="the file to write: .parquet or .jsonl")
    add_filter_options(parser)


def _add_import(actions: Any) -> None:
    examples = (
        ("stepwell pool import pool.db wins.parquet --tag imported", "those already there are left alone"),
    )
    parser = add_command(
        actions, "import", run_import, summary="store what an export wrote", examples=examples
    )
    add_pool_argument(parser)
    parser.add_argument("file", type=Path, help="a file that `stepwell pool export` wrote")
    parser.add_argument("--channel", choices=("train", "eval", "user"), help="default: as exported")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="tag these trajectories; may be repeated"
    )


def _add_tag(actions: Any) -> None:
    examples = (
        ("stepwell pool tag pool.db good --id traj-4f2a --id traj-77", "these two"),
        ("stepwell pool tag pool.db good --min-reward 1 --channel user", "all that fit"),
        ("stepwell pool tag pool.db good --min-reward 1 --remove", "take the mark away"),
        ("stepwell pool tag pool.db keep --status success", "never collected by gc"),
    )
    parser = add_command(actions, "tag", run_tag, summary="mark trajectories", examples=examples)
    add_pool_argument(parser)
    parser.add_argument("tag", help="the tag")
    parser.add_argument("--remove", action="store_true", help="remove the tag instead")
    add_filter_options(parser, tag_option="--with-tag")


def _add_judge(actions: Any) -> None:
    examples = (
        ("stepwell pool judge pool.db traj-4f2a 1", "it solved its task, whatever the environment said"),
        ("stepwell pool judge pool.db traj-4f2a 0.3 --by anna", "probably not"),
    )
    parser = add_command(
        actions,
        "judge",
        run_judge,
        summary="say whether a trajectory solved its task",
        description="Your outcome is kept beside the status and earlier outcomes; the newest one counts.",
        examples=examples,
    )
    add_pool_argument(parser)
    parser.add_argument("id", help="id of the trajectory; its first characters are enough if they are unique")
    parser.add_argument("probability", type=float, help="probability of success, from 0 to 1")
    parser.add_argument("--by", default="", metavar="NAME", help="your name")


def _add_gc(actions: Any) -> None:
    examples = (
        ("stepwell pool gc pool.db --max-size 2G --dry-run", "what would go"),
        ("stepwell pool gc pool.db --max-age 30d --channel user", "what is older than a month"),
    )
    parser = add_command(
        actions,
        "gc",
        run_gc,
        summary="remove the oldest trajectories",
        description="Never removed: what is open, leased, tagged `keep`, or waits to be trained on.",
        examples=examples,
    )
    add_pool_argument(parser)
    parser.add_argument(
        "--max-size", type=parse_size, metavar="SIZE", help="size of all steps, such as 500M or 2G"
    )
    parser.add_argument("--max-age", type=parse_age, metavar="AGE", help="such as 12h, 30d or 8w")
    parser.add_argument("--channel", choices=("train", "eval", "user"), help="only this channel")
    parser.add_argument("--unconsumed", action="store_true", help="also what has not been trained on yet")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )


# --- the actions -------------------------------------------------------------------------------


def run_ls(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    if args.limit < 0:
        raise ConfigError(f"--limit: must be at least 0, got {args.limit}")
    with _open_pool(args.pool) as pool:
        entries = pool.find(make_filter(args), newest_first=True, limit=args.limit or None)
        if args.json:
            for entry in entries:
                print(json.dumps(summary_to_json(entry)))
            return 0
        shown = list(entries)
        total = pool.count(make_filter(args))
    print_table(
        ("id", "channel", "task", "status", "judged", "steps", "reward", "version", "group", "age", "tags"),
        [format_row(entry) for entry in shown],
    )
    print(f"{len(shown)} of {total} trajectories")
    return 0


def run_show(args: argparse.Namespace) -> int:
    from stepwell.monitors.plain_text import show_controls

    with _open_pool(args.pool) as pool:
        stored = pool.get(_complete_id(pool, args.id), with_branches=True)
    if args.json:
        print(json.dumps(trajectory_to_json(stored), indent=1))
        return 0
    print(show_controls("\n".join(_describe_trajectory(stored))))
    return 0


def _describe_trajectory(stored: StoredTrajectory) -> Iterator[str]:
    """A trajectory in lines, with what its agent and its pages wrote as it is."""
    entry, trajectory = stored.entry, stored.trajectory
    yield f"{entry.id}  {entry.channel}  {'open' if entry.is_open else trajectory.status.value}"
    facts = {
        "task": f"{trajectory.task.env} {trajectory.task.id[:12]} {trajectory.task.instruction}".rstrip(),
        "group": f"{entry.group} of {entry.group_size} ({entry.state})",
        "judged": "; ".join(format_outcome(given.outcome) for given in stored.outcome_history),
        "reward": format_number(entry.reward),
        "versions": "–" if stored.versions is None else "{} to {}".format(*stored.versions),
        "tags": ", ".join(stored.tags),
        "source": json.dumps(stored.source),
        "error": trajectory.error,
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:9} {value}"
    on_path = set(stored.numbers if stored.path is None else stored.path)
    for number, step in zip(stored.numbers, trajectory.steps, strict=True):
        mark = "" if number in on_path else "  (not on the path)"
        parts = ", ".join(f"{name} {value:g}" for name, value in step.reward_parts.items())
        prompt = getattr(step.state, "prompt_ids", ())
        yield (
            f"step {number}{mark}: {len(prompt)} prompt ids, {step.num_units} sampled, "
            f"reward {format_number(step.reward)}{f' ({parts})' if parts else ''}"
        )
        yield "  " + getattr(step.action, "text", "").strip().replace("\n", "\n  ")
    for report in stored.reports:
        yield f"report: {json.dumps(report.body)}"


def run_stats(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    with _open_pool(args.pool) as pool:
        stats = pool.stats()
    if args.json:
        print(json.dumps(asdict(stats), indent=1))
        return 0
    print_table(
        ("channel", "trajectories", "open", "steps", "size", "ends", "groups"),
        [
            (
                name.value,
                f"{channel.num_trajectories:,}",
                f"{channel.num_open:,}",
                f"{channel.num_steps:,}",
                format_size(channel.num_bytes),
                format_counts(channel.statuses),
                format_counts(channel.groups),
            )
            for name, channel in stats.channels.items()
        ],
    )
    for name, (leased, consumed, checkpoint) in stats.consumers.items():
        at = "none yet" if checkpoint is None else checkpoint
        print(f"consumer {name}: {leased} groups leased, {consumed} consumed, newest checkpoint {at}")
    if stats.tags:
        print(f"tags: {format_counts(stats.tags)}")
    print(
        f"{stats.num_rewards:,} later rewards, {stats.num_outcomes:,} outcomes, "
        f"{stats.num_reports:,} reports, {stats.num_versions:,} policy versions, "
        f"{stats.num_blobs:,} images ({format_size(stats.blob_bytes)}), "
        f"{format_size(stats.disk_bytes)} on disk"
    )
    return 0


def run_export(args: argparse.Namespace) -> int:
    with _open_pool(args.pool) as pool:
        where = make_filter(args)
        with show_progress("exporting", pool.count(where)) as report:
            count = pool.export(args.file, where=where, progress=report)
    print(f"{count} trajectories in {args.file}")
    return 0


def run_import(args: argparse.Namespace) -> int:
    with (
        _open_pool(args.pool, must_exist=False, require_write=True) as pool,
        show_progress("importing", None) as report,
    ):
        count = pool.import_(args.file, channel=args.channel, tags=args.tag, progress=report)
    print(f"{count} new trajectories in {args.pool}")
    return 0


def run_tag(args: argparse.Namespace) -> int:
    with _open_pool(args.pool, require_write=True) as pool:
        ids = [entry.id for entry in pool.find(make_filter(args))]
        (pool.untag if args.remove else pool.tag)(ids, args.tag)
    print(f"{len(ids)} trajectories {'no longer have' if args.remove else 'now have'} the tag {args.tag!r}")
    return 0


def run_judge(args: argparse.Namespace) -> int:
    from stepwell.core import Outcome, OutcomeSource

    outcome = Outcome(args.probability, OutcomeSource.HUMAN, args.by)
    with _open_pool(args.pool, require_write=True) as pool:
        id = _complete_id(pool, args.id)
        pool.assign_outcome(id, outcome)
    print(f"{id} now counts as a {'success' if outcome.is_success else 'failure'}")
    return 0


def run_gc(args: argparse.Namespace) -> int:
    from stepwell.core.errors import ConfigError

    if args.max_size is None and args.max_age is None:
        raise ConfigError("give --max-size, --max-age or both: what may stay")
    with _open_pool(args.pool, require_write=not args.dry_run) as pool:
        gone = pool.gc(
            max_bytes=args.max_size,
            max_age_s=args.max_age,
            channel=args.channel,
            unconsumed=args.unconsumed,
            dry_run=args.dry_run,
        )
    words = "would go" if args.dry_run else "removed"
    print(
        f"{gone.num_trajectories:,} trajectories with {gone.num_steps:,} steps and {gone.num_blobs:,} images "
        f"({format_size(gone.num_bytes)}) {words}"
    )
    return 0


@contextmanager
def _open_pool(where: str, *, must_exist: bool = True, require_write: bool = False) -> Iterator[Pool]:
    from stepwell.pool import open_pool

    with open_pool(where, must_exist=must_exist, require_write=require_write) as pool:
        yield pool


def _complete_id(pool: Pool, text: str) -> str:
    from stepwell.core.errors import InputError
    from stepwell.pool import Filter

    if pool.count(Filter(ids=(text,))):
        return text
    found = [entry.id for entry in pool.find() if entry.id.startswith(text)]
    if len(found) != 1:
        shown = ", ".join(found[:5])
        raise InputError(
            f"{len(found)} trajectories have an id that begins with {text!r}: {shown}".rstrip(": ")
        )
    return found[0]
