"""Task templates of the shop that ask for an answer or a page."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.steps import (
    answer,
    chain,
    click,
    filter_by,
    open_first,
    open_link,
    read,
    search,
    sort_by,
)
from stepwell.envs.web.sites.templates.template import TaskTemplate

REVIEWS = open_first(r"/product/\d+/reviews")
FIND = chain(search("{title}"), open_link("{title}"))
PRODUCT = "SELECT id, title FROM products WHERE visible"
IN_STOCK = "SELECT id, title, options FROM products WHERE visible AND stock > 0"
REVIEWED = """
SELECT p.id, p.title, count(*) AS total FROM products p JOIN reviews r ON r.product = p.id AND approved
WHERE visible GROUP BY p.id
"""
MY_ORDER = "SELECT id, status, day FROM orders WHERE user = :me"
STATUS = "SELECT DISTINCT status FROM orders WHERE user = :me"
OPEN_ORDER = chain(click("Orders"), open_link("Order {id}"))

SHOP_QUESTIONS = (
    TaskTemplate(
        "shop.price",
        "How much does the product {title} cost?",
        "price of {title} ?",
        (FIND, read(r"Price: (\S+)"), answer()),
        sample=PRODUCT,
        answer="SELECT dollars(price) FROM products WHERE id = :id",
    ),
    TaskTemplate(
        "shop.brand",
        "Which brand makes the product {title}?",
        "name of brand of {title} ?",
        (FIND, read(r"Brand: (\S+)"), answer()),
        sample=PRODUCT,
        answer="SELECT brand FROM products WHERE id = :id",
    ),
    TaskTemplate(
        "shop.stock",
        "How many pieces of {title} are in stock?",
        "stock of {title} ?",
        (FIND, read(r"Stock: (\d+)"), answer()),
        sample=IN_STOCK,
        answer="SELECT stock FROM products WHERE id = :id",
    ),
    TaskTemplate(
        "shop.rating",
        "What is the average rating of {title}?",
        "rating of {title} ?",
        (FIND, read(r"Rating: (\S+)"), answer()),
        sample=REVIEWED,
        answer="SELECT round(avg(stars), 1) FROM reviews WHERE product = :id AND approved",
    ),
    TaskTemplate(
        "shop.cheapest",
        "What is the name of the cheapest product in the department {department}?",
        "title of first {department} by price up ?",
        (click("{department}"), sort_by("price up"), open_first(r"/product/\d+"), answer("{first}")),
        sample="SELECT DISTINCT department FROM products",
        answer="SELECT title FROM products WHERE department = :department ORDER BY price, id LIMIT 1",
    ),
    TaskTemplate(
        "shop.dearest",
        "What is the most expensive product in the department {department}?",
        "title of first {department} by price down ?",
        (click("{department}"), sort_by("price down"), open_first(r"/product/\d+"), answer("{first}")),
        sample="SELECT DISTINCT department FROM products",
        answer="SELECT title FROM products WHERE department = :department ORDER BY price DESC, id LIMIT 1",
        held_out=True,
    ),
    TaskTemplate(
        "shop.department_count",
        "How many products does the department {department} offer?",
        "number of {department} products ?",
        (click("{department}"), read(r"(\d+) product"), answer()),
        sample="SELECT DISTINCT department FROM products",
        answer="SELECT count(*) FROM products WHERE department = :department",
    ),
    TaskTemplate(
        "shop.review_count",
        "How many {stars} star reviews does {title} have?",
        "number of {stars} star reviews of {title} ?",
        (FIND, REVIEWS, filter_by("stars", "{stars}"), read(r"(\d+) review"), answer()),
        sample=REVIEWED,
        pools={"stars": (1, 2, 3, 4, 5)},
        answer="SELECT count(*) FROM reviews WHERE product = :id AND stars = :stars AND approved",
    ),
    TaskTemplate(
        "shop.newest_reviewer",
        "Who wrote the newest review of {title}?",
        "name of newest review user of {title} ?",
        (FIND, REVIEWS, sort_by("newest"), read(r"\d stars? by (\S+) on"), answer()),
        sample=REVIEWED,
        answer="SELECT author FROM reviews WHERE product = :id AND approved ORDER BY day DESC, id"
        " DESC LIMIT 1",
    ),
    TaskTemplate(
        "shop.order_total",
        "What was the total of my order {id}?",
        "total of order {id} ?",
        (OPEN_ORDER, read(r"Total: (\S+)"), answer()),
        sample=MY_ORDER,
        answer="SELECT dollars(total) FROM orders WHERE id = :id",
    ),
    TaskTemplate(
        "shop.order_status",
        "What is the status of my order {id}?",
        "status of order {id} ?",
        (OPEN_ORDER, read(r"Status: (\S+)"), answer()),
        sample=MY_ORDER,
        answer="SELECT status FROM orders WHERE id = :id",
    ),
    TaskTemplate(
        "shop.order_address",
        "To which address was my order {id} sent?",
        "address of order {id} ?",
        (OPEN_ORDER, read(r"Address: (.+)"), answer()),
        sample=MY_ORDER,
        answer="SELECT address FROM orders WHERE id = :id",
        held_out=True,
    ),
    TaskTemplate(
        "shop.status_count",
        "How many of my orders are {status}?",
        "number of {status} orders ?",
        (click("Orders"), filter_by("status", "{status}"), read(r"(\d+) order"), answer()),
        sample=STATUS,
        answer="SELECT count(*) FROM orders WHERE user = :me AND status = :status",
    ),
    TaskTemplate(
        "shop.newest_order_day",
        "When did I place my newest {status} order? Give the date as the shop shows it.",
        "date of newest {status} order ?",
        (
            click("Orders"),
            filter_by("status", "{status}"),
            sort_by("newest"),
            open_first(r"/orders/\d+"),
            read(r"Date: (\S+)"),
            answer(),
        ),
        sample=STATUS,
        answer="SELECT day FROM orders WHERE user = :me AND status = :status ORDER BY id DESC LIMIT 1",
    ),
    TaskTemplate(
        "shop.dearest_order",
        "What is the total of my largest {status} order?",
        "most total of {status} orders ?",
        (
            click("Orders"),
            filter_by("status", "{status}"),
            sort_by("total down"),
            open_first(r"/orders/\d+"),
            read(r"Total: (\S+)"),
            answer(),
        ),
        sample=STATUS,
        answer="SELECT dollars(max(total)) FROM orders WHERE user = :me AND status = :status",
        held_out=True,
    ),
    TaskTemplate(
        "shop.show_product",
        "Open the page of the product {title}.",
        "open {title}",
        (FIND,),
        sample=PRODUCT,
        url="/product/{id}",
    ),
    TaskTemplate(
        "shop.show_reviews",
        "Show me the reviews of {title}, worst first.",
        "open reviews of {title} by worst",
        (FIND, REVIEWS, sort_by("worst")),
        sample=PRODUCT,
        url="/product/{id}/reviews?sort=worst",
    ),
    TaskTemplate(
        "shop.show_department",
        "List the products of the department {department}, sorted by {order}.",
        "open {department} by {order}",
        (click("{department}"), sort_by("{order}")),
        sample="SELECT DISTINCT department FROM products",
        pools={"order": ("price up", "price down", "name")},
        url="/department/{department}?sort={order}",
    ),
    TaskTemplate(
        "shop.search_sorted",
        "Search for {kind} and sort the results by {order}.",
        "search {kind} by {order}",
        (search("{kind}"), sort_by("{order}")),
        sample="SELECT DISTINCT kind FROM products",
        pools={"order": ("price up", "price down", "name")},
        url="/search?q={kind}&sort={order}",
        held_out=True,
    ),
    TaskTemplate(
        "shop.show_orders",
        "Show only my {status} orders.",
        "open {status} orders",
        (click("Orders"), filter_by("status", "{status}")),
        pools={"status": ("pending", "shipped", "delivered", "cancelled")},
        url="/orders?status={status}",
    ),
)
