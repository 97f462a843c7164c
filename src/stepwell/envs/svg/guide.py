"""The guide of drawing for agents, and one example turn in each state form.

The example is stored here, not computed, so that environments can be listed without a rasteriser. A test
draws it and compares.
"""

from __future__ import annotations

from stepwell.core import ExampleTurn, StateForm
from stepwell.envs.svg.options import SvgOptions

EXAMPLE_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100"><circle cx="25" cy="25" r="15" '
    'fill="red"/><rect x="60" y="60" width="30" height="20" fill="blue"/></svg>'
)
EXAMPLE_ICON = "dot-and-bar"
SHAPES_TOLD = (
    "The target is the icon dot-and-bar with 2 shapes. "
    "Shape 1 is a circle at the upper left, from 10 to 40 percent across and from 10 to 40 percent down. "
    "Shape 2 is a rect at the lower right, from 60 to 90 percent across and from 60 to 80 percent down. "
)
SHAPES_LISTED = (
    '{"icon": "dot-and-bar", "shapes": [{"kind": "circle", "place": "upper left", "box": [10, 10, 40, 40]}, '
    '{"kind": "rect", "place": "lower right", "box": [60, 60, 90, 80]}], '
)


def write_guide(options: SvgOptions) -> str:
    """Goal, rules and rewards under these options."""
    lines = [
        "You are shown a picture of an icon. Write SVG code that draws the same picture on a white canvas.",
        "Answer with one <svg> element that has a square viewBox. Draw with path, rect, circle, ellipse, "
        "line, polyline, polygon, groups and gradients; letters must be drawn as shapes. Code with links, "
        "scripts, style sheets, images or entities is refused and gives nothing.",
        f"Every drawing gives up to {options.similarity_weight:g} points, the more it looks like the target.",
    ]
    if options.max_turns > 1:
        lines.append("After a turn you see the target and your drawing, and can draw it again, better.")
    return "\n".join(lines)


def make_examples() -> dict[StateForm, ExampleTurn]:
    """One drawing that matches its target."""
    reasoning = "A red circle at the upper left and a blue bar at the lower right; one element each."
    drawn = '"drawing": {"num_shapes": 2, "similarity": 1.0}, "refused": false}'
    forms = {
        StateForm.NATURAL_LANGUAGE: (
            SHAPES_TOLD + "Nothing is drawn yet.",
            SHAPES_TOLD + "The drawing has 2 shapes and a similarity of 1.00.",
        ),
        StateForm.STRUCTURED: (SHAPES_LISTED + '"drawing": null, "refused": false}', SHAPES_LISTED + drawn),
    }
    return {
        form: ExampleTurn(before, reasoning, after, EXAMPLE_SVG) for form, (before, after) in forms.items()
    }
