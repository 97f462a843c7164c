"""Tasks of the own web made from a task that was not solved.

    sibling   the same template with other parameters
    easier    a template of the same site whose scripted solution has fewer steps
    harder    one with more steps

Among several draws the one that shares most parameters with its parent is taken: the same product, person or
place, asked for in another way. Templates and parameters of held-out splits are never used.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from stepwell.core import TaskRelation
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import TaskTemplate, list_braces, make_content

NUM_DRAWS = 12
NUM_NEAREST = 8  # templates to choose among: those whose solutions are the nearest in length


def make_content_variant(
    content: Mapping[str, Any],
    relation: TaskRelation,
    rng: random.Random,
    *,
    kinds: Collection[str] = (),
    templates: Collection[str] = (),
) -> dict[str, Any] | None:
    """The content of a variant, of these kinds and templates if given; None if there is none."""
    parent = TEMPLATES[content["template"]]
    targets = [
        each
        for each in _list_templates(parent.name, relation)
        if (not kinds or each.kind in kinds) and (not templates or each.name in templates)
    ][:NUM_NEAREST]
    if not targets:
        return None
    drawn = []
    for _ in range(NUM_DRAWS):
        made = make_content(rng.choice(targets), rng, content["size"], content["world"])
        if made["split"] == "train" and made["instruction"] != content["instruction"]:
            drawn.append(made)
    return max(drawn, key=lambda made: _count_shared(made, content), default=None)


@cache
def _list_templates(name: str, relation: TaskRelation) -> tuple[TaskTemplate, ...]:
    """Training templates of the site that fit the relation, the nearest in length first."""
    parent = TEMPLATES[name]
    if relation is TaskRelation.SIBLING:
        return (parent,) if parent.sample or parent.pools else ()
    length, is_easier = len(parent.plan), relation is TaskRelation.EASIER
    fitting = [
        template
        for template in TEMPLATES.values()
        if template.site == parent.site
        and not template.held_out
        and (len(template.plan) < length if is_easier else len(template.plan) > length)
    ]
    own = list_braces(parent.intent)
    fitting.sort(
        key=lambda each: (
            abs(len(each.plan) - length),
            -len(own & list_braces(each.intent)),
            each.name,
        )
    )
    return tuple(fitting)


def _count_shared(made: Mapping[str, Any], content: Mapping[str, Any]) -> int:
    """Parameters that both tasks have, with the same value."""
    return len(made["parameters"].items() & content["parameters"].items())
