"""Instructions in free words, read as tasks of the own web: those that a template words exactly.

A template's wording is a pattern. What is in the place of its parameters must be a row of its `sample` in
the seeded world, or a value of its pools. So the task has the template's checker and oracle. What no template
words is a task without a template: it begins at the site's first page, and only a judge of outcomes can tell
when it is done. Words of a template with unknown or held-out parameters are no task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stepwell.envs.web.sites.database import open_reader
from stepwell.envs.web.sites.seeding.words import load_words, shorten_name
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import TaskTemplate, list_names, make_content


def read_site_instruction(
    instruction: str,
    parent: Mapping[str, Any],
    *,
    kinds: Collection[str] = (),
    templates: Collection[str] = (),
) -> dict[str, Any] | None:
    """The content of the training task that an instruction stands for, on the site of its parent.

    Only templates of these kinds and names are read, if they are given.
    """
    size, world, said = str(parent["size"]), int(parent["world"]), " ".join(instruction.split())
    is_worded = False
    for template in TEMPLATES.values():
        match = _make_pattern(template.word_intent(size)).fullmatch(said)
        if template.site != parent["site"] or match is None:
            continue
        is_worded = True
        is_allowed = (not kinds or template.kind in kinds) and (not templates or template.name in templates)
        if template.held_out or not is_allowed:
            continue
        parameters = _find_parameters(template, match.groupdict(), size, world)
        if parameters is None:
            continue
        decided = replace(template, sample="", pools={name: (value,) for name, value in parameters.items()})
        content = make_content(decided, random.Random(0), size, world)
        if content["split"] == "train":
            return content
    return None if is_worded else _make_free_content(said, parent)


def _make_free_content(said: str, parent: Mapping[str, Any]) -> dict[str, Any]:
    """A task in free words on the parent's data."""
    return {
        "source": "sites",
        "template": "",
        "site": parent["site"],
        "size": parent["size"],
        "world": parent["world"],
        "parameters": {},
        "start_url": f"http://{parent['site']}.localhost/",
        "instruction": said,
        "split": "train",
    }


@lru_cache(maxsize=1024)
def _make_pattern(wording: str) -> re.Pattern[str]:
    """A pattern with a group for each parameter; one that comes twice must be the same both times."""
    parts, seen = [], set()
    for i, part in enumerate(re.split(r"{(\w+)}", " ".join(wording.split()))):
        if i % 2 == 0:
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P={part})" if part in seen else f"(?P<{part}>.+?)")
            seen.add(part)
    return re.compile("".join(parts), re.IGNORECASE)


def _find_parameters(
    template: TaskTemplate, groups: Mapping[str, str], size: str, world: int
) -> dict[str, Any] | None:
    """The parameters of a template that print as what was said; None if the world has no such thing."""
    words = load_words(size)
    constants = {"today": words.today, "me": shorten_name(words.people[0])}
    rows: list[dict[str, Any]] = [{}]
    if template.sample:
        names = {name: constants[name] for name in list_names(template.sample)}
        rows = [dict(row) for row in open_reader(world, size).execute(template.sample, names)]
    found = next((row for row in rows if _agrees(row, groups)), None)
    if found is None:
        return None
    for name, pool in template.pools.items():
        values = words.list(pool) if isinstance(pool, str) else list(pool)
        fitting = [value for value in values if name not in groups or _fold(value) == _fold(groups[name])]
        if not fitting:
            return None
        found[name] = fitting[0]
    return found if _agrees({**constants, **found}, groups) else None


def _agrees(values: Mapping[str, Any], groups: Mapping[str, str]) -> bool:
    return all(_fold(values[name]) == _fold(text) for name, text in groups.items() if name in values)


def _fold(value: Any) -> str:
    return " ".join(str(value).split()).casefold()
