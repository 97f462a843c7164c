"""Logs in to WebArena's sites over HTTP, and keeps the cookies as a browser's storage state.

    task ─► which sites ─► a file in the host's folder (`.auth/reddit_state.json`)?  yes ─► its state
                                │ no
                                └─► log-in page ─► its form, with hidden fields ─► cookies ─► state

A log-in form is the form with a password field. The user's name goes into the field before it. The log-in has
failed if the page after it asks for a password again. States are made once per process and set of sites.

`storage_state` of a task names its sites (`gitlab.reddit_state.json`). Only those are logged in, because
sites on one host share cookies whatever their ports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from stepwell.core import ConfigError
from stepwell.core.errors import EnvError
from stepwell.envs.web.webarena.accounts import LOGIN_SITES, Account, WebArenaAccounts, find_account
from stepwell.envs.web.webarena.locator_values import parse_html, read_value, select_elements
from stepwell.envs.web.webarena.sites import WebArenaSites
from stepwell.envs.web.webarena.task import WebArenaTask

LOGIN_PATHS = {
    "shopping": "/customer/account/login/",
    "shopping_admin": "",
    "reddit": "/login",
    "gitlab": "/users/sign_in",
}
_NAME_FIELDS = ("text", "email", "")


class SessionStore:
    """Storage states of logged-in sites: from the host's folder, or made by logging in."""

    def __init__(
        self,
        sites: WebArenaSites,
        accounts: WebArenaAccounts,
        folder: Path | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.sites, self.accounts, self.folder, self.timeout_s = sites, accounts, folder, timeout_s
        self._states: dict[tuple[str, ...], dict[str, Any]] = {}

    def find_state(self, task: WebArenaTask) -> dict[str, Any] | None:
        """The storage state with which `task` begins; None if it needs no log-in."""
        names = list_login_sites(task)
        if not names:
            return None
        if self.folder is not None and task.storage_state:
            path = self.folder / Path(task.storage_state).name
            if path.is_file():
                state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return state
        if names not in self._states:
            self._states[names] = self._log_in(names)
        return self._states[names]

    def forget_states(self) -> None:
        """Log in again the next time, after the sites were reset."""
        self._states.clear()

    def _log_in(self, names: tuple[str, ...]) -> dict[str, Any]:
        import httpx

        with httpx.Client(follow_redirects=True, timeout=self.timeout_s) as client:
            for name in names:
                url = getattr(self.sites, name)
                if not url:
                    raise ConfigError(f"the task logs in to {name!r}; set the option webarena.sites.{name}")
                submit_login(client, url + LOGIN_PATHS[name], find_account(name, self.accounts))
            return {"cookies": [_describe_cookie(cookie) for cookie in client.cookies.jar], "origins": []}


def list_login_sites(task: WebArenaTask) -> tuple[str, ...]:
    """The sites that `task` begins logged in to, in order."""
    if not task.require_login:
        return ()
    if task.storage_state is not None:
        names = Path(task.storage_state).name.removesuffix(".json").removesuffix("_state").split(".")
    else:
        names = [] if task.evaluators else list(task.sites)  # instructions name their site alone
    unknown = [name for name in names if name not in LOGIN_SITES and task.evaluators]
    if unknown:
        raise ConfigError(f"storage_state of task {task.task_id} names the unknown site {unknown[0]!r}")
    return tuple(name for name in names if name in LOGIN_SITES)


def submit_login(client: Any, url: str, account: Account) -> None:
    """Fill and send the log-in form at `url`; `client` (httpx) keeps the cookies."""
    import httpx

    try:
        page = client.get(url)
        page.raise_for_status()
        action, method, fields = fill_login_form(page.text, account, str(page.url))
        sent = {"data": fields} if method == "POST" else {"params": fields}
        answer = client.request(method, action, **sent)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise EnvError(f"cannot log in at {url}: {error}") from error
    if _find_password_form(answer.text) is not None:
        raise ConfigError(f"the log-in of {account.username!r} at {url} was refused; check webarena.accounts")


def fill_login_form(html: str, account: Account, url: str) -> tuple[str, str, Mapping[str, str]]:
    """Address, method and fields of the log-in form of a page, filled."""
    form = _find_password_form(html)
    if form is None:
        raise ConfigError(f"there is no log-in form at {url}; check webarena.sites")
    fields: dict[str, str] = {}
    name_field = ""
    has_password = False
    for element in select_elements(form, "input[name]"):
        kind, name = element.get("type", "").lower(), element.get("name")
        if kind == "password" and not has_password:
            fields[name], has_password = account.password, True
        elif kind in _NAME_FIELDS and not has_password:
            name_field = name
        elif kind == "hidden" or (kind in ("checkbox", "radio") and element.get("checked") is not None):
            fields[name] = read_value(element) or ""
    if not name_field:
        raise ConfigError(f"the log-in form at {url} has no field for a name")
    return (
        urljoin(url, form.get("action") or url),
        str(form.get("method") or "GET").upper(),
        {**fields, name_field: account.username},
    )


def _find_password_form(html: str) -> Any:
    if not html.strip():
        return None
    forms = select_elements(parse_html(html), "form")
    return next((form for form in forms if select_elements(form, 'input[type="password"]')), None)


def _describe_cookie(cookie: Any) -> dict[str, Any]:
    """A cookie as Playwright's storage state writes it."""
    same_site = str(cookie.get_nonstandard_attr("SameSite") or "Lax").capitalize()
    return {
        "name": cookie.name,
        "value": cookie.value or "",
        "domain": cookie.domain.removesuffix(".local")
        if cookie.domain.startswith("localhost")
        else cookie.domain,
        "path": cookie.path,
        "expires": float(cookie.expires) if cookie.expires else -1,
        "httpOnly": cookie.has_nonstandard_attr("HttpOnly"),
        "secure": bool(cookie.secure),
        "sameSite": same_site if same_site in ("Strict", "Lax", "None") else "Lax",
    }
