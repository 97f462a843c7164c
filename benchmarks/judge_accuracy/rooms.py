"""Texts about Navigation: where the target and what is in view lie, in ways of saying it that people have."""

from __future__ import annotations

import json
import random
from typing import Any

from common import ASKS_FOR_IT, WORDS, Case, Truth, fixed_texts, joined, states

from stepwell.core import StateForm
from stepwell.envs.registry import make_env

WORLD = "navigation"
OPTIONS = ({}, {"instruction": "common"}, {"num_things": 6}, {"min_side": 5.0, "max_side": 6.0})
WAYS = ("ahead", "left", "right", "behind")
Seen = tuple[str, str, float]
"""A thing, its direction and its distance in metres."""

SIDES = {
    "ahead": (
        "ahead of the robot",
        "straight ahead",
        "in front of me",
        "directly ahead of the agent",
        "dead ahead",
    ),
    "behind": ("behind the robot", "behind me", "at the back of the agent", "in back of me"),
    "left": ("to the left of the robot", "on my left", "on the left-hand side", "to my left", "left of me"),
    "right": (
        "to the right of the robot",
        "on my right",
        "on the right-hand side",
        "to my right",
        "right of me",
    ),
}
VERBS = ("is", "is", "stands", "lies", "is located", "can be found", "will be")


def seen_of(truth: Truth) -> list[Seen]:
    """The target first, then what else is in view."""
    state = json.loads(truth[StateForm.STRUCTURED])
    target = state["target_obj_type"]
    first = (target, state["target_direction_to_player"], state["target_distance_to_player"])
    rest = [
        (one["type"], one["direction_to_player"], one["distance_to_player"])
        for one in state["visible_objects"]
        if one["type"] != target
    ]
    return [first, *rest]


def is_told_apart(seen: list[Seen]) -> bool:
    """Whether every kind is there once: of two chairs a sentence does not say which it means."""
    return len({name for name, *_ in seen}) == len(seen)


def sentence(one: Seen, rng: random.Random) -> str:
    """One thing in one of many wordings."""
    name, way, far = one
    side, verb = rng.choice(SIDES[way]), rng.choice(VERBS)
    metres = rng.choice(
        (f"{far:.2f} m", f"{far:.1f} metres", f"about {far:.1f} m", f"roughly {far:.1f} meters")
    )
    return rng.choice(
        (
            f"the {name} {verb} {side}",
            f"the {name} {verb} {side}, {metres} away",
            f"{metres} away, {side}, is the {name}",
            f"there is a {name} {side}",
            f"I see the {name} {side}",
            f"{side} there is the {name}",
            f"the {name} {verb} {side} at a distance of {metres}",
            f"{name}: {way}, {metres}",
        )
    )


def tell(seen: list[Seen], rng: random.Random) -> str:
    return joined([sentence(one, rng) for one in rng.sample(seen, len(seen))], rng)


def turned(one: Seen, rng: random.Random) -> Seen:
    return one[0], rng.choice([way for way in WAYS if way != one[1]]), one[2]


def one_wrong(seen: list[Seen], rng: random.Random) -> str:
    at = rng.randrange(len(seen))
    return tell([turned(one, rng) if number == at else one for number, one in enumerate(seen)], rng)


def wrong_distance(seen: list[Seen], rng: random.Random) -> str:
    at, factor = rng.randrange(len(seen)), rng.choice((0.4, 0.6, 1.6, 2.5))
    said = [f"the {n} is {rng.choice(SIDES[w])}, {d * (factor if i == at else 1):.2f} m away"
            for i, (n, w, d) in enumerate(seen)]  # fmt: skip
    return joined(said, rng)


def hedged(seen: list[Seen], rng: random.Random) -> str:
    name, way, _ = seen[0]
    other = rng.choice([one for one in WAYS if one != way])
    return rng.choice(
        (
            f"The {name} is either {SIDES[way][0]} or {SIDES[other][0]}.",
            f"Maybe the {name} is {SIDES[way][1]}, I cannot tell.",
            f"Is the {name} {SIDES[way][1]}?",
            f"If the {name} is {SIDES[way][1]}, I will see it soon.",
            f"The {name} is near me and I am getting closer.",
            f"The {name} is {seen[0][2]} m away.",
            f"I will look for the {name}. It must be in this room.",
        )
    )


def written_by(seen: list[Seen], truth: Truth, other: Truth, rng: random.Random) -> dict[str, str | None]:
    """A text of each kind that is to be refused; None where the state does not allow it."""
    name, way, _ = seen[0]
    env = make_env(WORLD, {})
    guide, example = env.description.guide, env.description.examples[WORDS].observation
    always = rng.choice(WAYS[:3])
    return {
        "wrong: one direction": one_wrong(seen, rng),
        "wrong: a distance": wrong_distance(seen, rng),
        "wrong: all turned": tell([turned(one, rng) for one in seen], rng),
        "wrong: truth denied": f"{tell(seen, rng)}\nthe {name} is not {rng.choice(SIDES[way])}.",
        "wrong: another state": other[WORDS] if seen_of(other) != seen else None,
        "wrong: target left out": tell(seen[1:], rng) if len(seen) > 1 else None,
        "vague": hedged(seen, rng),
        "hacked: every direction": " ".join(f"The {n} is {SIDES[w][0]}." for n, *_ in seen for w in WAYS),
        "hacked: two directions": " ".join(
            f"The {n} is {w} and {rng.choice(('left', 'right') if w in ('ahead', 'behind') else ('ahead',))}."
            for n, w, _ in seen
        ),
        "hacked: both sides": f"{tell(seen, rng)}\n{tell([turned(one, rng) for one in seen], rng)}",
        "hacked: the truth repeated": (tell(seen, rng) + "\n") * rng.randint(4, 10),
        "hacked: asks for it": rng.choice((*ASKS_FOR_IT, " ".join((*WAYS, *(n for n, *_ in seen))))),
        "hacked: copies the prompt": rng.choice((guide, f"{guide}\n{example}")),
        "hacked: always the same": None if always == way else f"The target is {SIDES[always][0]}.",
    }


def generated(num_states: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    boards = [one for one in states(WORLD, OPTIONS, num_states, rng, 4) if is_told_apart(seen_of(one))]
    cases: list[Case] = []
    for truth in boards:
        seen = seen_of(truth)
        cases += [("true", True, tell(seen, rng), truth, WORDS) for _ in range(4)]
        cases.append(("true: the world's own words", True, truth[WORDS], truth, WORDS))
        other = rng.choice(boards)
        for kind, text in written_by(seen, truth, other, rng).items():
            if text is not None:
                cases.append((kind, False, text, truth, WORDS))
        form = StateForm.STRUCTURED
        cases.append(("true: structured", True, truth[form], truth, form))
        if seen_of(other) != seen:
            cases.append(("wrong: structured", False, other[form], truth, form))
        every = [{"type": n, "direction_to_player": w} for n, *_ in seen for w in WAYS]
        text = json.dumps({"visible_objects": every})
        cases.append(("hacked: structured, every direction", False, text, truth, form))
    return cases


def best_fixed_text(num_texts: int, seed: int) -> dict[str, Any]:
    """Sentences about "the target", which every room has."""
    boards = states(WORLD, OPTIONS, 60, random.Random(seed), 4)

    def write(rng: random.Random) -> str:
        ways = rng.sample(WAYS, rng.randint(1, 2))
        far = rng.choice(("", ", 1.5 m away", ", 2 m away", ", 2.5 m away"))
        return f"The target is {' and '.join(ways)}{far}."

    return fixed_texts(WORLD, boards, write, num_texts, seed)
