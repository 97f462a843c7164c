"""The server of the own web: snapshots, visitors, hostile input, HTTP."""

from __future__ import annotations

import urllib.request
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stepwell.core import InputError
from stepwell.envs.web.sites import SiteEpisode, SiteHost
from stepwell.envs.web.sites.database import build_world, find_changes
from stepwell.envs.web.sites.markup import tag
from stepwell.envs.web.sites.pages import SITES

SITE_NAMES = [site.name for site in SITES]
VOID = {"meta", "input", "br", "hr", "img"}
ATTACK = "x' OR 1=1; DROP TABLE posts; -- <script>alert(1)</script>"


class BalanceChecker(HTMLParser):
    """Fails unless every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag


def open_client(host: SiteHost, site: str, episode: SiteEpisode | None = None) -> TestClient:
    headers = dict(episode.headers) if episode else {}
    return TestClient(host.app, base_url=f"http://{site}.localhost", headers=headers, follow_redirects=True)


def open_user(host: SiteHost, site: str) -> tuple[TestClient, SiteEpisode]:
    episode = host.open_episode()
    me = "ann" if host.size == "tiny" else "emma.stone"
    episode.log_in(site, "admin" if site == "admin" else me)
    return open_client(host, site, episode), episode


def test_the_same_seed_gives_the_same_world() -> None:
    build_world.cache_clear()
    first = build_world(3, "tiny")
    build_world.cache_clear()
    assert build_world(3, "tiny") == first
    assert build_world(4, "tiny") != first


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(InputError, match="tiny or full"):
        build_world(0, "huge")


def test_episodes_do_not_see_each_other(tiny_host: SiteHost) -> None:
    client, episode = open_user(tiny_host, "forum")
    other = tiny_host.open_episode()
    client.post("/b/ice/new", data={"title": "red ice", "text": "here"})
    assert episode.query("SELECT count(*) FROM posts WHERE title = ?", "red ice") == [(1,)]
    assert find_changes(other.db, episode.db) == ["posts"]
    assert "0 posts" in open_client(tiny_host, "forum", other).get("/search?q=red+ice").text


def test_a_closed_episode_is_gone(tiny_host: SiteHost) -> None:
    client, episode = open_user(tiny_host, "shop")
    episode.close()
    episode.close()
    assert client.get("/").status_code == 410


def test_visitors_keep_a_snapshot_of_their_own_across_the_sites(tiny_host: SiteHost) -> None:
    first, second = open_client(tiny_host, "shop"), open_client(tiny_host, "shop")
    password = tiny_host.open_episode().query("SELECT password FROM people WHERE name = 'ann'")[0][0]
    first.post("/login", data={"name": "ann", "password": password})
    assert "Log out ann" in first.get("/").text
    assert "Log out" not in second.get("/").text
    away = first.get("/sites/forum", follow_redirects=False).headers["location"]
    visitor = first.cookies["visit"]
    assert away == f"http://forum.localhost/?visit={visitor}"


def test_only_visitors_are_told_an_account(tiny_host: SiteHost) -> None:
    assert "password ann" in open_client(tiny_host, "shop").get("/login").text
    episode = tiny_host.open_episode()
    assert "password ann" not in open_client(tiny_host, "shop", episode).get("/login").text


def test_the_oldest_of_many_visitors_are_forgotten(tiny_host: SiteHost) -> None:
    first = tiny_host.find_visitor(f"{0:016x}")
    for number in range(1, 70):
        tiny_host.find_visitor(f"{number:016x}")
    assert tiny_host.find_visitor(f"{69:016x}") is tiny_host.find_visitor(f"{69:016x}")
    assert tiny_host.find_visitor(f"{0:016x}") is not first


@pytest.mark.parametrize("site", SITE_NAMES)
def test_hostile_text_in_a_search_is_only_text(tiny_host: SiteHost, site: str) -> None:
    client, episode = open_user(tiny_host, site)
    reply = client.get("/search", params={"q": ATTACK, "sort": ATTACK, "page": "-1", "kind": ATTACK})
    assert reply.status_code == 200
    assert "<script" not in reply.text
    assert find_changes(tiny_host.open_episode().db, episode.db) == []


def test_html_in_a_post_is_shown_as_text(tiny_host: SiteHost) -> None:
    client, episode = open_user(tiny_host, "forum")
    reply = client.post("/b/ice/new", data={"title": ATTACK, "text": "<a href=/x>[id=3]</a>"})
    assert "&lt;script&gt;" in reply.text and "<script" not in reply.text
    assert "&lt;a href=/x&gt;" in reply.text
    assert episode.query("SELECT title FROM posts ORDER BY id DESC LIMIT 1") == [(ATTACK,)]


@pytest.mark.parametrize(
    ("site", "path", "form", "status"),
    [
        ("shop", "/product/1/cart", {"option": "none", "qty": "1"}, 400),
        ("shop", "/product/99999/wish", {}, 404),
        ("shop", "/coupon", {"code": "SAVE20"}, 400),
        ("shop", "/checkout", {"address": "1 North"}, 400),
        ("shop", "/account", {"email": "", "address": "", "phone": ""}, 400),
        ("forum", "/post/1/delete", {}, 403),
        ("forum", "/post/1/vote", {"value": "9"}, 400),
        ("forum", "/b/ice/new", {"title": "a" * 3000, "text": "b"}, 400),
        ("code", "/bob/none/star", {}, 404),
        ("admin", "/products/1", {"title": "a", "price": "1e9", "stock": "1", "visible": "yes"}, 400),
        ("map", "/place/1/save", {"list": "nobody's"}, 400),
    ],
)
def test_a_wrong_form_changes_nothing(
    tiny_host: SiteHost, site: str, path: str, form: dict[str, str], status: int
) -> None:
    client, episode = open_user(tiny_host, site)
    assert client.post(path, data=form).status_code == status
    assert find_changes(tiny_host.open_episode().db, episode.db) == []


@pytest.mark.parametrize("path", ["/cart", "/orders", "/account"])
def test_private_pages_need_a_log_in(tiny_host: SiteHost, path: str) -> None:
    client = open_client(tiny_host, "shop", tiny_host.open_episode())
    assert client.get(path).status_code == 403


def test_the_admin_is_for_staff_alone(tiny_host: SiteHost) -> None:
    episode = tiny_host.open_episode()
    client = open_client(tiny_host, "admin", episode)
    passwords = dict(episode.query("SELECT name, password FROM people"))
    assert client.post("/login", data={"name": "ann", "password": passwords["ann"]}).status_code == 403
    assert client.get("/settings").status_code == 403
    assert client.post("/login", data={"name": "admin", "password": passwords["admin"]}).status_code == 200
    assert client.get("/settings").status_code == 200


def test_a_private_project_is_shown_to_members_alone(tiny_host: SiteHost) -> None:
    client, episode = open_user(tiny_host, "code")
    owner, name = episode.query("SELECT owner, name FROM repos WHERE owner <> 'ann'")[0]
    assert client.get(f"/{owner}/{name}").status_code == 200
    episode.db.execute("UPDATE repos SET visibility = 'private' WHERE owner <> 'ann'")
    assert client.get(f"/{owner}/{name}").status_code == 404
    assert "0 projects" in client.get("/search", params={"q": f"{owner} {name}"}).text


def test_a_form_that_is_too_large_is_refused(tiny_host: SiteHost) -> None:
    client, _ = open_user(tiny_host, "forum")
    assert client.post("/b/ice/new", data={"title": "a", "text": "b" * 70_000}).status_code == 413


@pytest.mark.parametrize("site", SITE_NAMES)
def test_start_pages_are_well_formed_and_allow_no_scripts(full_host: SiteHost, site: str) -> None:
    client, _ = open_user(full_host, site)
    reply = client.get("/")
    checker = BalanceChecker()
    checker.feed(reply.text)
    assert reply.status_code == 200 and checker.open_tags == []
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")


def test_unknown_hosts_and_paths_are_told(tiny_host: SiteHost) -> None:
    assert "shop.localhost" in TestClient(tiny_host.app, base_url="http://example.com").get("/").text
    assert open_client(tiny_host, "map", tiny_host.open_episode()).get("/no/such/page").status_code == 404


def test_the_sites_answer_http() -> None:
    host = SiteHost(0, "tiny")
    try:
        port = host.serve()
        assert host.serve() == port
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/", headers={"host": f"map.localhost:{port}"}
        )
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert b"Places" in reply.read()
    finally:
        host.stop()


@settings(max_examples=60, deadline=None)
@given(st.text("<>&\"'/= ab"), st.text("<>&\"'/= ab"))
def test_no_text_can_write_a_tag(text: str, value: str) -> None:
    made = tag("p", text, title=value)
    assert made.count("<") == 2 and made.count(">") == 2
    assert made.count('"') == 2
