"""The functions that tasks of WebArena call by name: a few questions to the sites after the episode.

    reddit_get_post_url(url)                    the post that a URL of a comment belongs to
    gitlab_get_project_memeber_role(page, name) the role of a member on the page of a project's members
    shopping_get_latest_order_url()             the page of the newest order          (REST, as administrator)
    shopping_get_sku_latest_review_author(sku)  the author of a product's newest review     (REST)
    shopping_get_sku_latest_review_rating(sku)  the rating of a product's newest review, in percent  (REST)

The misspelt name is the published one. The shop's REST interface needs the administrator's account, which the
host sets. A question that fails is a fault of the system (`EnvError`), except where the page or product is
not what the task expects: that is an empty text, and so a task that was not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from stepwell.core import ConfigError
from stepwell.core.errors import EnvError
from stepwell.envs.web.webarena.accounts import Account
from stepwell.envs.web.webarena.locator_values import parse_html, select_elements
from stepwell.envs.web.webarena.page_content import SiteFunction
from stepwell.envs.web.webarena.rendered_text import render_text


def list_functions(shop_url: str, administrator: Account | None) -> Mapping[str, SiteFunction]:
    """All functions by their published names, for a shop at `shop_url`."""
    shop = ShopApi(shop_url, administrator)
    return {
        "reddit_get_post_url": find_post_url,
        "gitlab_get_project_memeber_role": find_member_role,
        "shopping_get_latest_order_url": shop.find_latest_order_url,
        "shopping_get_sku_latest_review_author": shop.find_review_author,
        "shopping_get_sku_latest_review_rating": shop.find_review_rating,
    }


def find_post_url(url: str) -> str:
    """The URL of the post that `url` belongs to; other URLs come back as they are."""
    parts = urlsplit(url)
    steps = parts.path.split("/")
    if len(steps) < 4 or steps[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{steps[2]}/{steps[3]}/"


def find_member_role(page: str, name: str) -> str:
    """The role that the page of a project's members shows for the account `name`; empty if it has none."""
    root = parse_html(page)
    labels = select_elements(root, "td[data-label='Account'] span.gl-avatar-labeled-sublabel")
    roles = select_elements(root, "td.col-max-role span")
    accounts = [render_text(label) for label in labels]
    if f"@{name}" not in accounts or accounts.index(f"@{name}") >= len(roles):
        return ""
    return render_text(roles[accounts.index(f"@{name}")])


class ShopApi:
    """The REST interface of the shop, asked as its administrator."""

    def __init__(self, url: str, administrator: Account | None, timeout_s: float = 30.0) -> None:
        self.url, self.administrator, self.timeout_s = url.rstrip("/"), administrator, timeout_s
        self._client: Any = None

    def find_latest_order_url(self) -> str:
        """The page of the newest order."""
        query = {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        }
        orders = self._get_json("/rest/V1/orders", query)
        items = orders.get("items") if isinstance(orders, dict) else None
        if not items:
            raise EnvError(f"the shop at {self.url} reports no orders")
        return f"{self.url}/sales/order/view/order_id/{int(items[0]['increment_id'])}/"

    def find_review_author(self, sku: str) -> str:
        """The name under the newest review of a product; empty if it has none."""
        reviews = self._list_reviews(sku)
        return str(reviews[-1]["nickname"]) if reviews else ""

    def find_review_rating(self, sku: str) -> str:
        """The rating of the newest review of a product, in percent; empty if it has none."""
        reviews = self._list_reviews(sku)
        return str(reviews[-1]["ratings"][0]["percent"]) if reviews and reviews[-1].get("ratings") else ""

    def _list_reviews(self, sku: str) -> list[Any]:
        found = self._get_json(f"/rest/V1/products/{quote(sku, safe='')}/reviews", {})
        return found if isinstance(found, list) else []

    def _get_json(self, path: str, query: dict[str, str]) -> Any:
        headers = {"authorization": f"Bearer {self._fetch_token()}"}
        return self._request_json("GET", path, params=query, headers=headers)

    def _fetch_token(self) -> str:
        account = self.administrator
        if account is None:
            raise ConfigError("the task asks the shop's REST interface; set webarena.accounts.shopping_admin")
        body = {"username": account.username, "password": account.password}
        return str(self._request_json("POST", "/rest/default/V1/integration/admin/token", json=body))

    def _request_json(self, method: str, path: str, **request: Any) -> Any:
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=self.timeout_s)
        try:
            response = self._client.request(method, self.url + path, **request)
            response.raise_for_status()
            return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise EnvError(f"the shop at {self.url} did not answer {path}: {error}") from error
