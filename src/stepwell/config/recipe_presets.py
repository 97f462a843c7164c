"""Presets that take another one's place when their recipe is changed on the command line or from Python.

    stepwell train web recipe.name=webrl     has the settings of the preset webrl, with the rest on top

Some recipes need most settings to be others: WebRL plays each task once, in phases, with a critic and a
constraint of its own, while the presets of our web compare eight episodes of a task under a KL term.
"""

from __future__ import annotations

from collections.abc import Sequence

INSTEAD = {
    ("web", "webrl"): "webrl",
    ("web-tiny", "webrl"): "webrl-tiny",
}


def choose_preset(source: str, overrides: Sequence[str]) -> str:
    """The preset whose settings a preset and a recipe mean together; any other source as it is."""
    recipe = ""
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() == "recipe.name":
            recipe = value.strip().strip("\"'")
    return INSTEAD.get((source.removeprefix("preset:"), recipe), source)
