"""What the sites answered is answered again: the same bytes, the same end, and no episode sees another."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stepwell.envs.web import tabs
from stepwell.envs.web.exchange import SiteAnswer, SiteRequest
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.page import PageView
from stepwell.envs.web.recent import RecentTable
from stepwell.envs.web.sites import SiteEpisode, SiteHost, check_task, plan_task
from stepwell.envs.web.sites.database import find_changes, open_scratch
from stepwell.envs.web.sites.tasks import find_template
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import list_names, make_content

NEW_POST = SiteRequest("POST", "forum.localhost", "/b/ice/new", "", b"title=red+ice&text=here")
FIND_POST = SiteRequest("GET", "forum.localhost", "/search", "q=red+ice")


def play_task(
    host: SiteHost, content: dict[str, Any], *, uses_cache: bool
) -> tuple[list[PageView], bool, SiteEpisode]:
    """All that an oracle sees, whether it solved the task, and the episode. Who takes `db` is never answered
    from the cache."""
    template, episode = find_template(content), host.open_episode()
    if not uses_cache:
        assert episode.db.in_transaction
    episode.log_in(template.site, template.user(host.size))
    driver = LightDriver(host.app)
    views = [driver.open(content["start_url"], headers=episode.headers, allowed_hosts=["*.localhost"])]
    plan = plan_task(content)
    while (action := plan(views[-1])).name != "exit":
        views.append(driver.act(action))
    is_solved = check_task(content, view=views[-1], episode=episode, answer=action.argument)
    return views, is_solved, episode


def has_only_wanted_changes(content: dict[str, Any], episode: SiteEpisode) -> bool:
    """As the judge decides, by comparing every table."""
    values = content["parameters"]
    with open_scratch(0, content["size"]) as wanted:
        for statement in find_template(content).effect:
            wanted.execute(statement, {name: values[name] for name in list_names(statement)})
        return find_changes(wanted, episode.db) == []


@pytest.mark.parametrize("site", ["shop", "admin", "forum", "code", "map"])
def test_kept_answers_and_shared_pages_are_those_made_afresh(
    tiny_host: SiteHost, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = [template for template in TEMPLATES.values() if template.site == site][::2]
    contents = [make_content(template, random.Random(7), "tiny", 0) for template in templates]
    kept = [[play_task(tiny_host, content, uses_cache=True) for content in contents] for _ in range(2)][1]
    monkeypatch.setattr(tabs, "MAX_SHARED_CHARS", -1)
    for content, (views, is_solved, episode) in zip(contents, kept, strict=True):
        assert episode.state is not None
        fresh_views, fresh_end, fresh_episode = play_task(tiny_host, content, uses_cache=False)
        assert (fresh_views, fresh_end, fresh_episode.state) == (views, is_solved, None)
        assert is_solved and has_only_wanted_changes(content, episode)
        episode.close()
        fresh_episode.close()


def ask_site(host: SiteHost, episode: SiteEpisode, request: SiteRequest) -> SiteAnswer:
    return host.app.answer_request(request, episode.headers)


def open_forum(host: SiteHost) -> SiteEpisode:
    episode = host.open_episode()
    episode.log_in("forum", "ann")
    return episode


def test_the_same_request_in_the_same_state_is_answered_once(tiny_host: SiteHost) -> None:
    first, second = open_forum(tiny_host), open_forum(tiny_host)
    for request in (FIND_POST, NEW_POST, FIND_POST):
        assert ask_site(tiny_host, first, request) is ask_site(tiny_host, second, request)
        assert first.state == second.state
    assert b"1 post<" in ask_site(tiny_host, second, FIND_POST).body
    assert b"0 posts" in ask_site(tiny_host, open_forum(tiny_host), FIND_POST).body


def test_a_database_that_lags_behind_is_brought_up_when_it_is_looked_at(tiny_host: SiteHost) -> None:
    for _ in range(2):  # the second is answered from the cache alone
        episode = open_forum(tiny_host)
        ask_site(tiny_host, episode, NEW_POST)
        assert episode.list_written_tables() == {"posts"}
        assert episode.query("SELECT count(*) FROM posts WHERE title = 'red ice'") == [(1,)]
        episode.close()


def test_what_others_write_to_the_database_is_seen(tiny_host: SiteHost) -> None:
    episode = open_forum(tiny_host)
    assert b"0 posts" in ask_site(tiny_host, episode, FIND_POST).body
    episode.db.execute("UPDATE posts SET title = 'red ice' WHERE id = 1")
    assert b"1 post<" in ask_site(tiny_host, episode, FIND_POST).body
    assert episode.list_written_tables() is None


def test_a_connection_is_used_again_without_a_trace_of_the_last_episode(tiny_host: SiteHost) -> None:
    first = open_forum(tiny_host)
    unknown = SiteRequest("POST", "forum.localhost", "/b/ice/new", "", b"title=never+seen&text=here")
    ask_site(tiny_host, first, unknown)
    first.close()
    second = open_forum(tiny_host)
    assert find_changes(tiny_host.open_episode().db, second.db) == []


def test_a_forgotten_answer_is_made_again(tiny_host: SiteHost, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = open_forum(tiny_host)
    seen = [ask_site(tiny_host, episode, request) for request in (NEW_POST, FIND_POST)]
    host = SiteHost(0, "tiny")
    monkeypatch.setattr(host.answers, "_answers", RecentTable(1))
    other = open_forum(host)
    assert [ask_site(host, other, request) for request in (NEW_POST, FIND_POST)] == seen
    assert other.query("SELECT count(*) FROM posts WHERE title = 'red ice'") == [(1,)]


def test_a_table_forgets_what_was_not_asked_for_longest() -> None:
    table: RecentTable[str] = RecentTable(2)
    table.keep("a", "1")
    table.keep("b", "2")
    assert (table.find("a"), table.keep("a", "other")) == ("1", "1")
    table.keep("c", "3")
    assert (table.find("a"), table.find("b"), table.find("c")) == ("1", None, "3")
