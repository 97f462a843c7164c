"""Names that a stranger understands: functions are verbs with an object, one class name means one thing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.function_words import EXCEPTIONS, OPENINGS, STATEMENTS, VERBS
from tests.sources import ROOT, read_sources

MAX_ONE_WORD_SHARE = 0.30
# Past participles that do not end in -ed, without those that are also the plain form (`put`, `run`, `set`).
IRREGULAR = """
    beaten begun bent bitten bled blown born borne bought bred broken brought built burnt caught chosen clung
    crept dealt done drawn driven dug eaten fallen fed felt flown forgotten fought found frozen given gone
    grown heard held hidden hung kept known laid led left lent lost made meant met paid ridden risen said seen
    sent shaken shone shot shown slept slid sold sought sown spent spoken sprung stolen stood struck stuck
    sung sunk swept swollen sworn swum swung taken taught thought thrown told torn understood withdrawn woken
    won worn woven written
"""
# Names and words that were replaced; where words stay, they mean data of sites, old files or words of papers.
FORMER_NAMES = """
    Ask Call Ending Keeper Life Mould Opening Outflow Parts See Sitting Stock SyncLoop Whole World
    BrokenContract CallWatch ContractViolation FedTask GivenStart LeanForward LinkBroken Moved PageSeen
    RunGroup RunShelf ServerGone SessionGone Thing
    begun oddities quieten shown told told_as_too_large write_whole
"""
FORMER_WORDS = re.compile(r"\b(worlds?|pictures?)\b")
MAY_SAY_WORLD = (
    "envs/web/",
    "envs/paper_search/papers/vocabulary.py",
    "config/renamed.py",
    "studies/results.py",
)
FACTS = ("contracts/", "envs/check_text.py", "envs/robots/check.py")
"""Files of contract checks: their functions are named for the fact that they test."""
VERBS_IN_ED = {"feed", "seed", "need", "embed", "exceed", "proceed", "succeed"}


@cache
def read_definitions() -> tuple[list[tuple[str, str, bool]], dict[str, list[str]]]:
    """Every function as (name, place, is it a property), and the places of every public class name."""
    functions, classes = [], defaultdict(list)
    for found in [found for file in read_sources().values() for found in file.definitions]:
        if found.is_class:
            if not found.name.startswith("_"):
                classes[found.name].append(found.place)
        elif not re.fullmatch(r"__\w+__", found.name):
            functions.append((found.name, found.place, found.is_property))
    return functions, classes


def find_bare_participles() -> Iterator[str]:
    for name, place, is_property in read_definitions()[0]:
        word = name.strip("_")
        if not is_property and (
            word in IRREGULAR.split() or ("_" not in word and word.endswith("ed") and word not in VERBS_IN_ED)
        ):
            yield f"{place} {name}"


def test_participles_that_do_not_end_in_ed_are_on_the_list() -> None:
    assert {"told", "shown", "begun", "given"} <= set(IRREGULAR.split())
    assert not {"run", "put", "set", "split"} & set(IRREGULAR.split())


def test_no_function_is_a_bare_participle() -> None:
    assert list(find_bare_participles()) == []


def find_names_without_a_verb() -> Iterator[tuple[str, str]]:
    words = {*VERBS.split(), *OPENINGS.split(), *STATEMENTS.split()}
    for name, place, is_property in read_definitions()[0]:
        first = name.strip("_").split("_")[0]
        if not (is_property or first in words or "_to_" in name or place.startswith(FACTS)):
            yield name.strip("_"), place


def test_a_function_begins_with_a_verb_or_is_a_known_exception() -> None:
    known = " ".join(EXCEPTIONS.values()).split()
    found = list(find_names_without_a_verb())
    assert [(name, place) for name, place in found if name not in known] == []
    assert sorted(set(known) - {name for name, _ in found}) == [], (
        "no longer needed in tests/function_words.py"
    )


def test_a_name_without_a_verb_is_noticed() -> None:
    words = {*VERBS.split(), *OPENINGS.split(), *STATEMENTS.split()}
    assert not words & {"data", "todo", "wilson", "demonstrations", "package", "problem", "minibatch"}


def test_exceptions_end_in_error() -> None:
    pattern = re.compile(r"^class (\w+)\(\w*(?:Error|Exception)\b", re.MULTILINE)
    found = [name for path in read_sources() for name in pattern.findall(path.read_text())]
    assert len(found) > 20
    assert [name for name in found if not name.endswith("Error")] == []


def test_a_public_class_name_is_used_once() -> None:
    assert {name: places for name, places in read_definitions()[1].items() if len(places) > 1} == {}


def test_most_functions_name_what_they_act_on() -> None:
    names = [name.strip("_") for name, _, _ in read_definitions()[0]]
    assert sum("_" not in name for name in names) / len(names) <= MAX_ONE_WORD_SHARE


def test_names_that_were_replaced_do_not_come_back() -> None:
    functions, classes = read_definitions()
    found = [(name, place) for name, place, _ in functions if name.strip("_") in FORMER_NAMES.split()]
    found += [(name, *places) for name, places in classes.items() if name in FORMER_NAMES.split()]
    assert found == []


def test_docstrings_say_environment_and_image() -> None:
    for path in read_sources():
        name = str(path.relative_to(ROOT))
        texts = " ".join(re.findall(r'"""(.*?)"""', path.read_text(), flags=re.DOTALL))
        found = FORMER_WORDS.search(re.sub(r"Meta-World|world model", "", texts))
        assert found is None or name.startswith(MAY_SAY_WORLD), f"{name}: {found}"
