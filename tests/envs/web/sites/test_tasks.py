"""Tasks of the own web: oracles solve them, chance does not, checkers see what was done, splits are apart."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core import InputError, Split, TaskRelation
from stepwell.envs import make_env
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.options import WebOptions
from stepwell.envs.web.page import PageView
from stepwell.envs.web.sites import SiteEpisode, SiteHost, check_task, make_site_task, plan_task
from stepwell.envs.web.sites.source import SitesSource
from stepwell.envs.web.sites.tasks import find_template, is_give_up, match_answer, match_url
from stepwell.envs.web.sites.templates import TEMPLATES
from stepwell.envs.web.sites.templates.template import make_content
from stepwell.rendering.tiny.tokenizer import build_tokenizer

SITES = ("shop", "admin", "forum", "code", "map")
MAX_STEPS, MAX_PAGE_TOKENS = 60, 600
Hosts = dict[Any, SiteHost]


def start_task(host: SiteHost, content: dict[str, Any]) -> tuple[LightDriver, PageView, SiteEpisode]:
    template, episode = find_template(content), host.open_episode()
    episode.log_in(template.site, template.user(host.size))
    driver = LightDriver(host.app)
    view = driver.open(content["start_url"], headers=episode.headers, allowed_hosts=["*.localhost"])
    return driver, view, episode


def play_oracle(host: SiteHost, content: dict[str, Any]) -> tuple[bool, list[PageView]]:
    driver, view, episode = start_task(host, content)
    plan, views = plan_task(content), [view]
    for _ in range(MAX_STEPS):
        action = plan(views[-1])
        if action.name == "exit":
            break
        views.append(driver.act(action))
        assert not views[-1].notice, views[-1].notice
    is_solved = check_task(content, view=views[-1], episode=episode, answer=action.argument)
    episode.close()
    return is_solved, views


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("size", ["tiny", pytest.param("full", marks=pytest.mark.slow)])
def test_the_oracle_solves_every_template_within_the_turns(hosts: Hosts, site: str, size: Any) -> None:
    unsolved, pages = [], set[str]()
    for template in TEMPLATES.values():
        if template.site == site:
            content = make_content(template, random.Random(template.name), size, 0)
            is_solved, views = play_oracle(hosts[size], content)
            pages |= {view.html for view in views}
            if not is_solved or len(views) > WebOptions(size=size).turn_limit:
                unsolved.append((template.name, content["instruction"]))
    assert unsolved == []
    if size == "tiny":
        lengths = [len(ids) for ids in build_tokenizer()(sorted(pages))["input_ids"]]
        assert max(lengths) <= MAX_PAGE_TOKENS


def test_every_site_has_thirty_templates_of_all_kinds() -> None:
    for site in SITES:
        own = [template for template in TEMPLATES.values() if template.site == site]
        assert len(own) >= 30
        assert {template.kind for template in own} == {"information", "navigation", "content", "unachievable"}
        assert 3 <= sum(template.held_out for template in own) <= len(own) // 3


def act_by_chance(rng: random.Random, view: PageView) -> WebAction:
    """Mostly clicks; sometimes a word of the page into a field, or the end."""
    words = view.text.split() or ["a"]
    if rng.random() < 0.1:
        return WebAction("exit", argument=rng.choice([*words, "N/A", "done"]))
    element = rng.choice(view.elements)
    if element.tag == "select":
        options = element.attributes["options"].split("\n")
        return WebAction("select_dropdown_option", element.id, rng.choice(options) or "all")
    if element.tag in ("input", "textarea"):
        return WebAction("type", element.id, rng.choice(words))
    return WebAction("click", element.id)


def test_chance_solves_at_most_one_task_in_twenty(tiny_host: SiteHost) -> None:
    solved, total = 0, 100
    for seed in range(total):
        content, rng = make_site_task(seed, "tiny"), random.Random(seed)
        driver, view, episode = start_task(tiny_host, content)
        for _ in range(12):
            action = act_by_chance(rng, view)
            if action.name == "exit":
                break
            view = driver.act(action)
        answer = action.argument if action.name == "exit" else ""
        solved += check_task(content, view=view, episode=episode, answer=answer)
        episode.close()
    assert solved <= 0.05 * total


@pytest.mark.parametrize("kind", ["information", "navigation", "content", "unachievable"])
def test_doing_nothing_and_saying_done_solves_no_task(tiny_host: SiteHost, kind: str) -> None:
    for seed in range(12):
        content = make_site_task(seed, "tiny", kinds=[kind])
        _, view, episode = start_task(tiny_host, content)
        assert not check_task(content, view=view, episode=episode, answer="done")


def test_unachievable_tasks_need_the_right_exit_and_an_unchanged_database(tiny_host: SiteHost) -> None:
    for seed in range(8):
        content = make_site_task(seed, "tiny", kinds=["unachievable"])
        _, view, episode = start_task(tiny_host, content)
        assert check_task(content, view=view, episode=episode, answer="N/A")
        assert not check_task(content, view=view, episode=episode, answer="yes, N/A it is")
        episode.db.execute("INSERT INTO subscribers VALUES ('me@here')")
        assert not check_task(content, view=view, episode=episode, answer="N/A")


def test_giving_up_solves_only_what_cannot_be_done(tiny_host: SiteHost) -> None:
    for seed in range(20):
        content = make_site_task(seed, "tiny", kinds=["information", "navigation", "content"])
        _, view, episode = start_task(tiny_host, content)
        assert not check_task(content, view=view, episode=episode, answer="N/A")


def test_a_side_effect_spoils_a_solved_task(tiny_host: SiteHost) -> None:
    content = make_site_task(0, "tiny", sites=["shop"], kinds=["content"])
    driver, view, episode = start_task(tiny_host, content)
    plan = plan_task(content)
    while (action := plan(view)).name != "exit":
        view = driver.act(action)
    assert check_task(content, view=view, episode=episode, answer="")
    episode.db.execute("UPDATE products SET stock = stock + 1 WHERE id = 1")
    assert not check_task(content, view=view, episode=episode, answer="")


def test_splits_are_disjoint_in_templates_and_parameters() -> None:
    drawn = {
        split: [make_site_task(seed, "tiny", split) for seed in range(60)]  # type: ignore[arg-type]
        for split in ("train", "templates", "parameters")
    }
    names = {split: {task["template"] for task in tasks} for split, tasks in drawn.items()}
    assert not names["templates"] & (names["train"] | names["parameters"])
    keys = {split: {(t["template"], str(t["parameters"])) for t in tasks} for split, tasks in drawn.items()}
    assert not keys["train"] & keys["parameters"]
    assert all(task["split"] == split for split, tasks in drawn.items() for task in tasks)


def test_options_choose_templates_worlds_and_what_is_held_out() -> None:
    source, names = SitesSource(), ("shop.price", "shop.coupon_list", "shop.subscribe")
    options = WebOptions(templates=("shop.price", "shop.subscribe"), num_worlds=4, held_out="parameters")
    drawn = [source.make_content(options, seed) for seed in range(40)]
    assert {task["template"] for task in drawn} == {"shop.price"}  # the other is a held-out template
    assert {task["world"] for task in drawn} == {0, 1, 2, 3}
    assert {task["split"] for task in drawn} == {"train", "parameters"}
    everything = [source.make_content(WebOptions(held_out="templates"), seed) for seed in range(60)]
    assert {task["split"] for task in everything} == {"train", "templates"}
    with pytest.raises(InputError, match=r"no template 'shop\.coupon_list'"):
        make_site_task(0, "tiny", templates=names)


def test_variants_are_of_the_templates_and_kinds_that_the_options_name() -> None:
    source = SitesSource()
    everything = WebOptions(sites=("shop",))
    parents = [source.make_content(everything, seed) for seed in range(12)]
    names = {parent["template"] for parent in parents[:6]}

    def draw(options: WebOptions) -> list[dict[str, Any]]:
        made = [
            source.make_variant(options, parent, relation, random.Random(seed))
            for seed, parent in enumerate(parents)
            for relation in TaskRelation
        ]
        return [content for content in made if content is not None]

    assert not {content["template"] for content in draw(everything)} <= names
    assert {content["template"] for content in draw(WebOptions(templates=tuple(sorted(names))))} <= names
    assert {content["kind"] for content in draw(WebOptions(kinds=("navigation",)))} == {"navigation"}


def test_an_instruction_is_read_as_a_task_of_the_kinds_and_templates_that_the_options_name() -> None:
    source = SitesSource()
    tasks = [source.make_content(WebOptions(sites=("shop",)), seed) for seed in range(12)]
    parent = next(task for task in tasks if task["kind"] == "information" and task["split"] == "train")
    words, name = str(parent["instruction"]), str(parent["template"])

    def read(**options: Any) -> dict[str, Any] | None:
        return source.read_instruction(WebOptions(**options), parent, words)

    assert [found and found["template"] for found in (read(), read(kinds=("information",)))] == [name, name]
    assert read(kinds=("navigation", "content")) is None
    assert read(templates=("shop.subscribe",)) is None


def test_an_instruction_in_free_words_begins_at_the_site_and_has_no_checker() -> None:
    with make_env("web", {"sites": ["forum"], "size": "tiny"}) as env:
        parent = env.make_task(env.options, 0)
        task = env.read_instruction(env.options, parent, "Thank somebody for a  post")
        assert not task.has_checker and task.instruction == "Thank somebody for a post"
        assert task.split(0.2) is Split.TRAIN and env.name_family(task) == "forum"
        assert env.count_requirements(task) is None
        assert env.make_variant(env.options, task, TaskRelation.SIBLING, random.Random(0)) is None
        first, _ = env.reset(options={"task": task})
        assert "forum.localhost" in first.text and "Log out" in first.text
        _, reward, terminated, _, _ = env.step(['exit(message="done")'])
        assert (reward, terminated) == (0.0, True)


def test_words_of_a_held_out_template_are_no_task() -> None:
    source, options = SitesSource(), WebOptions()
    template = next(each for each in TEMPLATES.values() if each.held_out)
    content = make_content(template, random.Random(0), "tiny", 0)
    assert source.read_instruction(options, content, content["instruction"]) is None


def test_the_same_seed_gives_the_same_task() -> None:
    assert make_site_task(7, "tiny") == make_site_task(7, "tiny")
    assert make_site_task(7, "tiny") != make_site_task(8, "tiny")


def test_wrong_requests_for_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="split must be one of"):
        make_site_task(0, "tiny", "test")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no task of split"):
        make_site_task(0, "tiny", sites=["bank"])
    with pytest.raises(InputError, match="no template"):
        plan_task({"template": "bank.rob"})


def test_the_oracle_knows_only_the_instruction() -> None:
    for template in TEMPLATES.values():
        for size in ("tiny", "full"):
            content = make_content(template, random.Random(0), size, 0)
            for name, value in plan_task(content).memory.items():  # type: ignore[attr-defined]
                assert value in content["instruction"], (template.name, name)


@pytest.mark.parametrize(
    ("said", "expected", "is_right"),
    [
        ("$12", ["$12"], True),
        ("It costs $12.", ["$12"], True),
        ("$12 or $13", ["$12"], False),
        ("12.00", ["$12"], True),
        ("$120", ["$12"], False),
        ("bob, ann", ["ann", "bob"], True),
        ("Ann and Bob", ["ann", "bob"], True),
        ("ann", ["ann", "bob"], False),
        ("ann, bob, dan", ["ann", "bob"], False),
        ("", ["ann"], False),
        ("-5", ["-5"], True),
        ("5", ["-5"], False),
        ("-5 or -6", ["-5"], False),
        ("a b c d e f g h i j k l m n o p q ann", ["ann"], False),
    ],
)
def test_answers_are_matched_by_what_they_say(said: str, expected: list[str], is_right: bool) -> None:
    assert match_answer(said, expected) == is_right


@settings(deadline=None)
@given(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=6))
def test_an_answer_matches_itself(words: list[str]) -> None:
    text = " ".join(words)
    assert match_answer(f" {text.upper()}. ", [text])


def test_addresses_are_matched_by_host_path_and_wanted_query() -> None:
    url = "http://shop.localhost:8080/search?q=Red+cup&page=2"
    assert match_url(url, "http://shop.localhost/search?q=red cup")
    assert not match_url(url, "http://shop.localhost/search?q=blue")
    assert not match_url(url, "http://forum.localhost/search?q=red cup")
    assert not match_url("http://shop.localhost/", "http://shop.localhost/search")


def test_only_a_plain_refusal_is_giving_up() -> None:
    assert is_give_up("n/a.") and is_give_up("Impossible")
    assert not is_give_up("done") and not is_give_up("")


def test_the_source_starts_judges_and_forgets() -> None:
    source = SitesSource()
    content = source.make_content(None, 5)
    start = source.start(content)
    driver = LightDriver(start.app)
    view = driver.open(start.url, headers=start.headers, allowed_hosts=start.allowed_hosts)
    plan = source.plan(content)
    while (action := plan(view)).name != "exit":
        view = driver.act(action)
    assert source.judge(view, driver, action.argument) == 1.0
    source.close()
    source.close()
    with pytest.raises(InputError, match="start"):
        source.judge(view, driver, "")


@pytest.mark.parametrize("template", ["shop.price", "forum.vote"])
def test_who_follows_the_hints_without_their_comments_solves_the_task(template: str) -> None:
    with make_env("web", {"size": "tiny", "templates": [template], "max_turns": 30}) as env:
        env.reset(seed=0)
        reward, is_over = 0.0, False
        while not is_over:
            env.step(["what now?"])  # does nothing, and leads nobody astray
            (hint,) = env.oracle()
            _, reward, is_over, _, _ = env.step([hint.splitlines()[-1]])
        assert reward == 1.0
