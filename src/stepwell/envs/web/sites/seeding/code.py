"""The code host: projects with files, branches, commits, members, issues and merge requests.

A project is addressed by owner and name. Issues and merge requests are numbered within their project.
"""

from __future__ import annotations

import random
import sqlite3

from stepwell.envs.web.sites.seeding.words import SiteWords, shorten_name

SCHEMA = """
CREATE TABLE repos (id INTEGER PRIMARY KEY, owner TEXT, name TEXT, about TEXT, language TEXT, license TEXT,
                    stars INTEGER, visibility TEXT, parent INTEGER, UNIQUE (owner, name));
CREATE TABLE branches (repo INTEGER, name TEXT, PRIMARY KEY (repo, name));
CREATE TABLE files (repo INTEGER, path TEXT, text TEXT, PRIMARY KEY (repo, path));
CREATE TABLE commits (id INTEGER PRIMARY KEY, repo INTEGER, author TEXT, message TEXT, day TEXT);
CREATE TABLE members (repo INTEGER, user TEXT, role TEXT, PRIMARY KEY (repo, user));
CREATE TABLE repo_stars (user TEXT, repo INTEGER, PRIMARY KEY (user, repo));
CREATE TABLE issues (id INTEGER PRIMARY KEY, repo INTEGER, number INTEGER, title TEXT, text TEXT, author TEXT,
                     state TEXT, label TEXT, assignee TEXT, milestone TEXT, day TEXT);
CREATE TABLE merges (id INTEGER PRIMARY KEY, repo INTEGER, number INTEGER, title TEXT, author TEXT,
                     branch TEXT, state TEXT, reviewer TEXT, day TEXT);
CREATE TABLE notes (id INTEGER PRIMARY KEY, kind TEXT, target INTEGER, author TEXT, text TEXT, day TEXT);
CREATE INDEX issues_repo ON issues (repo);
CREATE INDEX merges_repo ON merges (repo);
"""
ROLES = ("reader", "writer", "owner")


def seed_code(db: sqlite3.Connection, rng: random.Random, words: SiteWords) -> None:
    """Fill the tables."""
    accounts = [shorten_name(name) for name in words.people]
    names = words.list("projects")
    for number in range(1, words.count("repos") + 1):
        owner = accounts[0] if number % 3 == 0 else rng.choice(accounts[1:])
        name = names[(number - 1) % len(names)] + ("" if number <= len(names) else "-kit")
        language, licence = rng.choice(words.list("languages")), rng.choice(words.list("licenses"))
        about, stars = words.draw(rng, "sentences"), number * 7 % 83 + rng.randint(0, 2) * 83
        row = (number, owner, name, about, language, licence, stars, "public")
        db.execute("INSERT INTO repos VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        _seed_content(db, rng, words, number, accounts)
        _seed_issues(db, rng, words, number, accounts)
        db.execute("INSERT INTO members VALUES (?, ?, 'owner')", (number, owner))
        others = [account for account in accounts if account not in (owner, accounts[0])]
        for user in rng.sample(others, 2):
            db.execute("INSERT INTO members VALUES (?, ?, ?)", (number, user, rng.choice(ROLES[:2])))
    for repo in rng.sample(range(1, words.count("repos") + 1), 3):
        db.execute("INSERT INTO repo_stars VALUES (?, ?)", (accounts[0], repo))


def _seed_content(
    db: sqlite3.Connection, rng: random.Random, words: SiteWords, repo: int, accounts: list[str]
) -> None:
    for branch in ("main", *rng.sample(words.list("branches"), 2)):
        db.execute("INSERT INTO branches VALUES (?, ?)", (repo, branch))
    for path in words.list("files"):
        text = "\n".join(words.draw(rng, "sentences") for _ in range(2 if words.size == "tiny" else 6))
        db.execute("INSERT INTO files VALUES (?, ?, ?)", (repo, path, text))
    days = sorted(words.draw_day(rng) for _ in range(4 if words.size == "tiny" else 12))
    for day in days:
        row = (repo, rng.choice(accounts), words.draw(rng, "changes"), day)
        db.execute("INSERT INTO commits (repo, author, message, day) VALUES (?, ?, ?, ?)", row)


def _seed_issues(
    db: sqlite3.Connection, rng: random.Random, words: SiteWords, repo: int, accounts: list[str]
) -> None:
    branches = [
        row[0] for row in db.execute("SELECT name FROM branches WHERE repo = ? AND name <> 'main'", (repo,))
    ]
    seen: set[str] = set()
    for number in range(1, (6 if words.size == "tiny" else 14) + 1):
        title, text = words.draw_unique(rng, "issue_titles", seen), words.draw(rng, "sentences")
        author, assignee = rng.choice(accounts), rng.choice([*accounts, ""])
        label, milestone = rng.choice(words.list("labels")), rng.choice(words.list("milestones"))
        row = (
            repo,
            number,
            title,
            text,
            author,
            rng.choice(("open", "open", "closed")),
            label,
            assignee,
            milestone,
        )
        db.execute(
            "INSERT INTO issues (repo, number, title, text, author, state, label, assignee, milestone, day)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, words.draw_day(rng)),
        )
    for number, branch in enumerate(branches, 1):
        title = words.draw_unique(rng, "changes", seen)
        row2 = (repo, number, title, rng.choice(accounts), branch, rng.choice(("open", "open", "merged")))
        db.execute(
            "INSERT INTO merges (repo, number, title, author, branch, state, reviewer, day)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*row2, rng.choice(accounts), words.draw_day(rng)),
        )
