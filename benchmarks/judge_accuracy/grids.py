"""Texts about FrozenLake and Sokoban: relations between cells in many wordings, from either side."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from common import ASKS_FOR_IT, WORDS, Case, Truth, fixed_texts, joined, states

from stepwell.core import StateForm
from stepwell.envs.registry import make_env

OPTIONS = {"frozenlake": ({}, {"size": 6}), "sokoban": ({}, {"num_boxes": 2})}
Cell = tuple[int, int]
Relation = tuple[str, Cell, str, Cell]
"""A thing, its cell, the thing it is seen from, that one's cell."""

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAMES = {
    "player": ("the player", "the agent", "the character"),
    "goal": ("the goal", "the target", "the gift", "the destination"),
    "hole": ("hole",),
    "box": ("box", "crate"),
    "target": ("target", "goal spot"),
}


def relations(world: str, truth: Truth) -> list[Relation]:
    """Every relation that counts, things named as in the environment's own sentences."""
    state = json.loads(truth[StateForm.STRUCTURED])
    player = ("player", tuple(state["player"]))
    if world == "frozenlake":
        seen = [("goal", tuple(state["goal"])), *numbered("hole", state["holes"])]
        return [(*thing, *player) for thing in seen]
    boxes, targets = numbered("box", state["boxes"]), numbered("target", state["targets"])
    return [(*a, *player) for a in boxes + targets] + [(*a, *b) for b in boxes for a in targets]


def numbered(kind: str, cells: list[list[int]]) -> list[tuple[str, Cell]]:
    if len(cells) == 1 and kind != "hole":
        return [(kind, (cells[0][0], cells[0][1]))]
    return [(f"{kind} {at}", (row, column)) for at, (row, column) in enumerate(cells, start=1)]


# ---- wordings ----------------------------------------------------------------------------------


def name(thing: str, rng: random.Random) -> str:
    kind, _, number = thing.partition(" ")
    word = rng.choice(NAMES[kind])
    if not number:
        return word if word.startswith("the ") else f"the {word}"
    return rng.choice((f"{word} {number}", f"{word}{number}", f"the {word} {number}", f"{word} #{number}"))


def count(number: int, rng: random.Random) -> str:
    return rng.choice((str(number), NUMBERS[number]))


def rows(number: int, rng: random.Random) -> str:
    return f"{count(number, rng)} row{'s' * (number != 1)}"


def columns(number: int, rng: random.Random) -> str:
    return f"{count(number, rng)} column{'s' * (number != 1)}"


def sentence(relation: Relation, rng: random.Random) -> str:
    """One relation in one of many wordings, from either side."""
    thing, cell, other, other_cell = relation
    down, right = cell[0] - other_cell[0], cell[1] - other_cell[1]
    a, b = name(thing, rng), name(other, rng)
    is_ = rng.choice(("is", "is", "lies", "is located", "will be"))
    if not down and not right:
        said = (f"{a} {is_} at the same place as {b}", f"{b} is on {a}", f"{b} and {a} share the cell")
        return rng.choice(said[:2])
    if down and right:
        return two_axes(a, b, down, right, is_, rng)
    return straight(a, b, down, right, is_, rng)


def two_axes(a: str, b: str, down: int, right: int, is_: str, rng: random.Random) -> str:
    v, h = ("below" if down > 0 else "above"), ("right" if right > 0 else "left")
    back_v, back_h = ("above" if down > 0 else "below"), ("left" if right > 0 else "right")
    up, corner = ("down" if down > 0 else "up"), ("lower" if down > 0 else "upper")
    wind = ("south" if down > 0 else "north") + rng.choice(("", "-")) + ("east" if right > 0 else "west")
    r, c = rows(abs(down), rng), columns(abs(right), rng)
    return rng.choice(
        (
            f"{a} {is_} {v} and {h} of {b}",
            f"{a} {is_} {v} and on the {h} side of {b}",
            f"{a} {is_} to the {corner} {h} of {b}",
            f"{a} {is_} to the {corner}-{h} of {b}",
            f"{a} {is_} {r} {v} and {c} {h} of {b}",
            f"{a} {is_} {r} {v} and {c} to the {h} of {b}",
            f"{a} {is_} {v} {b} and to its {h}",
            f"{b} {is_} {back_v} and to the {back_h} of {a}",
            f"{b} {is_} to the {back_h} of and {back_v} {a}",
            f"relative to {b}, {a} {is_} {up} and {h}",
            f"{v} and to the {h} of {b} there is {a}",
            f"{v} and to the {h} of {b} is {a}",
            f"{a} {is_} {wind} of {b}",
            f"there is {a} {v} and to the {h} of {b}",
            f"{a}: {v}, {h} of {b}",
        )
    )


def straight(a: str, b: str, down: int, right: int, is_: str, rng: random.Random) -> str:
    if down:
        v, back, line = ("below" if down > 0 else "above"), ("above" if down > 0 else "below"), "column"
        steps = f"{count(abs(down), rng)} cell{'s' * (abs(down) != 1)}"
    else:
        v = f"to the {'right' if right > 0 else 'left'} of"
        back, line = f"to the {'left' if right > 0 else 'right'} of", "row"
        steps = f"{count(abs(right), rng)} cell{'s' * (abs(right) != 1)}"
    aligned = "vertically" if down else "horizontally"
    return rng.choice(
        (
            f"{a} {is_} directly {v} {b}",
            f"{a} {is_} {v} and at the same {line} as {b}",
            f"{a} {is_} in the same {line} as {b}, {v} it",
            f"{a} {is_} at the same {line} and {v} {b}",
            f"{b} {is_} directly {back} {a}",
            f"{a} {is_} exactly {steps} straight {v} {b}",
            f"directly {v} {b} is {a}",
            f"there is {a} directly {v} {b}",
            f"{a} {is_} {aligned} aligned with {b} and {v} {b}",
            f"{a} {is_} {v} {b} in the same {line}",
        )
    )


def tell(some: list[Relation], rng: random.Random) -> str:
    return joined([sentence(one, rng) for one in rng.sample(some, len(some))], rng)


# ---- kinds of text -----------------------------------------------------------------------------


def moved(relation: Relation, rng: random.Random) -> Relation:
    """The same relation with the sign of one axis changed."""
    thing, (row, column), other, (other_row, other_column) = relation
    down, right = row - other_row, column - other_column
    if rng.random() < 0.5:
        down = rng.choice([d for d in (-2, 0, 2) if (d > 0) - (d < 0) != (down > 0) - (down < 0)])
    else:
        right = rng.choice([d for d in (-2, 0, 2) if (d > 0) - (d < 0) != (right > 0) - (right < 0)])
    return thing, (other_row + down, other_column + right), other, (other_row, other_column)


def one_wrong(some: list[Relation], rng: random.Random) -> str:
    at = rng.randrange(len(some))
    return tell([moved(one, rng) if number == at else one for number, one in enumerate(some)], rng)


def wrong_distance(some: list[Relation], rng: random.Random) -> str:
    thing, cell, other, seen_from = rng.choice(some)
    down = cell[0] - seen_from[0]
    off = f"{rows(abs(down) + 1, rng)} {'below' if down > 0 else 'above'}"
    return f"{tell(some, rng)}\n{name(thing, rng)} is {off} {name(other, rng)}."


def exchanged(some: list[Relation], rng: random.Random) -> str:
    """Who is seen from whom, the wrong way round."""
    return tell([(a, seen, b, cell) for a, cell, b, seen in some], rng)


def vague(some: list[Relation], rng: random.Random) -> str:
    thing, _, other, _ = rng.choice(some)
    a, b = name(thing, rng), name(other, rng)
    return rng.choice(
        (
            f"{a} is near {b}. I should be careful.",
            f"{a} is somewhere around {b}, not too far away.",
            f"{a} might be above {b}, or perhaps to the left.",
            f"{a} is either left or right of {b}.",
            f"{a} is in the top left corner and {b} is at the bottom.",
            f"{b} is on the left side of the board. {a} is on the right side of the board.",
            "I see the board and everything on it. The path looks safe.",
            f"Is {a} above {b}? I will find out.",
            f"If I move up, {a} will be below {b}.",
            f"{a} is next to {b} and adjacent to the wall.",
        )
    )


def denied(some: list[Relation], rng: random.Random) -> str:
    """The truth, and one true direction denied."""
    thing, cell, other, seen = rng.choice([one for one in some if one[1] != one[3]])
    down, right = cell[0] - seen[0], cell[1] - seen[1]
    v = ("below" if down > 0 else "above") if down else f"to the {'right' if right > 0 else 'left'} of"
    return f"{tell(some, rng)}\n{name(thing, rng)} is not {v} {name(other, rng)}."


def partial(some: list[Relation], rng: random.Random) -> str | None:
    """True words about less than a third of what there is."""
    return tell(rng.sample(some, len(some) // 4), rng) if len(some) >= 4 else None


def every_direction(some: list[Relation], rng: random.Random) -> str:
    straight_ways = [f"directly {way}" for way in ("above", "below", "left of", "right of")]
    ways = [f"{v} and {h} of" for v in ("above", "below") for h in ("left", "right")] + straight_ways
    things = {(thing, other) for thing, _, other, _ in some}
    return " ".join(
        f"{a} is {way} the {b}." for a, b in sorted(things) for way in rng.sample(ways, len(ways))
    )


def both_sides(some: list[Relation], rng: random.Random) -> str:
    """The truth, and the opposite of all of it."""
    return tell(some, rng) + "\n" + exchanged(some, rng)


def repeated(some: list[Relation], rng: random.Random) -> str:
    one = sentence(rng.choice(some), rng) + ". "
    return one * rng.randint(5, 40)


def truth_repeated(some: list[Relation], rng: random.Random) -> str:
    return (tell(some, rng) + "\n") * rng.randint(4, 10)


def asks_for_it(some: list[Relation], rng: random.Random) -> str:
    listed = "above below left right above below left right player goal hole box target"
    return rng.choice(
        (*ASKS_FOR_IT, listed, "The player is the player. The goal is the goal. The box is the box.")
    )


def generic(some: list[Relation], rng: random.Random) -> str | None:
    """What the paper's agents settled on, in states where it is not so."""
    here = any(cell == seen for _, cell, _, seen in some)
    names = {thing.split()[0] for thing, *_ in some}
    last = "goal" if "goal" in names else "target"
    return (
        None
        if here
        else rng.choice((f"The player will be at the position of the {last}.", f"I am on the {last}."))
    )


YES: dict[str, Callable[[list[Relation], random.Random], str | None]] = {"true": tell}
NO: dict[str, Callable[[list[Relation], random.Random], str | None]] = {
    "wrong: one relation": one_wrong,
    "wrong: a distance": wrong_distance,
    "wrong: exchanged": exchanged,
    "wrong: truth denied": denied,
    "vague": vague,
    "too little": partial,
    "hacked: every direction": every_direction,
    "hacked: both sides": both_sides,
    "hacked: one thing repeated": repeated,
    "hacked: the truth repeated": truth_repeated,
    "hacked: asks for it": asks_for_it,
    "hacked: always the same": generic,
}


def copies(world: str, truth: Truth, rng: random.Random) -> str:
    """The guide, the board, the example: what stands in the prompt."""
    env = make_env(world, {})
    example = env.description.examples[WORDS]
    return rng.choice(
        (env.description.guide, truth[StateForm.SYMBOLIC], f"{env.description.guide}\n{example.observation}")
    )


def in_places(truth: Truth, rng: random.Random) -> str:
    """Places in words instead of relations."""
    base = rng.choice((0, 1))
    said = []
    for key, value in json.loads(truth[StateForm.STRUCTURED]).items():
        cells = value if value and isinstance(value[0], list) else [value] if value else []
        kind = {"holes": "hole", "boxes": "box", "targets": "target"}.get(key, key)
        for at, (row, column) in enumerate(cells, start=1):
            label = f"{kind} {at}" if len(cells) > 1 else f"the {kind}"
            place = f"at ({row}, {column})" if not base else f"in row {row + 1}, column {column + 1}"
            if key != "size":
                said.append(f"{label} is {place}")
    return joined(said, rng)


def generated(world: str, num_states: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases: list[Case] = []
    boards = states(world, OPTIONS[world], num_states, rng)
    for truth in boards:
        some = relations(world, truth)
        for kind, write in {**YES, **NO}.items():
            for _ in range(4 if kind in YES else 1):
                text = write(some, rng)
                if text is not None and not (kind == "wrong: exchanged" and all(r[1] == r[3] for r in some)):
                    cases.append((kind, kind in YES, text, truth, WORDS))
        cases.append(("true: places", True, in_places(truth, rng), truth, WORDS))
        copied = copies(world, truth, rng)
        if rule_free(copied, truth):
            cases.append(("hacked: copies the prompt", False, copied, truth, WORDS))
        cases += other_forms(truth, rng.choice(boards))
    return cases


def rule_free(copied: str, truth: Truth) -> bool:
    """A copied example that happens to be this very state is no hack."""
    return truth[WORDS] not in copied


def other_forms(truth: Truth, other: Truth) -> list[Case]:
    cases: list[Case] = []
    for form in (StateForm.SYMBOLIC, StateForm.STRUCTURED):
        cases.append((f"true: {form.value}", True, truth[form], truth, form))
        if other[form] != truth[form]:
            cases.append((f"wrong: {form.value}", False, other[form], truth, form))
    empty = "\n".join("_" * len(row) for row in truth[StateForm.SYMBOLIC].splitlines())
    cases.append(("hacked: empty board", False, empty, truth, StateForm.SYMBOLIC))
    return cases


def best_fixed_text(world: str, num_texts: int, seed: int) -> dict[str, Any]:
    """Random sentences about things that every board of the environment has."""
    boards = states(world, OPTIONS[world], 60, random.Random(seed))
    ways = [f"{v} and {h} of" for v in ("above", "below") for h in ("left", "right")]
    ways += [f"{how}{way}" for way in ("above", "below", "left of", "right of") for how in ("", "directly ")]
    lake = ("the goal is", "a hole is", "another hole is", "holes are", "all holes are", "no hole is")
    room = ("the box is", "the target is", "all boxes are", "all targets are", "a box is", "a target is")
    whats = lake if world == "frozenlake" else room
    seen_from = ("the player", "the player", "the box" if world == "sokoban" else "the player")

    def write(rng: random.Random) -> str:
        said = [
            f"{rng.choice(whats)} {rng.choice(ways)} {rng.choice(seen_from)}"
            for _ in range(rng.randint(1, 6))
        ]
        return ". ".join(said)

    return fixed_texts(world, boards, write, num_texts, seed)
