"""A table in words: positions as a list, as sentences, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepwell.core import StateForm
from stepwell.envs.primitive_skill.table import Places, Point


def list_positions(places: Places, order: Sequence[str], *, named: bool) -> str:
    """All positions in an order that says nothing; with names only where there is no image."""
    if named:
        return ", ".join(f"{name} {_write_tuple(places[name])}" for name in order)
    return f"[{','.join(_write_tuple(places[name]) for name in order)}]"


def write_forms(places: Places, held: str | None) -> dict[StateForm, str]:
    """Sentences and JSON."""
    sentences = [f"The {name} is at {_write_tuple(at)}." for name, at in places.items()]
    sentences.append(f"The hand holds the {held}." if held else "The hand is empty.")
    structured = {name.replace(" ", "_"): list(at) for name, at in places.items()}
    return {StateForm.NATURAL_LANGUAGE: " ".join(sentences), StateForm.STRUCTURED: json.dumps(structured)}


def _write_tuple(at: Point) -> str:
    return f"({','.join(map(str, at))})"
