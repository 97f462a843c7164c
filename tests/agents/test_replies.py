"""Replies: what was written reads back, strictness is exact, and nothing makes reading fail."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.agents import STRATEGIES, Agent
from stepwell.config.run import AgentConfig
from stepwell.core import ActionSpace, EnvDescription, InputError

NAMES = ("Left", "Down", "Right", "turn left")
LAKE = EnvDescription("lake", "Walk.", ActionSpace(NAMES, max_per_turn=3), max_turns=5)
SHOP = EnvDescription("shop", "Buy.", ActionSpace(), max_turns=5)
AGENTS = {
    name: Agent(LAKE, AgentConfig(strategy=name))  # type: ignore[arg-type]
    for name in STRATEGIES
}

strategy_names = st.sampled_from(sorted(STRATEGIES))
some_actions = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
words = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), max_size=30)
blanks = st.text(" \n\t", max_size=3)


@given(strategy_names, some_actions, words, words, words)
def test_what_is_written_reads_back(name: str, actions: list[str], seen: str, why: str, then: str) -> None:
    agent = AGENTS[name]
    reply = agent.read(agent.write(actions, observation=seen, reasoning=why, prediction=then))
    assert reply.is_strict
    assert reply.problem == ""
    assert reply.actions == tuple(actions)
    given_texts = {"observation": seen, "reasoning": why, "prediction": then}
    for field, text in given_texts.items():
        assert getattr(reply, field) == (text.strip() if field in agent.strategy.fields else None)


TAG_NAMES = ("think", "answer", "ANSWER", "observation", "reasoning", "prediction")
TAGS = [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
garbage = st.lists(st.one_of(st.sampled_from([*TAGS, ",", "Left"]), st.text(max_size=8)), max_size=20).map(
    "".join
)


@given(strategy_names, garbage)
def test_no_text_makes_reading_fail_and_strict_means_no_problem(name: str, text: str) -> None:
    reply = AGENTS[name].read(text)
    assert reply.is_strict == (reply.problem == "")
    assert set(reply.actions) <= set(NAMES)
    assert len(reply.actions) <= 3
    assert reply.actions or reply.problem
    if reply.is_strict:
        said = {
            "observation": reply.observation,
            "reasoning": reply.reasoning,
            "prediction": reply.prediction,
        }
        fields = {field: text for field, text in said.items() if text is not None}
        again = AGENTS[name].write(reply.actions, **fields)
        assert re.sub(r"\s", "", again) == re.sub(r"\s", "", text)


@given(strategy_names, some_actions, st.data())
def test_blanks_line_breaks_and_capitals_never_change_the_actions(
    name: str, actions: list[str], data: st.DataObject
) -> None:
    agent = AGENTS[name]
    written = agent.write(actions, observation="seen", reasoning="why", prediction="then")
    pieces = re.findall(r"</?|>|,|[a-z]+|[^<>,]", written, re.IGNORECASE)
    changed = "".join(
        data.draw(blanks)
        + data.draw(st.sampled_from([piece, piece.upper(), piece.lower()]))
        + (data.draw(blanks) if piece != "<" else "")
        for piece in pieces
    )
    assert agent.read(changed).actions == tuple(actions)


@given(some_actions, blanks, blanks)
def test_blanks_between_tags_stay_strict_as_do_blanks_around_names(
    actions: list[str], one: str, two: str
) -> None:
    answer = f"{one},{two}".join(actions)
    text = f"{one}<think>{two}</think>{one}<answer>{two}{answer}{one}</answer>{two}"
    assert AGENTS["free_think"].read(text).is_strict


@pytest.mark.parametrize(
    ("text", "actions", "problem"),
    [
        ("", (), "there is no <answer>...</answer>"),
        ("Left", (), "there is no <answer>...</answer>"),
        ("<answer>Left", (), "there is no <answer>...</answer>"),
        ("<answer> </answer>", (), "the answer is empty"),
        ("<answer>Jump</answer>", (), "'Jump' is not an action; known are Left, Down, Right, turn left"),
        ("<answer>Left,Jump</answer>", (), "'Jump' is not an action; known are Left, Down, Right, turn left"),
        ("<answer>Left,</answer>", (), "'' is not an action; known are Left, Down, Right, turn left"),
        ("x<answer>Jump</answer>", (), "'Jump' is not an action; known are Left, Down, Right, turn left"),
        ("I go <answer>Left</answer>", ("Left",), "text before <answer>: 'I go'"),
        ("<answer>Left</answer> so", ("Left",), "text after </answer>: 'so'"),
        ("<Answer>Left</answer>", ("Left",), "'<Answer>' must be written <answer>"),
        ("<answer>LEFT</answer>", ("Left",), "'LEFT' must be written 'Left'"),
        ("<answer>turn  left</answer>", ("turn left",), "'turn  left' must be written 'turn left'"),
        (
            "<answer>Left,Left,Down,Right</answer>",
            ("Left", "Left", "Down"),
            "4 actions, at most 3 are done in a turn",
        ),
        ("<answer>Left</answer><answer>Down</answer>", ("Down",), "<answer> after the end"),
        ("<answer>Left<answer>Down</answer>", ("Down",), "</answer> expected, found <answer>"),
        ("<think>so</think><answer>Left</answer>", ("Left",), "text before <answer>: '<think>so</think>'"),
    ],
)
def test_reasons_are_exact(text: str, actions: tuple[str, ...], problem: str) -> None:
    reply = AGENTS["no_think"].read(text)
    assert (reply.actions, reply.problem, reply.is_strict) == (actions, problem, False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<answer>Left</answer>", "<think> expected, found <answer>"),
        (
            "<think><reasoning>r</reasoning><observation>o</observation><prediction>p</prediction></think>"
            "<answer>Left</answer>",
            "<observation> expected, found <reasoning>",
        ),
        (
            "<think>hm<observation>o</observation><reasoning>r</reasoning><prediction>p</prediction></think>"
            "<answer>Left</answer>",
            "text after <think>: 'hm'",
        ),
        (
            "<think><observation>o</observation><reasoning>r</reasoning></think><answer>Left</answer>",
            "<prediction> expected, found </think>",
        ),
    ],
)
def test_tags_out_of_order_are_acted_on_but_not_strict(text: str, problem: str) -> None:
    reply = AGENTS["grounding_world_modeling"].read(text)
    assert reply.actions == ("Left",)
    assert reply.problem == problem


def test_fields_are_read_also_where_the_form_is_broken() -> None:
    reply = AGENTS["grounding"].read("<observation> o\n</observation> <reasoning>r</reasoning><answer>Left")
    assert (reply.observation, reply.reasoning, reply.prediction, reply.actions) == ("o", "r", None, ())


def test_free_text_is_one_action_with_its_own_capitals_and_commas() -> None:
    agent = Agent(SHOP, AgentConfig())
    text = agent.write(["search[Red shoes, size 9]"])
    assert agent.read(text).actions == ("search[Red shoes, size 9]",)
    assert agent.read(text).is_strict
    with pytest.raises(InputError, match="a turn has exactly one"):
        agent.write(["a", "b"])


@pytest.mark.parametrize(
    ("separator", "answer", "actions"),
    [
        (" ", "Go  Stay\n", ("Go", "Stay")),
        ("\n", "Go\n\nStay", ("Go", "Stay")),
        (", ", "Go,Stay", ("Go", "Stay")),
        ("->", "Go -> Stay", ("Go", "Stay")),
    ],
)
def test_other_separators_are_read_with_the_same_ease(
    separator: str, answer: str, actions: tuple[str, ...]
) -> None:
    description = EnvDescription("w", "", ActionSpace(("Go", "Stay"), 2, separator), 1)
    reply = Agent(description, AgentConfig()).read(f"<answer>{answer}</answer>")
    assert reply.actions == actions
    assert reply.is_strict


def test_a_separator_within_names_is_split_only_in_full() -> None:
    description = EnvDescription("w", "", ActionSpace(("move 1,2", "stay"), 2, ", "), 1)
    agent = Agent(description, AgentConfig())
    assert agent.read(agent.write(["move 1,2", "stay"])).actions == ("move 1,2", "stay")


def test_what_cannot_be_read_back_cannot_be_written() -> None:
    with pytest.raises(InputError, match="answer cannot be written: the answer is empty"):
        AGENTS["no_think"].write([])
    with pytest.raises(InputError, match="4 actions, at most 3"):
        AGENTS["no_think"].write(["Left"] * 4)
    with pytest.raises(InputError, match="'left' must be written 'Left'"):
        AGENTS["no_think"].write(["left"])
    with pytest.raises(InputError, match="reasoning contains a tag of grounding"):
        AGENTS["grounding"].write(["Left"], reasoning="see </think>")
