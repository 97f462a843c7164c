"""The code host: projects, their files, commits and members; who may do what."""

from __future__ import annotations

import sqlite3

from stepwell.core.text import format_count
from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, choice, fact, field, form, join, link, tag
from stepwell.envs.web.sites.seeding.code import ROLES
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Visit, page

REPO_ORDERS = {"name": "name, owner", "most stars": "stars DESC, id", "new": "id DESC"}


def find_repo(visit: Visit, owner: str, name: str) -> sqlite3.Row:
    """A project that this visitor may see."""
    row = visit.find_row("SELECT * FROM repos WHERE owner = ? AND name = ?", owner, name)
    if row["visibility"] == "private" and not find_role(visit, row["id"]):
        raise PageError(404, "There is nothing here.")
    return row


def find_role(visit: Visit, repo: int) -> str:
    """What this visitor is in a project."""
    return str(
        visit.find_value("SELECT role FROM members WHERE repo = ? AND user = ?", repo, visit.user) or ""
    )


def require_role(visit: Visit, repo: int, *roles: str) -> None:
    """Only for members with one of these roles."""
    if find_role(visit, repo) not in roles:
        raise PageError(403, "You may not change this project.")


def write_path(row: sqlite3.Row) -> str:
    """The address of a project."""
    return f"/{row['owner']}/{row['name']}"


def _list_public(visit: Visit) -> ListQuery:
    condition = "(visibility = 'public' OR id IN (SELECT repo FROM members WHERE user = ?))"
    return ListQuery("repos", REPO_ORDERS).add_condition(condition, visit.user)


def _write_repo_row(row: sqlite3.Row) -> Html:
    return join(
        link(f"{row['owner']}/{row['name']}", write_path(row)),
        f" {row['language']} {format_count(row['stars'], 'star')}",
    )


def show_home(visit: Visit) -> Answer:
    """All projects."""
    query = _list_public(visit)
    if visit.query.get("language"):
        query.add_condition("language = ?", visit.query["language"])
    languages = [row[0] for row in visit.find_all("SELECT DISTINCT language FROM repos ORDER BY 1")]
    filters = [choose_filter(visit, "Language", "language", languages)]
    return page("Projects", list_rows(visit, query, _write_repo_row, "project", filters))


def show_search(visit: Visit) -> Answer:
    """Projects by words."""
    words = visit.query.get("q", "")
    query = _list_public(visit).add_words(words, "owner", "name", "about")
    return page(f"Search: {words}", list_rows(visit, query, _write_repo_row, "project"))


def show_own(visit: Visit) -> Answer:
    """My projects."""
    query = ListQuery("repos", REPO_ORDERS).add_condition("owner = ?", visit.user)
    return page("My projects", list_rows(visit, query, _write_repo_row, "project"))


def show_repo_form(visit: Visit) -> Answer:
    """Start a project."""
    fields = [
        field("Name", "name"),
        area("About", "about"),
        choice("Visible", "visibility", ("public", "private")),
    ]
    return page("New project", form("/new", "Create", *fields))


def create_repo(visit: Visit) -> Answer:
    """Start a project with a main branch."""
    name = visit.read_text("name")
    if not name.replace("-", "").isalnum():
        raise PageError(400, "A name has letters, digits and dashes.")
    if visit.find_value("SELECT 1 FROM repos WHERE owner = ? AND name = ?", visit.user, name):
        raise PageError(400, "You have this project already.")
    values = (visit.user, name, visit.read_text("about", required=False))
    visibility = visit.read_choice("visibility", ("public", "private"))
    number = visit.change(
        "INSERT INTO repos (owner, name, about, language, license, stars, visibility)"
        " VALUES (?, ?, ?, '', '', 0, ?)",
        *values,
        visibility,
    )
    visit.change("INSERT INTO members VALUES (?, ?, 'owner')", number, visit.user)
    visit.change("INSERT INTO branches VALUES (?, 'main')", number)
    return Redirect(f"/{visit.user}/{name}", "The project is there.")


def show_repo(visit: Visit, owner: str, name: str) -> Answer:
    """One project."""
    row = find_repo(visit, owner, name)
    path, number = write_path(row), row["id"]
    is_starred = visit.find_value("SELECT 1 FROM repo_stars WHERE user = ? AND repo = ?", visit.user, number)
    files = visit.find_all("SELECT path FROM files WHERE repo = ? ORDER BY path", number)
    parts = ("Issues", "Merges", "Commits", "Branches", "Members", "Settings")
    return page(
        f"{owner}/{name}",
        tag("p", Html(" ".join(link(part, f"{path}/{part.lower()}") for part in parts))),
        fact("About", row["about"]),
        fact("Language", row["language"]),
        fact("License", row["license"]),
        fact("Stars", row["stars"]),
        form(f"{path}/star", "Unstar" if is_starred else "Star"),
        form(f"{path}/fork", "Fork") if owner != visit.user else None,
        bullet_list([link(file["path"], f"{path}/files/{file['path']}") for file in files]),
    )


def toggle_star(visit: Visit, owner: str, name: str) -> Answer:
    """Star a project, or take the star back."""
    number = find_repo(visit, owner, name)["id"]
    key = (visit.user, number)
    if visit.find_value("SELECT 1 FROM repo_stars WHERE user = ? AND repo = ?", *key):
        visit.change("DELETE FROM repo_stars WHERE user = ? AND repo = ?", *key)
        visit.change("UPDATE repos SET stars = stars - 1 WHERE id = ?", number)
    else:
        visit.change("INSERT INTO repo_stars VALUES (?, ?)", *key)
        visit.change("UPDATE repos SET stars = stars + 1 WHERE id = ?", number)
    return Redirect(f"/{owner}/{name}")


def fork_repo(visit: Visit, owner: str, name: str) -> Answer:
    """Copy a project with files and branches."""
    row = find_repo(visit, owner, name)
    if visit.find_value("SELECT 1 FROM repos WHERE owner = ? AND name = ?", visit.user, name):
        raise PageError(400, "You have a project of this name already.")
    number = visit.change(
        "INSERT INTO repos (owner, name, about, language, license, stars, visibility, parent)"
        " SELECT ?, name, about, language, license, 0, visibility, id FROM repos WHERE id = ?",
        visit.user,
        row["id"],
    )
    visit.change("INSERT INTO branches SELECT ?, name FROM branches WHERE repo = ?", number, row["id"])
    visit.change("INSERT INTO files SELECT ?, path, text FROM files WHERE repo = ?", number, row["id"])
    visit.change("INSERT INTO members VALUES (?, ?, 'owner')", number, visit.user)
    return Redirect(f"/{visit.user}/{name}", "The project is copied.")


def show_file(visit: Visit, owner: str, name: str, path: str) -> Answer:
    """One file."""
    repo = find_repo(visit, owner, name)
    row = visit.find_row("SELECT * FROM files WHERE repo = ? AND path = ?", repo["id"], path)
    can_edit = find_role(visit, repo["id"]) in ROLES[1:]
    edit = form(f"/{owner}/{name}/files/{path}", "Save", area("Text", "text", row["text"]))
    return page(
        path,
        tag("p", link("Back to project", f"/{owner}/{name}")),
        tag("pre", row["text"]),
        edit if can_edit else None,
    )


def save_file(visit: Visit, owner: str, name: str, path: str) -> Answer:
    """Change a file; a commit says so."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, *ROLES[1:])
    visit.find_row("SELECT 1 FROM files WHERE repo = ? AND path = ?", repo, path)
    visit.change("UPDATE files SET text = ? WHERE repo = ? AND path = ?", visit.read_text("text"), repo, path)
    values = (repo, visit.user, f"Change {path}", visit.today)
    visit.change("INSERT INTO commits (repo, author, message, day) VALUES (?, ?, ?, ?)", *values)
    return Redirect(f"/{owner}/{name}/files/{path}", "Saved.")


def show_commits(visit: Visit, owner: str, name: str) -> Answer:
    """The changes of a project."""
    query = ListQuery("commits", {"new": "day DESC, id DESC", "old": "day, id"})
    query.add_condition("repo = ?", find_repo(visit, owner, name)["id"])

    def write_row(row: sqlite3.Row) -> Html:
        return join(f"{row['message']} by {row['author']} on {row['day']}")

    return page(f"Commits of {owner}/{name}", list_rows(visit, query, write_row, "commit"))


def show_branches(visit: Visit, owner: str, name: str) -> Answer:
    """The branches of a project, and a form for a new one."""
    repo = find_repo(visit, owner, name)["id"]
    rows = visit.find_all("SELECT name FROM branches WHERE repo = ? ORDER BY name", repo)
    start = form(f"/{owner}/{name}/branches", "Create", field("Name", "name"))
    return page(
        f"Branches of {owner}/{name}",
        bullet_list([[row[0]] for row in rows]),
        start if find_role(visit, repo) in ROLES[1:] else None,
    )


def create_branch(visit: Visit, owner: str, name: str) -> Answer:
    """Start a branch."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, *ROLES[1:])
    visit.change("INSERT OR IGNORE INTO branches VALUES (?, ?)", repo, visit.read_text("name"))
    return Redirect(f"/{owner}/{name}/branches", "The branch is there.")


def show_members(visit: Visit, owner: str, name: str) -> Answer:
    """Who works on a project."""
    repo = find_repo(visit, owner, name)["id"]
    rows = visit.find_all("SELECT * FROM members WHERE repo = ? ORDER BY user", repo)
    is_owner = find_role(visit, repo) == "owner"
    path = f"/{owner}/{name}/members"
    items = [
        [f"{row['user']}: {row['role']}", form(f"{path}/{row['user']}/remove", f"Remove {row['user']}")]
        if is_owner and row["role"] != "owner"
        else [f"{row['user']}: {row['role']}"]
        for row in rows
    ]
    invite = form(path, "Invite", field("Name", "name"), choice("Role", "role", ROLES[:2]))
    return page(f"Members of {owner}/{name}", bullet_list(items), invite if is_owner else None)


def invite_member(visit: Visit, owner: str, name: str) -> Answer:
    """Take a person into a project, or change their role."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, "owner")
    user, role = visit.read_text("name"), visit.read_choice("role", ROLES[:2])
    if user == visit.user or not visit.find_value("SELECT 1 FROM people WHERE name = ?", user):
        raise PageError(400, "There is no such person to invite.")
    visit.change("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", repo, user, role)
    return Redirect(f"/{owner}/{name}/members", f"{user} is a {role}.")


def remove_member(visit: Visit, owner: str, name: str, user: str) -> Answer:
    """Take a person out of a project."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, "owner")
    visit.change("DELETE FROM members WHERE repo = ? AND user = ? AND role <> 'owner'", repo, user)
    return Redirect(f"/{owner}/{name}/members", f"{user} is gone.")


def show_settings(visit: Visit, owner: str, name: str) -> Answer:
    """What the owner can change."""
    row = find_repo(visit, owner, name)
    require_role(visit, row["id"], "owner")
    return page(
        f"Settings of {owner}/{name}",
        form(
            f"/{owner}/{name}/settings",
            "Save",
            area("About", "about", row["about"]),
            field("License", "license", row["license"]),
            choice("Visible", "visibility", ("public", "private"), row["visibility"]),
        ),
    )


def save_settings(visit: Visit, owner: str, name: str) -> Answer:
    """Change a project's settings."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, "owner")
    values = [visit.read_text(key, required=False) for key in ("about", "license")]
    visibility = visit.read_choice("visibility", ("public", "private"))
    visit.change(
        "UPDATE repos SET about = ?, license = ?, visibility = ? WHERE id = ?", *values, visibility, repo
    )
    return Redirect(f"/{owner}/{name}", "Saved.")


REPO_ROUTES = (
    PageRoute("GET", "/", show_home),
    PageRoute("GET", "/search", show_search),
    PageRoute("GET", "/own", show_own, private=True),
    PageRoute("GET", "/new", show_repo_form, private=True),
    PageRoute("POST", "/new", create_repo, private=True),
    PageRoute("GET", "/{owner}/{name}", show_repo),
    PageRoute("POST", "/{owner}/{name}/star", toggle_star, private=True),
    PageRoute("POST", "/{owner}/{name}/fork", fork_repo, private=True),
    PageRoute("GET", "/{owner}/{name}/files/{path}", show_file),
    PageRoute("POST", "/{owner}/{name}/files/{path}", save_file, private=True),
    PageRoute("GET", "/{owner}/{name}/commits", show_commits),
    PageRoute("GET", "/{owner}/{name}/branches", show_branches),
    PageRoute("POST", "/{owner}/{name}/branches", create_branch, private=True),
    PageRoute("GET", "/{owner}/{name}/members", show_members),
    PageRoute("POST", "/{owner}/{name}/members", invite_member, private=True),
    PageRoute("POST", "/{owner}/{name}/members/{user}/remove", remove_member, private=True),
    PageRoute("GET", "/{owner}/{name}/settings", show_settings, private=True),
    PageRoute("POST", "/{owner}/{name}/settings", save_settings, private=True),
)
