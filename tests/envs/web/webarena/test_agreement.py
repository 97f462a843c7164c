"""Our evaluators and those of `libwebarena` give the same verdicts on its 812 tasks.

Every task's references are judged, and made-up answers, URLs and page contents around them. The fast tests
take a fixed sample of the made-up ones, the slow ones all.
"""

from __future__ import annotations

import hashlib
import html
import json
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.envs.web.webarena import package_evaluators
from tests.envs.web.webarena.package_evaluators import SITES, PackageEvaluators
from tests.envs.web.webarena.perturbations import perturb_answer, perturb_url

from stepwell.envs.web.webarena.accounts import Account
from stepwell.envs.web.webarena.answers import judge_answer
from stepwell.envs.web.webarena.loader import load_entries
from stepwell.envs.web.webarena.page_content import judge_targets
from stepwell.envs.web.webarena.site_functions import list_functions
from stepwell.envs.web.webarena.sites import fill_urls
from stepwell.envs.web.webarena.task import OR, read_task
from stepwell.envs.web.webarena.urls import judge_url
from stepwell.envs.web.webarena.word_splitter import split_words

Entry = Mapping[str, Any]
WITH_CHOICE = {"65 |OR| 3"}  # a choice inside an answer, which the package looks for as it stands


def decide_verdict(reference: str, answer: str) -> bool:
    """A model of the test: yes to equal texts, else yes or no by a hash of both."""
    if reference.strip().lower() == answer.strip().lower():
        return True
    return hashlib.sha256(f"{reference}\0{answer}".encode()).digest()[0] % 2 == 0


class HashMatcher:
    def matches_answer(self, question: str, reference: str, answer: str) -> bool:
        return decide_verdict(reference, answer)

    def matches_reason(self, question: str, reason: str, answer: str) -> bool:
        return decide_verdict(reason, answer)


def answer_prompt(prompt: str) -> str:
    """The same model, behind the package's own prompts."""
    answered = re.search(
        r"reference answer: (.*?)\nall the string 'N/A'.*?\nstudent answer: (.*)\nConclude", prompt, re.DOTALL
    )
    if answered:
        return "correct" if decide_verdict(*answered.groups()) else "incorrect"
    explained = re.search(
        r"actual unachievable reason: (.*?)\nreported unachievable reason: (.*)\nThe task described",
        prompt,
        re.DOTALL,
    )
    assert explained, prompt
    return "same" if decide_verdict(*explained.groups()) else "different"


class ShopHandler(BaseHTTPRequestHandler):
    """The three REST calls of a shop that evaluators make."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._send_json("token")

    def do_GET(self) -> None:
        reviews = [
            {"nickname": name, "ratings": [{"rating_name": "Rating", "percent": percent}]}
            for name, percent in (("Ann", 20), ("Emma", 80))
        ]
        is_order = self.path.startswith("/rest/V1/orders")
        assert self.headers["authorization"] == "Bearer token"
        self._send_json({"items": [{"increment_id": "000000170"}]} if is_order else reviews)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageEvaluators]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ShopHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sites = {**SITES, "shopping": f"http://127.0.0.1:{server.server_port}"}
        package_evaluators.SITES.update(sites)
        yield PackageEvaluators(tmp_path_factory.mktemp("webarena"), answer_prompt)
        server.shutdown()


def load_filled_entries(kind: str) -> list[Entry]:
    """The tasks with an evaluator of this kind, with the sites' addresses filled in."""
    text = fill_urls(json.dumps(load_entries()), package_evaluators.SITES)
    return [entry for entry in json.loads(text) if kind in entry["eval"]["eval_types"]]


def list_references(entry: Entry) -> list[str]:
    found: list[str] = []
    for value in (entry["eval"]["reference_answers"] or {}).values():
        found += [value] if isinstance(value, str) else value
    return found


@cache
def list_all_references() -> tuple[str, ...]:
    return tuple(text for entry in load_entries() for text in list_references(entry))


def make_answers(entry: Entry, count: int) -> Iterator[str]:
    """The references themselves, the published answer, and `count` made-up ones, always the same."""
    references = list_references(entry)
    yield ", ".join(references)
    yield str(entry["eval"].get("reference_answer_raw_annotation", ""))
    yield str(entry["eval"].get("string_note", ""))
    rng = random.Random(entry["task_id"])
    for _ in range(count):
        yield perturb_answer(references, list_all_references(), rng)


def find_answer_differences(package: PackageEvaluators, count: int) -> tuple[int, list[tuple[Entry, str]]]:
    """How many answers were judged, and those with different verdicts."""
    num_judged, different = 0, []
    for entry in load_filled_entries("string_match"):
        task = read_task(entry)
        for answer in make_answers(entry, count):
            num_judged += 1
            if judge_answer(task, answer, HashMatcher()) != bool(package.judge_answer(entry, answer)):
                different.append((entry, answer))
    return num_judged, different


def check_answers(package: PackageEvaluators, count: int) -> int:
    num_judged, different = find_answer_differences(package, count)
    unexpected = [
        (entry["task_id"], answer)
        for entry, answer in different
        if not WITH_CHOICE & set(list_references(entry))
    ]
    assert unexpected == []
    return num_judged


def test_answers_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_answers(package, count=1) == 4 * 335


@pytest.mark.slow
def test_many_made_up_answers_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_answers(package, count=20) == 23 * 335


def test_a_choice_inside_an_answer_is_the_one_known_difference(package: PackageEvaluators) -> None:
    (entry,) = [e for e in load_filled_entries("string_match") if WITH_CHOICE & set(list_references(e))]
    assert judge_answer(read_task(entry), "65", HashMatcher())
    assert not package.judge_answer(entry, "65")


def check_urls(package: PackageEvaluators, count: int) -> int:
    entries = load_filled_entries("url_match")
    others = [entry["eval"]["reference_url"] for entry in entries]
    num_judged, different = 0, []
    for entry in entries:
        reference, rng = entry["eval"]["reference_url"], random.Random(entry["task_id"])
        urls = [*reference.split(OR), *(perturb_url(reference.split(OR), others, rng) for _ in range(count))]
        for url in urls:
            num_judged += 1
            if judge_url(reference, url) != bool(package.judge_url(entry, url)):
                different.append((entry["task_id"], url))
    assert different == []
    return num_judged


def test_urls_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_urls(package, count=2) >= 3 * 205


@pytest.mark.slow
def test_many_made_up_urls_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_urls(package, count=30) >= 31 * 205


class RecordedPage:
    """A page of which every part holds one text; stands for a browser's page and for our reader alike."""

    def __init__(self, url: str, text: str) -> None:
        self.url, self.text = url, text
        self.context = self

    def new_page(self) -> RecordedPage:
        return RecordedPage("about:blank", self.text)

    def goto(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """Nothing is held."""

    def content(self) -> str:
        return f"{self.text} {self.url}"

    def evaluate(self, script: str) -> Any:
        if "data-label='Account'" in script:
            return 0
        return self.text

    def read_part(self, url: str, locator: str, prep_actions: Sequence[str] = ()) -> str:
        page = self if url == "last" else RecordedPage(url, self.text)
        return page.text if locator else page.content()


def list_contents(entry: Entry) -> list[str]:
    found: list[str] = []
    for target in entry["eval"]["program_html"]:
        for value in target["required_contents"].values():
            found += [value] if isinstance(value, str) else value
    return found


def check_pages(package: PackageEvaluators, count: int) -> int:
    entries = load_filled_entries("program_html")
    others = [text for entry in entries for text in list_contents(entry)]
    functions = dict(
        list_functions(package_evaluators.SITES["shopping"], Account(username="a", password="b"))
    )
    functions["gitlab_get_project_memeber_role"] = lambda page, name: page.rpartition(" ")[0]
    num_judged, different = 0, []
    for entry in entries:
        task, rng = read_task(entry), random.Random(entry["task_id"])
        contents = list_contents(entry)
        texts = [" ".join(contents), contents[0], contents[0].split(OR)[-1], html.escape(contents[-1])]
        texts += [perturb_answer(contents, others, rng) for _ in range(count)]
        for text in texts:
            page = RecordedPage(f"{package_evaluators.SITES['reddit']}/f/books/123/title/-/comment/4", text)
            num_judged += 1
            ours = judge_targets(task, page, functions, HashMatcher())
            if ours != bool(package.judge_page(entry, page)):
                different.append((entry["task_id"], text))
    assert different == []
    return num_judged


def test_page_contents_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_pages(package, count=0) == 4 * 411


@pytest.mark.slow
def test_many_made_up_page_contents_get_the_verdicts_of_the_package(package: PackageEvaluators) -> None:
    assert check_pages(package, count=12) == 16 * 411


def test_words_are_those_of_nltk(package: PackageEvaluators) -> None:
    split_as_nltk = package.modules["evaluators"].word_tokenize
    quotes = {"``": '"', "''": '"'}
    texts = {
        str(text).lower() for entry in load_entries() for text in (entry["intent"], *list_references(entry))
    }
    for text in sorted(texts):
        expected = [quotes.get(word, word) for word in split_as_nltk(text)]
        assert [quotes.get(word, word) for word in split_words(text)] == expected, text
