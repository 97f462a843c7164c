"""The accounts with which an agent is logged in to WebArena's sites.

The published images of the sites have fixed accounts. They are read from the package that carries the tasks,
as data (its file is parsed and never run), unless the host sets others. Without the package and without
settings a task that needs a log-in is refused, with the name of the option to set.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import ConfigError
from stepwell.envs.options import declare_host_option

LOGIN_SITES = ("shopping", "shopping_admin", "reddit", "gitlab")


class Account(Settings):
    """A user of a site."""

    username: str = Field(min_length=1, description="name or e-mail address")
    password: str = Field(min_length=1, description="password", repr=False)


class WebArenaAccounts(Settings):
    """One account per site; None: that of the published images."""

    shopping: Account | None = declare_host_option(None, description="customer of the shop")
    shopping_admin: Account | None = declare_host_option(None, description="administrator of the shop")
    reddit: Account | None = declare_host_option(None, description="member of the forum")
    gitlab: Account | None = declare_host_option(None, description="user of the code host")


def find_account(site: str, accounts: WebArenaAccounts) -> Account:
    """The account for `site`: the host's, or else the published one."""
    account: Account | None = getattr(accounts, site)
    account = account or read_published_accounts().get(site)
    if account is None:
        raise ConfigError(
            f"no account for {site!r}: set webarena.accounts.{site} (username and password), "
            "or pip install --no-deps libwebarena, which carries those of the published images"
        )
    return account


@cache
def read_published_accounts() -> Mapping[str, Account]:
    """The accounts that the package states; none if it is not installed."""
    try:
        path = Path(str(distribution("libwebarena").locate_file("webarena/browser_env/env_config.py")))
    except PackageNotFoundError:
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ACCOUNTS":
            stated = ast.literal_eval(node.value)
            return {site: Account(**stated[site]) for site in LOGIN_SITES if site in stated}
    return {}
