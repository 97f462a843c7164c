"""Task templates of the shop."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.steps import (
    answer,
    chain,
    choose,
    click,
    fill,
    filter_by,
    give_up,
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
WITH_OPTION = """
WITH RECURSIVE split(id, title, price, option, rest) AS (
    SELECT id, title, price, '', options || ',' FROM products WHERE visible AND stock > 0
    UNION ALL
    SELECT id, title, price, substr(rest, 1, instr(rest, ',') - 1), substr(rest, instr(rest, ',') + 1)
    FROM split WHERE rest <> '')
SELECT id, title, price, option FROM split WHERE option <> ''
"""
REVIEWED = """
SELECT p.id, p.title, count(*) AS total FROM products p JOIN reviews r ON r.product = p.id AND approved
WHERE visible GROUP BY p.id
"""
MY_ORDER = "SELECT id, status, day FROM orders WHERE user = :me"
PENDING = MY_ORDER + " AND status = 'pending'"
STATUS = "SELECT DISTINCT status FROM orders WHERE user = :me"
OPEN_ORDER = chain(click("Orders"), open_link("Order {id}"))

SHOP_TEMPLATES = (
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
        (click("{department}"), read(r"(\d+) products"), answer()),
        sample="SELECT DISTINCT department FROM products",
        answer="SELECT count(*) FROM products WHERE department = :department",
    ),
    TaskTemplate(
        "shop.review_count",
        "How many {stars} star reviews does {title} have?",
        "number of {stars} star reviews of {title} ?",
        (FIND, REVIEWS, filter_by("stars", "{stars}"), read(r"(\d+) reviews"), answer()),
        sample=REVIEWED,
        pools={"stars": (1, 2, 3, 4, 5)},
        answer="SELECT count(*) FROM reviews WHERE product = :id AND stars = :stars AND approved",
    ),
    TaskTemplate(
        "shop.newest_reviewer",
        "Who wrote the newest review of {title}?",
        "name of newest review user of {title} ?",
        (FIND, REVIEWS, sort_by("newest"), read(r"\d stars by (\S+) on"), answer()),
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
        (click("Orders"), filter_by("status", "{status}"), read(r"(\d+) orders"), answer()),
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
    TaskTemplate(
        "shop.add_to_cart",
        "Put {qty} of {title} with the option {option} into my cart.",
        "put {qty} {title} option {option} in cart",
        (FIND, choose("option", "{option}"), fill(qty="{qty}"), click("Add to cart")),
        sample=WITH_OPTION,
        pools={"qty": (1, 2, 3, 4)},
        effect=("INSERT INTO cart VALUES (:me, :id, :option, :qty)",),
    ),
    TaskTemplate(
        "shop.buy",
        "Order one {title} with the option {option} to my usual address.",
        "buy {title} option {option}",
        (FIND, choose("option", "{option}"), click("Add to cart"), click("Check out"), click("Place order")),
        sample=WITH_OPTION,
        effect=(
            "INSERT INTO orders (user, day, status, total, address, coupon) SELECT :me, :today,"
            " 'pending', :price,"
            " address, '' FROM people WHERE name = :me",
            "INSERT INTO order_items SELECT max(id), :id, :option, 1, :price FROM orders",
        ),
    ),
    TaskTemplate(
        "shop.buy_to_address",
        "Order one {title} with the option {option} and have it sent to {number} {street}.",
        "buy {title} option {option} to {number} {street}",
        (
            FIND,
            choose("option", "{option}"),
            click("Add to cart"),
            click("Check out"),
            fill(address="{number} {street}"),
            click("Place order"),
        ),
        sample=WITH_OPTION,
        pools={"number": (5, 12, 40), "street": "streets"},
        effect=(
            "INSERT INTO orders (user, day, status, total, address, coupon)"
            " VALUES (:me, :today, 'pending', :price, :number || ' ' || :street, '')",
            "INSERT INTO order_items SELECT max(id), :id, :option, 1, :price FROM orders",
        ),
        held_out=True,
    ),
    TaskTemplate(
        "shop.buy_with_coupon",
        "Order one {title} with the option {option} to my usual address, with the coupon {code}.",
        "buy {title} option {option} coupon {code}",
        (
            FIND,
            choose("option", "{option}"),
            click("Add to cart"),
            fill(code="{code}"),
            click("Use coupon"),
            click("Check out"),
            click("Place order"),
        ),
        sample=f"SELECT x.*, code FROM ({WITH_OPTION}) x, coupons WHERE active",
        effect=(
            "INSERT INTO orders (user, day, status, total, address, coupon) SELECT :me, :today, 'pending',"
            " :price * (100 - percent) / 100, address, :code FROM people, coupons WHERE name = :me"
            " AND code = :code",
            "INSERT INTO order_items SELECT max(id), :id, :option, 1, :price FROM orders",
        ),
    ),
    TaskTemplate(
        "shop.add_wish",
        "Put {title} onto my wish list.",
        "put {title} in wishes",
        (FIND, click("Add to wish list")),
        sample=PRODUCT + " AND id NOT IN (SELECT product FROM wishes WHERE user = :me)",
        effect=("INSERT INTO wishes VALUES (:me, :id)",),
    ),
    TaskTemplate(
        "shop.remove_wish",
        "Take {title} off my wish list.",
        "take {title} out of wishes",
        (click("Wishes"), click("Remove", after="{title}")),
        sample="SELECT id, title FROM products JOIN wishes ON product = id WHERE user = :me",
        effect=("DELETE FROM wishes WHERE user = :me AND product = :id",),
    ),
    TaskTemplate(
        "shop.write_review",
        'Review {title}: give {stars} stars and write "{text}".',
        "review {title} stars {stars} text {text}",
        (
            FIND,
            REVIEWS,
            click("Write review"),
            choose("stars", "{stars}"),
            fill(text="{text}"),
            click("Send review"),
        ),
        sample=PRODUCT,
        pools={"stars": (1, 2, 3, 4, 5), "text": "phrases"},
        effect=(
            "INSERT INTO reviews (product, author, stars, text, day, approved)"
            " VALUES (:id, :me, :stars, :text, :today, 0)",
        ),
    ),
    TaskTemplate(
        "shop.cancel_order",
        "Cancel my order {id}.",
        "stop order {id}",
        (OPEN_ORDER, click("Cancel order")),
        sample=PENDING,
        effect=("UPDATE orders SET status = 'cancelled' WHERE id = :id",),
    ),
    TaskTemplate(
        "shop.change_order_address",
        "My order {id} shall go to {number} {street} instead.",
        "order {id} to {number} {street}",
        (OPEN_ORDER, fill(address="{number} {street}"), click("Change address")),
        sample=PENDING,
        pools={"number": (5, 12, 40), "street": "streets"},
        effect=("UPDATE orders SET address = :number || ' ' || :street WHERE id = :id",),
    ),
    TaskTemplate(
        "shop.order_again",
        "Put everything from my order {id} into the cart again.",
        "put order {id} in cart again",
        (OPEN_ORDER, click("Order again")),
        sample=MY_ORDER,
        effect=("INSERT INTO cart SELECT :me, product, option, qty FROM order_items WHERE order_id = :id",),
    ),
    TaskTemplate(
        "shop.change_phone",
        "Change the phone number of my account to {phone}.",
        "put phone {phone} in account",
        (click("Account"), fill(phone="{phone}"), click("Save")),
        pools={"phone": tuple(range(200, 1000, 37))},
        effect=("UPDATE people SET phone = :phone WHERE name = :me",),
    ),
    TaskTemplate(
        "shop.change_address",
        "I moved: change the address of my account to {number} {street}.",
        "put address {number} {street} in account",
        (click("Account"), fill(address="{number} {street}"), click("Save")),
        pools={"number": tuple(range(3, 99, 7)), "street": "streets"},
        effect=("UPDATE people SET address = :number || ' ' || :street WHERE name = :me",),
    ),
    TaskTemplate(
        "shop.write_letter",
        'Write to the shop with the subject "{subject}" and the text "{text}".',
        "letter to shop: {subject} text {text}",
        (click("Contact"), fill(subject="{subject}", text="{text}"), click("Send")),
        pools={"subject": "subjects", "text": "phrases"},
        effect=("INSERT INTO letters (user, subject, text) VALUES (:me, :subject, :text)",),
    ),
    TaskTemplate(
        "shop.subscribe",
        "Subscribe {email} to the newsletter.",
        "news to {email}",
        (fill(email="{email}"), click("Subscribe")),
        sample="SELECT name || '@news.' || CASE WHEN length(email) < 13 THEN 'up' ELSE 'example'"
        " END AS email FROM people",
        effect=("INSERT INTO subscribers VALUES (:email)",),
        held_out=True,
    ),
    TaskTemplate(
        "shop.log_in_and_wish",
        "Log in as {me} with the password {password} and put {title} onto the wish list.",
        "name {me} password {password} then put {title} in wishes",
        (
            click("Log in"),
            fill(name="{me}", password="{password}"),
            click("Log in", after="Search"),
            FIND,
            click("Add to wish list"),
        ),
        sample="SELECT id, title, password FROM products, people WHERE name = :me"
        " AND id NOT IN (SELECT product FROM wishes WHERE user = :me)",
        effect=("INSERT INTO wishes VALUES (:me, :id)",),
        is_logged_in=False,
    ),
    TaskTemplate(
        "shop.buy_sold_out",
        "Put {title} into my cart. If that is not possible, answer N/A.",
        "put {title} in cart",
        (FIND, give_up("Stock: sold out")),
        sample="SELECT id, title FROM products WHERE visible AND stock = 0",
    ),
    TaskTemplate(
        "shop.cancel_sent_order",
        "Cancel my order {id}. If that is not possible, answer N/A.",
        "stop order {id}",
        (OPEN_ORDER, give_up("Status: (shipped|delivered)")),
        sample=MY_ORDER + " AND status IN ('shipped', 'delivered')",
    ),
    TaskTemplate(
        "shop.missing_order",
        "What is the total of my order {id}? Answer N/A if there is no such order.",
        "total of order {id} ?",
        (click("Orders"), give_up("orders")),
        pools={"id": tuple(range(900, 1000, 7))},
    ),
    TaskTemplate(
        "shop.bad_coupon",
        "Order one {title} with the coupon {code}. If the coupon is not valid, leave the cart"
        " empty and answer N/A.",
        "buy {title} coupon {code}",
        (
            FIND,
            click("Add to cart"),
            fill(code="{code}"),
            click("Use coupon"),
            click("Cart"),
            fill(qty="0"),
            click("Update"),
            give_up("Nothing here"),
        ),
        sample="SELECT id, title, code FROM products, coupons WHERE stock > 0 AND NOT active",
        held_out=True,
    ),
)
