"""Files of HotpotQA, 2WikiMultihopQA and MuSiQue, in the formats they are published in.

A file is JSON (a list, or an object a line); its fields show which format it has:

    HotpotQA, 2Wiki   question, answer, context [[title, [sentence, ...]], ...], supporting_facts [[title, n]]
    MuSiQue           question, answer, answer_aliases, paragraphs, question_decomposition

The passages of all questions, each once, make the collection that is searched, as the paper does for
HotpotQA. MuSiQue says which lookup needs which (`#1` in a later one), so its plans are in turns; the others
do not, and theirs is one turn. No order is proven to be the shortest, so none is reported as golden.
Questions without an answer (the test sets, MuSiQue's unanswerable ones) are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_content
from stepwell.envs.multihop_qa.facts.collection import Collection, MultihopQuestion
from stepwell.envs.retrieval import Document

_REFERENCE = re.compile(r"#(\d+)")
Record = dict[str, Any]
AddPassage = Callable[[str, str], str]


def read_published(path: Path) -> Collection:
    """The passages and questions of a file."""
    documents: dict[str, Document] = {}

    def add(title: str, text: str) -> str:
        id = hash_content([title, text])
        documents.setdefault(id, Document(id, title, text))
        return id

    questions = []
    for number, record in enumerate(_read_records(path), start=1):
        try:
            question = _read_musique(record, add) if "paragraphs" in record else _read_hotpot(record, add)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"{path.name}: record {number} is not in the format of HotpotQA, 2WikiMultihopQA or MuSiQue "
                f"({error!r}); name a file as it was published"
            ) from error
        if question is not None:
            questions.append(question)
    if not questions:
        raise ConfigError(f"{path.name} holds no question with an answer; test sets cannot be used")
    return Collection(path.name, documents.values(), questions)


def _read_records(path: Path) -> list[Record]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("[") else _read_lines(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} cannot be read as JSON: {error}") from error
    if not all(isinstance(record, dict) for record in found):
        raise ConfigError(f"{path.name} must hold a list of objects, or one object a line")
    return list(found)


def _read_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _read_hotpot(record: Record, add: AddPassage) -> MultihopQuestion | None:
    ids: dict[str, str] = {}
    for title, sentences in record["context"]:
        ids.setdefault(title, add(title, " ".join(sentence.strip() for sentence in sentences)))
    if not record.get("answer"):
        return None
    needed = dict.fromkeys(title for title, _ in record["supporting_facts"])
    plan = (tuple(ids[title] for title in needed),)
    kind = str(record.get("type", ""))
    return MultihopQuestion(str(record["question"]), (str(record["answer"]),), plan, kind, is_proven=False)


def _read_musique(record: Record, add: AddPassage) -> MultihopQuestion | None:
    ids = {
        paragraph["idx"]: add(paragraph["title"], paragraph["paragraph_text"])
        for paragraph in record["paragraphs"]
    }
    if not record.get("answer") or not record.get("answerable", True):
        return None
    turns: list[int] = []
    plan: list[list[str]] = []
    for lookup in record["question_decomposition"]:
        used = [int(number) for number in _REFERENCE.findall(lookup["question"])]
        turn = max((turns[number - 1] + 1 for number in used), default=0)
        turns.append(turn)
        plan += [[] for _ in range(turn + 1 - len(plan))]
        plan[turn].append(ids[lookup["paragraph_support_idx"]])
    answers = (str(record["answer"]), *map(str, record.get("answer_aliases", ())))
    kind = f"{len(turns)} hops"
    turns_of_ids = tuple(tuple(dict.fromkeys(turn)) for turn in plan)
    return MultihopQuestion(str(record["question"]), answers, turns_of_ids, kind, is_proven=False)
