"""People, and the shop with all that its admin sees: products, reviews, orders, coupons, settings.

Products come from the generator of the shop environment. Every price is in cents.
"""

from __future__ import annotations

import itertools
import random
import sqlite3

from stepwell.envs.shop.products.generator import generate_products
from stepwell.envs.shop.products.product import Product
from stepwell.envs.shop.products.vocabulary import load_vocabulary
from stepwell.envs.web.sites.seeding.words import SiteWords, shorten_name

SCHEMA = """
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE people (name TEXT PRIMARY KEY, password TEXT, email TEXT, address TEXT, phone TEXT, about TEXT,
                     is_staff INTEGER DEFAULT 0);
CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT, kind TEXT, department TEXT, price INTEGER,
                       stock INTEGER, visible INTEGER DEFAULT 1, brand TEXT, options TEXT, text TEXT);
CREATE TABLE reviews (id INTEGER PRIMARY KEY, product INTEGER, author TEXT, stars INTEGER, text TEXT,
                      day TEXT, approved INTEGER);
CREATE TABLE cart (user TEXT, product INTEGER, option TEXT, qty INTEGER, PRIMARY KEY (user, product, option));
CREATE TABLE wishes (user TEXT, product INTEGER, PRIMARY KEY (user, product));
CREATE TABLE orders (id INTEGER PRIMARY KEY, user TEXT, day TEXT, status TEXT, total INTEGER, address TEXT,
                     coupon TEXT);
CREATE TABLE order_items (order_id INTEGER, product INTEGER, option TEXT, qty INTEGER, price INTEGER);
CREATE TABLE coupons (code TEXT PRIMARY KEY, percent INTEGER, active INTEGER);
CREATE TABLE subscribers (email TEXT PRIMARY KEY);
CREATE TABLE letters (id INTEGER PRIMARY KEY, user TEXT, subject TEXT, text TEXT);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT);
CREATE INDEX reviews_product ON reviews (product);
CREATE INDEX items_order ON order_items (order_id);
"""
STATUSES = ("pending", "shipped", "delivered", "cancelled")
STAFF = "admin"
NUM_TINY_PRODUCTS = 600  # made, so that enough of them have different titles


def seed_shop(db: sqlite3.Connection, rng: random.Random, words: SiteWords) -> None:
    """Fill the tables."""
    accounts = _seed_people(db, rng, words)
    products = _draw_products(rng, words)
    db.executemany(
        "INSERT INTO products VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?)",
        [_make_product_row(number, product, rng, words) for number, product in enumerate(products, 1)],
    )
    prices = [product.price for product in products]
    _seed_reviews(db, rng, words, accounts, len(products))
    _seed_orders(db, rng, words, accounts, prices)
    me = accounts[0]
    for number in rng.sample(range(1, len(products) + 1), 4):
        db.execute("INSERT INTO wishes VALUES (?, ?)", (me, number))
    coupons = [("SAVE10", 10, 1), ("SAVE20", 20, 0), ("HELLO5", 5, 1)]
    db.executemany("INSERT INTO coupons VALUES (?, ?, ?)", coupons)
    texts = ("Welcome", "Welcome to our shop. Parcels leave every day.")
    settings = [("announcement", texts[words.size == "full"]), ("shipping", "300"), ("returns", "30")]
    db.executemany("INSERT INTO settings VALUES (?, ?)", settings)


def _seed_people(db: sqlite3.Connection, rng: random.Random, words: SiteWords) -> list[str]:
    accounts = [shorten_name(name) for name in words.people]
    for account in [*accounts, STAFF]:
        address = f"{rng.randint(1, 99)} {rng.choice(words.list('streets'))}"
        phone = str(rng.randint(100, 999)) if words.size == "tiny" else f"555-{rng.randint(1000, 9999)}"
        email = f"{account}@{words.table['domain']}"
        password = f"{account[:3]}{rng.randint(10, 99)}"
        about = words.draw(rng, "sentences")
        row = (account, password, email, address, phone, about, int(account == STAFF))
        db.execute("INSERT INTO people VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return accounts


def _draw_products(rng: random.Random, words: SiteWords) -> list[Product]:
    """Products with titles of their own: of equal titles, which only the tiny vocabulary makes, the last."""
    vocabulary, num_products = load_vocabulary(words.size), words.count("products")
    num_made = num_products if vocabulary.has_texts else NUM_TINY_PRODUCTS
    unique = {made.title: made for made in generate_products(vocabulary, rng.getrandbits(32), num_made)}
    return list(itertools.islice(unique.values(), num_products))


def _make_product_row(
    number: int, product: Product, rng: random.Random, words: SiteWords
) -> tuple[int | str, ...]:
    brand = product.description.rstrip(".").split()[-1] if words.size == "tiny" else product.title.split()[0]
    department = product.category[0] if words.size == "full" else product.kind
    option = product.options[0]
    stock = rng.choice((0, 3, 5, 8, 12, 20, 40))
    values = ",".join(option.values)
    text = " ".join(product.features)
    return number, product.title, product.kind, department, product.price, stock, brand, values, text


def _seed_reviews(
    db: sqlite3.Connection, rng: random.Random, words: SiteWords, accounts: list[str], num_products: int
) -> None:
    most = 4 if words.size == "tiny" else 8
    for product in range(1, num_products + 1):
        for author in rng.sample(accounts[1:], rng.randint(0, min(most, len(accounts) - 1))):
            text, day = words.draw(rng, "sentences"), words.draw_day(rng)
            row = (product, author, rng.randint(1, 5), text, day, int(rng.random() < 0.85))
            db.execute(
                "INSERT INTO reviews (product, author, stars, text, day, approved) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )


def _seed_orders(
    db: sqlite3.Connection, rng: random.Random, words: SiteWords, accounts: list[str], prices: list[int]
) -> None:
    options = {row[0]: row[1].split(",") for row in db.execute("SELECT id, options FROM products")}
    days = sorted(words.draw_day(rng) for _ in range(words.count("orders")))
    for number, day in enumerate(days, 101):
        user = accounts[0] if rng.random() < 0.4 else rng.choice(accounts)
        status, address = rng.choice(STATUSES), f"{rng.randint(1, 99)} {rng.choice(words.list('streets'))}"
        total = 0
        for product in rng.sample(range(1, len(prices) + 1), rng.randint(1, 3)):
            qty = rng.randint(1, 3)
            total += qty * prices[product - 1]
            item = (number, product, rng.choice(options[product]), qty, prices[product - 1])
            db.execute("INSERT INTO order_items VALUES (?, ?, ?, ?, ?)", item)
        db.execute(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, '')", (number, user, day, status, total, address)
        )
