"""Pages for people: the same pages as HTML, to be walked through in a browser.

The address holds the state (`?seed=…&view=…`), so pages can be shared and reloaded, and the back button
works. Every text of a product, a goal or a shopper is escaped. There are no scripts, and the content policy
of a page allows none.
"""

from __future__ import annotations

import json
from html import escape
from urllib.parse import quote

from stepwell.envs.shop.pages import OptionChoice, ShopPage
from stepwell.envs.shop.products.product import format_dollars
from stepwell.envs.shop.view import View

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
.task { background: #f3f1ea; padding: .7rem 1rem; border-radius: .4rem }
.note { color: #a33 } a { color: #135 } li { margin: .3rem 0 }
.button { display: inline-block; border: 1px solid #999; border-radius: .3rem; padding: .1rem .6rem;
          margin: .15rem .2rem .15rem 0; text-decoration: none }
.chosen { background: #135; color: #fff } input { font: inherit; padding: .2rem .5rem; width: 60% }
"""


def write_html_page(page: ShopPage, seed: int) -> str:
    """A page of the shop; links lead to `go`, which applies an action and shows where it led."""
    view = page.view
    parts = [f'<p class="task">{escape(page.instruction)}</p>', f"<h1>{escape(page.heading)}</h1>"]
    if page.has_search:
        parts.append(_write_search_form(view, seed))
    parts += [f"<p>{escape(line)}</p>" for line in page.lines if line]
    if page.products:
        rows = (
            f"<li>{_write_link(view, seed, number, title)} {escape(price)}</li>"
            for number, title, price in page.products
        )
        parts.append(f"<ol>{''.join(rows)}</ol>")
    parts += [_write_choice(view, seed, choice) for choice in page.choices]
    parts.append("".join(_write_link(view, seed, button, button, "button") for button in page.buttons))
    if view.note:
        parts.append(f'<p class="note">{escape(view.note)}</p>')
    parts.append(f'<p><a href="./?seed={seed + 1}">another task</a></p>')
    return wrap_document("\n".join(parts))


def wrap_document(body: str) -> str:
    """A whole document around a body that is HTML already."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
    return (
        f"<!doctype html><html lang=en><head>{head}<title>Shop</title></head><body>\n{body}\n</body></html>\n"
    )


def format_address(view: View, seed: int) -> str:
    """Format the address of a view, relative to the shop's own."""
    return f"page?seed={seed}&view={_pack_view(view)}"


def _pack_view(view: View) -> str:
    return quote(json.dumps(view.to_json(), separators=(",", ":")), safe="")


def _write_link(view: View, seed: int, what: str, label: str, kind: str = "") -> str:
    where = f"go?seed={seed}&view={_pack_view(view)}&action={quote(f'click[{what}]', safe='')}"
    return f'<a class="{kind}" href="{escape(where)}">{escape(label)}</a>'


def _write_choice(view: View, seed: int, choice: OptionChoice) -> str:
    extras = choice.extras or (0,) * len(choice.values)
    links = []
    for value, extra in zip(choice.values, extras, strict=True):
        label = f"{value} (+{format_dollars(extra)})" if extra else value
        links.append(
            _write_link(view, seed, value, label, "button chosen" if value == choice.chosen else "button")
        )
    return f"<p>{escape(choice.name)}: {''.join(links)}</p>"


def _write_search_form(view: View, seed: int) -> str:
    hidden = f"<input type=hidden name=seed value={seed}>"
    packed = escape(json.dumps(view.to_json()))
    return (
        f'<form action="go">{hidden}<input type=hidden name=view value="{packed}">'
        "<input name=words autofocus> <button>search</button></form>"
    )
