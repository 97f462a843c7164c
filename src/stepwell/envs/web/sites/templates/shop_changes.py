"""Task templates of the shop that change something, or ask for what cannot be done."""

from __future__ import annotations

from stepwell.envs.web.sites.templates.shop import (
    FIND,
    MY_ORDER,
    OPEN_ORDER,
    PRODUCT,
    REVIEWS,
)
from stepwell.envs.web.sites.templates.steps import (
    choose,
    click,
    fill,
    give_up,
)
from stepwell.envs.web.sites.templates.template import TaskTemplate

WITH_OPTION = """
WITH RECURSIVE split(id, title, price, option, rest) AS (
    SELECT id, title, price, '', options || ',' FROM products WHERE visible AND stock > 0
    UNION ALL
    SELECT id, title, price, substr(rest, 1, instr(rest, ',') - 1), substr(rest, instr(rest, ',') + 1)
    FROM split WHERE rest <> '')
SELECT id, title, price, option FROM split WHERE option <> ''
"""
PENDING = MY_ORDER + " AND status = 'pending'"

SHOP_CHANGES = (
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
