"""Settings of the web environment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option
from stepwell.envs.web.miniwob.options import MiniWobOptions
from stepwell.envs.web.webarena.options import WebArenaOptions

SITES = ("shop", "admin", "forum", "code", "map")
TINY_TOKENS, FULL_TOKENS = 700, 4000
TINY_TURNS, FULL_TURNS = 12, 20


class WebOptions(Settings):
    """Where tasks come from, who drives, and what is shown."""

    source: Literal["sites", "webarena", "miniwob"] = Field(
        "sites", description="sites: our own web; webarena: WebArena's tasks; miniwob: MiniWoB++"
    )
    driver: Literal["light", "chromium"] = declare_host_option(
        "light", description="light: no scripts and no browser needed; chromium: a real browser"
    )
    size: Literal["tiny", "full"] = Field("tiny", description="of our own sites: few words, or real ones")
    sites: tuple[Literal["shop", "admin", "forum", "code", "map"], ...] = Field(
        (), description="only tasks of these sites; empty: all"
    )
    kinds: tuple[Literal["information", "navigation", "content", "unachievable"], ...] = Field(
        (), description="only tasks of these kinds; empty: all"
    )
    templates: tuple[str, ...] = Field(
        (), description="only tasks of these templates of our own sites, such as shop.price; empty: all"
    )
    held_out: Literal["all", "parameters", "templates"] = Field(
        "all",
        description="held-out tasks of our own sites: with parameters, or templates, kept from training",
    )
    world: int = Field(0, ge=0, lt=2**31, description="seed of the data in our own sites")
    num_worlds: int = Field(
        1, ge=1, le=64, description="tasks come from this many worlds, from `world` on: each has other data"
    )
    webarena: WebArenaOptions = declare_host_option(
        WebArenaOptions(), description="sites, accounts, tasks and matcher of source webarena"
    )
    miniwob: MiniWobOptions = Field(MiniWobOptions(), description="pages of source miniwob")
    max_tokens: int | None = Field(
        None, ge=50, le=200_000, description="budget of an observation, estimated; None: 4000, tiny 700"
    )
    page_form: Literal["html", "short"] = Field(
        "html", description="how a page is written; short: [5]Red lamp for a link, half as many tokens"
    )
    max_turns: int | None = Field(None, ge=1, le=1000, description="None: 20, tiny 12")
    viewport: Literal["flow", "screen"] = Field(
        "flow", description="what is kept first: flow: lines, the same under both drivers; screen: as seen"
    )
    screenshot: Literal["none", "plain", "marks"] = Field(
        "none", description="an image of the page with every observation; marks: with the ids of elements"
    )
    show_url: bool = Field(True, description="write the address of the page above it")
    show_history: bool = Field(
        False, description="list the actions done so far in the observation, with their comments"
    )
    timeout_s: float = declare_host_option(
        10.0, gt=0, le=300, description="longest wait for a page after an action"
    )

    @property
    def source_options(self) -> dict[str, Settings]:
        """The options of their own that some sources have, by the source's name."""
        return {"webarena": self.webarena, "miniwob": self.miniwob}

    @property
    def is_tiny(self) -> bool:
        """Whether pages are made for tiny models."""
        return self.source == "sites" and self.size == "tiny"

    @property
    def token_budget(self) -> int:
        """The budget of an observation."""
        return self.max_tokens or (TINY_TOKENS if self.is_tiny else FULL_TOKENS)

    @property
    def turn_limit(self) -> int:
        """How many turns an episode has."""
        return self.max_turns or (TINY_TURNS if self.is_tiny else FULL_TURNS)

    @model_validator(mode="after")
    def _check_driver(self) -> WebOptions:
        needs = "env.options.driver=chromium"
        if self.driver == "light" and self.source == "miniwob":
            raise ValueError(f"the pages of miniwob are scripts: set {needs}")
        if self.driver == "light" and (self.screenshot != "none" or self.viewport == "screen"):
            raise ValueError(
                f"the light driver cannot see: set {needs}, or leave out screenshot and viewport"
            )
        return self
