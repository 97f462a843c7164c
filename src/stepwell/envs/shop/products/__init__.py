"""Products of a shop: generated or read from WebShop's files, in SQLite with full-text search."""

from stepwell.envs.shop.products.catalogue import open_generated_catalogue, open_webshop_catalogue
from stepwell.envs.shop.products.product import Option, Product
from stepwell.envs.shop.products.store import SearchResult, Store

__all__ = [
    "Option",
    "Product",
    "SearchResult",
    "Store",
    "open_generated_catalogue",
    "open_webshop_catalogue",
]
