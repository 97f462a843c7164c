"""The addresses of WebArena's sites, and the placeholders in its tasks that stand for them.

    __SHOPPING__/checkout/cart  ──fill_urls──►  http://shop.example:7770/checkout/cart

A task names sites by placeholders, so one file of tasks serves every installation. The host of a run states
where the sites are: `WebArenaSites` holds five addresses, and those of Wikipedia and the home page, which
agents may visit. A task whose site has no address is refused when it starts, with the name of the option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import field_validator

from stepwell.config.base import Settings
from stepwell.core import ConfigError
from stepwell.envs.options import declare_host_option

SITE_NAMES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia", "homepage")
_PLACEHOLDER = re.compile(r"__(SHOPPING_ADMIN|SHOPPING|REDDIT|GITLAB|MAP|WIKIPEDIA|HOMEPAGE)__")


class WebArenaSites(Settings):
    """Base URLs of the sites; a site that no task uses may stay empty."""

    shopping: str = declare_host_option("", description="URL of the shop")
    shopping_admin: str = declare_host_option("", description="URL of the shop's administration, with /admin")
    reddit: str = declare_host_option("", description="URL of the forum")
    gitlab: str = declare_host_option("", description="URL of the code host")
    map: str = declare_host_option("", description="URL of the map")
    wikipedia: str = declare_host_option(
        "", description="URL of the encyclopedia; no published task begins there"
    )
    homepage: str = declare_host_option("", description="URL of the page that lists the sites")

    @field_validator("*")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(f"a site's URL begins with http:// or https://, got {url!r}")
        return url.rstrip("/")

    def list_hosts(self) -> tuple[str, ...]:
        """Hosts, with their ports, of all sites that have an address, each once."""
        urls = [str(url) for url in self.model_dump().values() if url]
        return tuple(dict.fromkeys(urlsplit(url).netloc for url in urls))


def fill_urls(text: str, sites: WebArenaSites | Mapping[str, str]) -> str:
    """Replace every placeholder in `text` by the address of its site."""
    urls = sites.model_dump() if isinstance(sites, WebArenaSites) else sites

    def find_url(match: re.Match[str]) -> str:
        name = match[1].lower()
        if not urls.get(name):
            raise ConfigError(f"the task needs the site {name!r}; set the option webarena.sites.{name}")
        return urls[name]

    return _PLACEHOLDER.sub(find_url, text)
