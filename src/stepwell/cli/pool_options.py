"""Arguments that the actions of `stepwell pool` share: the pool, which trajectories, ages and sizes."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepwell.cli.pool_text import UNITS

if TYPE_CHECKING:
    from stepwell.pool import Filter

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def add_pool_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the pool."""
    parser.add_argument("pool", metavar="POOL", help="file, folder or postgresql:// URL")


def add_filter_options(parser: argparse.ArgumentParser, tag_option: str = "--tag") -> None:
    """Add the options that choose trajectories."""
    chosen = parser.add_argument_group("which trajectories (all that are given must hold)")
    chosen.add_argument("--channel", choices=("train", "eval", "user"), help="only of this channel")
    chosen.add_argument(
        "--status",
        action="append",
        metavar="STATUS",
        help="only this status (success, failure, …); may be repeated",
    )
    chosen.add_argument(
        "--solved",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only solved trajectories, or only others: by their outcome, else by status",
    )
    chosen.add_argument(
        tag_option,
        dest="tags",
        action="append",
        default=[],
        metavar="TAG",
        help="only with this tag; may be repeated",
    )
    chosen.add_argument(
        "--without-tag", action="append", default=[], metavar="TAG", help="only without this tag"
    )
    chosen.add_argument("--min-reward", type=float, metavar="X", help="total reward, at least")
    chosen.add_argument("--max-reward", type=float, metavar="X", help="total reward, at most")
    chosen.add_argument("--min-version", type=int, metavar="N", help="policy version of every step, at least")
    chosen.add_argument("--max-version", type=int, metavar="N", help="policy version of every step, at most")
    chosen.add_argument(
        "--newer-than", type=parse_age, metavar="AGE", help="begun within this time, such as 90m, 12h or 30d"
    )
    chosen.add_argument("--older-than", type=parse_age, metavar="AGE", help="begun before this time")
    chosen.add_argument("--env", help="environment or source of the task")
    chosen.add_argument("--group", help="only of this group")
    chosen.add_argument(
        "--id", action="append", dest="ids", metavar="ID", help="only this trajectory; may be repeated"
    )
    chosen.add_argument("--open", action="store_true", help="only those that are not finished")


def make_filter(args: argparse.Namespace) -> Filter:
    """The filter that these options describe."""
    from stepwell.pool import Filter

    now = time.time()
    return Filter(
        channel=args.channel,
        statuses=args.status,
        tags=args.tags,
        without_tags=args.without_tag,
        min_reward=args.min_reward,
        max_reward=args.max_reward,
        min_version=args.min_version,
        max_version=args.max_version,
        since_s=None if args.newer_than is None else now - args.newer_than,
        until_s=None if args.older_than is None else now - args.older_than,
        env=args.env,
        group=args.group,
        ids=args.ids,
        is_open=True if args.open else None,
        is_success=args.solved,
    )


def parse_age(text: str) -> float:
    """Seconds of an age such as 90m, 12h or 30d."""
    return _parse_scaled(text, UNITS, "an age such as 90m, 12h or 30d")


def parse_size(text: str) -> int:
    """Bytes of a size such as 500M or 2G."""
    return int(_parse_scaled(text.removesuffix("B"), _SIZES, "a size such as 500M or 2G"))


def _parse_scaled(text: str, units: Mapping[str, float], wanted: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]?)", text)
    if found is None or found[2].lower() not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return float(found[1]) * units[found[2].lower()]
