"""Products of a shop: generated or read from WebShop's files, in SQLite with full-text search."""

from stepwell.envs.shop.products.catalogue import generated_catalogue, webshop_catalogue
from stepwell.envs.shop.products.product import Option, Product
from stepwell.envs.shop.products.store import Found, Store

__all__ = ["Found", "Option", "Product", "Store", "generated_catalogue", "webshop_catalogue"]
