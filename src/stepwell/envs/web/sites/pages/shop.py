"""The shop: departments, search, products, reviews, wish list, cart, coupons, checkout."""

from __future__ import annotations

import sqlite3

from stepwell.core.text import format_count
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, choice, fact, field, form, join, link, tag
from stepwell.envs.web.sites.pages.shop_account import (
    cancel_order,
    change_address,
    order_again,
    save_account,
    send_letter,
    show_account,
    show_contact,
    show_order,
    show_orders,
)
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Site, Visit, page

PRODUCT_ORDERS = {
    "best match": "length(title), id",
    "price up": "price, id",
    "price down": "price DESC, id",
    "name": "title",
}
MAX_QTY = 99


def show_home(visit: Visit) -> Answer:
    """Announcement and departments."""
    text = visit.find_value("SELECT value FROM settings WHERE key = 'announcement'")
    rows = visit.find_all("SELECT DISTINCT department FROM products WHERE visible ORDER BY department")
    departments = [link(row[0], f"/department/{row[0]}") for row in rows]
    join_form = form("/subscribe", "Subscribe", field("Email", "email"))
    return page("Home", tag("p", text), tag("p", Html(" ".join(departments))), tag("h2", "News"), join_form)


def subscribe_email(visit: Visit) -> Answer:
    """Join the newsletter."""
    email = visit.read_text("email")
    if "@" not in email:
        raise PageError(400, "This is no email address.")
    visit.change("INSERT OR IGNORE INTO subscribers VALUES (?)", email)
    return Redirect("/", "You get our news.")


def show_search(visit: Visit) -> Answer:
    """Products by words."""
    words = visit.query.get("q", "")
    query = _list_visible().add_words(words, "title", "text", "brand")
    return page(f"Search: {words}", list_rows(visit, query, _write_product_row, "product"))


def show_department(visit: Visit, name: str) -> Answer:
    """Products of a department; in a large one, of one kind if wanted."""
    query = _list_visible().add_condition("department = ?", name)
    kinds = [
        row[0]
        for row in visit.find_all("SELECT DISTINCT kind FROM products WHERE department = ? ORDER BY 1", name)
    ]
    if visit.query.get("kind"):
        query.add_condition("kind = ?", visit.query["kind"])
    filters = [choose_filter(visit, "Kind", "kind", kinds)] if len(kinds) > 1 else []
    return page(name, list_rows(visit, query, _write_product_row, "product", filters))


def _list_visible() -> ListQuery:
    return ListQuery("products", PRODUCT_ORDERS).add_condition("visible")


def _write_product_row(row: sqlite3.Row) -> Html:
    return join(link(row["title"], f"/product/{row['id']}"), f" {format_dollars(row['price'])}")


def show_product(visit: Visit, number: int) -> Answer:
    """One product, to put into cart or wish list."""
    row = visit.find_row("SELECT * FROM products WHERE id = ? AND visible", number)
    stars, count = visit.find_row(
        "SELECT round(avg(stars), 1), count(*) FROM reviews WHERE product = ? AND approved", number
    )
    buy = form(
        f"/product/{number}/cart",
        "Add to cart",
        choice("Option", "option", row["options"].split(",")),
        field("Quantity", "qty", 1),
    )
    return page(
        row["title"],
        fact("Price", format_dollars(row["price"])),
        fact("Brand", row["brand"]),
        fact("Kind", row["kind"]),
        fact("Stock", row["stock"] or "sold out"),
        fact("Rating", stars if count else "none"),
        tag("p", row["text"]),
        buy if row["stock"] else None,
        form(f"/product/{number}/wish", "Add to wish list"),
        tag("p", link(f"Reviews ({count})", f"/product/{number}/reviews")),
    )


def add_to_cart(visit: Visit, number: int) -> Answer:
    """Put a product into the cart; what is there already is added to."""
    row = visit.find_row("SELECT * FROM products WHERE id = ? AND visible", number)
    option = visit.read_choice("option", row["options"].split(","))
    qty = visit.read_number("qty", 1, MAX_QTY)
    if not row["stock"]:
        raise PageError(400, "This product is sold out.")
    visit.change(
        "INSERT INTO cart VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET qty = min(99, qty + excluded.qty)",
        visit.user,
        number,
        option,
        qty,
    )
    return Redirect("/cart", "Added to the cart.")


def add_wish(visit: Visit, number: int) -> Answer:
    """Put a product onto the wish list."""
    visit.find_row("SELECT 1 FROM products WHERE id = ? AND visible", number)
    visit.change("INSERT OR IGNORE INTO wishes VALUES (?, ?)", visit.user, number)
    return Redirect("/wishes", "Added to the wish list.")


def show_wishes(visit: Visit) -> Answer:
    """The wish list."""
    rows = visit.find_all(
        "SELECT p.* FROM wishes JOIN products p ON p.id = product WHERE user = ? ORDER BY p.id", visit.user
    )
    items = [[_write_product_row(row), form(f"/wishes/{row['id']}/remove", "Remove")] for row in rows]
    return page("Wish list", tag("p", format_count(len(rows), "product")), bullet_list(items))


def remove_wish(visit: Visit, number: int) -> Answer:
    """Take a product off the wish list."""
    visit.change("DELETE FROM wishes WHERE user = ? AND product = ?", visit.user, number)
    return Redirect("/wishes", "Removed.")


def show_reviews(visit: Visit, number: int) -> Answer:
    """What people say of a product."""
    title = visit.find_value("SELECT title FROM products WHERE id = ? AND visible", number) or "Reviews"
    orders = {
        "newest": "day DESC, id DESC",
        "oldest": "day, id",
        "best": "stars DESC, id",
        "worst": "stars, id",
    }
    query = ListQuery("reviews", orders).add_condition("product = ? AND approved", number)
    if visit.query.get("stars"):
        query.add_condition("stars = ?", visit.query["stars"])
    filters = [choose_filter(visit, "Stars", "stars", ["1", "2", "3", "4", "5"])]

    def write_row(row: sqlite3.Row) -> Html:
        return join(f"{format_count(row['stars'], 'star')} by {row['author']} on {row['day']}: {row['text']}")

    rows = list_rows(visit, query, write_row, "review", filters)
    back = tag(
        "p",
        link("Back to product", f"/product/{number}"),
        " ",
        link("Write review", f"/product/{number}/review"),
    )
    return page(f"Reviews of {title}", back, rows)


def show_review_form(visit: Visit, number: int) -> Answer:
    """Write a review."""
    title = visit.find_row("SELECT title FROM products WHERE id = ?", number)[0]
    stars = choice("Stars", "stars", ["5", "4", "3", "2", "1"])
    return page(
        f"Review {title}", form(f"/product/{number}/review", "Send review", stars, area("Text", "text"))
    )


def send_review(visit: Visit, number: int) -> Answer:
    """Keep a review until the shop approves it."""
    visit.find_row("SELECT 1 FROM products WHERE id = ? AND visible", number)
    stars, text = visit.read_number("stars", 1, 5), visit.read_text("text")
    visit.change(
        "INSERT INTO reviews (product, author, stars, text, day, approved) VALUES (?, ?, ?, ?, ?, 0)",
        number,
        visit.user,
        stars,
        text,
        visit.today,
    )
    return Redirect(f"/product/{number}/reviews", "Thank you. We will look at your review.")


def show_cart(visit: Visit) -> Answer:
    """What is in the cart."""
    rows = _read_cart(visit)
    items = [
        [
            link(row["title"], f"/product/{row['product']}"),
            f" {row['option']}, {format_dollars(row['price'])} each",
            form(f"/cart/{row['product']}/{row['option']}", "Update", field("Quantity", "qty", row["qty"])),
        ]
        for row in rows
    ]
    total = sum(row["price"] * row["qty"] for row in rows)
    code = str(visit.find_value("SELECT value FROM settings WHERE key = ?", f"coupon:{visit.user}") or "")
    return page(
        "Cart",
        bullet_list(items),
        fact("Total", format_dollars(total)),
        fact("Coupon", code) if code else None,
        form("/coupon", "Use coupon", field("Coupon", "code")) if rows else None,
        tag("p", link("Check out", "/checkout")) if rows else None,
    )


def _read_cart(visit: Visit) -> list[sqlite3.Row]:
    return visit.find_all(
        "SELECT c.*, title, price FROM cart c JOIN products p ON p.id = product WHERE user = ? ORDER BY p.id",
        visit.user,
    )


def change_quantity(visit: Visit, number: int, option: str) -> Answer:
    """Change how many are wanted; 0 removes the product."""
    qty = visit.read_number("qty", 0, MAX_QTY)
    key = (visit.user, number, option)
    if qty:
        visit.change("UPDATE cart SET qty = ? WHERE user = ? AND product = ? AND option = ?", qty, *key)
    else:
        visit.change("DELETE FROM cart WHERE user = ? AND product = ? AND option = ?", *key)
    return Redirect("/cart", "The cart is changed.")


def use_coupon(visit: Visit) -> Answer:
    """Remember a coupon for the next order."""
    code = visit.read_text("code").upper()
    if not visit.find_value("SELECT active FROM coupons WHERE code = ?", code):
        raise PageError(400, "This coupon is not valid.")
    visit.change("INSERT OR REPLACE INTO settings VALUES (?, ?)", f"coupon:{visit.user}", code)
    return Redirect("/cart", f"Coupon {code} is used.")


def show_checkout(visit: Visit) -> Answer:
    """The last look before an order."""
    total, code = _price_cart(visit)
    address = visit.find_value("SELECT address FROM people WHERE name = ?", visit.user)
    lines = [fact("Total", format_dollars(total)), fact("Coupon", code or "none")]
    return page("Check out", *lines, form("/checkout", "Place order", field("Address", "address", address)))


def _price_cart(visit: Visit) -> tuple[int, str]:
    rows = _read_cart(visit)
    if not rows:
        raise PageError(400, "The cart is empty.")
    code = str(visit.find_value("SELECT value FROM settings WHERE key = ?", f"coupon:{visit.user}") or "")
    percent = visit.find_value("SELECT percent FROM coupons WHERE code = ? AND active", code) or 0
    total = sum(row["price"] * row["qty"] for row in rows)
    return total * (100 - percent) // 100, code


def place_order(visit: Visit) -> Answer:
    """Turn the cart into an order."""
    total, code = _price_cart(visit)
    address = visit.read_text("address")
    number = visit.change(
        "INSERT INTO orders (user, day, status, total, address, coupon) VALUES (?, ?, 'pending', ?, ?, ?)",
        visit.user,
        visit.today,
        total,
        address,
        code,
    )
    for row in _read_cart(visit):
        item = (number, row["product"], row["option"], row["qty"], row["price"])
        visit.change("INSERT INTO order_items VALUES (?, ?, ?, ?, ?)", *item)
    visit.change("DELETE FROM cart WHERE user = ?", visit.user)
    visit.change("DELETE FROM settings WHERE key = ?", f"coupon:{visit.user}")
    return Redirect(f"/orders/{number}", "Thank you for your order.")


SHOP = Site(
    "shop",
    "Shop",
    (
        ("Cart", "/cart"),
        ("Orders", "/orders"),
        ("Wishes", "/wishes"),
        ("Account", "/account"),
        ("Contact", "/contact"),
    ),
    (
        PageRoute("GET", "/", show_home),
        PageRoute("POST", "/subscribe", subscribe_email),
        PageRoute("GET", "/search", show_search),
        PageRoute("GET", "/department/{name}", show_department),
        PageRoute("GET", "/product/{number:int}", show_product),
        PageRoute("POST", "/product/{number:int}/cart", add_to_cart, private=True),
        PageRoute("POST", "/product/{number:int}/wish", add_wish, private=True),
        PageRoute("GET", "/product/{number:int}/reviews", show_reviews),
        PageRoute("GET", "/product/{number:int}/review", show_review_form, private=True),
        PageRoute("POST", "/product/{number:int}/review", send_review, private=True),
        PageRoute("GET", "/wishes", show_wishes, private=True),
        PageRoute("POST", "/wishes/{number:int}/remove", remove_wish, private=True),
        PageRoute("GET", "/cart", show_cart, private=True),
        PageRoute("POST", "/cart/{number:int}/{option}", change_quantity, private=True),
        PageRoute("POST", "/coupon", use_coupon, private=True),
        PageRoute("GET", "/checkout", show_checkout, private=True),
        PageRoute("POST", "/checkout", place_order, private=True),
        PageRoute("GET", "/orders", show_orders, private=True),
        PageRoute("GET", "/orders/{number:int}", show_order, private=True),
        PageRoute("POST", "/orders/{number:int}/cancel", cancel_order, private=True),
        PageRoute("POST", "/orders/{number:int}/address", change_address, private=True),
        PageRoute("POST", "/orders/{number:int}/again", order_again, private=True),
        PageRoute("GET", "/account", show_account, private=True),
        PageRoute("POST", "/account", save_account, private=True),
        PageRoute("GET", "/contact", show_contact, private=True),
        PageRoute("POST", "/contact", send_letter, private=True),
    ),
)
