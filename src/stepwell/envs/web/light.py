"""The light driver: pages without scripts, read in this process.

It parses HTML as browsers do, keeps the state of forms, follows links, sends forms, and has tabs, history and
cookies. It knows no scripts, no style sheets and no frames: it is for sites that work without them, as our
own do. There it shows the same observation as Chromium and every action has the same effect;
`tests/envs/web` holds the two against each other.

    act ─► refuse_action ─► _do_NAME ─► _visit ─► SiteClient ─► load_document ─► LightTab
                                                                                 │
    PageView ◄─ make_view ◄─ simplify ◄──────────────────────────────────────────┘
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stepwell.core import EnvError
from stepwell.envs.tiles import Image
from stepwell.envs.web.actions import WebAction
from stepwell.envs.web.addresses import BLANK, AllowedHosts, resolve_address, resolve_typed_address
from stepwell.envs.web.client import SiteClient, SiteUnreachableError
from stepwell.envs.web.controls import find_option, read_kind, refuse_action, refuse_address, takes_text
from stepwell.envs.web.forms import (
    find_default_button,
    find_form,
    find_missing_value,
    is_submit_button,
    list_controls,
    make_form_request,
    submits_on_enter,
    walk_nodes,
)
from stepwell.envs.web.observation import FLOW_LINES, make_view, place_viewport
from stepwell.envs.web.page import PageView
from stepwell.envs.web.snapshot import Node, list_options
from stepwell.envs.web.tabs import LightDocument, LightPage, LightTab, load_document, restore_controls

MAX_TABS = 10
NO_EARLIER, NO_LATER = "there is no earlier page", "there is no later page"
NOT_KEPT = "that page answered a form and was not kept"
MISSING_VALUE = "the field {} must be filled in"
LAST_TAB = "the last tab stays open"
TOO_MANY_TABS = f"at most {MAX_TABS} tabs can be open"


class LightDriver:
    """A browser without scripts. `app` serves the hosts in this process; without it they are asked by
    HTTP."""

    def __init__(self, app: Any = None, timeout_s: float = 10.0) -> None:
        self._app, self._timeout_s = app, timeout_s
        self._client: SiteClient | None = None
        self._tabs: list[LightTab] = []
        self._tab = 0
        self._notice = ""

    def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        allowed_hosts: Sequence[str],
        storage_state: Any = None,
    ) -> PageView:
        """Start afresh at `url`; a site that does not answer is an `EnvError`."""
        self.close()
        self._client = SiteClient(headers, AllowedHosts.from_names(allowed_hosts), self._app, self._timeout_s)
        self._client.load_storage_state(storage_state)
        self._tabs, self._tab, self._notice = [LightTab()], 0, ""
        address = resolve_typed_address(url, BLANK)
        self._visit("GET", address)
        if self._notice:
            raise EnvError(f"the start page {url} cannot be opened: {self._notice}")
        return self.view()

    def act(self, action: WebAction) -> PageView:
        """Do one action."""
        document, client = self._document, self._require_client()
        self._notice = refuse_action(document.simplify(), action, client.allowed, document.snapshot.base)
        if not self._notice:
            getattr(self, f"_do_{action.name}")(action)
        return self.view()

    def view(self) -> PageView:
        """The focused tab now."""
        self._require_client()
        page, snapshot = self._page, self._document.snapshot
        tabs = tuple(tab.page.document.snapshot.title for tab in self._tabs)
        return make_view(
            page.document.simplify(),
            page.url,
            snapshot.title,
            tabs,
            self._tab,
            offset=page.offset,
            notice=self._notice,
        )

    def raw_html(self) -> str:
        """The HTML of the focused tab as the site sent it."""
        return self._document.html

    def screenshot(self) -> Image | None:
        """Nothing: this driver cannot see."""
        return None

    def close(self) -> None:
        """Forget the episode."""
        if self._client is not None:
            self._client.close()
        self._client = None

    @property
    def _page(self) -> LightPage:
        self._require_client()
        return self._tabs[self._tab].page

    @property
    def _document(self) -> LightDocument:
        return self._page.document

    def _require_client(self) -> SiteClient:
        if self._client is None:
            raise EnvError("no page is open; call open first")
        return self._client

    def _visit(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        content_type: str = "",
        *,
        referer: str = "",
        in_new_tab: bool = False,
        from_form: bool = False,
    ) -> None:
        """Load a page into the focused tab, or into a new one. Its own address replaces the entry of the
        history, unless a form asks for it."""
        if in_new_tab and len(self._tabs) >= MAX_TABS:
            self._notice = TOO_MANY_TABS
            return
        loaded = self._load(method, url, body, content_type, referer)
        if loaded is None:
            return
        if in_new_tab:
            self._tabs.append(LightTab())
            self._tab = len(self._tabs) - 1
        tab = self._tabs[self._tab]
        page = LightPage(loaded.snapshot.url, loaded)
        tab.push_page(page, replaces=not from_form and url == tab.page.url)

    def _load(
        self, method: str, url: str, body: bytes = b"", content_type: str = "", referer: str = ""
    ) -> LightDocument | None:
        """The document of an address; None, with a notice, if there is none to show."""
        try:
            reply = self._require_client().request_page(method, url, body, content_type, referer)
        except SiteUnreachableError as error:
            self._notice = str(error)
            return None
        if reply.status in (204, 205):
            return None
        if name := reply.find_download():
            self._notice = f"the download of {name} was refused"
            return None
        is_fresh = "no-store" in reply.headers.get("cache-control", "").lower()
        html = reply.read_text()
        if "html" not in reply.headers.get("content-type", "text/html"):
            html = f"<pre>{escape(html)}</pre>"
        if not html.strip() and reply.status >= 400:
            self._notice = f"the site answered with error {reply.status}"
        loaded = load_document(reply.url, html, is_fresh)
        loaded.is_posted = reply.is_posted
        return loaded

    def _do_goto(self, action: WebAction) -> None:
        url = resolve_typed_address(action.argument, self._page.url)
        self._notice = refuse_address(url, action.argument, self._require_client().allowed)
        if not self._notice:
            self._go(url, "")

    def _go(self, url: str, referer: str, in_new_tab: bool = False) -> None:
        """Follow an address; one that differs in its fragment only loads nothing."""
        page = self._page
        here, _, _ = page.url.partition("#")
        there, mark, _ = url.partition("#")
        if url == BLANK:
            self._notice = "the blank page is opened by a new tab"
        elif mark and here == there and not in_new_tab:
            self._tabs[self._tab].push_page(LightPage(url, page.document), replaces=url == page.url)
        else:
            self._visit("GET", url, referer=referer, in_new_tab=in_new_tab)

    def _do_click(self, action: WebAction) -> None:
        node = self._find_node(action)
        tag, kind = node[0], read_kind(node)
        self._document.focus = node
        if tag == "a" and "href" in node[1]:
            self._click_link(node)
        elif is_submit_button(node):
            self._submit_form(node, node)
        elif kind == "reset" and (form := find_form(self._document.snapshot.body, node)):
            self._document.restore_nodes(list(walk_nodes(form)))
        elif kind in ("checkbox", "radio"):
            self._toggle_choice(node, kind)
        elif tag == "summary":
            self._toggle_details(node)

    def _click_link(self, node: Node) -> None:
        url = resolve_address(node[1]["href"], self._document.snapshot.base)
        if url:
            in_new_tab = node[1].get("target", "").lower() in ("_blank", "blank")
            self._go(url, self._page.url, in_new_tab=in_new_tab)

    def _toggle_choice(self, node: Node, kind: str) -> None:
        document = self._document
        node = document.copy_own_node(node)
        if kind == "checkbox" and "checked" in node[1]:
            del document.change_node(node)["checked"]
            return
        if kind == "radio":
            body = document.snapshot.body
            for other in list_controls(body, find_form(body, node) or body):
                if read_kind(other) == "radio" and other[1].get("name") == node[1].get("name"):
                    document.change_node(other).pop("checked", None)
        document.change_node(node)["checked"] = "true"

    def _toggle_details(self, node: Node) -> None:
        document = self._document
        node = document.copy_own_node(node)
        for parent in walk_nodes(document.snapshot.body):
            if parent[0] == "details" and any(child is node for child in parent[2]):
                attributes = document.change_node(parent)
                if attributes.pop("open", None) is None:
                    attributes["open"] = "true"

    def _do_hover(self, action: WebAction) -> None:
        self._find_node(action)  # without scripts and style sheets nothing listens

    def _do_type(self, action: WebAction) -> None:
        self._type_text(self._find_node(action), action.argument)

    def _type_text(self, node: Node, text: str) -> Node:
        """Put text into a field; the field, which has the focus then."""
        document = self._document
        node = document.focus = document.copy_own_node(node)
        text = re.sub(r"[\r\n]", "", text) if node[0] == "input" else re.sub(r"\r\n?", "\n", text)
        limit = node[1].get("maxlength", "")
        if limit.isdigit():
            text = text[: int(limit)]
        document.change_node(node)["value"] = text
        return node

    def _do_search(self, action: WebAction) -> None:
        self._press_enter(self._type_text(self._find_node(action), action.argument))

    def _do_press(self, action: WebAction) -> None:
        key = action.argument.strip().lower()
        node = self._document.focus
        if key == "enter" and node is not None:
            self._press_enter(node)
        elif key in ("pagedown", "pageup", "home", "end"):
            steps = {"pagedown": 1, "pageup": -1, "home": -1_000_000, "end": 1_000_000}
            self._scroll_page(steps[key])

    def _press_enter(self, node: Node) -> None:
        document = self._document
        body = document.snapshot.body
        if node[0] == "textarea":
            node = document.copy_own_node(node)
            document.change_node(node)["value"] = node[1].get("value", "") + "\n"
        elif node[0] == "input" and (takes_text(node) or read_kind(node) in ("checkbox", "radio")):
            form = find_form(body, node)
            controls = [] if form is None else list_controls(body, form)
            if form is not None and submits_on_enter(controls):
                self._submit_form(node, find_default_button(controls))
        elif node[0] in ("a", "button", "summary", "input"):
            number = next((key for key, item in document.simplify().nodes.items() if item is node), None)
            if number is not None:
                self._do_click(WebAction("click", number))

    def _submit_form(self, node: Node, button: Node | None) -> None:
        page, snapshot = self._page, self._document.snapshot
        form = find_form(snapshot.body, node)
        if form is None:
            return
        missing = find_missing_value(list_controls(snapshot.body, form))
        if missing is not None and "novalidate" not in form[1]:
            self._notice = MISSING_VALUE.format(missing)
            return
        request = make_form_request(snapshot.body, form, button, page.url)
        url = resolve_address(request.url, snapshot.base)
        self._notice = refuse_address(url, request.url, self._require_client().allowed)
        if not self._notice:
            in_new_tab = form[1].get("target", "").lower() in ("_blank", "blank")
            self._visit(
                request.method,
                url,
                request.body,
                request.content_type,
                referer=page.url,
                in_new_tab=in_new_tab,
                from_form=True,
            )

    def _do_select_dropdown_option(self, action: WebAction) -> None:
        document = self._document
        node = document.focus = document.copy_own_node(self._find_node(action))
        chosen = find_option(node, action.argument)
        for place, option in enumerate(list_options(node)):
            attributes = document.change_node(option)
            if place == chosen:
                attributes["selected"] = "true"
            else:
                attributes.pop("selected", None)

    def _do_scroll(self, action: WebAction) -> None:
        self._scroll_page(1 if action.argument == "down" else -1)

    def _scroll_page(self, pages: int) -> None:
        page = self._page
        first, _ = place_viewport(page.offset + pages * FLOW_LINES, len(page.document.simplify().lines))
        page.offset = first

    def _do_new_tab(self, action: WebAction) -> None:
        if len(self._tabs) >= MAX_TABS:
            self._notice = TOO_MANY_TABS
            return
        self._tabs.append(LightTab())
        self._tab = len(self._tabs) - 1

    def _do_tab_focus(self, action: WebAction) -> None:
        if int(action.argument) >= len(self._tabs):
            self._notice = f"there is no tab {action.argument}; the tabs are 0 to {len(self._tabs) - 1}"
            return
        self._tab = int(action.argument)

    def _do_close_tab(self, action: WebAction) -> None:
        if len(self._tabs) == 1:
            self._notice = LAST_TAB
            return
        del self._tabs[self._tab]
        self._tab = max(0, self._tab - 1)

    def _do_go_back(self, action: WebAction) -> None:
        self._move_in_history(-1, NO_EARLIER)

    def _do_go_forward(self, action: WebAction) -> None:
        self._move_in_history(1, NO_LATER)

    def _move_in_history(self, step: int, refusal: str) -> None:
        tab = self._tabs[self._tab]
        position = tab.position + step
        if not 0 <= position < len(tab.pages):
            self._notice = refusal
            return
        target, old = tab.pages[position], tab.pages[position].document
        if old is not tab.page.document:
            if old.is_fresh and old.is_posted:
                self._notice = NOT_KEPT
                return
            loaded = self._load("GET", target.url) if old.is_fresh else load_document(target.url, old.html)
            if loaded is None:
                return
            restore_controls(old, loaded)
            tab.pages[position] = LightPage(loaded.snapshot.url, loaded)
        tab.position = position
        tab.page.offset = 0

    def _find_node(self, action: WebAction) -> Node:
        return self._document.simplify().nodes[action.element]
