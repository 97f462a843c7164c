"""The forum: boards, posts, comments, votes, follows, saved posts, messages."""

from __future__ import annotations

import random
import sqlite3

from stepwell.envs.web.sites.seeding.words import SiteWords, shorten_name

SCHEMA = """
CREATE TABLE boards (name TEXT PRIMARY KEY, about TEXT);
CREATE TABLE posts (id INTEGER PRIMARY KEY, board TEXT, author TEXT, title TEXT, text TEXT, votes INTEGER,
                    day TEXT);
CREATE TABLE comments (id INTEGER PRIMARY KEY, post INTEGER, author TEXT, text TEXT, day TEXT);
CREATE TABLE post_votes (user TEXT, post INTEGER, value INTEGER, PRIMARY KEY (user, post));
CREATE TABLE follows (user TEXT, board TEXT, PRIMARY KEY (user, board));
CREATE TABLE saved_posts (user TEXT, post INTEGER, PRIMARY KEY (user, post));
CREATE TABLE messages (id INTEGER PRIMARY KEY, sender TEXT, receiver TEXT, text TEXT, day TEXT);
CREATE INDEX comments_post ON comments (post);
"""


def seed_forum(db: sqlite3.Connection, rng: random.Random, words: SiteWords) -> None:
    """Fill the tables."""
    accounts, boards = [shorten_name(name) for name in words.people], words.list("boards")
    me = accounts[0]
    for board in boards:
        db.execute("INSERT INTO boards VALUES (?, ?)", (board, words.draw(rng, "board_about")))
    for board in rng.sample(boards, len(boards) // 2):
        db.execute("INSERT INTO follows VALUES (?, ?)", (me, board))
    seen: set[str] = set()
    for number in range(1, words.count("posts") + 1):
        board, author = boards[number % len(boards)], me if number % 6 == 0 else rng.choice(accounts)
        text = words.draw(rng, "sentences")
        row = (number, board, author, words.draw_unique(rng, "titles", seen), text, rng.randint(-9, 99))
        db.execute("INSERT INTO posts VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, words.draw_day(rng)))
        _seed_comments(db, rng, words, accounts, number)
    for post in rng.sample(range(1, words.count("posts") + 1), 4):
        db.execute("INSERT INTO saved_posts VALUES (?, ?)", (me, post))
    for sender in rng.sample(accounts[1:], 4):
        text, day = words.draw(rng, "sentences"), words.draw_day(rng)
        letter = (sender, me, text, day)
        db.execute("INSERT INTO messages (sender, receiver, text, day) VALUES (?, ?, ?, ?)", letter)


def _seed_comments(
    db: sqlite3.Connection, rng: random.Random, words: SiteWords, accounts: list[str], post: int
) -> None:
    for _ in range(rng.randint(0, 4 if words.size == "tiny" else 15)):
        row = (post, rng.choice(accounts), words.draw(rng, "sentences"), words.draw_day(rng))
        db.execute("INSERT INTO comments (post, author, text, day) VALUES (?, ?, ?, ?)", row)
