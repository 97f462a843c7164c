"""The shop after a purchase: orders, account data, letters to the shop."""

from __future__ import annotations

import sqlite3

from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.web.sites.listing import ListQuery, choose_filter, list_rows
from stepwell.envs.web.sites.markup import Html, area, bullet_list, fact, field, form, join, link
from stepwell.envs.web.sites.visit import Answer, PageError, Redirect, Visit, page


def show_orders(visit: Visit) -> Answer:
    """My orders."""
    orders = {"newest": "id DESC", "oldest": "id", "total up": "total, id", "total down": "total DESC, id"}
    query = ListQuery("orders", orders).add_condition("user = ?", visit.user)
    if visit.query.get("status"):
        query.add_condition("status = ?", visit.query["status"])
    filters = [choose_filter(visit, "Status", "status", ["pending", "shipped", "delivered", "cancelled"])]

    def write_row(row: sqlite3.Row) -> Html:
        name = link(f"Order {row['id']}", f"/orders/{row['id']}")
        return join(name, f" {row['day']} {format_dollars(row['total'])} {row['status']}")

    return page("My orders", list_rows(visit, query, write_row, "order", filters))


def show_order(visit: Visit, number: int) -> Answer:
    """One of my orders."""
    row = visit.find_row("SELECT * FROM orders WHERE id = ? AND user = ?", number, visit.user)
    items = visit.find_all(
        "SELECT i.*, title FROM order_items i JOIN products p ON p.id = product WHERE order_id = ?"
        " ORDER BY p.id",
        number,
    )
    lines = [
        [link(item["title"], f"/product/{item['product']}"), f" {item['option']} x {item['qty']}"]
        for item in items
    ]
    is_open = row["status"] == "pending"
    return page(
        f"Order {number}",
        fact("Date", row["day"]),
        fact("Status", row["status"]),
        fact("Total", format_dollars(row["total"])),
        fact("Address", row["address"]),
        bullet_list(lines),
        form(f"/orders/{number}/address", "Change address", field("Address", "address")) if is_open else None,
        form(f"/orders/{number}/cancel", "Cancel order") if is_open else None,
        form(f"/orders/{number}/again", "Order again"),
    )


def cancel_order(visit: Visit, number: int) -> Answer:
    """Cancel an order that has not left."""
    _require_open(visit, number)
    visit.change("UPDATE orders SET status = 'cancelled' WHERE id = ?", number)
    return Redirect(f"/orders/{number}", "The order is cancelled.")


def change_address(visit: Visit, number: int) -> Answer:
    """Send an order that has not left to another address."""
    _require_open(visit, number)
    visit.change("UPDATE orders SET address = ? WHERE id = ?", visit.read_text("address"), number)
    return Redirect(f"/orders/{number}", "The address is changed.")


def _require_open(visit: Visit, number: int) -> None:
    row = visit.find_row("SELECT status FROM orders WHERE id = ? AND user = ?", number, visit.user)
    if row["status"] != "pending":
        raise PageError(400, "This order cannot be changed.")


def order_again(visit: Visit, number: int) -> Answer:
    """Put all of an order into the cart."""
    visit.find_row("SELECT 1 FROM orders WHERE id = ? AND user = ?", number, visit.user)
    visit.change(
        "INSERT INTO cart SELECT ?, product, option, qty FROM order_items WHERE order_id = ?"
        " ON CONFLICT DO UPDATE SET qty = min(99, qty + excluded.qty)",
        visit.user,
        number,
    )
    return Redirect("/cart", "Added to the cart.")


def show_account(visit: Visit) -> Answer:
    """My data."""
    row = visit.find_row("SELECT * FROM people WHERE name = ?", visit.user)
    fields = [field(label, label.lower(), row[label.lower()]) for label in ("Email", "Address", "Phone")]
    return page("Account", fact("Name", visit.user), form("/account", "Save", *fields))


def save_account(visit: Visit) -> Answer:
    """Change my data."""
    values = [visit.read_text(name) for name in ("email", "address", "phone")]
    visit.change("UPDATE people SET email = ?, address = ?, phone = ? WHERE name = ?", *values, visit.user)
    return Redirect("/account", "Saved.")


def show_contact(visit: Visit) -> Answer:
    """Write to the shop."""
    return page("Contact", form("/contact", "Send", field("Subject", "subject"), area("Text", "text")))


def send_letter(visit: Visit) -> Answer:
    """Keep a letter to the shop."""
    values = (visit.user, visit.read_text("subject"), visit.read_text("text"))
    visit.change("INSERT INTO letters (user, subject, text) VALUES (?, ?, ?)", *values)
    return Redirect("/contact", "We got your letter.")
