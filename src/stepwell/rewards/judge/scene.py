"""The true state as the rule judge needs it: things with places, or with bearings.

Parsed from `Env.state()`: from the structured form if there is one, else from the symbolic one. A
structured state is anything like a dictionary: JSON, or keys without quotes and tuples.

    {"player": [2, 0], "holes": [[1, 0]], "size": [3, 3]}            places, by kind
    {red_cube_position: (83, -102, 20), green_cube: (-47, 95, 20)}   places, by name
    {"Sofa": {"direction": "left", "distance": 1.2}}                 bearings, by name
    {"objects": [{"type": "Sofa", "direction": "left", "distance": 1.2}]}

Things of one kind keep the order of the state; their numbers follow it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell.core.env_description import StateForm
from stepwell.core.state_vocabulary import StateVocabulary, split_key

Place = tuple[float, ...]
SceneObject = tuple[str, int]
"""Kind and number, from 0."""

_KEY = re.compile(r"""["']?([A-Za-z]\w*)["']?\s?[:=]""")
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_TUPLE = re.compile(rf"[(\[] ?({_NUMBER}(?: ?, ?{_NUMBER})*) ?,? ?[)\]]")


@dataclass(frozen=True)
class Bearing:
    """Where something is, seen from the anchor."""

    direction: str
    distance: float | None = None


@dataclass(frozen=True)
class JudgedScene:
    """Things by kind; a kind has places or bearings. `aim` is the kind to find, if any."""

    vocabulary: StateVocabulary
    places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    bearings: Mapping[str, tuple[Bearing, ...]] = field(default_factory=dict)
    aim: str | None = None

    def count_things(self, kind: str) -> int:
        """The number of things of a kind."""
        if kind == self.vocabulary.anchor and self.bearings:
            return 1
        return len(self.places.get(kind, ())) + len(self.bearings.get(kind, ()))

    def list_facts(self) -> dict[tuple[SceneObject, SceneObject, int], int]:
        """On a grid: for each pair of things that counts, the side of the first on each axis."""
        found: dict[tuple[SceneObject, SceneObject, int], int] = {}
        for kind, seen_from in self.vocabulary.pairs:
            for a, place in enumerate(self.places.get(kind, ())):
                for b, other in enumerate(self.places.get(seen_from, ())):
                    for axis in (0, 1):
                        sign = (place[axis] > other[axis]) - (place[axis] < other[axis])
                        found[(kind, a), (seen_from, b), axis] = sign
        return found


def parse_fields(text: str) -> dict[str, tuple[Place, ...]]:
    """Keys and their places, from anything like a dictionary; a repeated key keeps all places."""
    text = re.sub(r"\s+", " ", text)
    keys = list(_KEY.finditer(text))
    ends = [*(key.start() for key in keys), len(text)][1:]
    found: dict[str, tuple[Place, ...]] = {}
    for key, end in zip(keys, ends, strict=True):
        said = _TUPLE.findall(text, key.end(), end)
        places = tuple(tuple(map(float, re.findall(_NUMBER, inside))) for inside in said)
        found[key[1]] = found.get(key[1], ()) + places
    return found


def parse_scene(truth: Mapping[StateForm, str], vocabulary: StateVocabulary) -> JudgedScene | None:
    """The scene of a state; None if this vocabulary can read none of its forms."""
    if StateForm.STRUCTURED in truth:
        text = truth[StateForm.STRUCTURED]
        scene = (
            _parse_bearing_scene(text, vocabulary)
            if vocabulary.frame == "bearing"
            else _parse_places(text, vocabulary)
        )
        if scene.places or scene.bearings:
            return scene
    if StateForm.SYMBOLIC in truth and vocabulary.symbols:
        return JudgedScene(vocabulary, places=find_places(truth[StateForm.SYMBOLIC], vocabulary))
    return None


def find_places(grid: str, vocabulary: StateVocabulary) -> dict[str, tuple[Place, ...]]:
    """The places of the symbols of a grid, row by row; blanks between cells are ignored."""
    found: dict[str, list[Place]] = {}
    rows = [row for row in ("".join(line.split()) for line in grid.splitlines()) if row]
    for row, cells in enumerate(rows):
        for column, symbol in enumerate(cells):
            for kind in vocabulary.symbols.get(symbol, ()):
                found.setdefault(kind, []).append((float(row), float(column)))
    return {kind: tuple(places) for kind, places in found.items()}


def _parse_places(text: str, vocabulary: StateVocabulary) -> JudgedScene:
    fields = {key: places for key, places in parse_fields(text).items() if key not in vocabulary.fixed}
    if vocabulary.frame == "coordinates":
        vocabulary = vocabulary.add_things(_strip_suffix(key) for key in fields)
    places: dict[str, tuple[Place, ...]] = {}
    for key, found in fields.items():
        kind = vocabulary.find_kind(key)
        if kind is not None:
            places[kind] = places.get(kind, ()) + found
    return JudgedScene(vocabulary, places=places)


def _strip_suffix(key: str) -> str:
    return re.sub(r"_?(?:positions?|coordinates?|location)$", "", key) or key


def parse_bearings(text: str) -> dict[str, tuple[Bearing, ...]]:
    """Things and their bearings from JSON, by name; empty for any other text."""
    try:
        node = json.loads(text)
        found: dict[str, list[Bearing]] = {}
        for name, bearing in _iter_bearings("", node):
            found.setdefault(" ".join(split_key(name)), []).append(bearing)
    except (ValueError, TypeError, RecursionError):
        return {}
    return {name: tuple(seen) for name, seen in found.items()}


def _parse_bearing_scene(text: str, vocabulary: StateVocabulary) -> JudgedScene:
    found = parse_bearings(text)
    if not found:
        return JudgedScene(vocabulary)
    known = vocabulary.add_things(found)
    aim = json.loads(text).get("target_obj_type") if text.lstrip().startswith("{") else None
    kind = None if aim is None else known.find_kind(str(aim))
    if kind is not None:  # whatever it is, it may also be called the target
        known = replace(known, names={**known.names, kind: (*known.names[kind], "target", "goal")})
    return JudgedScene(known, bearings=found, aim=kind)


def _iter_bearings(name: str, node: Any) -> Iterator[tuple[str, Bearing]]:
    if isinstance(node, list):
        for one in node:
            yield from _iter_bearings(name, one)
    if not isinstance(node, dict):
        return
    direction = next((node[key] for key in node if "direction" in key), None)
    if isinstance(direction, str):
        distance = next((node[key] for key in node if "distance" in key), None)
        kind = next((node[key] for key in ("type", "name") if key in node), None)
        kind = kind or next((node[key] for key in node if key.endswith("type")), name)
        yield str(kind), Bearing(direction, None if distance is None else float(distance))
    for key, value in node.items():
        yield from _iter_bearings(key, value)
