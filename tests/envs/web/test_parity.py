"""The two drivers show the same page and every action has the same effect under both."""

from __future__ import annotations

import pytest
from tests.envs.web.conftest import needs_chromium
from tests.envs.web.small_site import SmallSite

from stepwell.envs.web.actions import WebAction, parse_action
from stepwell.envs.web.chromium import ChromiumDriver
from stepwell.envs.web.light import LightDriver
from stepwell.envs.web.page import PageView

# One line is one action; `[Text]` stands for the id of the element with that text.
WALKS = {
    "links, tabs and history": """
        Click [More] | Click [More] | Click [Away] | Click [Low] | Go_back | Go_back | Click [Other]
        Click [Home] | Go_back | Close_tab | Close_tab | Click [Leave] | Click [Role] | Click [Inner]
        New_tab | Go_back | Tab_focus "0" | Tab_focus "7" | Hover [List] | Click [List] | Go_back | Go_forward
    """,
    "a form that is posted": """
        Click [Form] | Type "Bob & Co" [Who] | Click [News] | Click [Large]
        Select_dropdown_option "brown" [colour] | Select_dropdown_option "Black" [colour]
        Select_dropdown_option "Pink" [colour] | Type "x" [count] | Type "12" [count] | Type "a" [News]
        Type "pw" [secret] | Type "z" [fixed] | Click [off] | Type "abc\\ndefghijklmnop" [text]
        Click [Send two] | Go_back | Click [Undo] | Search "Eve" [Who] | Go_back | Type "Zoe" [plain]
        Press "Enter"
    """,
    "a form in the address": """
        Goto "/form?method=get" | Type "ä ö" [plain] | Click [Send] | Goto "/search" | Search "q w" [q]
        Goto "/required" | Click [Go] | Type "x" [q] | Click [Go]
        Goto "/form" | Click [Send two] | Click [On] | Go_back | Go_back | Goto "/form" | Click [Send]
        Click [On] | Go_back
        Goto "/fresh" | Type "new" [Who] | Click [News] | Click [Send] | Go_back | Click [Send]
    """,
    "a long list": """
        Goto "/list" | Scroll "down" | Scroll "down" | Scroll "up" | Press "End" | Press "Home"
        Press "PageDown" | Click [Next] | Go_back
    """,
    "a form that leads to its own address": """
        Goto "/same?q=&s=a" | Click [Go] | Search "" [q] | Go_back | Go_back | Go_back | Go_forward
        Click [s] | Press "End" | Press "PageDown" | Press "Home" | Select_dropdown_option "b" [s]
        Press "End"
        Click [Go] | Goto "/same" | Goto "/same" | Go_back
    """,
    "cookies, errors and odd answers": """
        Goto "a.test/login" | Goto "http://evil.example/" | Goto "javascript:alert(1)"
        Goto "file:///etc/passwd" | Goto "/round" | Goto "/file" | Goto "/broken" | Goto "/nothing"
        Goto "/missing" | Goto "/deep" | Goto "/count" | Goto "/" | Go_back | Goto "/tick" | Goto "/"
        Go_back | Click [77] | Goto "http://b.test/item" | Goto "about:blank"
    """,
}
SHORT = "a long list"  # the others take more than 5 s on a busy machine


def read_walk(text: str, view: PageView) -> WebAction:
    name, _, rest = text.strip().partition(" ")
    if rest.endswith("]"):
        rest, _, label = rest.rpartition("[")
        wanted = label[:-1]
        found = next((e.id for e in view.elements if wanted in (e.text, e.attributes.get("name"))), wanted)
        rest = f'{rest.strip()}, element="{found}"'.removeprefix(", ")
    argument = rest if rest.startswith("element") or not rest else f"argument={rest}"
    return parse_action(f'do(action="{name}"{", " * bool(argument)}{argument})')


@needs_chromium
@pytest.mark.parametrize(
    "name", [name if name == SHORT else pytest.param(name, marks=pytest.mark.slow) for name in WALKS]
)
def test_every_page_and_every_action_is_the_same_under_both_drivers(
    name: str, chromium: ChromiumDriver, site: SmallSite
) -> None:
    light = LightDriver(app=SmallSite())
    site.asked.clear()
    start = {"headers": {}, "allowed_hosts": ["a.test", "b.test"]}
    view = light.open("http://a.test/", **start)
    assert chromium.open("http://a.test/", **start) == view
    for text in WALKS[name].replace("\n", "|").split("|"):
        if text.strip():
            action = read_walk(text, view)
            view = light.act(action)
            assert chromium.act(action) == view, action
    light.close()
