"""Judge dictionaries and grids, field by field.

A field is a kind of thing; its value is the set of its places, so the order of holes does not
matter. Every field counts the same: on a lake, a player in the wrong place is one wrong field of
three, though it is only one cell of sixteen. So a copy of the state before a move is no prediction
of the state after it, and an empty board is no description.

A key that the environment does not have is a wrong field. A fixed key (`size`) may be missing, but
must not be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell.rewards.judge.scene import JudgedScene, Place, find_places, parse_fields
from stepwell.rewards.judge.verdict import ERROR_FACTOR, NOTHING, Verdict
from stepwell.rewards.state_match import split_rows


def judge_dictionary(text: str, truth: str, scene: JudgedScene) -> Verdict:
    """Judge a dictionary against the places of the true scene."""
    vocabulary = scene.vocabulary
    fixed = {key: places for key, places in parse_fields(truth).items() if key in vocabulary.fixed}
    fields: dict[str, tuple[Place, ...]] = {}
    num_foreign = 0
    for key, places in parse_fields(text).items():
        kind = vocabulary.find_kind(key)
        if kind is not None:
            fields[kind] = fields.get(kind, ()) + places
        elif key in vocabulary.fixed:
            num_foreign += places not in fixed.values()
        else:
            num_foreign += bool(places)
    return _compare_fields(fields, scene.places, vocabulary.tolerance, num_foreign)


def judge_grid(text: str, truth: str, scene: JudgedScene) -> Verdict:
    """Judge a grid against the true one: the same shape, the same things, no wrong cell."""
    cells, true_cells = split_rows(text), split_rows(truth)
    if [len(row) for row in cells] != [len(row) for row in true_cells]:
        return NOTHING
    vocabulary = scene.vocabulary
    differs = cells != true_cells
    return _compare_fields(find_places(text, vocabulary), find_places(truth, vocabulary), 0.0, 0, differs)


def _compare_fields(
    said: Mapping[str, Sequence[Place]],
    truth: Mapping[str, Sequence[Place]],
    tolerance: float,
    num_foreign: int,
    differs: bool = False,
) -> Verdict:
    if not said or not truth:
        return NOTHING
    kinds = [*truth, *(kind for kind in said if kind not in truth and said[kind])]
    counts = [_count_matches(said.get(kind, ()), truth.get(kind, ()), tolerance) for kind in kinds]
    sizes = [(len(said.get(kind, ())), len(truth.get(kind, ()))) for kind in kinds]
    num_fields = len(kinds) + num_foreign
    f1 = sum(_compute_f1(hit, *size) for hit, size in zip(counts, sizes, strict=True)) / num_fields
    num_said, num_facts = sum(a for a, _ in sizes), sum(b for _, b in sizes)
    num_right = sum(counts)
    num_wrong = num_said - num_right + num_foreign
    return Verdict(
        precision=num_right / (num_right + num_wrong) if num_right + num_wrong else 0.0,
        recall=num_right / num_facts if num_facts else 0.0,
        f1=f1,
        score=f1 * ERROR_FACTOR if num_wrong or differs else f1,
        num_right=num_right,
        num_wrong=num_wrong,
        num_described=num_right,
        num_facts=num_facts,
    )


def _compute_f1(hit: int, num_said: int, num_true: int) -> float:
    return 2 * hit / (num_said + num_true) if num_said + num_true else 1.0


def _count_matches(said: Sequence[Place], truth: Sequence[Place], tolerance: float) -> int:
    """The number of true places that were given, each counted once."""
    left = list(truth)
    for place in said:
        found = next((one for one in left if is_near(place, one, tolerance)), None)
        if found is not None:
            left.remove(found)
        if not left:
            break
    return len(truth) - len(left)


def is_near(place: Place, other: Place, tolerance: float) -> bool:
    """Whether two places agree on every axis within the tolerance."""
    return len(place) == len(other) and all(
        abs(a - b) <= tolerance for a, b in zip(place, other, strict=True)
    )
