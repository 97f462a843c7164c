"""The admin of the shop: what its staff sees and changes, over the shop's own tables."""

from __future__ import annotations

import sqlite3

from stepwell.core.text import format_count
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, choice, fact, field, form, join, link, tag
from stepwell.envs.web.sites.seeding.shop import STATUSES
from stepwell.envs.web.sites.visit import Answer, PageError, PageRoute, Redirect, Site, Visit, page

PRODUCT_ORDERS = {
    "name": "title",
    "price up": "price, id",
    "price down": "price DESC, id",
    "stock": "stock, id",
}
MAX_PRICE, MAX_STOCK = 10_000_000, 100_000
SETTINGS = {"announcement": "Announcement", "shipping": "Shipping", "returns": "Returns"}


def show_home(visit: Visit) -> Answer:
    """What waits for staff."""
    waiting = visit.find_value("SELECT count(*) FROM orders WHERE status = 'pending'")
    reviews = visit.find_value("SELECT count(*) FROM reviews WHERE NOT approved")
    sales = visit.find_value("SELECT sum(total) FROM orders WHERE status <> 'cancelled'")
    return page(
        "Dashboard",
        fact("Pending orders", waiting),
        fact("Waiting reviews", reviews),
        fact("Sales", format_dollars(sales)),
        fact("Letters", visit.find_value("SELECT count(*) FROM letters")),
    )


def show_search(visit: Visit) -> Answer:
    """Orders and reviews by number, products by words."""
    words = visit.query.get("q", "").strip()
    if not (words.isascii() and words.isdigit()):
        return show_products(visit)
    number, found = int(words[:12]), []
    for name in ("Order", "Review"):
        if visit.find_value(f"SELECT 1 FROM {name.lower()}s WHERE id = ?", number):
            found.append(link(f"{name} {number}", f"/{name.lower()}s/{number}"))
    return page(f"Search: {number}", bullet_list(found))


def show_products(visit: Visit) -> Answer:
    """All products."""
    words = visit.query.get("q", "")
    query = ListQuery("products", {"best match": "length(title), id", **PRODUCT_ORDERS})
    query.add_words(words, "title")
    if visit.query.get("stock") == "sold out":
        query.add_condition("stock = 0")

    def write_row(row: sqlite3.Row) -> Html:
        hidden = "" if row["visible"] else ", hidden"
        text = f" {format_dollars(row['price'])}, stock {row['stock']}{hidden}"
        return join(link(row["title"], f"/products/{row['id']}"), text)

    filters = [choose_filter(visit, "Stock", "stock", ["sold out"])]
    return page("Products", list_rows(visit, query, write_row, "product", filters))


def show_product(visit: Visit, number: int) -> Answer:
    """One product, to change."""
    row = visit.find_row("SELECT * FROM products WHERE id = ?", number)
    sold = visit.find_value("SELECT ifnull(sum(qty), 0) FROM order_items WHERE product = ?", number)
    return page(
        row["title"],
        fact("Kind", row["kind"]),
        fact("Brand", row["brand"]),
        fact("Price", format_dollars(row["price"])),
        fact("Sold", sold),
        form(
            f"/products/{number}",
            "Save",
            field("Title", "title", row["title"]),
            field("Cents", "price", row["price"]),
            field("Stock", "stock", row["stock"]),
            choice("Visible", "visible", ("yes", "no"), "yes" if row["visible"] else "no"),
        ),
    )


def save_product(visit: Visit, number: int) -> Answer:
    """Change a product."""
    visit.find_row("SELECT 1 FROM products WHERE id = ?", number)
    values = (
        visit.read_text("title"),
        visit.read_number("price", 1, MAX_PRICE),
        visit.read_number("stock", 0, MAX_STOCK),
        int(visit.read_choice("visible", ("yes", "no")) == "yes"),
    )
    visit.change(
        "UPDATE products SET title = ?, price = ?, stock = ?, visible = ? WHERE id = ?", *values, number
    )
    return Redirect(f"/products/{number}", "Saved.")


def show_orders(visit: Visit) -> Answer:
    """All orders."""
    orders = {"newest": "id DESC", "oldest": "id", "total up": "total, id", "total down": "total DESC, id"}
    query = ListQuery("orders", orders)
    if visit.query.get("status"):
        query.add_condition("status = ?", visit.query["status"])

    def write_row(row: sqlite3.Row) -> Html:
        name = link(f"Order {row['id']}", f"/orders/{row['id']}")
        return join(name, f" {row['user']} {format_dollars(row['total'])} {row['status']}")

    filters = [choose_filter(visit, "Status", "status", STATUSES)]
    return page("Orders", list_rows(visit, query, write_row, "order", filters))


def show_order(visit: Visit, number: int) -> Answer:
    """One order, to move on."""
    row = visit.find_row("SELECT * FROM orders WHERE id = ?", number)
    items = visit.find_all(
        "SELECT i.*, title FROM order_items i JOIN products p ON p.id = product WHERE order_id = ?"
        " ORDER BY p.id",
        number,
    )
    return page(
        f"Order {number}",
        tag("p", "Customer: ", link(row["user"], f"/customers/{row['user']}")),
        fact("Date", row["day"]),
        fact("Status", row["status"]),
        fact("Total", format_dollars(row["total"])),
        fact("Address", row["address"]),
        bullet_list([f"{item['title']} {item['option']} x {item['qty']}" for item in items]),
        form(f"/orders/{number}", "Save", choice("Status", "status", STATUSES, row["status"])),
    )


def save_order(visit: Visit, number: int) -> Answer:
    """Change where an order stands."""
    visit.find_row("SELECT 1 FROM orders WHERE id = ?", number)
    visit.change("UPDATE orders SET status = ? WHERE id = ?", visit.read_choice("status", STATUSES), number)
    return Redirect(f"/orders/{number}", "Saved.")


def show_reviews(visit: Visit) -> Answer:
    """Reviews, those that wait first."""
    query = ListQuery(
        "reviews r JOIN products p ON p.id = product",
        {"newest": "day DESC, r.id DESC", "worst": "stars, r.id", "best": "stars DESC, r.id"},
        "r.*, title",
    )
    if visit.query.get("state"):
        query.add_condition("approved = ?", int(visit.query["state"] == "approved"))

    def write_row(row: sqlite3.Row) -> Html:
        return join(
            link(f"Review {row['id']}", f"/reviews/{row['id']}"),
            f" {format_count(row['stars'], 'star')}: {row['title']}",
        )

    filters = [choose_filter(visit, "State", "state", ["waiting", "approved"])]
    return page("Reviews", list_rows(visit, query, write_row, "review", filters))


def show_review(visit: Visit, number: int) -> Answer:
    """One review, to approve or delete."""
    row = visit.find_row(
        "SELECT r.*, title FROM reviews r JOIN products p ON p.id = product WHERE r.id = ?", number
    )
    return page(
        f"Review {number}",
        fact("Product", row["title"]),
        fact("Author", row["author"]),
        fact("Stars", row["stars"]),
        fact("Text", row["text"]),
        fact("State", "approved" if row["approved"] else "waiting"),
        None if row["approved"] else form(f"/reviews/{number}/approve", "Approve"),
        form(f"/reviews/{number}/delete", "Delete"),
    )


def approve_review(visit: Visit, number: int) -> Answer:
    """Show a review in the shop."""
    visit.change("UPDATE reviews SET approved = 1 WHERE id = ?", number)
    return Redirect(f"/reviews/{number}", "Approved.")


def delete_review(visit: Visit, number: int) -> Answer:
    """Delete a review."""
    visit.change("DELETE FROM reviews WHERE id = ?", number)
    return Redirect("/reviews", "The review is gone.")


def show_customers(visit: Visit) -> Answer:
    """All customers with what they bought."""
    query = ListQuery(
        "people p",
        {"name": "name", "most orders": "orders DESC, name", "most spent": "spent DESC, name"},
        "p.*, (SELECT count(*) FROM orders WHERE user = name) AS orders,"
        " (SELECT ifnull(sum(total), 0) FROM orders WHERE user = name AND status <> 'cancelled') AS spent",
    ).add_condition("NOT is_staff")

    def write_row(row: sqlite3.Row) -> Html:
        return join(
            link(row["name"], f"/customers/{row['name']}"), f" {format_count(row['orders'], 'order')}"
        )

    return page("Customers", list_rows(visit, query, write_row, "customer"))


def show_customer(visit: Visit, name: str) -> Answer:
    """One customer."""
    row = visit.find_row("SELECT * FROM people WHERE name = ? AND NOT is_staff", name)
    count = visit.find_value("SELECT count(*) FROM orders WHERE user = ?", name)
    spent = visit.find_value(
        "SELECT ifnull(sum(total), 0) FROM orders WHERE user = ? AND status <> 'cancelled'", name
    )
    return page(
        f"Customer {name}",
        fact("Orders", count),
        fact("Spent", format_dollars(spent)),
        form(
            f"/customers/{name}",
            "Save",
            field("Email", "email", row["email"]),
            field("Address", "address", row["address"]),
            field("Phone", "phone", row["phone"]),
        ),
    )


def save_customer(visit: Visit, name: str) -> Answer:
    """Change a customer's data."""
    visit.find_row("SELECT 1 FROM people WHERE name = ? AND NOT is_staff", name)
    values = [visit.read_text(key) for key in ("email", "address", "phone")]
    visit.change("UPDATE people SET email = ?, address = ?, phone = ? WHERE name = ?", *values, name)
    return Redirect(f"/customers/{name}", "Saved.")


def show_coupons(visit: Visit) -> Answer:
    """All coupons."""
    rows = visit.find_all("SELECT * FROM coupons ORDER BY code")
    items = [
        [
            f"{row['code']}: {row['percent']} percent, {'on' if row['active'] else 'off'}",
            form(f"/coupons/{row['code']}", f"Turn {'off' if row['active'] else 'on'} {row['code']}"),
        ]
        for row in rows
    ]
    new = form("/coupons", "Create", field("Code", "code"), field("Percent", "percent"))
    return page("Coupons", bullet_list(items), new)


def toggle_coupon(visit: Visit, code: str) -> Answer:
    """Turn a coupon on or off."""
    visit.change("UPDATE coupons SET active = 1 - active WHERE code = ?", code)
    return Redirect("/coupons", "Saved.")


def create_coupon(visit: Visit) -> Answer:
    """Make a coupon."""
    code, percent = visit.read_text("code").upper(), visit.read_number("percent", 1, 90)
    if not code.isalnum() or visit.find_value("SELECT 1 FROM coupons WHERE code = ?", code):
        raise PageError(400, "This code is taken or has signs that are no letters or digits.")
    visit.change("INSERT INTO coupons VALUES (?, ?, 1)", code, percent)
    return Redirect("/coupons", "The coupon is there.")


def show_report(visit: Visit) -> Answer:
    """What sold best, and what each status is worth."""
    best = visit.find_all(
        "SELECT title, sum(qty) AS sold FROM order_items JOIN products p ON p.id = product"
        " GROUP BY product ORDER BY sold DESC, product LIMIT 5"
    )
    sums = visit.find_all("SELECT status, count(*), sum(total) FROM orders GROUP BY status ORDER BY status")
    return page(
        "Report",
        tag("h2", "Best sellers"),
        bullet_list([f"{row['title']}: {row['sold']} sold" for row in best]),
        tag("h2", "Orders"),
        bullet_list([f"{row[0]}: {format_count(row[1], 'order')}, {format_dollars(row[2])}" for row in sums]),
    )


def show_settings(visit: Visit) -> Answer:
    """What the shop says and does."""
    rows = {row["key"]: row["value"] for row in visit.find_all("SELECT * FROM settings")}
    fields = [
        area(label, key, rows[key]) if key == "announcement" else field(label, key, rows[key])
        for key, label in SETTINGS.items()
    ]
    return page("Settings", form("/settings", "Save", *fields))


def save_settings(visit: Visit) -> Answer:
    """Change the settings."""
    for key in SETTINGS:
        visit.change("UPDATE settings SET value = ? WHERE key = ?", visit.read_text(key), key)
    return Redirect("/settings", "Saved.")


_LINKS = ("Products", "Orders", "Reviews", "Customers", "Coupons", "Report", "Settings")
ADMIN = Site(
    "admin",
    "Admin",
    tuple((name, f"/{name.lower()}") for name in _LINKS),
    (
        PageRoute("GET", "/", show_home, private=True),
        PageRoute("GET", "/search", show_search, private=True),
        PageRoute("GET", "/products", show_products, private=True),
        PageRoute("GET", "/products/{number:int}", show_product, private=True),
        PageRoute("POST", "/products/{number:int}", save_product, private=True),
        PageRoute("GET", "/orders", show_orders, private=True),
        PageRoute("GET", "/orders/{number:int}", show_order, private=True),
        PageRoute("POST", "/orders/{number:int}", save_order, private=True),
        PageRoute("GET", "/reviews", show_reviews, private=True),
        PageRoute("GET", "/reviews/{number:int}", show_review, private=True),
        PageRoute("POST", "/reviews/{number:int}/approve", approve_review, private=True),
        PageRoute("POST", "/reviews/{number:int}/delete", delete_review, private=True),
        PageRoute("GET", "/customers", show_customers, private=True),
        PageRoute("GET", "/customers/{name}", show_customer, private=True),
        PageRoute("POST", "/customers/{name}", save_customer, private=True),
        PageRoute("GET", "/coupons", show_coupons, private=True),
        PageRoute("POST", "/coupons", create_coupon, private=True),
        PageRoute("POST", "/coupons/{code}", toggle_coupon, private=True),
        PageRoute("GET", "/report", show_report, private=True),
        PageRoute("GET", "/settings", show_settings, private=True),
        PageRoute("POST", "/settings", save_settings, private=True),
    ),
)
