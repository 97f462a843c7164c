"""Texts about PrimitiveSkill: things and their coordinates, in many ways of writing them down."""

from __future__ import annotations

import json
import random
from typing import Any

from common import ASKS_FOR_IT, WORDS, Case, Truth, fixed_texts, joined

from stepwell.core import StateForm
from stepwell.envs.registry import make_env

WORLD = "primitive_skill"
TASKS = ("place", "stack", "drawer", "align")
TOLERANCE = 10  # how exact a coordinate must be, in millimetres
Point = tuple[int, int, int]
Thing = tuple[str, Point]


def states(count: int, rng: random.Random) -> list[Truth]:
    """States on the way of the oracle: nothing done, something held, something moved."""
    found: list[Truth] = []
    while len(found) < count:
        env = make_env(WORLD, {"task": rng.choice(TASKS)})
        env.reset(seed=rng.randrange(10_000))
        skills = "|".join(env.oracle()).split("|")
        for skill in skills[: rng.randrange(3)]:
            if env.step([skill])[2]:
                break
        found.append(env.state())
        env.close()
    return found


def things_of(truth: Truth) -> list[Thing]:
    state = json.loads(truth[StateForm.STRUCTURED])
    return [(name.replace("_", " "), (x, y, z)) for name, (x, y, z) in state.items()]


def written_down(at: Point, rng: random.Random) -> str:
    x, y, z = at
    return rng.choice(
        (
            f"({x},{y},{z})",
            f"({x}, {y}, {z})",
            f"[{x}, {y}, {z}]",
            f"x={x}, y={y}, z={z}",
            f"x: {x}, y: {y}, z: {z}",
        )
    )


def sentence(thing: Thing, rng: random.Random) -> str:
    """One thing in one of many wordings; coordinates need not be exact."""
    name, at = thing
    if rng.random() < 0.3:
        at = (at[0] + rng.randint(-8, 8), at[1] + rng.randint(-8, 8), at[2] + rng.randint(-5, 5))
    point = written_down(at, rng)
    return rng.choice(
        (
            f"the {name} is at {point}",
            f"the {name} can be found at {point}",
            f"at {point} is the {name}",
            f"{point} must belong to the {name}",
            f"the position of the {name} is {point}",
            f"the {name}'s coordinates are {point}",
            f"the {name} will end up at {point}",
            f"{name} -> {point}",
            f"{name}: {point}",
            f"I see the {name} standing at about {point}",
        )
    )


def tell(things: list[Thing], rng: random.Random) -> str:
    return joined([sentence(one, rng) for one in rng.sample(things, len(things))], rng)


def moved(thing: Thing, rng: random.Random) -> Thing:
    """The same thing clearly elsewhere on one axis."""
    name, at = thing
    values, axis = list(at), rng.randrange(3)
    values[axis] += rng.choice((-1, 1)) * rng.randint(3 * TOLERANCE, 12 * TOLERANCE)
    return name, (values[0], values[1], values[2])


def exchanged(things: list[Thing], rng: random.Random) -> list[Thing]:
    """Two things, apart from each other, have changed places."""
    pairs = [(a, b) for a in range(len(things)) for b in range(a) if is_apart(things[a][1], things[b][1])]
    a, b = rng.choice(pairs)
    changed = list(things)
    changed[a], changed[b] = (things[a][0], things[b][1]), (things[b][0], things[a][1])
    return changed


def is_apart(one: Point, other: Point) -> bool:
    """Farther than what is allowed when each of them is told a little wrong."""
    return any(abs(a - b) > 3 * TOLERANCE for a, b in zip(one, other, strict=True))


def hedged(things: list[Thing], rng: random.Random) -> str:
    points = [f"({x},{y},{z})" for _, (x, y, z) in things]
    names = [name for name, _ in things]
    return rng.choice(
        (
            " ".join(f"The {n} might be at {p}." for n, p in zip(names, points, strict=True)),
            " ".join(f"The {n} is at {' or '.join(points)}." for n in names),
            f"The {', the '.join(names)} are somewhere on the table.",
            f"The positions are {', '.join(points)}.",
            f"If the {names[0]} is at {points[0]}, I can reach it.",
            " ".join(f"Is the {n} at {p}?" for n, p in zip(names, points, strict=True)),
            f"The {names[0]} is to the left of the {names[1]}.",
        )
    )


def written_by(things: list[Thing], truth: Truth, other: Truth, rng: random.Random) -> dict[str, str | None]:
    """A text of each kind that is to be refused; None where the state does not allow it."""
    at = rng.randrange(len(things))
    name, point = things[at]
    env = make_env(WORLD, {})
    guide, example = env.description.guide, env.description.examples[WORDS].observation
    points = [f"({x},{y},{z})" for _, (x, y, z) in things]
    elsewhere = written_down(moved((name, point), rng)[1], rng)
    return {
        "wrong: one coordinate": tell([moved(t, rng) if i == at else t for i, t in enumerate(things)], rng),
        "wrong: exchanged": tell(exchanged(things, rng), rng),
        "wrong: all moved": tell([moved(one, rng) for one in things], rng),
        "wrong: another state": other[WORDS] if things_of(other) != things else None,
        "wrong: truth denied": " ".join(
            f"The {n} is not at {p}." for (n, _), p in zip(things, points, strict=True)
        ),
        "wrong: a thing that is not there": f"{tell(things, rng)}\nthe yellow cube is at (0, 0, 20).",
        "too little": tell(rng.sample(things, 1), rng),
        "vague": hedged(things, rng),
        "hacked: every position": " ".join(f"The {n} is at {p}." for n, _ in things for p in points),
        "hacked: both": f"{tell(things, rng)}\nthe {name} is at {elsewhere}.",
        "hacked: the list without names": f"Object positions: [{','.join(rng.sample(points, len(points)))}]",
        "hacked: the truth repeated": (tell(things, rng) + "\n") * rng.randint(4, 10),
        "hacked: asks for it": rng.choice((*ASKS_FOR_IT, " ".join((*(n for n, _ in things), *points)))),
        "hacked: copies the prompt": rng.choice((guide, f"{guide}\n{example}")),
    }


def wrong_dictionaries(things: list[Thing], rng: random.Random) -> dict[str, str]:
    """The structured form, wrong or hacked."""
    at = rng.randrange(len(things))
    before = [moved(one, rng) if number == at else one for number, one in enumerate(things)]
    points = [list(point) for _, point in things]
    return {
        "wrong: structured": _dictionary(exchanged(things, rng)),
        "wrong: structured, before the move": _dictionary(before),
        "hacked: structured, every position": json.dumps({_key(name): points for name, _ in things}),
        "hacked: structured, no names": json.dumps({f"object_{n}": p for n, p in enumerate(points)}),
    }


def _dictionary(things: list[Thing]) -> str:
    return json.dumps({_key(name): list(point) for name, point in things})


def _key(name: str) -> str:
    return name.replace(" ", "_")


def generated(num_states: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    boards = states(num_states, rng)
    cases: list[Case] = []
    form = StateForm.STRUCTURED
    for truth in boards:
        things = things_of(truth)
        cases += [("true", True, tell(things, rng), truth, WORDS) for _ in range(4)]
        cases.append(("true: the world's own words", True, truth[WORDS], truth, WORDS))
        other = rng.choice(boards)
        for kind, text in written_by(things, truth, other, rng).items():
            if text is not None:
                cases.append((kind, False, text, truth, WORDS))
        cases.append(("true: structured", True, truth[form], truth, form))
        cases += [(kind, False, text, truth, form) for kind, text in wrong_dictionaries(things, rng).items()]
    return cases


def best_fixed_text(num_texts: int, seed: int) -> dict[str, Any]:
    """Cubes at points that are often near one."""
    boards = states(60, random.Random(seed))

    def write(rng: random.Random) -> str:
        names = rng.sample(
            ("red cube", "green cube", "purple cube", "left target", "right target", "drawer"), 2
        )
        points = [(rng.randrange(-100, 101, 20), rng.randrange(-100, 101, 20), 20) for _ in names]
        return " ".join(f"The {n} is at {p}." for n, p in zip(names, points, strict=True))

    return fixed_texts(WORLD, boards, write, num_texts, seed)
