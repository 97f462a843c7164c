"""What an agent is told of its earlier turns: a dialogue with its mistakes, or a list of what was done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.agents import Agent, PastTurn
from stepwell.agents.history import format_history
from stepwell.config.run import AgentConfig
from stepwell.core import ActionSpace, EnvDescription, InputError, Observation, ToolCall, ToolSchema

LOOK = ToolSchema("look", "", {"type": "object", "properties": {"at": {}, "times": {"type": "integer"}}})
TOOLS = ActionSpace(tools=(LOOK,), max_per_turn=2)
NAMES = ActionSpace(("Up", "Down"), max_per_turn=3)
SEEN = Observation("A room.")


def look(**arguments: object) -> str:
    return ToolCall("look", arguments).text  # type: ignore[arg-type]


def agent(actions: ActionSpace = TOOLS, **settings: object) -> Agent:
    return Agent(EnvDescription("room", "Look.", actions, 5), AgentConfig(**settings))  # type: ignore[arg-type]


def test_a_dialogue_tells_the_present_observation_only() -> None:
    assert agent().next_prompt(SEEN, [PastTurn((look(at="door"),), result="shut")]) == "A room."


def test_a_reply_that_could_not_be_read_is_told_first() -> None:
    assert agent().next_prompt(SEEN, [PastTurn((), "there is no tool 'dig'")]) == (
        "Your last reply could not be read: there is no tool 'dig'.\nA room."
    )
    assert agent().next_prompt(SEEN, [PastTurn((look(),), "3 calls, at most 2")]) == (
        "Not all of your last reply was done: 3 calls, at most 2.\nA room."
    )
    assert agent().next_prompt(SEEN, [PastTurn((), "bad"), PastTurn((look(),))]) == "A room."


def test_envs_without_tools_report_problems_only_where_asked() -> None:
    assert agent(NAMES).next_prompt(SEEN, [PastTurn((), "'Jump' is not an action")]) == "A room."
    told = agent(NAMES, report_problems=True).next_prompt(SEEN, [PastTurn((), "'Jump' is not an action")])
    assert told == "Your last reply could not be read: 'Jump' is not an action.\nA room."
    assert agent(report_problems=False).next_prompt(SEEN, [PastTurn((), "bad")]) == "A room."


def test_steps_tell_the_observation_and_what_was_done() -> None:
    past = [
        PastTurn((look(at="door"), look(at="a\nb", times=2)), result="It is\nshut."),
        PastTurn((), "not valid JSON"),
        PastTurn((look(),), "2 calls, at most 1"),
    ]
    assert agent(context="observation").next_prompt(SEEN, past).splitlines() == [
        "A room.",
        "Done so far:",
        '1. look(at="door"); look(at="a\\nb", times=2) -> It is shut.',
        "2. nothing: not valid JSON",
        "3. look() (not done: 2 calls, at most 1)",
    ]
    assert (
        agent(context="observation").first_prompt(SEEN)
        == agent(context="observation").next_prompt(SEEN)
        == "A room."
    )
    names = agent(NAMES, context="observation")
    assert names.next_prompt(SEEN, [PastTurn(("Up", "Down")), PastTurn((), "bad")]) == (
        "A room.\nDone so far:\n1. Up,Down\n2. nothing"
    )


def test_the_oldest_turns_go_first_and_it_is_said() -> None:
    past = [PastTurn(("Up",)), PastTurn(("Down",)), PastTurn(("Up",))]
    assert format_history(NAMES, past, 15) == "Done so far:\n(1 earlier turn left out)\n2. Down\n3. Up"
    assert format_history(NAMES, past, 14) == "Done so far:\n(1 earlier turn left out)\n2. Down\n3. Up"
    assert format_history(NAMES, past, 13) == "Done so far:\n(2 earlier turns left out)\n3. Up"
    assert format_history(NAMES, past, 0) == "Done so far:\n(3 earlier turns left out)"
    assert format_history(NAMES, [], 100) == ""


def test_the_environment_says_how_long_a_line_may_be() -> None:
    said = PastTurn(("note " + "x" * 500,))
    config = AgentConfig(context="observation")
    for chars, length in ((240, 240), (300, 300), (1000, 508)):
        world = EnvDescription("room", "Look.", ActionSpace(), 5, history_line_chars=chars)
        assert len(Agent(world, config).next_prompt(SEEN, [said]).splitlines()[-1]) == length
    assert EnvDescription("room", "Look.", ActionSpace(), 5).history_line_chars == 240
    with pytest.raises(InputError, match="at least 16"):
        EnvDescription("room", "Look.", ActionSpace(), 5, history_line_chars=5)


def test_a_summary_is_what_follows_the_thinking() -> None:
    thinker = agent(NAMES, context="summary", strategy="free_think", max_history_chars=20)
    assert thinker.read_summary("<think>hm</think>  I went up.\n") == "I went up."
    assert thinker.read_summary("I went up.") == "I went up."
    assert thinker.read_summary("x" * 50) == "x" * 20
    assert thinker.prompt_after_summary("", "A room.") == "A room."


texts = st.text(max_size=600)


@given(
    st.lists(st.builds(PastTurn, st.tuples(texts), texts, texts), max_size=8),
    st.integers(0, 1500),
    st.integers(16, 700),
)
def test_a_history_is_never_longer_than_asked_and_has_one_line_per_turn(
    past: list[PastTurn], most: int, longest: int
) -> None:
    written = format_history(ActionSpace(), past, most, line_chars=longest)
    lines = written.split("\n")[1:]
    numbered = [line for line in lines if not line.startswith("(")]
    assert sum(len(line) + 1 for line in numbered) <= most
    assert all(len(line) <= longest for line in numbered)
    assert [int(line.partition(".")[0]) for line in numbered] == list(
        range(len(past) - len(numbered) + 1, len(past) + 1)
    )


@pytest.mark.parametrize("context", ["dialogue", "observation", "window", "summary"])
def test_texts_are_a_function_of_the_turns(context: str) -> None:
    past = [PastTurn((look(at="x"),)), PastTurn((), "bad")]
    assert agent(context=context).next_prompt(SEEN, past) == agent(context=context).next_prompt(
        SEEN, list(past)
    )
