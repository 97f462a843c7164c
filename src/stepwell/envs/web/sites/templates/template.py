"""Task templates: one template is a row of data, and everything else follows from it.

| part | what it is |
|---|---|
| `intent`, `short` | the instruction for full and tiny size; parameters in braces |
| `sample` | SQL: each row is one set of parameters, by column name |
| `pools` | further parameters: a list of values, or the name of a list of words |
| `answer` | SQL: the answer to an information task (rows joined by commas) |
| `effect` | SQL statements: the only change of the database that a content task wants |
| `url` | the address at which a navigation task ends |
| `plan` | steps of the scripted oracle |

The kind follows: a template with `answer` seeks information, one with `url` navigates, one with `effect`
changes content, and one with none of them is unachievable. Parameters are those of the seeded world, so a
task is JSON and its checker needs nothing but the template.

Splits: a template with `held_out` gives tasks of split "templates"; of the other templates, every fifth set
of parameters (by hash) belongs to split "parameters"; the rest is "train". The three are disjoint.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

from stepwell.core.errors import InputError
from stepwell.core.ids import hash_content
from stepwell.envs.web.sites.database import open_reader
from stepwell.envs.web.sites.seeding.shop import STAFF
from stepwell.envs.web.sites.seeding.words import load_words, shorten_name
from stepwell.envs.web.sites.templates.steps import PlanStep

Kind = Literal["information", "navigation", "content", "unachievable"]
TaskSplit = Literal["train", "templates", "parameters"]
SPLITS: tuple[TaskSplit, ...] = get_args(TaskSplit)
PARAMETER_SHARE = 5  # one in five sets of parameters is held out
MAX_DRAWS = 400


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """One template; `name` starts with its site: "shop.price"."""

    name: str
    intent: str
    short: str
    plan: tuple[PlanStep, ...]
    sample: str = ""
    pools: Mapping[str, Sequence[Any] | str] = field(default_factory=dict)
    answer: str = ""
    effect: tuple[str, ...] = ()
    url: str = ""
    start: str = "/"
    is_logged_in: bool = True
    held_out: bool = False

    @property
    def site(self) -> str:
        """The site whose template this is."""
        return self.name.partition(".")[0]

    @property
    def kind(self) -> Kind:
        """What it asks for."""
        if self.answer:
            return "information"
        return "navigation" if self.url else "content" if self.effect else "unachievable"

    def word_intent(self, size: str) -> str:
        """The instruction's wording for a size, parameters in braces."""
        return self.intent if size == "full" else self.short

    def user(self, size: str) -> str:
        """Who is logged in at the start."""
        return find_user(self.site, size) if self.is_logged_in else ""

    def draw_parameters(self, rng: random.Random, world: int, size: str) -> dict[str, Any]:
        """A set of parameters."""
        words = load_words(size)
        found = dict(_list_constants(size))
        if self.sample:
            rows = _read_samples(self.sample, world, size)
            if not rows:
                raise InputError(f"{self.name}: this world has no such task")
            found |= rng.choice(rows)
        for name, pool in self.pools.items():
            found[name] = rng.choice(words.list(pool) if isinstance(pool, str) else list(pool))
        return found


def find_user(site: str, size: str) -> str:
    """The person who uses a site in tasks."""
    return STAFF if site == "admin" else shorten_name(load_words(size).people[0])


def _list_constants(size: str) -> dict[str, Any]:
    words = load_words(size)
    return {"today": words.today, "me": shorten_name(words.people[0])}


@lru_cache(maxsize=4096)
def _read_samples(sql: str, world: int, size: str) -> tuple[dict[str, Any], ...]:
    """The rows of a template's `sample`, read once per world."""
    constants = _list_constants(size)
    rows = open_reader(world, size).execute(sql, {name: constants[name] for name in list_names(sql)})
    return tuple(dict(row) for row in rows)


def list_braces(text: str) -> set[str]:
    """The names in braces of a text."""
    return set(re.findall(r"{(\w+)}", text))


def list_names(sql: str) -> set[str]:
    """The named values of a statement."""
    return set(re.findall(r"(?<![:\w]):(\w+)", sql))


def make_content(template: TaskTemplate, rng: random.Random, size: str, world: int) -> dict[str, Any]:
    """A task of a template: plain data, the same for the same generator of chance."""
    parameters = template.draw_parameters(rng, world, size)
    return {
        "source": "sites",
        "template": template.name,
        "kind": template.kind,
        "site": template.site,
        "size": size,
        "world": world,
        "parameters": parameters,
        "start_url": f"http://{template.site}.localhost{template.start}",
        "instruction": template.word_intent(size).format_map(parameters),
        "split": find_split(template, parameters),
    }


def find_split(template: TaskTemplate, parameters: Mapping[str, Any]) -> TaskSplit:
    """The split of a task: by its template, then by its parameters."""
    if template.held_out:
        return "templates"
    bucket = int(hash_content([template.name, dict(parameters)])[:8], 16) % PARAMETER_SHARE
    return "parameters" if bucket == 0 and (template.sample or template.pools) else "train"
