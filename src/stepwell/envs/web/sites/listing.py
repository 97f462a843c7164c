"""Lists: the one page kind with search, filters, sort order and pages, the same on every site.

A list is described by SQL fragments written in this package; what comes from a visitor is only ever bound
as a value or looked up in a table of allowed orders. Words of a search must all occur; the shortest match
comes first, so that a search for a whole title shows its own thing on top.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.core.text import format_count
from stepwell.envs.web.sites.markup import (
    Child,
    Html,
    add_query,
    bullet_list,
    choice,
    form,
    link,
    tag,
    write_hidden_field,
)
from stepwell.envs.web.sites.visit import Visit

MAX_WORDS = 8


@dataclass(slots=True)
class ListQuery:
    """What is listed: a table, conditions with their values, and the orders to choose from."""

    table: str
    orders: Mapping[str, str]
    columns: str = "*"
    conditions: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)

    def add_condition(self, condition: str, *values: object) -> ListQuery:
        """Only rows for which this holds."""
        self.conditions.append(condition)
        self.values += values
        return self

    def add_words(self, words: str, *columns: str) -> ListQuery:
        """Only rows that have every word in one of these columns."""
        text = " || ' ' || ".join(columns)
        for word in re.findall(r"\w+", words.lower())[:MAX_WORDS]:
            self.add_condition(f"instr(lower({text}), ?)", word)
        return self

    @property
    def source(self) -> str:
        """The part of the statement after SELECT."""
        return f"FROM {self.table} WHERE {' AND '.join(self.conditions) or '1'}"


def list_rows(
    visit: Visit,
    query: ListQuery,
    write_row: Callable[[sqlite3.Row], Child],
    noun: str,
    filters: Sequence[Html] = (),
) -> Html:
    """Count (`noun` is a word for one), filter form, rows of this page, and links to the pages beside it."""
    total = visit.find_value(f"SELECT count(*) {query.source}", *query.values)
    num_pages = max(1, -(-total // visit.rows_per_page))
    asked = visit.query.get("page", "1")
    number = min(num_pages, max(1, int(asked[:6]))) if asked.isascii() and asked.isdigit() else 1
    order = visit.query.get("sort", "")
    clause = query.orders.get(order) or next(iter(query.orders.values()))
    offset = (number - 1) * visit.rows_per_page
    rows = visit.find_all(
        f"SELECT {query.columns} {query.source} ORDER BY {clause} LIMIT ? OFFSET ?",
        *query.values,
        visit.rows_per_page,
        offset,
    )
    fields = (
        [*filters, choice("Sort", "sort", list(query.orders), order)] if len(query.orders) > 1 else [*filters]
    )
    words = [write_hidden_field("q", visit.query["q"])] if visit.query.get("q") else []
    return Html(
        (form(visit.path, "Apply", *words, *fields, method="get") if fields else "")
        + tag("p", format_count(total, noun), class_="count")
        + bullet_list([write_row(row) for row in rows])
        + _write_pager(visit, number, num_pages)
    )


def _write_pager(visit: Visit, number: int, num_pages: int) -> Html:
    if num_pages == 1:
        return Html()
    return tag(
        "nav",
        link("Previous", add_query(visit.path, visit.query, page=number - 1)) if number > 1 else None,
        tag("span", f"Page {number} of {num_pages}"),
        link("Next", add_query(visit.path, visit.query, page=number + 1)) if number < num_pages else None,
        class_="pages",
    )


def choose_filter(visit: Visit, label: str, name: str, options: Sequence[str]) -> Html:
    """A drop-down of a list's filter form; its first option is all."""
    return choice(
        label, name, {"": "all", **{option: option for option in options}}, visit.query.get(name, "")
    )
