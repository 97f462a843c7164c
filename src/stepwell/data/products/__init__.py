"""Products of a shop: generated or read from WebShop's files, in SQLite with full-text search."""

from stepwell.data.products.catalogue import generated_catalogue, webshop_catalogue
from stepwell.data.products.product import Option, Product
from stepwell.data.products.store import Found, Store

__all__ = ["Found", "Option", "Product", "Store", "generated_catalogue", "webshop_catalogue"]
