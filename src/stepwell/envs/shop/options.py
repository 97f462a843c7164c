"""Settings of the shop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option


@dataclass(frozen=True, slots=True)
class Preset:
    """What the two sizes differ in, where nothing else is asked for."""

    num_products: int
    page_size: int
    max_turns: int


PRESETS = {"full": Preset(50_000, 10, 15), "tiny": Preset(300, 3, 8)}


class ShopOptions(Settings):
    """Catalogue, pages, limits, and where the shop runs."""

    size: Literal["full", "tiny"] = Field("full", description="full: for real models; tiny: short words, few")
    num_products: int | None = declare_host_option(
        None, ge=20, le=2_000_000, description="generated products; None: 50,000, tiny 300"
    )
    catalogue_seed: int = declare_host_option(0, ge=0, lt=2**63, description="seed of the generated products")
    webshop_files: str | None = declare_host_option(
        None, description="folder of WebShop's own product files, instead"
    )
    page_size: int | None = Field(None, ge=1, le=50, description="results on a page; None: 10, tiny 3")
    max_turns: int | None = Field(None, ge=3, le=1000, description="turns of an episode; None: 15, tiny 8")
    transport: Literal["process", "http"] = declare_host_option(
        "process", description="http: ask a server on this machine, which the world starts"
    )
    url: str | None = declare_host_option(
        None, description="http://HOST:PORT of a shop that runs already; shared by worlds"
    )
    timeout_s: float = Field(30.0, gt=0, le=600, description="how long an answer of the server may take")

    @property
    def products(self) -> int:
        """How many products are generated."""
        return self.num_products or PRESETS[self.size].num_products

    @property
    def results(self) -> int:
        """How many results a page lists."""
        return self.page_size or PRESETS[self.size].page_size

    @property
    def turns(self) -> int:
        """How many turns there are."""
        return self.max_turns or PRESETS[self.size].max_turns

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme != "http" or not urlsplit(url).hostname):
            raise ValueError(f"write http://HOST:PORT, got {url!r}")
        return url

    @model_validator(mode="after")
    def _consistent(self) -> ShopOptions:
        if self.webshop_files is not None and (self.size == "tiny" or self.num_products is not None):
            raise ValueError("webshop_files bring their own products: leave out size and num_products")
        return self
