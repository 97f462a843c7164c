"""Tasks of the own web: drawn from templates, checked over page, address and database, solved by script.

A task is solved when the agent exits with the right answer (information), at the right address (navigation),
with exactly the wanted change (content), or by saying that it cannot be done (unachievable). In all cases
nothing else in the database may have changed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from stepwell.core.errors import InputError
from stepwell.core.names import suggest_name
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sites.database import (
    add_route_functions,
    list_tables,
    match_rows,
    open_reader,
    open_scratch,
    read_rows,
)
from stepwell.envs.web.sites.episode import SiteEpisode
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.steps import NOT_POSSIBLE, PlanPlayer
from stepwell.envs.web.sites.templates.template import (
    MAX_DRAWS,
    SPLITS,
    TaskSplit,
    TaskTemplate,
    list_braces,
    list_names,
    make_content,
)
from stepwell.envs.web.sites.visit import find_written_table

MAX_EXTRA_WORDS = 12
_GIVE_UPS = {"n/a", "na", "not possible", "impossible", "not achievable", "unachievable", "cannot be done"}


def make_site_task(
    seed: int,
    size: str = "tiny",
    split: TaskSplit | Sequence[TaskSplit] | None = None,
    *,
    sites: Sequence[str] = (),
    kinds: Sequence[str] = (),
    templates: Sequence[str] = (),
    world: int = 0,
) -> dict[str, Any]:
    """The task of a seed; `split` None takes any, `sites`, `kinds` and `templates` empty take all."""
    splits = SPLITS if split is None else (split,) if isinstance(split, str) else tuple(split)
    if unknown := [name for name in splits if name not in SPLITS]:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {unknown[0]!r}")
    if unnamed := [name for name in templates if name not in TEMPLATES]:
        raise InputError(f"there is no template {unnamed[0]!r}{suggest_name(unnamed[0], TEMPLATES)}")
    rng = random.Random(f"{seed}/{size}/{world}")
    wanted = [
        template
        for template in TEMPLATES.values()
        if (not sites or template.site in sites)
        and (not kinds or template.kind in kinds)
        and (not templates or template.name in templates)
        and (split is None or ("templates" in splits if template.held_out else set(splits) != {"templates"}))
    ]
    for _ in range(MAX_DRAWS if wanted else 0):
        content = make_content(rng.choice(wanted), rng, size, world)
        if content["split"] in splits:
            return content
    names = ", ".join((*sites, *kinds, *templates)) or "all sites"
    raise InputError(f"no task of split {' or '.join(splits)} for {names}")


def count_named_values(content: Mapping[str, Any]) -> int:
    """How many parameters the wording of a task's template names: what has to be right at once."""
    return len(list_braces(find_template(content).word_intent(content["size"])))


def find_template(content: Mapping[str, Any]) -> TaskTemplate:
    """The template of a task."""
    found = TEMPLATES.get(str(content.get("template")))
    if found is None:
        raise InputError(f"there is no template {content.get('template')!r} of the sites")
    return found


def plan_task(content: Mapping[str, Any]) -> Callable[[PageView], WebAction]:
    """The scripted oracle: it knows the instruction's own words and what it has seen, and nothing else."""
    template = find_template(content)
    names = list_braces(template.word_intent(str(content["size"])))
    return PlanPlayer(template.plan, {name: content["parameters"][name] for name in names})


def check_task(content: Mapping[str, Any], *, view: PageView, episode: SiteEpisode, answer: str) -> bool:
    """Whether the task is solved, now that the agent has left."""
    template, parameters = find_template(content), content["parameters"]
    end = _find_end(template.name, json.dumps(parameters), int(content["world"]), str(content["size"]))
    if not has_wanted_rows(end, episode):
        return False
    if template.answer:
        return match_answer(answer, end.answer)
    if template.url:
        return match_url(view.url, f"http://{template.site}.localhost{_fill_url(template.url, parameters)}")
    return True if template.effect else is_give_up(answer)


@dataclass(frozen=True, slots=True, eq=False)
class TaskEnd:
    """What the database must look like at the end: `rows` of the tables that the task changes, all others as
    they were seeded. `answer` is what an information task wants to hear."""

    world: int
    size: str
    rows: Mapping[str, list[tuple[Any, ...]]]
    answer: Sequence[str]


@lru_cache(maxsize=1024)
def _find_end(name: str, parameters: str, world: int, size: str) -> TaskEnd:
    template, values = TEMPLATES[name], json.loads(parameters)
    with open_scratch(world, size) as db:
        answer = find_answer(template, values, db) if template.answer else ()
        for statement in template.effect:
            db.execute(statement, {key: values[key] for key in list_names(statement)})
        tables = {find_written_table(statement) for statement in template.effect}
        return TaskEnd(world, size, {table: read_rows(db, table) for table in tables}, answer)


def has_wanted_rows(end: TaskEnd, episode: SiteEpisode) -> bool:
    """Whether the database is as the task wants it; the same state is looked at once."""
    state, judgements = episode.state, episode.host.judgements
    kept = None if state is None else judgements.find((end, state))
    if kept is None:
        kept = (not find_unwanted_tables(end, episode),)
        if state is not None:
            judgements.keep((end, state), kept)
    return kept[0]


def find_unwanted_tables(end: TaskEnd, episode: SiteEpisode) -> list[str]:
    """The tables that are not as the task wants them; only those that it or the agent wrote to are read."""
    seeded, written = open_reader(end.world, end.size), episode.list_written_tables()
    tables = list_tables(seeded) if written is None else sorted(written | set(end.rows))
    return [
        table
        for table in tables
        if not match_rows(
            end.rows[table] if table in end.rows else read_rows(seeded, table), episode.read_table(table)
        )
    ]


def find_answer(template: TaskTemplate, parameters: Mapping[str, Any], db: Any) -> list[str]:
    """What an information task wants to hear: one text, or several in any order."""
    if "route_" in template.answer:
        add_route_functions(db)
    rows = db.execute(template.answer, {name: parameters[name] for name in list_names(template.answer)})
    found = [str(row[0]) for row in rows]
    assert found, f"{template.name} has no answer for {parameters}"
    return found


def _fill_url(pattern: str, parameters: Mapping[str, Any]) -> str:
    return pattern.format_map(parameters)


def is_give_up(answer: str) -> bool:
    """Whether an answer says that the task cannot be done.

    >>> is_give_up("N/A"), is_give_up("Impossible."), is_give_up("4")
    (True, True, False)
    """
    return answer.strip().rstrip(".!").casefold() in _GIVE_UPS or answer.strip() == NOT_POSSIBLE


def match_answer(answer: str, expected: Sequence[str]) -> bool:
    """Whether an answer says what is expected: the words alone, or in a short sentence without other numbers.

    >>> match_answer("It costs $12.", ["$12"]), match_answer("$12 or $13", ["$12"])
    (True, False)
    """
    said, wanted = _list_words(answer), [_list_words(text) for text in expected]
    if len(wanted) > 1:
        parts = sorted(_list_words(part) for part in re.split(r",|;|\band\b|\n", answer) if part.strip())
        return parts == sorted(wanted)
    if said == wanted[0]:
        return True
    has_other_number = any(word.lstrip("-")[0].isdigit() and word not in wanted[0] for word in said)
    start_points = range(len(said) - len(wanted[0]) + 1)
    is_said = any(said[start : start + len(wanted[0])] == wanted[0] for start in start_points)
    return is_said and not has_other_number and len(said) <= len(wanted[0]) + MAX_EXTRA_WORDS


def _list_words(text: str) -> list[str]:
    found = re.findall(r"(?:(?<!\w)-(?=\d))?[\w@]+(?:[.\-'/:@][\w@]+)*", text.casefold())
    return [re.sub(r"^(\d+)\.0+$", r"\1", word) for word in found]


def match_url(url: str, expected: str) -> bool:
    """Whether an address has the expected host and path and at least the expected query.

    >>> match_url("http://shop.localhost:80/search?q=cup&page=2", "http://shop.localhost/search?q=cup")
    True
    """
    left, right = urlsplit(url), urlsplit(expected)
    if left.hostname != right.hostname or _fold_path(left.path) != _fold_path(right.path):
        return False
    query = dict(parse_qsl(left.query))
    return all(_fold(query.get(key, "")) == _fold(value) for key, value in parse_qsl(right.query))


def _fold_path(path: str) -> str:
    return _fold(unquote(path).rstrip("/"))


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()
