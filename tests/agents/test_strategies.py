"""Strategies are well-formed trees, and prompts hold what is true and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from stepwell.agents import STRATEGIES, Agent, Field, Strategy, Tag, find_strategy
from stepwell.config.run import AgentConfig
from stepwell.core import ActionSpace, EnvDescription, ExampleTurn, InputError, Observation, StateForm

LAKE = ActionSpace(("Left", "Down", "Right", "Up"), max_per_turn=3)
EXAMPLES = {
    StateForm.NATURAL_LANGUAGE: ExampleTurn("The target is above the player.", "Go up.", "There.", "Up"),
    StateForm.SYMBOLIC: ExampleTurn("_G\n_P", "Go up.", "_*\n__", "Up"),
}


def lake(actions: ActionSpace = LAKE, examples: Mapping[StateForm, ExampleTurn] = EXAMPLES) -> EnvDescription:
    return EnvDescription("lake", "Walk from P to G. O is a hole.", actions, max_turns=5, examples=examples)


def agent(strategy: str = "no_think", form: str = "natural_language", **more: object) -> Agent:
    description = more.pop("description", None) or lake()
    assert isinstance(description, EnvDescription)
    return Agent(description, AgentConfig(strategy=strategy, state_form=form, **more))  # type: ignore[arg-type]


def test_the_five_strategies_ask_for_the_tags_of_their_names() -> None:
    assert {name: strategy.skeleton for name, strategy in STRATEGIES.items()} == {
        "no_think": "<answer>...</answer>",
        "free_think": "<think>...</think><answer>...</answer>",
        "grounding": "<think><observation>...</observation><reasoning>...</reasoning></think>"
        "<answer>...</answer>",
        "world_modeling": "<think><reasoning>...</reasoning><prediction>...</prediction></think>"
        "<answer>...</answer>",
        "grounding_world_modeling": "<think><observation>...</observation><reasoning>...</reasoning>"
        "<prediction>...</prediction></think><answer>...</answer>",
    }


def test_the_prompt_names_actions_limit_separator_turns_and_form() -> None:
    assert agent("free_think").system_prompt() == (
        "Walk from P to G. O is a hole.\n"
        'Actions: Left, Down, Right, Up. Answer with 1 to 3, separated by ",".\n'
        "You have 5 turns.\n"
        "Reply: <think>...</think><answer>...</answer>\n"
        "Example: <think>Go up.</think><answer>Up</answer>"
    )


def test_the_state_form_decides_instruction_and_example() -> None:
    symbolic = agent("grounding_world_modeling", "symbolic").system_prompt()
    assert "as the grid of symbols" in symbolic
    assert "<observation>_G\n_P</observation>" in symbolic
    words = agent("grounding_world_modeling").system_prompt()
    assert "in words" in words
    assert "<prediction>There.</prediction>" in words
    assert "_G" not in words


def test_without_a_wish_the_form_is_the_first_that_the_env_shows() -> None:
    forms = (StateForm.STRUCTURED, StateForm.NATURAL_LANGUAGE)
    suited = lake(examples={form: ExampleTurn("Here.", "So.", "There.", "Up") for form in forms})
    assert Agent(suited, AgentConfig(strategy="grounding")).form is StateForm.STRUCTURED
    wished = AgentConfig(strategy="grounding", state_form="natural_language")
    assert Agent(suited, wished).form is StateForm.NATURAL_LANGUAGE
    assert Agent(lake(examples={}), AgentConfig()).form is StateForm.NATURAL_LANGUAGE


def test_a_form_without_an_example_shows_none_where_the_form_matters() -> None:
    assert "Example" not in agent("grounding", "structured").system_prompt()
    assert "Example: <answer>Up</answer>" in agent("no_think", "structured").system_prompt()
    assert "Example" not in agent("no_think", description=lake(examples={})).system_prompt()


def test_no_prompt_says_what_the_env_does_not() -> None:
    for name, form in itertools.product(STRATEGIES, StateForm):
        assert "slip" not in agent(name, form).system_prompt().lower()


def test_only_strategies_that_describe_states_are_told_how() -> None:
    told = {name for name in STRATEGIES if "in words" in agent(name).system_prompt()}
    assert told == {"grounding", "world_modeling", "grounding_world_modeling"}


def test_one_action_and_free_text_are_asked_for_as_such() -> None:
    one = lake(ActionSpace(("Go", "Stay")))
    assert "Actions: Go, Stay. Answer with one.\n" in agent(description=lake(one.actions, {})).system_prompt()
    assert "one action in text" in agent(description=lake(ActionSpace(), {})).system_prompt()


def test_an_example_that_is_no_reply_is_refused() -> None:
    wrong = {StateForm.SYMBOLIC: ExampleTurn("_", "", "_", "Jump")}
    with pytest.raises(InputError, match="'Jump' is not an action"):
        agent(description=lake(examples=wrong))


def test_user_messages_hold_the_observation_alone_unless_a_reminder_is_asked_for() -> None:
    board = Observation("_P\nG_")
    assert agent().first_prompt(board) == agent().next_prompt(board) == "_P\nG_"
    assert agent(repeat_format=True).next_prompt(board) == "_P\nG_\nReply: <answer>...</answer>"


def test_images_are_mentioned_only_where_there_is_no_text() -> None:
    image = np.zeros((2, 2, 3), dtype=np.uint8)
    assert agent().first_prompt(Observation(images=(image,))) == "The picture shows the state."
    assert agent().first_prompt(Observation(images=(image, image))) == "The pictures show the state."
    assert agent().first_prompt(Observation("board", (image,))) == "board"


def test_a_strategy_of_ones_own_is_data() -> None:
    plan = Strategy("plan", (Tag("plan", Field.REASONING), Tag("move", Field.ANSWER)))
    own = Agent(lake(), AgentConfig(), plan)
    assert own.write(["Up"], reasoning="go up") == "<plan>go up</plan><move>Up</move>"
    assert own.read("<plan>go up</plan><move>Up</move>").is_strict
    assert "Reply: <plan>...</plan><move>...</move>" in own.system_prompt()


def test_malformed_strategies_are_refused() -> None:
    answer = Tag("answer", Field.ANSWER)
    with pytest.raises(InputError, match="last tag must hold the answer"):
        Strategy("x", (answer, Tag("think", Field.REASONING)))
    with pytest.raises(InputError, match="twice"):
        Strategy("x", (Tag("a", Field.REASONING), Tag("b", Field.REASONING), answer))
    with pytest.raises(InputError, match="lower-case"):
        Tag("My Tag", Field.ANSWER)
    with pytest.raises(InputError, match="no_think, free_think"):
        find_strategy("deep_think")


def test_the_page_about_agents_shows_every_strategy_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    for name, strategy in STRATEGIES.items():
        text = agent(name).write(["Up"], observation="Above.", reasoning="Go up.", prediction="There.")
        assert f"| `{name}` | `{strategy.skeleton}` | `{text}` |" in page


def test_without_the_guide_only_the_form_of_a_reply_is_told() -> None:
    assert agent("no_think", guide=False).system_prompt() == (
        'Actions: Left, Down, Right, Up. Answer with 1 to 3, separated by ",".\nReply: <answer>...</answer>'
    )
