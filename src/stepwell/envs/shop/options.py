"""Settings of the shop."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option


@dataclass(frozen=True, slots=True)
class Preset:
    """What the two sizes differ in, where nothing else is asked for."""

    num_products: int
    page_size: int
    max_turns: int


_DEPRECATED = {
    "transport": "the shop runs in the environment's own process; leave it out",
    "url": "serve the shop with `stepwell serve envs --env shop` and set env.name=remote:URL#shop",
    "timeout_s": "set the environment variable STEPWELL_ENV_TIMEOUT_S",
}
PRESETS = {"full": Preset(50_000, 10, 15), "tiny": Preset(300, 3, 8)}


class ShopOptions(Settings):
    """Catalogue, pages and limits."""

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
        "process", description="deprecated, without effect: the shop runs in the environment's own process"
    )
    url: str | None = declare_host_option(
        None, description="deprecated: use env.name=remote:URL#shop with `stepwell serve envs --env shop`"
    )
    timeout_s: float = Field(
        30.0, gt=0, le=600, description="deprecated, without effect: set STEPWELL_ENV_TIMEOUT_S"
    )

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

    @model_validator(mode="after")
    def _check_consistency(self) -> ShopOptions:
        if self.webshop_files is not None and (self.size == "tiny" or self.num_products is not None):
            raise ValueError("webshop_files bring their own products: leave out size and num_products")
        for name, advice in _DEPRECATED.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                message = f"env.options.{name} of shop goes in the next release: {advice}"
                warnings.warn(message, FutureWarning, stacklevel=2)
        return self
