"""Issues and merge requests of the code host, and the site as a whole."""

from __future__ import annotations

import sqlite3

from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, choice, fact, field, form, join, link, tag
from stepwell.envs.web.sites.pages.code import REPO_ROUTES, find_repo, find_role, require_role
from stepwell.envs.web.sites.seeding.code import ROLES
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Site, Visit, page

ORDERS = {"new": "number DESC", "old": "number"}


def _list_values(visit: Visit, column: str) -> list[str]:
    return [row[0] for row in visit.find_all(f"SELECT DISTINCT {column} FROM issues ORDER BY 1") if row[0]]


def show_issues(visit: Visit, owner: str, name: str) -> Answer:
    """The issues of a project."""
    query = ListQuery("issues", ORDERS).add_condition("repo = ?", find_repo(visit, owner, name)["id"])
    for key in ("state", "label"):
        if visit.query.get(key):
            query.add_condition(f"{key} = ?", visit.query[key])
    filters = [
        choose_filter(visit, "State", "state", ["open", "closed"]),
        choose_filter(visit, "Label", "label", _list_values(visit, "label")),
    ]

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["title"], f"/{owner}/{name}/issues/{row['number']}"), f" {row['state']}")

    new = tag("p", link("New issue", f"/{owner}/{name}/issues/new"))
    return page(f"Issues of {owner}/{name}", new, list_rows(visit, query, write_row, "issue", filters))


def show_issue_form(visit: Visit, owner: str, name: str) -> Answer:
    """Write an issue."""
    find_repo(visit, owner, name)
    fields = [
        field("Title", "title"),
        area("Text", "text"),
        choice("Label", "label", _list_values(visit, "label")),
    ]
    return page(f"New issue of {owner}/{name}", form(f"/{owner}/{name}/issues/new", "Create", *fields))


def create_issue(visit: Visit, owner: str, name: str) -> Answer:
    """Keep an issue."""
    repo = find_repo(visit, owner, name)["id"]
    number = visit.find_value("SELECT ifnull(max(number), 0) + 1 FROM issues WHERE repo = ?", repo)
    label = visit.read_choice("label", _list_values(visit, "label"))
    values = (
        repo,
        number,
        visit.read_text("title"),
        visit.read_text("text", required=False),
        visit.user,
        label,
    )
    visit.change(
        "INSERT INTO issues (repo, number, title, text, author, state, label, assignee, milestone, day)"
        " VALUES (?, ?, ?, ?, ?, 'open', ?, '', '', ?)",
        *values,
        visit.today,
    )
    return Redirect(f"/{owner}/{name}/issues/{number}", "The issue is there.")


def show_issue(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """One issue."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT * FROM issues WHERE repo = ? AND number = ?", repo, number)
    path = f"/{owner}/{name}/issues/{number}"
    may_change = find_role(visit, repo) in ROLES[1:]
    return page(
        row["title"],
        fact("State", row["state"]),
        fact("Author", row["author"]),
        fact("Date", row["day"]),
        fact("Label", row["label"]),
        fact("Assignee", row["assignee"] or "nobody"),
        fact("Milestone", row["milestone"] or "none"),
        tag("p", row["text"]),
        tag("p", link("Edit", f"{path}/edit")) if may_change else None,
        form(f"{path}/state", "Close" if row["state"] == "open" else "Open")
        if may_change or row["author"] == visit.user
        else None,
        _write_notes(visit, "issue", row["id"]),
        form(f"{path}/note", "Comment", area("Text", "text")),
    )


def _write_notes(visit: Visit, kind: str, target: int) -> Html:
    rows = visit.find_all("SELECT * FROM notes WHERE kind = ? AND target = ? ORDER BY id", kind, target)
    return (
        bullet_list([f"{row['author']} on {row['day']}: {row['text']}" for row in rows]) if rows else Html()
    )


def show_issue_edit(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """What members can change of an issue."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, *ROLES[1:])
    row = visit.find_row("SELECT * FROM issues WHERE repo = ? AND number = ?", repo, number)
    people = [
        found[0] for found in visit.find_all("SELECT name FROM people WHERE NOT is_staff ORDER BY name")
    ]
    return page(
        f"Edit: {row['title']}",
        form(
            f"/{owner}/{name}/issues/{number}/edit",
            "Save",
            field("Title", "title", row["title"]),
            choice("Label", "label", _list_values(visit, "label"), row["label"]),
            choice("Assignee", "assignee", {"": "nobody", **{who: who for who in people}}, row["assignee"]),
            choice("Milestone", "milestone", ["", *_list_values(visit, "milestone")], row["milestone"]),
        ),
    )


def save_issue(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """Change an issue."""
    repo = find_repo(visit, owner, name)["id"]
    require_role(visit, repo, *ROLES[1:])
    row = visit.find_row("SELECT id FROM issues WHERE repo = ? AND number = ?", repo, number)
    people = [found[0] for found in visit.find_all("SELECT name FROM people WHERE NOT is_staff")]
    values = (
        visit.read_text("title"),
        visit.read_choice("label", _list_values(visit, "label")),
        visit.read_choice("assignee", ["", *people]),
        visit.read_choice("milestone", ["", *_list_values(visit, "milestone")]),
    )
    visit.change(
        "UPDATE issues SET title = ?, label = ?, assignee = ?, milestone = ? WHERE id = ?", *values, row["id"]
    )
    return Redirect(f"/{owner}/{name}/issues/{number}", "Saved.")


def toggle_issue(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """Close an issue, or open it again: members and its author."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT * FROM issues WHERE repo = ? AND number = ?", repo, number)
    if row["author"] != visit.user:
        require_role(visit, repo, *ROLES[1:])
    state = "closed" if row["state"] == "open" else "open"
    visit.change("UPDATE issues SET state = ? WHERE id = ?", state, row["id"])
    return Redirect(f"/{owner}/{name}/issues/{number}", f"The issue is {state}.")


def comment_issue(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """Comment on an issue."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT id FROM issues WHERE repo = ? AND number = ?", repo, number)
    return _keep_note(visit, "issue", row["id"], f"/{owner}/{name}/issues/{number}")


def _keep_note(visit: Visit, kind: str, target: int, path: str) -> Answer:
    values = (kind, target, visit.user, visit.read_text("text"), visit.today)
    visit.change("INSERT INTO notes (kind, target, author, text, day) VALUES (?, ?, ?, ?, ?)", *values)
    return Redirect(path, "Your comment is there.")


def show_my_issues(visit: Visit) -> Answer:
    """Open issues that are assigned to me."""
    query = ListQuery(
        "issues i JOIN repos r ON r.id = i.repo",
        {"new": "i.day DESC, i.id", "old": "i.day, i.id"},
        "i.title, i.number, i.label, r.owner, r.name",
    ).add_condition("assignee = ? AND state = 'open'", visit.user)

    def write_row(row: sqlite3.Row) -> Html:
        path = f"/{row['owner']}/{row['name']}"
        return join(link(row["title"], f"{path}/issues/{row['number']}"), f" {row['owner']}/{row['name']}")

    return page("My issues", list_rows(visit, query, write_row, "issue"))


def show_merges(visit: Visit, owner: str, name: str) -> Answer:
    """The merge requests of a project."""
    query = ListQuery("merges", ORDERS).add_condition("repo = ?", find_repo(visit, owner, name)["id"])
    if visit.query.get("state"):
        query.add_condition("state = ?", visit.query["state"])

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["title"], f"/{owner}/{name}/merges/{row['number']}"), f" {row['state']}")

    filters = [choose_filter(visit, "State", "state", ["open", "merged", "closed"])]
    new = tag("p", link("New merge", f"/{owner}/{name}/merges/new"))
    return page(
        f"Merge requests of {owner}/{name}", new, list_rows(visit, query, write_row, "merge", filters)
    )


def show_merge_form(visit: Visit, owner: str, name: str) -> Answer:
    """Ask for a merge."""
    repo = find_repo(visit, owner, name)["id"]
    branches = visit.find_all("SELECT name FROM branches WHERE repo = ? AND name <> 'main' ORDER BY 1", repo)
    fields = [field("Title", "title"), choice("Branch", "branch", [row[0] for row in branches])]
    return page(f"New merge of {owner}/{name}", form(f"/{owner}/{name}/merges/new", "Create", *fields))


def create_merge(visit: Visit, owner: str, name: str) -> Answer:
    """Keep a merge request."""
    repo = find_repo(visit, owner, name)["id"]
    branches = [row[0] for row in visit.find_all("SELECT name FROM branches WHERE repo = ?", repo)]
    title, branch = visit.read_text("title"), visit.read_choice("branch", branches)
    number = visit.find_value("SELECT ifnull(max(number), 0) + 1 FROM merges WHERE repo = ?", repo)
    visit.change(
        "INSERT INTO merges (repo, number, title, author, branch, state, reviewer, day)"
        " VALUES (?, ?, ?, ?, ?, 'open', '', ?)",
        *(repo, number, title, visit.user, branch, visit.today),
    )
    return Redirect(f"/{owner}/{name}/merges/{number}", "The merge request is there.")


def show_merge(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """One merge request."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT * FROM merges WHERE repo = ? AND number = ?", repo, number)
    path, may_change = f"/{owner}/{name}/merges/{number}", find_role(visit, repo) in ROLES[1:]
    is_open = row["state"] == "open"
    return page(
        row["title"],
        fact("State", row["state"]),
        fact("Author", row["author"]),
        fact("Branch", row["branch"]),
        fact("Reviewer", row["reviewer"] or "nobody"),
        fact("Date", row["day"]),
        form(f"{path}/merged", "Merge") if may_change and is_open else None,
        form(f"{path}/closed", "Close") if may_change and is_open else None,
        _write_notes(visit, "merge", row["id"]),
        form(f"{path}/note", "Comment", area("Text", "text")),
    )


def finish_merge(visit: Visit, owner: str, name: str, number: int, state: str) -> Answer:
    """Merge, or close without merging."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT * FROM merges WHERE repo = ? AND number = ?", repo, number)
    require_role(visit, repo, *ROLES[1:])
    if row["state"] != "open" or state not in ("merged", "closed"):
        raise PageError(400, "This cannot be done.")
    visit.change("UPDATE merges SET state = ? WHERE id = ?", state, row["id"])
    return Redirect(f"/{owner}/{name}/merges/{number}", f"It is {state}.")


def comment_merge(visit: Visit, owner: str, name: str, number: int) -> Answer:
    """Comment on a merge request."""
    repo = find_repo(visit, owner, name)["id"]
    row = visit.find_row("SELECT id FROM merges WHERE repo = ? AND number = ?", repo, number)
    return _keep_note(visit, "merge", row["id"], f"/{owner}/{name}/merges/{number}")


CODE = Site(
    "code",
    "Code",
    (("Own", "/own"), ("New project", "/new"), ("My issues", "/mine")),
    (
        PageRoute("GET", "/mine", show_my_issues, private=True),
        PageRoute("GET", "/{owner}/{name}/issues", show_issues),
        PageRoute("GET", "/{owner}/{name}/issues/new", show_issue_form, private=True),
        PageRoute("POST", "/{owner}/{name}/issues/new", create_issue, private=True),
        PageRoute("GET", "/{owner}/{name}/issues/{number:int}", show_issue),
        PageRoute("GET", "/{owner}/{name}/issues/{number:int}/edit", show_issue_edit, private=True),
        PageRoute("POST", "/{owner}/{name}/issues/{number:int}/edit", save_issue, private=True),
        PageRoute("POST", "/{owner}/{name}/issues/{number:int}/state", toggle_issue, private=True),
        PageRoute("POST", "/{owner}/{name}/issues/{number:int}/note", comment_issue, private=True),
        PageRoute("GET", "/{owner}/{name}/merges", show_merges),
        PageRoute("GET", "/{owner}/{name}/merges/new", show_merge_form, private=True),
        PageRoute("POST", "/{owner}/{name}/merges/new", create_merge, private=True),
        PageRoute("GET", "/{owner}/{name}/merges/{number:int}", show_merge),
        PageRoute("POST", "/{owner}/{name}/merges/{number:int}/note", comment_merge, private=True),
        PageRoute("POST", "/{owner}/{name}/merges/{number:int}/{state}", finish_merge, private=True),
        *REPO_ROUTES,
    ),
)
