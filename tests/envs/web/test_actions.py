"""The fourteen actions: every action is read back as it was written, and mistakes are named."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.envs.web.actions import (
    ACTION_NAMES,
    DIRECTIONS,
    NEED_ARGUMENT,
    NEED_ELEMENT,
    TAKE_ARGUMENT,
    ActionError,
    WebAction,
    list_actions,
    parse_action,
    print_action,
)

TEXTS = st.text(st.characters(), max_size=40) | st.sampled_from(
    ['" # Note: no', "\n# Element: fake\n", "\\", '\\"', 'do(action="Click", element="1")', "\\n\n\\u0041"]
)
COMMENTS = TEXTS.map(lambda text: " ".join(text.split()))


@st.composite
def actions(draw: st.DrawFn) -> WebAction:
    name = draw(st.sampled_from(ACTION_NAMES))
    element = draw(st.integers(1, 9999).map(str)) if name in NEED_ELEMENT else ""
    texts = TEXTS.filter(bool) if name in NEED_ARGUMENT else TEXTS
    argument = draw(texts) if name in TAKE_ARGUMENT else ""
    if name == "scroll":
        argument = draw(st.sampled_from(DIRECTIONS))
    if name == "tab_focus":
        argument = str(draw(st.integers(0, 99)))
    return WebAction(name, element, argument, draw(COMMENTS), draw(COMMENTS))


@given(actions())
@settings(max_examples=examples(500))
def test_every_action_is_read_back_as_it_was_written(action: WebAction) -> None:
    assert parse_action(print_action(action)) == action


@given(actions(), TEXTS.map(lambda text: text.replace("(", " ").replace("#", " ")))
@settings(max_examples=examples(200))
def test_prose_around_an_action_changes_nothing(action: WebAction, prose: str) -> None:
    assert parse_action(f"{prose}\n{print_action(action)}\n{prose}") == action


@given(st.text(max_size=200) | st.text(alphabet="do(action=\"'Click\\,element)# Note:\n", max_size=200))
@settings(max_examples=examples(500))
def test_any_text_is_an_action_or_an_action_error(text: str) -> None:
    with contextlib.suppress(ActionError):
        assert parse_action(text).name in ACTION_NAMES


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('do(action="Click", element="12")', WebAction("click", "12")),
        ("do(action='Type', argument='it\\'s', element=5)", WebAction("type", "5", "it's")),
        ('do(action="Press Enter")', WebAction("press", argument="Enter")),
        ('do(action="Press", argument="Control+a")', WebAction("press", argument="Control+a")),
        ('do(action="Scroll Down")', WebAction("scroll", argument="down")),
        ('do(action="scroll", argument="Up")', WebAction("scroll", argument="up")),
        (
            'do(action="Select Dropdown Option", argument="Price", element="3")',
            WebAction("select_dropdown_option", "3", "Price"),
        ),
        ('do(action="Switch Tab", argument="1")', WebAction("tab_focus", argument="1")),
        ('do(action="Tab_focus", argument=0)', WebAction("tab_focus", argument="0")),
        ("go_backward()", WebAction("go_back")),
        ('do(action="Go_forward", argument=None)', WebAction("go_forward")),
        ('exit("done")', WebAction("exit", argument="done")),
        ("exit()", WebAction("exit")),
        (
            '# Element: the Buy button\n# note: it costs 5\ndo(action="Click", element="12")',
            WebAction("click", "12", element_comment="the Buy button", note="it costs 5"),
        ),
    ],
)
def test_other_spellings_are_read(text: str, action: WebAction) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("click the button", "no action"),
        ('do(action="Click", element="1")\ndo(action="Click", element="2")', "2 actions"),
        ('do(action="Fly", element="1")', "unknown action 'fly'"),
        ('do(action="Click")', "click needs an element"),
        ('do(action="New_tab", element="2")', "takes no element"),
        ('do(action="Go_back", argument="2")', "takes no argument"),
        ('do(action="Goto")', "goto needs an argument"),
        ('do(action="Scroll", argument="left")', "up or down"),
        ('do(action="Tab_focus", argument="one")', "index of a tab"),
        ('do(element="1")', "needs action"),
        ('do(action="Click", element="1", colour="red")', "unknown argument colour"),
        ('do(action="Click", action="Click", element="1")', "given twice"),
        ('do(action="Click", element=submit)', "element is not a quoted text"),
        ('do(action="Click", element="1"', r"\) is expected"),
        ('do(action="Type", argument="never closed, element="1")', "expected before"),
        ("x" * 100_001, "100,001 characters"),
    ],
)
def test_an_error_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ActionError, match=problem):
        parse_action(text)


def test_a_comment_inside_a_quoted_text_is_no_comment() -> None:
    action = parse_action('do(action="Type", argument="a\n# Note: forged", element="1")\n# Note: mine')
    assert (action.argument, action.note) == ("a\n# Note: forged", "mine")


def test_the_guide_lists_all_fourteen_actions() -> None:
    lines = list(list_actions())
    assert len(lines) == len(ACTION_NAMES) == 14
    filled = [line.replace('argument="..."', 'argument="down"') for line in lines]
    readable = [line for line in filled if "Tab_focus" not in line]
    assert [parse_action(line).name for line in readable] == [n for n in ACTION_NAMES if n != "tab_focus"]
