"""What all pages share: head, bar with links and search, notice, and the pages every site has.

A visitor without an episode keeps a snapshot by a cookie, which belongs to one host. Links from site to
site therefore carry the visitor's number, and only for visitors.
"""

from __future__ import annotations

from functools import lru_cache

from stepwell.envs.web.sites.markup import Html, add_query, bullet_list, field, form, join, link, tag
from stepwell.envs.web.sites.style import write_style
from stepwell.envs.web.sites.visit import (
    Answer,
    PageBody,
    PageError,
    PageRoute,
    Redirect,
    Site,
    Visit,
    page,
    take_notice,
)

ABOUT = {
    "shop": "Shop: buy things",
    "admin": "Admin: run the shop",
    "forum": "Forum: posts and comments",
    "code": "Code: projects, issues, merge requests",
    "map": "Map: places and routes",
}


def write_document(site: Site, visit: Visit, body: PageBody) -> str:
    """A whole page."""
    notice = take_notice(visit.db)
    main = tag(
        "main",
        tag("p", notice, class_="notice") if notice else None,
        tag("h1", body.title),
        [block for block in body.blocks if block],
    )
    search = form("/search", "Search", field("", "q", visit.query.get("q", "")), method="get")
    title = tag("title", f"{body.title} - {site.title}")
    return (
        f"<!doctype html><html lang=en><head>{_write_head(site.name)}{title}</head>"
        f"<body><header>{_write_links(site, visit.user)}{search}</header>{main}</body></html>"
    )


@lru_cache(maxsize=16)
def _write_head(site: str) -> Html:
    return join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width"),
        tag("style", Html(write_style(site))),
    )


@lru_cache(maxsize=256)
def _write_links(site: Site, user: str) -> Html:
    return join(
        link(site.title, "/", class_="home"),
        [link(text, href) for text, href in site.links],
        link("Sites", "/sites"),
        link(f"Log out {user}", "/logout") if user else link("Log in", "/login"),
    )


def show_login(visit: Visit) -> Answer:
    """The log-in form; it names an account to a visitor, who has no instruction that does."""
    staff = int(visit.site == "admin")
    found = visit.find_row("SELECT name, password FROM people WHERE is_staff = ? LIMIT 1", staff)
    account = f"For a look around: {found['name']}, password {found['password']}"
    fields = (field("Name", "name"), field("Password", "password", kind="password"))
    hint = tag("p", account) if visit.visitor else None
    return page("Log in", hint, form("/login", "Log in", *fields))


def log_in(visit: Visit) -> Answer:
    """Log a person in whose password is right; the admin site is for its staff alone."""
    name, password = visit.read_text("name"), visit.read_text("password")
    known = visit.find_value("SELECT password FROM people WHERE name = ?", name)
    staff = visit.find_value("SELECT is_staff FROM people WHERE name = ?", name)
    if known != password or (visit.site == "admin" and not staff):
        raise PageError(403, "Name or password is wrong.")
    visit.log_in(name)
    return Redirect("/", f"Welcome {name}.")


def log_out(visit: Visit) -> Answer:
    """Log out."""
    visit.log_in("")
    return Redirect("/", "You are logged out.")


def show_sites(visit: Visit) -> Answer:
    """Links to all sites, each opened as this visitor."""
    return page("Sites", bullet_list([link(text, f"/sites/{name}") for name, text in ABOUT.items()]))


def go_to_site(visit: Visit, name: str) -> Answer:
    """To another site, on the same port."""
    if name not in ABOUT:
        raise PageError(404, "There is no such site.")
    return Redirect(add_query(f"http://{name}.localhost{visit.port}/", {}, visit=visit.visitor))


COMMON_ROUTES = (
    PageRoute("GET", "/login", show_login),
    PageRoute("POST", "/login", log_in),
    PageRoute("GET", "/logout", log_out),
    PageRoute("GET", "/sites", show_sites),
    PageRoute("GET", "/sites/{name}", go_to_site),
)
