"""A call finds the longest recorded line it starts with, whatever its client does to the messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.services.gateways import engine, renderer

from stepwell.config.gateway import GatewayConfig
from stepwell.core import Step, ToolCall, ToolSchema
from stepwell.pool import Pool, open_pool
from stepwell.rendering import Message
from stepwell.services.gateway.chat import ChatRequest, GatewayCaller
from stepwell.services.gateway.gateway import Gateway
from stepwell.services.gateway.history import History, RecordedTurn, normalize_messages

TOOL = ToolSchema("look", "Look around")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_pool(tmp_path_factory.mktemp("pool") / "pool.db") as open_sessions:
        yield open_sessions


def vary_spaces(message: Message, draw: int) -> Message:
    """An assistant's message as a client may send it back."""
    habits = (str, str.strip, lambda text: f" {text}\n", str.lstrip)
    return replace(message, content=habits[draw % 4](message.text))


class Talk:
    """A client's view of one session, and a slow, obvious computation of what should match."""

    def __init__(self, gateway: Gateway, session: str) -> None:
        self.gateway, self.session = gateway, session
        self.lines: dict[int, tuple[tuple[Message, ...], tuple[ToolSchema, ...]]] = {}
        self.next_number = 0

    def expected_parent(self, messages: tuple[Message, ...], tools: tuple[ToolSchema, ...]) -> int | None:
        fitting = [
            (len(line), number)
            for number, (line, own_tools) in self.lines.items()
            if own_tools == tools and len(line) < len(messages) and self.same(line, messages)
        ]
        return max(fitting, default=(0, None))[1]

    @staticmethod
    def same(line: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
        def plain(message: Message) -> Any:
            text = message.text.strip() if message.role == "assistant" else message.text
            return message.role, text

        return [plain(m) for m in line] == [plain(m) for m in messages[: len(line)]]

    async def ask(self, messages: tuple[Message, ...], tools: tuple[ToolSchema, ...] = ()) -> int:
        expected = self.expected_parent(messages, tools)
        answer = await self.gateway.complete_chat(
            GatewayCaller(self.session),
            ChatRequest("m", messages, tools=tools, max_tokens=3, seed=self.next_number),
        )
        number, self.next_number = self.next_number, self.next_number + 1
        turn = self.gateway.registry.sessions[self.session].history.turns[number]
        assert turn.parent == expected
        self.lines[number] = ((*messages, Message.assistant(answer.choices[0].text)), tools)
        return number


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["go_on", "again", "rewrite_user", "rewrite_turn", "new", "tools", "cut"]),
        st.integers(0, 100),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=9,
)


def next_messages(
    talk: Talk, move: str, which: int, draw: int
) -> tuple[tuple[Message, ...], tuple[Any, ...]]:
    """What a client with habits asks next."""
    line, tools = talk.lines[list(talk.lines)[which % len(talk.lines)]]
    seen = tuple(vary_spaces(m, draw + i) if m.role == "assistant" else m for i, m in enumerate(line))
    if move == "again":
        return seen[:-1], tools
    if move == "rewrite_user":
        at = 2 * (draw % (len(seen) // 2))
        return (*seen[:at], Message.user(f"rewritten {draw}"), *seen[at + 1 :], Message.user("so?")), tools
    if move == "rewrite_turn":
        at = 2 * (draw % (len(seen) // 2)) + 1
        return (*seen[:at], Message.assistant(f"never {draw}"), *seen[at + 1 :], Message.user("so?")), tools
    if move == "new":
        return (Message.user(f"new {draw}"),), ()
    if move == "tools":
        return (*seen, Message.user("with a tool")), () if tools else (TOOL,)
    if move == "cut":
        return (*seen[2:], Message.user("shorter")), tools
    return (*seen, Message.user(f"next {draw % 2}")), tools


def stored_steps(pool: Pool, session: str) -> dict[int, Step]:
    stored = pool.get(session, with_branches=True)
    return dict(zip(stored.numbers, stored.trajectory.steps, strict=True))


def whole(step: Step) -> list[int]:
    return [*step.state.prompt_ids.tolist(), *step.action.action_ids.tolist()]  # type: ignore[union-attr]


@pytest.mark.slow
@settings(max_examples=25)
@given(moves=MOVES, restart_after=st.integers(0, 8))
def test_every_call_continues_the_longest_line_also_after_a_restart(
    pool: Pool, moves: list[tuple[str, int, int]], restart_after: int
) -> None:
    session = f"talk-{len(list(pool.find()))}"

    async def play() -> Talk:
        gateway = Gateway(engine(), renderer(), pool, GatewayConfig())
        talk = Talk(gateway, session)
        await talk.ask((Message.user("begin"),))
        for count, (move, which, draw) in enumerate(moves):
            if count == restart_after:
                before = gateway.registry.sessions[session]
                await gateway.stop()
                gateway = talk.gateway = Gateway(engine(), renderer(), pool, GatewayConfig())
                after = await gateway.registry.get_or_open(GatewayCaller(session))
                assert after.select_path() == before.select_path() and after.branches == before.branches
                assert list(after.reasons) == list(before.reasons)
            await talk.ask(*next_messages(talk, move, which, draw))
        await gateway.stop()
        return talk

    asyncio.run(play())
    steps = stored_steps(pool, session)
    assert steps
    for step in steps.values():
        parent = step.info["parent"]
        if parent is not None:
            begin = whole(steps[parent])  # type: ignore[index]
            assert step.state.prompt_ids[: len(begin)].tolist() == begin  # type: ignore[union-attr]


def make_call_message(words: str, *calls: tuple[str, Any, str]) -> Message:
    return Message.assistant(words, [ToolCall(name, arguments, id_) for name, arguments, id_ in calls])


def make_result_message(text: str, id_: str) -> Message:
    return Message("tool", text, tool_call_id=id_)


def record_lines(*lines: tuple[Message, ...]) -> History:
    history = History()
    for number, line in enumerate(lines):
        history.add(RecordedTurn(number, number, f"call-{number}", None, line))
    return history


def test_other_ids_on_calls_and_their_results_are_the_same_history() -> None:
    asked = Message.user("where?")
    first = (
        asked,
        make_call_message("", ("look", {"at": "x"}, "call00000"), ("look", {"at": "y"}, "call00001")),
    )
    results = (make_result_message("a lake", "call00000"), make_result_message("a wall", "call00001"))
    history = record_lines(first, (*first, *results, Message.assistant("Left.")))
    theirs = make_call_message(" ", ("look", {"at": "x"}, "toolu_1"), ("look", {"at": "y"}, "toolu_2"))
    new = (asked, theirs, make_result_message("a lake", "toolu_1"), make_result_message("a wall", "toolu_2"))
    place = history.match_messages(new, ())
    assert place.parent is history.turns[0] and place.new_messages == results
    place = history.match_messages((*new, Message.assistant("Left."), Message.user("and now?")), ())
    assert place.parent is history.turns[1] and place.branch is None


def test_results_given_to_other_calls_are_another_history() -> None:
    asked = Message.user("where?")
    first = (asked, make_call_message("", ("look", {"at": "x"}, "a"), ("look", {"at": "y"}, "b")))
    line = (*first, make_result_message("a lake", "a"), make_result_message("a wall", "b"))
    history = record_lines(first, (*line, Message.assistant("Left.")))
    swapped = (
        *first,
        make_result_message("a lake", "b"),
        make_result_message("a wall", "a"),
        Message.assistant("Left."),
    )
    assert history.match_messages((*swapped, Message.user("so?")), ()).parent is history.turns[0]


@pytest.mark.parametrize(
    ("arguments", "same"),
    [({"n": 1.0}, True), ({"n": 2}, False), ({"n": 1, "m": None}, False), ({"n": [1]}, False)],
)
def test_arguments_are_compared_by_value(arguments: Any, same: bool) -> None:
    history = record_lines((Message.user("go"), make_call_message("", ("move", {"n": 1}, "a"))))
    theirs = (
        Message.user("go"),
        make_call_message("", ("move", arguments, "a")),
        make_result_message("done", "a"),
    )
    assert (history.match_messages(theirs, ()).parent is not None) == same


def test_text_opened_by_the_generation_prompt_may_be_missing() -> None:
    history = History("<think>\n")
    history.add(
        RecordedTurn(0, 0, "c", None, (Message.user("q"), Message.assistant("<think>\nwhy</think>so")))
    )
    for words in ("why</think>so", "<think>\nwhy</think>so", " <think>why</think>so "):
        asked = (Message.user("q"), Message.assistant(words), Message.user("and?"))
        assert history.match_messages(asked, ()).parent is history.turns[0]


def test_changed_tools_start_a_new_line_with_that_reason() -> None:
    history = record_lines((Message.user("q"), Message.assistant("a")))
    place = history.match_messages((Message.user("q"), Message.assistant("a"), Message.user("r")), (TOOL,))
    assert place.parent is None and place.branch is not None and place.branch.kind.value == "tools_changed"


def test_equal_hashes_alone_match_nothing() -> None:
    history = record_lines((Message.user("q"), Message.assistant("a")))
    (turn,) = history.turns.values()
    turn.normal_form = (
        *normalize_messages([Message.user("other")]),
        turn.normal_form[-1],
    )  # under the hash of the first
    place = history.match_messages((Message.user("q"), Message.assistant("a"), Message.user("r")), ())
    assert place.parent is None


def test_a_long_line_keeps_one_array_of_ids(pool: Pool) -> None:
    async def play() -> Any:
        gateway = Gateway(engine(), renderer(), pool, GatewayConfig())
        messages: tuple[Message, ...] = (Message.user("begin"),)
        for _ in range(12):
            answer = await gateway.complete_chat(
                GatewayCaller("memory"), ChatRequest("m", messages, max_tokens=3)
            )
            messages = (*messages, Message.assistant(answer.choices[0].text), Message.user("more"))
        await gateway.stop()
        return gateway.registry.sessions["memory"].history.turns

    turns = asyncio.run(play())
    assert len({id(turn.line) for turn in turns.values()}) == 1
    steps = stored_steps(pool, "memory")
    for number, turn in turns.items():
        recorded_turn = turn.restore_recorded(renderer().template)
        assert recorded_turn.ids.tolist() == whole(steps[number])
