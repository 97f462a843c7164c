"""Sentences said again and again are found, and cost something only where they are wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.config.judge import JudgeConfig
from stepwell.core import InputError
from stepwell.rewards.repetition import RepetitionPenalty, split_sentences

SAME = "The player will be at the position of the gift."


def repetition(**changes: float) -> RepetitionPenalty:
    return RepetitionPenalty(JudgeConfig(repetition_penalty=0.1, **changes))  # type: ignore[arg-type]


def test_a_frequent_sentence_costs_where_its_text_is_wrong() -> None:
    texts = [SAME, SAME + " So be it.", "My own words.", SAME.upper(), "Other words, wrong too."]
    assert repetition().compute_penalties(texts, [0.2, 1.0, 0.0, 0.69, 0.0]) == [-0.1, 0.0, 0.0, -0.1, 0.0]


def test_the_threshold_itself_is_right_enough() -> None:
    assert repetition().compute_penalties([SAME, SAME], [0.7, 0.6999]) == [0.0, -0.1]


def test_a_sentence_repeated_inside_one_text_is_not_frequent() -> None:
    assert repetition().compute_penalties([SAME * 9, "Something else."], [0.0, 0.0]) == [0.0, 0.0]


def test_only_so_many_sentences_are_the_most_frequent() -> None:
    texts = ["A a. B b.", "A a. B b.", "A a."]
    assert repetition(repetition_top=1).compute_penalties(texts, [0, 0, 0]) == [-0.1, -0.1, -0.1]
    few = repetition(repetition_top=1)
    few.count_texts(texts)
    assert [(one.sentence, one.share) for one in few.find_most_repeated()] == [("a a", 1.0)]


def test_rare_sentences_of_a_large_batch_are_not_frequent() -> None:
    texts = [SAME] * 2 + [f"Sentence number {n}." for n in range(98)]
    assert repetition(repetition_min_share=0.1).compute_penalties(texts, [0.0] * 100) == [0.0] * 100
    assert sum(repetition(repetition_min_share=0.02).compute_penalties(texts, [0.0] * 100)) == pytest.approx(
        -0.2
    )


def test_history_counts_and_fades() -> None:
    kept = repetition(repetition_memory=0.5)
    kept.count_texts([SAME] * 4)
    assert kept.compute_penalties([SAME, "New words."], [0.0, 0.0]) == [-0.1, 0.0]
    assert kept.find_most_repeated()[0].share == pytest.approx((0.5 * 4 + 1) / (0.5 * 4 + 2))
    alone = repetition(repetition_memory=0.0)
    alone.count_texts([SAME] * 4)
    assert alone.compute_penalties([SAME, "New words."], [0.0, 0.0]) == [0.0, 0.0]


def test_figures_say_how_much_is_the_same() -> None:
    told = repetition()
    told.count_texts([SAME] * 3 + ["Else."])
    assert told.collect_metrics() == {"repetition/top_share": 0.75, "repetition/distinct": 0.5}
    assert repetition().collect_metrics() == {"repetition/top_share": 0.0, "repetition/distinct": 1.0}


def test_one_score_per_text_is_asked_for() -> None:
    with pytest.raises(InputError, match="1 for 2 texts"):
        repetition().compute_penalties(["a", "b"], [0.0])


@given(st.lists(st.text(max_size=40), max_size=12), st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_every_penalty_is_zero_or_the_setting_and_never_on_a_right_text(texts, scores) -> None:
    found = repetition().compute_penalties(texts, scores[: len(texts)])
    assert set(found) <= {0.0, -0.1}
    assert all(penalty == 0.0 for penalty, score in zip(found, scores, strict=False) if score >= 0.7)


@given(st.text(max_size=80))
def test_sentences_are_distinct_and_normal(text: str) -> None:
    found = split_sentences(text)
    assert len(set(found)) == len(found)
    assert all(split_sentences(sentence) == [sentence] for sentence in found)


def test_what_was_counted_is_the_same_after_a_checkpoint() -> None:
    before, after = repetition(repetition_memory=0.3), repetition(repetition_memory=0.3)
    for batch in (["A a. B b.", "B b. A a."], ["C c.", "B b."]):
        before.count_texts(batch)
    after.restore(json.loads(json.dumps(before.state())))
    for told in (before, after):
        told.count_texts(["C c. A a.", "D d."])
    assert after.state() == before.state()
    assert (
        after.find_most_repeated() == before.find_most_repeated()
        and after.collect_metrics() == before.collect_metrics()
    )
