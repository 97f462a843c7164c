"""The forum: boards, posts with votes and comments, people, saved posts, messages."""

from __future__ import annotations

import sqlite3

from stepwell.core.text import format_count
from stepwell.envs.web.sites.listing import ListQuery, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, choice, fact, field, form, join, link, tag
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Site, Visit, page

POST_ORDERS = {"new": "day DESC, id DESC", "old": "day, id", "top": "votes DESC, id"}
COMMENT_ORDERS = {"old": "day, id", "new": "day DESC, id DESC"}


def show_home(visit: Visit) -> Answer:
    """All posts."""
    return page("All posts", list_rows(visit, ListQuery("posts", POST_ORDERS), _write_post_row, "post"))


def show_search(visit: Visit) -> Answer:
    """Posts by words."""
    words = visit.query.get("q", "")
    orders = {"best match": "length(title), id", **POST_ORDERS}
    query = ListQuery("posts", orders).add_words(words, "title", "text")
    return page(f"Search: {words}", list_rows(visit, query, _write_post_row, "post"))


def _write_post_row(row: sqlite3.Row) -> Html:
    return join(
        link(row["title"], f"/post/{row['id']}"), f" {format_count(row['votes'], 'vote')} by {row['author']}"
    )


def show_boards(visit: Visit) -> Answer:
    """All boards."""
    query = ListQuery(
        "boards b",
        {"name": "name", "most posts": "posts DESC, name"},
        "b.*, (SELECT count(*) FROM posts WHERE board = name) AS posts",
    )

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["name"], f"/b/{row['name']}"), f" {format_count(row['posts'], 'post')}")

    return page("Boards", list_rows(visit, query, write_row, "board"))


def show_board(visit: Visit, name: str) -> Answer:
    """The posts of a board."""
    board = visit.find_row("SELECT * FROM boards WHERE name = ?", name)
    is_followed = visit.find_value("SELECT 1 FROM follows WHERE user = ? AND board = ?", visit.user, name)
    query = ListQuery("posts", POST_ORDERS).add_condition("board = ?", name)
    return page(
        f"Board {name}",
        tag("p", board["about"]),
        tag("p", link("New post", f"/b/{name}/new")),
        form(f"/b/{name}/follow", "Unfollow" if is_followed else "Follow"),
        list_rows(visit, query, _write_post_row, "post"),
    )


def toggle_follow(visit: Visit, name: str) -> Answer:
    """Follow a board, or stop."""
    visit.find_row("SELECT 1 FROM boards WHERE name = ?", name)
    key = (visit.user, name)
    if visit.find_value("SELECT 1 FROM follows WHERE user = ? AND board = ?", *key):
        visit.change("DELETE FROM follows WHERE user = ? AND board = ?", *key)
        return Redirect(f"/b/{name}", f"You left {name}.")
    visit.change("INSERT INTO follows VALUES (?, ?)", *key)
    return Redirect(f"/b/{name}", f"You follow {name}.")


def show_post_form(visit: Visit, name: str) -> Answer:
    """Write a post."""
    visit.find_row("SELECT 1 FROM boards WHERE name = ?", name)
    return page(
        f"New post in {name}", form(f"/b/{name}/new", "Post", field("Title", "title"), area("Text", "text"))
    )


def write_post(visit: Visit, name: str) -> Answer:
    """Publish a post."""
    visit.find_row("SELECT 1 FROM boards WHERE name = ?", name)
    values = (name, visit.user, visit.read_text("title"), visit.read_text("text"), visit.today)
    number = visit.change(
        "INSERT INTO posts (board, author, title, text, votes, day) VALUES (?, ?, ?, ?, 1, ?)", *values
    )
    return Redirect(f"/post/{number}", "Your post is there.")


def show_post(visit: Visit, number: int) -> Answer:
    """A post with its comments."""
    row = visit.find_row("SELECT * FROM posts WHERE id = ?", number)
    is_saved = visit.find_value("SELECT 1 FROM saved_posts WHERE user = ? AND post = ?", visit.user, number)
    is_mine = visit.user == row["author"]

    def write_row(comment: sqlite3.Row) -> Html:
        return join(
            link(comment["author"], f"/u/{comment['author']}"), f" on {comment['day']}: {comment['text']}"
        )

    query = ListQuery("comments", COMMENT_ORDERS).add_condition("post = ?", number)
    author = join("Author: ", link(row["author"], f"/u/{row['author']}"))
    board = join("Board: ", link(row["board"], f"/b/{row['board']}"))
    return page(
        row["title"],
        tag("p", author),
        tag("p", board),
        fact("Date", row["day"]),
        fact("Votes", row["votes"]),
        tag("p", row["text"]),
        form(f"/post/{number}/vote", "Vote", choice("Vote", "value", ("up", "down"))),
        form(f"/post/{number}/save", "Forget" if is_saved else "Save"),
        tag("p", link("Edit", f"/post/{number}/edit")) if is_mine else None,
        form(f"/post/{number}/comment", "Comment", area("Text", "text")),
        list_rows(visit, query, write_row, "comment"),
    )


def vote_post(visit: Visit, number: int) -> Answer:
    """Vote once; another vote replaces the first."""
    visit.find_row("SELECT 1 FROM posts WHERE id = ?", number)
    value = 1 if visit.read_choice("value", ("up", "down")) == "up" else -1
    before = (
        visit.find_value("SELECT value FROM post_votes WHERE user = ? AND post = ?", visit.user, number) or 0
    )
    visit.change("INSERT OR REPLACE INTO post_votes VALUES (?, ?, ?)", visit.user, number, value)
    visit.change("UPDATE posts SET votes = votes + ? WHERE id = ?", value - before, number)
    return Redirect(f"/post/{number}", "Thank you for your vote.")


def toggle_save(visit: Visit, number: int) -> Answer:
    """Save a post, or forget it."""
    visit.find_row("SELECT 1 FROM posts WHERE id = ?", number)
    key = (visit.user, number)
    if visit.find_value("SELECT 1 FROM saved_posts WHERE user = ? AND post = ?", *key):
        visit.change("DELETE FROM saved_posts WHERE user = ? AND post = ?", *key)
    else:
        visit.change("INSERT INTO saved_posts VALUES (?, ?)", *key)
    return Redirect("/saved")


def show_saved(visit: Visit) -> Answer:
    """My saved posts."""
    query = ListQuery("posts", POST_ORDERS).add_condition(
        "id IN (SELECT post FROM saved_posts WHERE user = ?)", visit.user
    )
    return page("Saved", list_rows(visit, query, _write_post_row, "post"))


def write_comment(visit: Visit, number: int) -> Answer:
    """Comment on a post."""
    visit.find_row("SELECT 1 FROM posts WHERE id = ?", number)
    values = (number, visit.user, visit.read_text("text"), visit.today)
    visit.change("INSERT INTO comments (post, author, text, day) VALUES (?, ?, ?, ?)", *values)
    return Redirect(f"/post/{number}", "Your comment is there.")


def show_edit_form(visit: Visit, number: int) -> Answer:
    """Change my own post, or delete it."""
    row = _find_own_post(visit, number)
    return page(
        f"Edit: {row['title']}",
        form(
            f"/post/{number}/edit",
            "Save",
            field("Title", "title", row["title"]),
            area("Text", "text", row["text"]),
        ),
        form(f"/post/{number}/delete", "Delete"),
    )


def _find_own_post(visit: Visit, number: int) -> sqlite3.Row:
    row = visit.find_row("SELECT * FROM posts WHERE id = ?", number)
    if row["author"] != visit.user:
        raise PageError(403, "This post is not yours.")
    return row


def edit_post(visit: Visit, number: int) -> Answer:
    """Change my own post."""
    _find_own_post(visit, number)
    values = (visit.read_text("title"), visit.read_text("text"), number)
    visit.change("UPDATE posts SET title = ?, text = ? WHERE id = ?", *values)
    return Redirect(f"/post/{number}", "Saved.")


def delete_post(visit: Visit, number: int) -> Answer:
    """Delete my own post with its comments."""
    row = _find_own_post(visit, number)
    for table, column in (
        ("posts", "id"),
        ("comments", "post"),
        ("saved_posts", "post"),
        ("post_votes", "post"),
    ):
        visit.change(f"DELETE FROM {table} WHERE {column} = ?", number)
    return Redirect(f"/b/{row['board']}", "The post is gone.")


def show_person(visit: Visit, name: str) -> Answer:
    """A person with their posts."""
    row = visit.find_row("SELECT * FROM people WHERE name = ? AND NOT is_staff", name)
    count = visit.find_value("SELECT count(*) FROM comments WHERE author = ?", name)
    query = ListQuery("posts", POST_ORDERS).add_condition("author = ?", name)
    return page(
        f"User {name}",
        fact("About", row["about"]),
        fact("Comments", count),
        tag("p", link("Send message", f"/u/{name}/message")),
        list_rows(visit, query, _write_post_row, "post"),
    )


def show_message_form(visit: Visit, name: str) -> Answer:
    """Write a message."""
    visit.find_row("SELECT 1 FROM people WHERE name = ?", name)
    return page(f"Message to {name}", form(f"/u/{name}/message", "Send", area("Text", "text")))


def send_message(visit: Visit, name: str) -> Answer:
    """Send a message."""
    visit.find_row("SELECT 1 FROM people WHERE name = ?", name)
    values = (visit.user, name, visit.read_text("text"), visit.today)
    visit.change("INSERT INTO messages (sender, receiver, text, day) VALUES (?, ?, ?, ?)", *values)
    return Redirect("/messages", "Sent.")


def show_messages(visit: Visit) -> Answer:
    """Messages to me."""
    query = ListQuery("messages", {"new": "day DESC, id DESC", "old": "day, id"})
    query.add_condition("receiver = ?", visit.user)

    def write_row(row: sqlite3.Row) -> Html:
        return join(link(row["sender"], f"/u/{row['sender']}"), f" on {row['day']}: {row['text']}")

    return page("Messages", list_rows(visit, query, write_row, "message"))


def show_profile(visit: Visit) -> Answer:
    """What others read about me, and the boards I follow."""
    about = visit.find_value("SELECT about FROM people WHERE name = ?", visit.user)
    boards = visit.find_all("SELECT board FROM follows WHERE user = ? ORDER BY board", visit.user)
    return page(
        "Profile",
        form("/profile", "Save", area("About", "about", about)),
        tag("h2", "Boards"),
        bullet_list([link(row[0], f"/b/{row[0]}") for row in boards]),
    )


def save_profile(visit: Visit) -> Answer:
    """Change what others read about me."""
    visit.change("UPDATE people SET about = ? WHERE name = ?", visit.read_text("about"), visit.user)
    return Redirect("/profile", "Saved.")


FORUM = Site(
    "forum",
    "Forum",
    (("Boards", "/boards"), ("Saved", "/saved"), ("Messages", "/messages"), ("Profile", "/profile")),
    (
        PageRoute("GET", "/", show_home),
        PageRoute("GET", "/search", show_search),
        PageRoute("GET", "/boards", show_boards),
        PageRoute("GET", "/b/{name}", show_board),
        PageRoute("POST", "/b/{name}/follow", toggle_follow, private=True),
        PageRoute("GET", "/b/{name}/new", show_post_form, private=True),
        PageRoute("POST", "/b/{name}/new", write_post, private=True),
        PageRoute("GET", "/post/{number:int}", show_post),
        PageRoute("POST", "/post/{number:int}/vote", vote_post, private=True),
        PageRoute("POST", "/post/{number:int}/save", toggle_save, private=True),
        PageRoute("POST", "/post/{number:int}/comment", write_comment, private=True),
        PageRoute("GET", "/post/{number:int}/edit", show_edit_form, private=True),
        PageRoute("POST", "/post/{number:int}/edit", edit_post, private=True),
        PageRoute("POST", "/post/{number:int}/delete", delete_post, private=True),
        PageRoute("GET", "/saved", show_saved, private=True),
        PageRoute("GET", "/u/{name}", show_person),
        PageRoute("GET", "/u/{name}/message", show_message_form, private=True),
        PageRoute("POST", "/u/{name}/message", send_message, private=True),
        PageRoute("GET", "/messages", show_messages, private=True),
        PageRoute("GET", "/profile", show_profile, private=True),
        PageRoute("POST", "/profile", save_profile, private=True),
    ),
)
