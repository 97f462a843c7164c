"""Answers: what normalised exact match lets pass and what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.envs.multihop_qa.facts import is_right, normalise_answer


@pytest.mark.parametrize(
    ("given_answer", "right"),
    [
        ("  the EURO. ", "Euro"),
        ("Sao Tome", "São Tomé"),
        ("1234567", "1,234,567"),
        ("fr", ".fr"),
        ("1 242", "1 242"),
        ("“New Delhi”", "New Delhi"),
        ("Guinea-Bissau", "Guinea-Bissau"),
    ],
)
def test_spelling_does_not_decide(given_answer: str, right: str) -> None:
    assert is_right(given_answer, [right])


@pytest.mark.parametrize(
    ("given_answer", "right"),
    [("Paris, France", "Paris"), ("12", "1 2"), ("", "Paris"), ("the", "a"), ("?!", "..."), ("Lodz", "Łódź")],
)
def test_other_words_do(given_answer: str, right: str) -> None:
    assert not is_right(given_answer, [right])


def test_any_accepted_answer_will_do() -> None:
    assert is_right("USA", ["United States", "U.S.A."])


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise_answer(normalise_answer(text)) == normalise_answer(text)
