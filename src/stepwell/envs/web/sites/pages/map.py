"""The map: search, places with ratings, what is near, routes, saved places, reports, travel settings."""

from __future__ import annotations

import sqlite3

from stepwell.core.text import format_count
from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import (
    Html,
    area,
    bullet_list,
    choice,
    fact,
    field,
    form,
    join,
    link,
    tag,
    write_hidden_field,
)
from stepwell.envs.web.sites.routes import METERS_PER_MINUTE, count_minutes, read_roads, search_roads
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Site, Visit, page

PLACE_ORDERS = {
    "best match": "length(name), id",
    "name": "name",
    "opens": "opens, id",
    "closes": "closes DESC, id",
}
MODES = tuple(METERS_PER_MINUTE)
UNITS = {"meters": 1, "feet": 3}
LISTS = ("liked", "later", "work")
MAP_SIZE = 300


def show_search(visit: Visit) -> Answer:
    """Places by words, kind and city."""
    words = visit.query.get("q", "")
    query = ListQuery("places", PLACE_ORDERS).add_words(words, "name", "kind", "city", "street")
    filters = []
    for label, name in (("Kind", "kind"), ("City", "city")):
        if visit.query.get(name):
            query.add_condition(f"{name} = ?", visit.query[name])
        values = [row[0] for row in visit.find_all(f"SELECT DISTINCT {name} FROM places ORDER BY 1")]
        filters.append(choose_filter(visit, label, name, values))
    title = f"Search: {words}" if words else "Places"
    return page(title, list_rows(visit, query, _write_place_row, "place", filters))


def _write_place_row(row: sqlite3.Row) -> Html:
    return join(link(row["name"], f"/place/{row['id']}"), f" {row['kind']} in {row['city']}")


def show_place(visit: Visit, number: int) -> Answer:
    """One place."""
    row = visit.find_row("SELECT * FROM places WHERE id = ?", number)
    stars, count = visit.find_row(
        "SELECT round(avg(stars), 1), count(*) FROM ratings WHERE place = ?", number
    )
    saved = visit.find_value("SELECT list FROM saved_places WHERE user = ? AND place = ?", visit.user, number)
    parts = ("Route", "Near", "Ratings", "Report")
    save = form(f"/place/{number}/save", "Save", choice("List", "list", LISTS))
    return page(
        row["name"],
        fact("Kind", row["kind"]),
        fact("Address", f"{row['street']}, {row['city']}"),
        fact("Phone", row["phone"]),
        fact("Opens", row["opens"]),
        fact("Closes", row["closes"]),
        fact("Rating", stars if count else "none"),
        fact("List", saved) if saved else None,
        tag("p", Html(" ".join(link(part, f"/place/{number}/{part.lower()}") for part in parts))),
        form(f"/place/{number}/forget", "Forget") if saved else save,
        _draw_map(visit, [number]),
    )


def _draw_map(visit: Visit, route: list[int]) -> Html | None:
    """A small drawing for people; places of a route are large and joined."""
    if visit.rows_per_page < 10:
        return None
    spots = {row["id"]: row for row in visit.find_all("SELECT id, x, y FROM places")}
    width = max(row["x"] for row in spots.values()) + 1

    def place_spot(number: int) -> tuple[int, int]:
        return 10 + spots[number]["x"] * 3 * MAP_SIZE // width, 10 + spots[number]["y"] * MAP_SIZE // 2001

    dots = [
        tag(
            "circle",
            cx=x,
            cy=y,
            r=6 if number in route else 2,
            fill="#4c6b1f" if number in route else "#b9b2a2",
        )
        for number in spots
        for x, y in [place_spot(number)]
    ]
    lines = [
        tag("line", x1=a[0], y1=a[1], x2=b[0], y2=b[1], stroke="#4c6b1f", stroke_width=2)
        for a, b in zip(map(place_spot, route), map(place_spot, route[1:]), strict=False)
    ]
    return tag("svg", lines, dots, viewBox=f"0 0 {3 * MAP_SIZE + 20} {MAP_SIZE + 20}", width="100%")


def show_near(visit: Visit, number: int) -> Answer:
    """The places nearest to a place, by air."""
    here = visit.find_row("SELECT * FROM places WHERE id = ?", number)
    distance = f"abs(x - {here['x']}) + abs(y - {here['y']})"
    query = ListQuery("places", {"near": "away, id"}, f"*, {distance} AS away").add_condition(
        "id <> ?", number
    )
    if visit.query.get("kind"):
        query.add_condition("kind = ?", visit.query["kind"])
    kinds = [row[0] for row in visit.find_all("SELECT DISTINCT kind FROM places ORDER BY 1")]

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["name"], f"/place/{row['id']}"), f" {row['kind']}, {row['away']} m")

    rows = list_rows(visit, query, write_row, "place", [choose_filter(visit, "Kind", "kind", kinds)])
    return page(f"Near {here['name']}", rows)


def show_route_form(visit: Visit, number: int) -> Answer:
    """Ask for a route from here."""
    here = visit.find_row("SELECT * FROM places WHERE id = ?", number)
    mode = visit.find_value("SELECT mode FROM travel WHERE user = ?", visit.user) or "walk"
    fields = [write_hidden_field("from", here["name"]), field("To", "to"), choice("By", "by", MODES, mode)]
    return page(f"From {here['name']}", form("/route", "Find route", *fields, method="get"))


def show_route(visit: Visit) -> Answer:
    """The shortest way between two places."""
    ends = [
        visit.find_row("SELECT * FROM places WHERE name = ?", visit.query.get(key, ""))
        for key in ("from", "to")
    ]
    mode = visit.query.get("by", "walk")
    if mode not in METERS_PER_MINUTE:
        raise PageError(400, "By walk, bike or car?")
    length, route = search_roads(read_roads(visit.db), ends[0]["id"], ends[1]["id"])
    unit = visit.find_value("SELECT unit FROM travel WHERE user = ?", visit.user) or "meters"
    names = {row["id"]: row["name"] for row in visit.find_all("SELECT id, name FROM places")}
    return page(
        f"{ends[0]['name']} to {ends[1]['name']}",
        fact("Distance", f"{length * UNITS[unit]} {unit}"),
        fact("Time", f"{format_count(count_minutes(length, mode), 'minute')} by {mode}"),
        fact("Stops", len(route) - 2),
        bullet_list([link(names[number], f"/place/{number}") for number in route[:12]]),
        _draw_map(visit, route),
    )


def save_place(visit: Visit, number: int) -> Answer:
    """Put a place onto one of my lists."""
    visit.find_row("SELECT 1 FROM places WHERE id = ?", number)
    name = visit.read_choice("list", LISTS)
    visit.change("INSERT OR REPLACE INTO saved_places VALUES (?, ?, ?)", visit.user, number, name)
    return Redirect("/saved", "Saved.")


def forget_place(visit: Visit, number: int) -> Answer:
    """Take a place off my lists."""
    visit.change("DELETE FROM saved_places WHERE user = ? AND place = ?", visit.user, number)
    return Redirect("/saved", "Removed.")


def show_saved(visit: Visit) -> Answer:
    """My places."""
    query = ListQuery("places JOIN saved_places ON place = id", {"name": "name", "list": "list, name"})
    query.add_condition("user = ?", visit.user)

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["name"], f"/place/{row['id']}"), f" in {row['list']}")

    return page("Saved", list_rows(visit, query, write_row, "place"))


def show_ratings(visit: Visit, number: int) -> Answer:
    """What people say of a place, and a form to say more."""
    name = visit.find_row("SELECT name FROM places WHERE id = ?", number)[0]
    query = ListQuery("ratings", {"best": "stars DESC, id", "worst": "stars, id"}).add_condition(
        "place = ?", number
    )

    def write_row(row: sqlite3.Row) -> Html:
        return join(f"{format_count(row['stars'], 'star')} by {row['user']}: {row['text']}")

    stars = choice("Stars", "stars", ["5", "4", "3", "2", "1"])
    rate = form(f"/place/{number}/ratings", "Rate", stars, area("Text", "text"))
    return page(f"Ratings of {name}", list_rows(visit, query, write_row, "rating"), rate)


def rate_place(visit: Visit, number: int) -> Answer:
    """Rate a place."""
    visit.find_row("SELECT 1 FROM places WHERE id = ?", number)
    values = (number, visit.user, visit.read_number("stars", 1, 5), visit.read_text("text"))
    visit.change("INSERT INTO ratings (place, user, stars, text) VALUES (?, ?, ?, ?)", *values)
    return Redirect(f"/place/{number}/ratings", "Thank you.")


def show_report_form(visit: Visit, number: int) -> Answer:
    """Say what is wrong with a place."""
    name = visit.find_row("SELECT name FROM places WHERE id = ?", number)[0]
    return page(f"Report {name}", form(f"/place/{number}/report", "Send", area("Text", "text")))


def send_report(visit: Visit, number: int) -> Answer:
    """Keep a report."""
    visit.find_row("SELECT 1 FROM places WHERE id = ?", number)
    values = (number, visit.user, visit.read_text("text"))
    visit.change("INSERT INTO reports (place, user, text) VALUES (?, ?, ?)", *values)
    return Redirect(f"/place/{number}", "Thank you.")


def show_settings(visit: Visit) -> Answer:
    """How I travel."""
    row = visit.db.execute("SELECT * FROM travel WHERE user = ?", (visit.user,)).fetchone()
    mode, unit = (row["mode"], row["unit"]) if row else ("walk", "meters")
    fields = [choice("By", "by", MODES, mode), choice("Unit", "unit", tuple(UNITS), unit)]
    return page("Settings", form("/settings", "Save", *fields))


def save_settings(visit: Visit) -> Answer:
    """Change how I travel."""
    mode, unit = visit.read_choice("by", METERS_PER_MINUTE), visit.read_choice("unit", UNITS)
    visit.change("INSERT OR REPLACE INTO travel VALUES (?, ?, ?)", visit.user, mode, unit)
    return Redirect("/settings", "Saved.")


MAP = Site(
    "map",
    "Map",
    (("Places", "/search"), ("Saved", "/saved"), ("Settings", "/settings")),
    (
        PageRoute("GET", "/", show_search),
        PageRoute("GET", "/search", show_search),
        PageRoute("GET", "/place/{number:int}", show_place),
        PageRoute("GET", "/place/{number:int}/near", show_near),
        PageRoute("GET", "/place/{number:int}/route", show_route_form),
        PageRoute("GET", "/route", show_route),
        PageRoute("POST", "/place/{number:int}/save", save_place, private=True),
        PageRoute("POST", "/place/{number:int}/forget", forget_place, private=True),
        PageRoute("GET", "/place/{number:int}/ratings", show_ratings),
        PageRoute("POST", "/place/{number:int}/ratings", rate_place, private=True),
        PageRoute("GET", "/place/{number:int}/report", show_report_form, private=True),
        PageRoute("POST", "/place/{number:int}/report", send_report, private=True),
        PageRoute("GET", "/saved", show_saved, private=True),
        PageRoute("GET", "/settings", show_settings, private=True),
        PageRoute("POST", "/settings", save_settings, private=True),
    ),
)
