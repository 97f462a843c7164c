"""The questions and the index that options ask for, once per process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from stepwell.core import ConfigError
from stepwell.envs.multihop_qa.facts import Collection, MultihopQuestion, open_collection
from stepwell.envs.multihop_qa.facts.published import read_published
from stepwell.envs.multihop_qa.options import MultihopOptions
from stepwell.envs.retrieval import SearchIndex

COLLECTIONS = {
    ("full", "in"): "atlas",
    ("full", "out"): "nuclides",
    ("tiny", "in"): "codes",
    ("tiny", "out"): "marks",
}


def find_collection(options: MultihopOptions) -> Collection:
    """The passages and questions that options name."""
    if options.dataset is None:
        return open_collection(COLLECTIONS[options.size, options.domain])
    path = Path(options.dataset).expanduser()
    if not path.is_file():
        raise ConfigError(f"env.options.dataset: there is no file {options.dataset!r}")
    return _read_file(path.resolve(), path.stat().st_mtime_ns)


def open_index(options: MultihopOptions) -> SearchIndex:
    """The index over the passages."""
    return find_collection(options).index(options.index)


def choose_questions(options: MultihopOptions) -> tuple[MultihopQuestion, ...]:
    """The questions that may become tasks."""
    return _choose_questions(find_collection(options), options.max_hops)


@lru_cache(maxsize=16)
def _choose_questions(found: Collection, max_hops: int | None) -> tuple[MultihopQuestion, ...]:
    most = max_hops if max_hops is not None else max(len(question.plan) for question in found.questions)
    chosen = tuple(question for question in found.questions if len(question.plan) <= most)
    if not chosen:
        raise ConfigError(f"env.options.max_hops {max_hops} leaves no question of {found.name}; raise it")
    return chosen


@lru_cache(maxsize=4)
def _read_file(path: Path, changed_ns: int) -> Collection:
    """`changed_ns` is part of the key: a file that changes is read again."""
    return read_published(path)
