"""The facts of a description as a dictionary that a model writes, and sentences that rules can read.

    free text ─► model ─► {"hole 1": ["above the player"]} ─► "The hole 1 is above the player."
                                                                     └─► rule judge ─► F1

The model only reads the text. It does not see the true state, so it cannot be talked into a verdict: the
comparison is the rule judge's. A fact is a relation in words, or a list of coordinates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from stepwell.core.state_vocabulary import StateVocabulary
from stepwell.rewards.judge.prompts import fence_text

MAX_FACTS = 200
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_FRAMES = {
    "grid": '{"goal": ["above and left of the player"], "hole 1": ["directly below the player"]}',
    "coordinates": '{"red cube": [[83, -102, 20]], "green cube": [[-47, 95, 20]]}',
    "bearing": '{"sofa": ["1.2 meters to the left"], "clock": ["0.5 meters ahead"]}',
}


def write_fact_question(env: str, vocabulary: StateVocabulary, text: str) -> list[dict[str, str]]:
    """The messages that ask for the facts of a text."""
    system = (
        f"An agent wrote about the objects of {env}. Turn its text into a JSON dictionary: each object "
        "that it names, with a list of what the text says about its place, in few words or as coordinates. "
        "Number objects of one kind if the text does. Add nothing that the text does not say, and correct "
        f"nothing.\nFor example: {_FRAMES[vocabulary.frame]}\nAnswer with the dictionary alone."
    )
    return [{"role": "system", "content": system}, {"role": "user", "content": fence_text(text)}]


def read_facts(reply: str) -> str | None:
    """The dictionary of a reply as JSON; None if there is none."""
    found = _OBJECT.search(reply)
    try:
        facts = json.loads(found[0]) if found else None
    except (ValueError, RecursionError):
        return None
    return json.dumps(facts, sort_keys=True) if isinstance(facts, dict) else None


def write_sentences(facts: str) -> str:
    """One sentence per fact.

    >>> write_sentences('{"goal": ["above the player"], "cube": [[83, -102, 20]]}')
    'The goal is above the player. The cube is at (83, -102, 20).'
    """
    sentences = []
    for thing, value in json.loads(facts).items():
        name = " ".join(re.findall(r"[A-Za-z0-9]+", thing)[:8])
        sentences += [f"The {name} is {each}." for each in _iterate_facts(value)]
    return " ".join(sentences[:MAX_FACTS])


def _iterate_facts(value: Any) -> Iterator[str]:
    """Facts of one object: texts and coordinates, in lists or alone; anything else says nothing."""
    if isinstance(value, str) and value.strip():
        yield re.sub(r"\s*[.!?]\s+", ", ", value).strip(" .!?\n")
    elif isinstance(value, list) and value and all(_is_number(each) for each in value):
        yield f"at ({', '.join(format(each, 'g') for each in value)})"
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, str) or (isinstance(each, list) and all(map(_is_number, each))):
                yield from _iterate_facts(each)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
