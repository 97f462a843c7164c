"""What the host of WebArena's tasks sets: where the sites are, which tasks, who compares answers.

    [env.options.webarena.sites]
    shopping = "http://localhost:7770"
    shopping_admin = "http://localhost:7780/admin"
    reddit = "http://localhost:9999"
    gitlab = "http://localhost:8023"
    map = "http://localhost:3000"

What they leave out can be set by environment variables of the host, by the names that WebArena itself uses
(`SHOPPING`, `SHOPPING_ADMIN`, `REDDIT`, `GITLAB`, `MAP`, `WIKIPEDIA`, `HOMEPAGE`), with `STEPWELL_WEBARENA_`
before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option
from stepwell.envs.web.webarena.accounts import WebArenaAccounts
from stepwell.envs.web.webarena.model_matcher import ModelMatcherConfig
from stepwell.envs.web.webarena.sites import WebArenaSites

VARIABLE = "STEPWELL_WEBARENA_"


class WebArenaOptions(Settings):
    """Sites, accounts, tasks and the matcher of answers."""

    sites: WebArenaSites = declare_host_option(WebArenaSites(), description="URLs of the sites")
    accounts: WebArenaAccounts = declare_host_option(WebArenaAccounts(), description="users of the sites")
    tasks: str | None = declare_host_option(
        None,
        description="file or folder of tasks of WebArena or WebArena-Lite; None: the package's 812",
    )
    rules: Literal["auto", "webarena", "lite"] = Field(
        "auto", description="whose rules judge: by the form of the file, WebArena's, or WebArena-Lite's"
    )
    split: Literal["auto", "train", "held_out"] = Field(
        "auto", description="of all tasks; auto: those with evaluators are held out, mere instructions not"
    )
    auth_folder: str | None = declare_host_option(
        None,
        description="folder of storage states, as WebArena's own script writes them; None: log in by form",
    )
    fuzzy: Literal["rule", "model"] = Field(
        "rule",
        description="who compares answers that need not match by letter: a rule, or the matcher's model",
    )
    matcher: ModelMatcherConfig = declare_host_option(
        ModelMatcherConfig(), description="the model that compares answers, by its URL"
    )

    @property
    def task_path(self) -> Path | None:
        """The file or folder of tasks; None for the package's."""
        return None if self.tasks is None else Path(self.tasks)


def fill_from_environment(options: WebArenaOptions) -> WebArenaOptions:
    """The options, with sites, tasks and folder from environment variables where they name none."""
    urls = options.sites.model_dump()
    found = {name: url or os.environ.get(VARIABLE + name.upper(), "") for name, url in urls.items()}
    return options.model_copy(
        update={
            "sites": WebArenaSites(**found),
            "tasks": options.tasks or os.environ.get(f"{VARIABLE}TASKS") or None,
            "auth_folder": options.auth_folder or os.environ.get(f"{VARIABLE}AUTH_FOLDER") or None,
        }
    )
