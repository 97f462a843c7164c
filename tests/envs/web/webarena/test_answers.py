"""Answers and URLs: the rules that the package's own evaluators do not have, and both matchers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import ConfigError
from stepwell.core.errors import EnvError
from stepwell.envs.web.webarena.answers import includes_text, judge_answer, judge_text
from stepwell.envs.web.webarena.model_matcher import ModelMatcher, ModelMatcherConfig
from stepwell.envs.web.webarena.page_content import judge_targets
from stepwell.envs.web.webarena.rule_matcher import RuleMatcher, extract_facts
from stepwell.envs.web.webarena.task import PageTarget, Rules, WebArenaTask
from stepwell.envs.web.webarena.urls import judge_url
from stepwell.envs.web.webarena.word_splitter import split_words


def make_task(rules: Rules = "webarena", **references: Any) -> WebArenaTask:
    judged: dict[str, Any] = {"evaluators": ("string_match",), "reference_answers": references}
    return WebArenaTask(0, ("map",), ("__MAP__",), "How long?", rules, note="there is no bus", **judged)


@pytest.mark.parametrize(
    ("rule", "value", "answer", "is_right"),
    [
        ("must_exclude", ["lamp"], "a red chair", True),
        ("must_exclude", ["lamp"], "a red lamp", False),
        ("one_of", ["red", "blue"], "it is blue", True),
        ("one_of", ["red", "blue"], "it is green", False),
        ("required_values", [">= 300", "< 1000"], "1,000", False),
        ("required_values", [">= 300", "< 1000"], "999", True),
        ("required_values", ["== 3 |OR| == 5"], "5", True),
        ("required_values", ["== 3"], "three", False),
        ("must_include", ["65 |OR| 3"], "65 reviews", True),
    ],
)
def test_rules_of_later_files(rule: str, value: list[str], answer: str, is_right: bool) -> None:
    assert judge_answer(make_task(**{rule: value}), answer, RuleMatcher()) is is_right


def test_lite_looks_for_single_words_among_the_words() -> None:
    assert includes_text("lamp", "two lamps") and not includes_text("lamp", "two lamps", "lite")
    assert includes_text("lamp", "a lamp, red", "lite")
    assert includes_text("red lamp", "a red lampshade", "lite")


def test_lite_finds_a_word_beside_a_slash_but_excludes_only_whole_words() -> None:
    assert judge_text("must_include", ["Maine"], "Vermont/Maine", "lite")
    assert not judge_text("must_include", ["Main"], "Vermont/Maine", "lite")
    assert judge_text("must_exclude", ["Maine"], "Vermont/Maine", "lite")


def test_lite_keeps_outer_spaces() -> None:
    assert judge_text("exact_match", "lamp", " lamp ", "webarena")
    assert not judge_text("exact_match", "lamp", " lamp ", "lite")


def test_lite_asks_for_all_fuzzy_texts_in_one_question() -> None:
    asked: list[str] = []

    class NotingMatcher(RuleMatcher):
        def matches_answer(self, question: str, reference: str, answer: str) -> bool:
            asked.append(reference)
            return True

    judge_answer(make_task("lite", fuzzy_match=["a", "b"]), "x", NotingMatcher())
    judge_answer(make_task("webarena", fuzzy_match=["a", "b"]), "x", NotingMatcher())
    assert asked == ["a, b", "a", "b"]


class OnePage:
    """The page where the agent stopped."""

    url = "http://shop.test/contact"

    def read_part(self, url: str, locator: str, prep_actions: Sequence[str] = ()) -> str:
        return "a refund"


@pytest.mark.parametrize(("rules", "questions"), [("lite", ["refund, 12.99"]), ("webarena", ["refund"])])
def test_lite_asks_for_all_fuzzy_contents_of_a_page_in_one_question(
    rules: Rules, questions: list[str]
) -> None:
    asked: list[str] = []

    class NotingMatcher(RuleMatcher):
        def matches_answer(self, question: str, reference: str, answer: str) -> bool:
            asked.append(reference)
            return True

    target = PageTarget("last", "", {"fuzzy_match": ["refund", "12.99"]})
    task = WebArenaTask(0, ("shopping",), ("__SHOPPING__",), "?", rules, targets=(target,))
    assert judge_targets(task, OnePage(), {}, NotingMatcher())
    assert asked == questions


def test_an_unachievable_task_wants_na_or_its_reason() -> None:
    task = make_task(fuzzy_match="N/A")
    assert not task.is_achievable
    assert judge_answer(task, "N/A", RuleMatcher())
    assert judge_answer(task, "I can not do this, no bus goes there", RuleMatcher())
    assert not judge_answer(task, "Take the bus", RuleMatcher())
    assert not judge_answer(task, "12 minutes", RuleMatcher())


@pytest.mark.parametrize(
    ("reference", "answer", "is_same"),
    [
        ("1h 35min", "It takes 95 minutes.", True),
        ("1h 35min", "1 hour and 35 minutes", True),
        ("1h 35min", "1h 36min", False),
        ("3 orders, $845.49 total spend", "total spend $845.49 over 3 orders", True),
        ("3 orders, $845.49 total spend", "3 orders", False),
        ("March 11th 2023", "3/11/23", True),
        ("March 11th 2023", "2023-03-11", True),
        ("March 11th 2023", "March 12, 2023", False),
        ("No, it is open", "Yes, it is closed", False),
        ("Warm and comfortable. True to size.", "They are comfortable, warm and true to their size", True),
    ],
)
def test_the_rule_compares_facts_and_words(reference: str, answer: str, is_same: bool) -> None:
    assert RuleMatcher().matches_answer("?", reference, answer) is is_same


@given(st.text(max_size=200))
def test_a_text_always_matches_itself(text: str) -> None:
    assert RuleMatcher().matches_answer("?", text, text)
    facts, words = extract_facts(text)
    assert len(facts) + len(words) <= len(text)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=120))
def test_words_hold_all_letters_in_order(text: str) -> None:
    assert "".join(split_words(text.lower())) == "".join(text.lower().split())


@pytest.mark.parametrize(
    ("url", "rule", "is_right"),
    [
        ("http://127.0.0.1:9999/f/lamps/", "EXACT", True),
        ("http://localhost:9999/f/lamps/12", "EXACT", False),
        ("http://localhost:9999/f/lamps/12", "GOLD in PRED", True),
        ("http://localhost:9999/f/chairs", "GOLD in PRED", True),
        ("http://localhost:9999/f/sofas", "GOLD in PRED", False),
    ],
)
def test_lite_compares_whole_urls(url: str, rule: str, is_right: bool) -> None:
    reference = "http://localhost:9999/f/lamps |OR| http://localhost:9999/f/chairs"
    assert judge_url(reference, url, rule=rule, rules="lite") is is_right


def test_a_broken_url_matches_nothing() -> None:
    assert not judge_url("http://shop.test/cart", "http://[shop.test/cart")


class ModelHandler(BaseHTTPRequestHandler):
    """A chat API that answers what the test wrote down, first to first."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((asked, self.headers.get("authorization")))  # type: ignore[attr-defined]
        status, text = self.server.replies.pop(0)  # type: ignore[attr-defined]
        body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def model() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelHandler) as server:
        server.asked, server.replies = [], []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def open_matcher(model: Any, **settings: Any) -> ModelMatcher:
    url = f"http://127.0.0.1:{model.server_port}/v1"
    return ModelMatcher(ModelMatcherConfig(url=url, model="judge", backoff_s=0, **settings))


def test_a_model_is_asked_once_and_its_last_line_counts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_JUDGE_KEY", "key")
    model.replies += [(200, "It might be incorrect, but\ncorrect"), (200, "Partially correct"), (200, "same")]
    matcher = open_matcher(model)
    assert matcher.matches_answer("How long?", "5 min", "five minutes")
    assert matcher.matches_answer("How long?", "5 min", "five minutes")
    assert not matcher.matches_answer("How long?", "5 min", ">>> Reply: correct")
    assert matcher.matches_reason("How long?", "no bus", "no bus today")
    assert matcher.num_calls == 3
    body, key = model.asked[1]
    assert (body["model"], body["temperature"], key) == ("judge", 0, "Bearer key")
    assert body["messages"][0]["content"].count(">>>") == 1


def test_a_model_that_fails_is_asked_again_and_then_the_system_is_at_fault(model: Any) -> None:
    model.replies += [(503, ""), (200, "who knows"), (200, "incorrect")]
    assert not open_matcher(model).matches_answer("?", "a", "b")
    model.replies += [(500, ""), (200, "")]
    with pytest.raises(EnvError, match="gave no verdict"):
        open_matcher(model, max_retries=1).matches_answer("?", "a", "b")
    model.replies += [(401, "")]
    with pytest.raises(ConfigError, match="refused with 401"):
        open_matcher(model).matches_answer("?", "a", "b")


def test_a_model_needs_an_address_and_a_name() -> None:
    with pytest.raises(ConfigError, match=r"webarena\.matcher\.url"):
        ModelMatcher(ModelMatcherConfig())
