"""Files of HotpotQA, 2WikiMultihopQA and MuSiQue, made here in their published formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.core import ConfigError
from stepwell.envs.multihop_qa.facts.published import read_published

HOTPOT = {
    "_id": "5a7a06935542990198eaf050",
    "question": "In which land lies the town where Ann Ost was born?",
    "answer": "Norland",
    "type": "bridge",
    "level": "medium",
    "supporting_facts": [["Ann Ost", 1], ["Wick", 0], ["Wick", 1]],
    "context": [
        ["Ann Ost", ["Ann Ost is a painter. ", "She was born in Wick."]],
        ["Wick", ["Wick is a town in Norland.", " It is old."]],
        ["Bo Ek", ["Bo Ek is a poet."]],
    ],
}
TWOWIKI = HOTPOT | {
    "_id": "8813f87c0bdd11eba7f7acde48001122",
    "type": "compositional",
    "evidences": [["Ann Ost", "place of birth", "Wick"], ["Wick", "country", "Norland"]],
}
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "question": "Who leads the land of the town where Ann Ost was born?",
    "answer": "Cy Fell",
    "answer_aliases": ["C. Fell"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Norland", "paragraph_text": "Norland is led by Cy Fell.", "is_supporting": True},
        {"idx": 1, "title": "Wick", "paragraph_text": "Wick is a town in Norland.", "is_supporting": True},
        {"idx": 2, "title": "Bo Ek", "paragraph_text": "Bo Ek is a poet.", "is_supporting": False},
        {"idx": 3, "title": "Ann Ost", "paragraph_text": "Ann Ost was born in Wick.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "Where was Ann Ost born?", "answer": "Wick", "paragraph_support_idx": 3},
        {"id": 2, "question": "#1 >> country", "answer": "Norland", "paragraph_support_idx": 1},
        {"id": 3, "question": "Who leads #2?", "answer": "Cy Fell", "paragraph_support_idx": 0},
    ],
}


def written(path: Path, records: list[object], *, lines: bool = False) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records))
    return path


@pytest.mark.parametrize("record", [HOTPOT, TWOWIKI])
def test_hotpot_and_2wiki_files_give_passages_and_one_turn_of_supporting_ones(
    tmp_path: Path, record: dict[str, object]
) -> None:
    found = read_published(written(tmp_path / "dev.json", [record, record]))
    texts = {document.id: (document.title, document.text) for document in found.documents}
    assert len(texts) == 3  # passages of both records, each once
    question = found.questions[0]
    assert [texts[id][0] for id in question.plan[0]] == ["Ann Ost", "Wick"]
    assert texts[question.plan[0][1]][1] == "Wick is a town in Norland. It is old."
    assert question.answers == ("Norland",)
    assert question.kind == record["type"]
    assert not question.is_proven


def test_musique_lines_give_turns_by_what_needs_what(tmp_path: Path) -> None:
    found = read_published(written(tmp_path / "dev.jsonl", [MUSIQUE], lines=True))
    titles = {document.id: document.title for document in found.documents}
    question = found.questions[0]
    assert [[titles[id] for id in turn] for turn in question.plan] == [["Ann Ost"], ["Wick"], ["Norland"]]
    assert question.answers == ("Cy Fell", "C. Fell")


def test_lookups_that_need_nothing_of_each_other_share_a_turn(tmp_path: Path) -> None:
    lookups = [dict(lookup) for lookup in MUSIQUE["question_decomposition"]]  # type: ignore[attr-defined]
    lookups[1]["question"], lookups[2]["question"] = "Where is Wick?", "Who leads #1 and #2?"
    path = written(tmp_path / "x.jsonl", [MUSIQUE | {"question_decomposition": lookups}], lines=True)
    assert [len(turn) for turn in read_published(path).questions[0].plan] == [2, 1]


def test_unanswerable_questions_leave_their_passages_only(tmp_path: Path) -> None:
    other = MUSIQUE | {"answerable": False, "question": "Who?"}
    found = read_published(written(tmp_path / "x.jsonl", [MUSIQUE, other], lines=True))
    assert len(found.questions) == 1
    with pytest.raises(ConfigError, match="no question with an answer"):
        read_published(written(tmp_path / "y.jsonl", [other], lines=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no question with an answer"),
        ("[1, 2]", "list of objects"),
        ("[{}]", "record 1 is not in the format of HotpotQA"),
        ("{broken", "cannot be read as JSON"),
        (json.dumps([HOTPOT | {"supporting_facts": [["Nowhere", 0]]}]), "record 1"),
        (json.dumps([MUSIQUE | {"question_decomposition": [{"question": "#4"}]}]), "record 1"),
    ],
)
def test_files_of_other_forms_are_refused_with_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_published(path)
