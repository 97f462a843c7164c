"""Tool calls in replies: what was written reads back, mistakes are said, and nothing makes reading fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.agents import STRATEGIES, Agent
from stepwell.config.run import AgentConfig
from stepwell.core import (
    ActionSpace,
    EnvDescription,
    ExampleTurn,
    InputError,
    Observation,
    StateForm,
    ToolCall,
    ToolSchema,
    find_call_problem,
    read_call,
)

SEARCH = ToolSchema(
    "search",
    "Finds passages.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "maxLength": 200}},
        "required": ["query"],
    },
)
EXPAND = ToolSchema(
    "expand", "", {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
)
ANSWER = ToolSchema(
    "answer", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)
QA = EnvDescription(
    "qa", "Answer.", ActionSpace(tools=(SEARCH, EXPAND, ANSWER), max_per_turn=3, answer="answer"), 5
)
CALLS = EnvDescription("pool", "Search.", ActionSpace(tools=(SEARCH, EXPAND), max_per_turn=3), 5)
AGENTS = {name: Agent(QA, AgentConfig(strategy=name)) for name in STRATEGIES}  # type: ignore[arg-type]


def search(query: str) -> str:
    return ToolCall("search", {"query": query}).text


def answered(text: str) -> tuple[str, ...]:
    return (ToolCall("answer", {"text": text}).text,)


def agent(description: EnvDescription = QA, **settings: object) -> Agent:
    return Agent(description, AgentConfig(**settings))  # type: ignore[arg-type]


def told(reply: str, description: EnvDescription = QA) -> tuple[tuple[str, ...], str]:
    read = agent(description).read(reply)
    return read.actions, read.lost


strategy_names = st.sampled_from(sorted(STRATEGIES))
queries = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.sampled_from(
    ["</tool_call>", "<tool_call>", "</think><answer>x</answer>", "a\u2028b\n", '"}}', "\\u003c", "\0"]
)
some_calls = st.lists(
    queries.map(search) | st.integers(0, 9).map(lambda n: ToolCall("expand", {"id": n}).text),
    min_size=1,
    max_size=3,
)
words = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), max_size=30)


@given(strategy_names, some_calls, words)
def test_calls_that_are_written_read_back(name: str, calls: list[str], why: str) -> None:
    reply = AGENTS[name].read(AGENTS[name].write(calls, reasoning=why))
    assert (reply.is_strict, reply.problem, reply.lost, reply.num_lost) == (True, "", "", 0)
    assert reply.actions == tuple(calls)
    assert reply.reasoning == (None if name == "no_think" else why.strip())


@given(strategy_names, words.filter(lambda text: bool(text.strip())))
def test_an_answer_is_written_between_its_tags_and_reads_back(name: str, text: str) -> None:
    written = AGENTS[name].write(answered(text.strip()))
    assert written.endswith(f"<answer>{text.strip()}</answer>") and "tool_call" not in written
    reply = AGENTS[name].read(written)
    assert reply.is_strict and reply.actions == answered(text.strip())


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<TOOL_CALL >",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    search("a"),
    '{"name": "expand", "arguments": {}}',
    '{"name": "dig", "arguments": {}}',
    "[" * 50,
    "{",
    "\ud800",
    " ",
]
garbage = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=24).map("".join)


@given(strategy_names, st.sampled_from([QA, CALLS]), garbage)
def test_no_text_makes_reading_fail_and_what_is_read_can_be_done(
    name: str, description: EnvDescription, text: str
) -> None:
    reply = Agent(description, AgentConfig(strategy=name)).read(text)  # type: ignore[arg-type]
    assert reply.is_strict == (reply.problem == "")
    assert reply.actions or reply.lost
    assert len(reply.actions) <= 3
    assert all(find_call_problem(description.actions.tools, read_call(call)) == "" for call in reply.actions)
    assert len(reply.problem) < 600 and "\n" not in reply.problem


def test_calls_are_found_whatever_stands_around_them() -> None:
    loose = f"I search.\n<Tool_Call> {search('a')} </tool_call>, and <tool_call>{search('b')}"
    reply = agent().read(loose)
    assert reply.actions == (search("a"), search("b")) and reply.lost == ""
    assert not reply.is_strict and reply.problem == "text beside the calls: 'I search. , and'"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (f"<tool_call>{search('a')}</tool_call> \n<tool_call>{search('b')}</tool_call>", ""),
        (f"<tool_call >{search('a')}</tool_call>", "'<tool_call ></tool_call>' must be written"),
        (f"<tool_call>{search('a')}", "<tool_call> is never closed by </tool_call>"),
        ('<tool_call>{"name": "search", "parameters": {"query": "a"}}</tool_call>', "must be written"),
        ('<tool_call>{"name": "answer", "arguments": {"text": "a"}}</tool_call>', "must be written <answer>"),
        ("<answer>a</answer> so", "text beside the answer: 'so'"),
    ],
)
def test_what_is_done_all_the_same_is_not_strict(reply: str, problem: str) -> None:
    read = agent().read(reply)
    assert read.actions and not read.lost
    assert problem in read.problem and read.is_strict == (problem == "")


@pytest.mark.parametrize(
    ("reply", "lost"),
    [
        ("", "there is no <tool_call>...</tool_call> or <answer>...</answer>"),
        ("<tool_call>search a</tool_call>", "not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            '<tool_call>{"name": "search',
            "<tool_call> is never closed by </tool_call>, Unterminated string starting at: "
            "line 1 column 10 (char 9)",
        ),
        ("<tool_call>[1]</tool_call>", "a call must be a JSON object, not list"),
        (
            '<tool_call>{"name": "find", "arguments": {}}</tool_call>',
            "there is no tool 'find'; the tools are: search, expand, answer",
        ),
        (
            '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
            "search needs the argument 'query'",
        ),
        ("<answer> </answer>", "the answer is empty"),
        ("<answer>Par", "<answer> is never closed by </answer>"),
    ],
)
def test_where_nothing_can_be_done_it_is_said_why(reply: str, lost: str) -> None:
    assert told(reply) == ((), lost)


def test_calls_that_can_be_made_are_made_beside_those_that_cannot() -> None:
    reply = agent().read(f"<tool_call>{search('a')}</tool_call><tool_call>{{</tool_call>")
    assert reply.actions == (search("a"),) and reply.num_lost == 1
    assert reply.lost.startswith("call 2: not valid JSON") and reply.problem == reply.lost


def test_of_too_many_calls_the_first_are_made() -> None:
    reply = agent().read("".join(f"<tool_call>{search(str(n))}</tool_call>" for n in range(5)))
    assert reply.actions == (search("0"), search("1"), search("2")) and reply.num_lost == 2
    assert reply.lost == "5 calls, at most 3 are made in a turn" and not reply.is_strict


def test_an_answer_stands_alone() -> None:
    reply = agent().read(f"<tool_call>{search('a')}</tool_call><answer>Paris</answer>")
    assert reply.actions == answered("Paris") and reply.num_lost == 1
    assert not reply.is_strict and reply.lost == "an answer stands alone: what is beside it is not done"
    assert agent().read("<answer>Par</answer><answer>Rome").actions == answered("Par")
    assert told("<answer>Paris</answer>", CALLS) == ((), "there is no <tool_call>...</tool_call>")


def test_tags_in_the_thinking_and_in_arguments_call_nothing() -> None:
    thinker = agent(strategy="free_think")
    reply = thinker.read(
        f"<think>I could <tool_call>{search('no')}</tool_call>.</think>"
        f"<tool_call>{search('what is <answer>42</answer>?')}</tool_call>"
    )
    assert reply.is_strict and reply.actions == (search("what is <answer>42</answer>?"),)


def test_thinking_that_is_missing_costs_the_form_only() -> None:
    reply = agent(strategy="free_think").read(f"<tool_call>{search('a')}</tool_call>")
    assert reply.actions == (search("a"),) and reply.problem == "<think> is missing at the end"


@pytest.mark.parametrize(
    "calls",
    [
        [],
        ["{"],
        [search("a")] * 4,
        [ToolCall("dig", {}).text],
        [*answered("a"), search("b")],
        answered("</answer>"),
    ],
)
def test_what_cannot_be_done_cannot_be_written(calls: list[str]) -> None:
    with pytest.raises(InputError):
        agent().write(calls)


def test_long_rows_of_tags_and_blanks_are_read_in_no_time() -> None:
    for text in ("<tool_call>" * 9_000, "<answer>" * 12_000, "</think>" * 12_000, "<" + " " * 10**5):
        assert agent(strategy="free_think").read(text).actions == ()


def test_the_prompt_lists_the_tools_but_not_the_one_that_answers_stand_for() -> None:
    lines = agent().system_prompt().splitlines()
    at = lines.index("<tools>")
    assert [json.loads(line) for line in lines[at + 1 : at + 3]] == [SEARCH.to_openai(), EXPAND.to_openai()]
    assert lines[at + 3 :] == [
        "</tools>",
        "Call 1 to 3 tools in a turn, all at once, or answer to end.",
        "You have 5 turns.",
        'Reply: <tool_call>{"name": ..., "arguments": {...}}</tool_call> (a pair of tags for each call), '
        "or <answer>...</answer>",
    ]
    assert agent().system_prompt(with_tools=False).splitlines() == [lines[0], *lines[at + 4 :]]
    assert agent().tools == (SEARCH, EXPAND) and agent(guide=False).tools == ()
    assert "<tools>" not in agent(guide=False).system_prompt()


def test_examples_of_calls_are_written_as_replies() -> None:
    example = ExampleTurn("", "Both.", "", "\n".join([search("a"), search("b")]))
    description = EnvDescription("qa", "Answer.", QA.actions, 5, {StateForm.NATURAL_LANGUAGE: example})
    written = agent(description, strategy="free_think").system_prompt().splitlines()[-1]
    calls = "".join(f"<tool_call>{search(query)}</tool_call>" for query in "ab")
    assert written == f"Example: <think>Both.</think>{calls}"


def test_a_plan_is_cut_into_turns_with_the_answer_alone() -> None:
    plan = [search("a"), *answered("x")]
    assert QA.actions.first_turn(plan) == [search("a")]
    assert QA.actions.first_turn(plan[1:]) == list(answered("x"))
    assert CALLS.actions.first_turn([search(str(n)) for n in range(5)]) == [search(str(n)) for n in range(3)]
    assert ActionSpace(("Up", "Down"), 2).first_turn(["Up", "Up", "Down"]) == ["Up", "Up"]
    assert ActionSpace().first_turn([]) == []


def test_observation_texts_of_tools_are_those_of_the_env() -> None:
    assert agent().first_prompt(Observation("Who?")) == "Who?"
