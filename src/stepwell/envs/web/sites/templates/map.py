"""Task templates of the map."""

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

FIND = chain(search("{name}"), open_link("{name}"))
ROUTE = chain(FIND, click("Route"), fill(to="{to}"), choose("by", "{by}"), click("Find route"))
FIRST = open_first(r"/place/\d+")
PLACE = "SELECT id, name FROM places"
PAIR = (
    "SELECT a.id, a.name AS name, b.id AS other, b.name AS 'to' FROM places a JOIN places b ON a.id <> b.id"
)
NEIGHBOURS = PAIR + " AND a.city = b.city AND (a.id * 7 + b.id * 3) % 5 < 2"
KINDS = "SELECT id, name, k.kind FROM places, (SELECT DISTINCT kind FROM places) k"
CITY, CITY_KIND = "SELECT DISTINCT city FROM places", "SELECT DISTINCT city, kind FROM places"
RATED = PLACE + " p WHERE EXISTS (SELECT 1 FROM ratings WHERE place = p.id)"
UNSAVED = PLACE + " WHERE id NOT IN (SELECT place FROM saved_places WHERE user = :me)"
SAVED = PLACE + " JOIN saved_places ON place = id WHERE user = :me"
MODES = ("walk", "bike", "car")
NEAREST = (
    "SELECT p.name FROM places p, places h WHERE h.id = :id AND p.id <> :id AND p.kind = :kind"
    " ORDER BY abs(p.x - h.x) + abs(p.y - h.y), p.id LIMIT 1"
)
NEAREST_ID = NEAREST.replace("p.name", "p.id", 1)
NEAREST_ID_OF_ROW = NEAREST_ID.replace(":id", "places.id").replace(":kind", "k.kind")

MAP_TEMPLATES = (
    TaskTemplate(
        "map.phone",
        "What is the phone number of {name}?",
        "phone of {name} ?",
        (FIND, read(r"Phone: (\S+)"), answer()),
        sample=PLACE,
        answer="SELECT phone FROM places WHERE id = :id",
    ),
    TaskTemplate(
        "map.address",
        "What is the address of {name}, with its city?",
        "address of {name} ?",
        (FIND, read(r"Address: (.+)"), answer()),
        sample=PLACE,
        answer="SELECT street || ' ' || city FROM places WHERE id = :id",
    ),
    TaskTemplate(
        "map.opens",
        "At what hour does {name} open?",
        "{name} opens at ?",
        (FIND, read(r"Opens: (\d+)"), answer()),
        sample=PLACE,
        answer="SELECT opens FROM places WHERE id = :id",
    ),
    TaskTemplate(
        "map.closes",
        "At what hour does {name} close?",
        "{name} closes at ?",
        (FIND, read(r"Closes: (\d+)"), answer()),
        sample=PLACE,
        answer="SELECT closes FROM places WHERE id = :id",
        held_out=True,
    ),
    TaskTemplate(
        "map.rating",
        "What is the average rating of {name}?",
        "rating of {name} ?",
        (FIND, read(r"Rating: (\S+)"), answer()),
        sample=RATED,
        answer="SELECT round(avg(stars), 1) FROM ratings WHERE place = :id",
    ),
    TaskTemplate(
        "map.rating_count",
        "How many people rated {name}?",
        "number of ratings of {name} ?",
        (FIND, click("Ratings"), read(r"(\d+) rating"), answer()),
        sample=PLACE,
        answer="SELECT count(*) FROM ratings WHERE place = :id",
    ),
    TaskTemplate(
        "map.worst_rater",
        "Who gave {name} its worst rating?",
        "user of worst rating of {name} ?",
        (FIND, click("Ratings"), sort_by("worst"), read(r"\d stars? by (\S+):"), answer()),
        sample=RATED,
        answer="SELECT user FROM ratings WHERE place = :id ORDER BY stars, id LIMIT 1",
        held_out=True,
    ),
    TaskTemplate(
        "map.kind_count",
        "How many places of the kind {kind} are in {city}?",
        "number of {kind} in {city} ?",
        (choose("kind", "{kind}"), choose("city", "{city}"), click("Apply"), read(r"(\d+) place"), answer()),
        sample=CITY_KIND,
        answer="SELECT count(*) FROM places WHERE kind = :kind AND city = :city",
    ),
    TaskTemplate(
        "map.city_count",
        "How many places does the map show in {city}?",
        "number of places in {city} ?",
        (filter_by("city", "{city}"), read(r"(\d+) place"), answer()),
        sample=CITY,
        answer="SELECT count(*) FROM places WHERE city = :city",
    ),
    TaskTemplate(
        "map.first_open",
        "Which place of the kind {kind} in {city} opens first?",
        "first {kind} in {city} by opens ?",
        (
            choose("kind", "{kind}"),
            choose("city", "{city}"),
            choose("sort", "opens"),
            click("Apply"),
            FIRST,
            answer("{first}"),
        ),
        sample=CITY_KIND,
        answer="SELECT name FROM places WHERE kind = :kind AND city = :city ORDER BY opens, id LIMIT 1",
    ),
    TaskTemplate(
        "map.last_open",
        "Which place of the kind {kind} in {city} closes last?",
        "first {kind} in {city} by closes ?",
        (
            choose("kind", "{kind}"),
            choose("city", "{city}"),
            choose("sort", "closes"),
            click("Apply"),
            FIRST,
            answer("{first}"),
        ),
        sample=CITY_KIND,
        answer="SELECT name FROM places WHERE kind = :kind AND city = :city ORDER BY closes DESC, id LIMIT 1",
        held_out=True,
    ),
    TaskTemplate(
        "map.nearest",
        "Which place of the kind {kind} is nearest to {name}?",
        "{kind} near {name} ?",
        (FIND, click("Near"), filter_by("kind", "{kind}"), FIRST, answer("{first}")),
        sample=KINDS,
        answer=NEAREST,
    ),
    TaskTemplate(
        "map.nearest_phone",
        "What is the phone number of the {kind} nearest to {name}?",
        "phone of {kind} near {name} ?",
        (FIND, click("Near"), filter_by("kind", "{kind}"), FIRST, read(r"Phone: (\S+)"), answer()),
        sample=KINDS,
        answer=NEAREST.replace("SELECT p.name", "SELECT p.phone"),
        held_out=True,
    ),
    TaskTemplate(
        "map.distance",
        "How many meters is it from {name} to {to} by {by}?",
        "distance {name} to {to} by {by} ?",
        (ROUTE, read(r"Distance: (\d+)"), answer()),
        sample=NEIGHBOURS,
        pools={"by": MODES},
        answer="SELECT route_length(:id, :other)",
    ),
    TaskTemplate(
        "map.time",
        "How many minutes does it take from {name} to {to} by {by}?",
        "time {name} to {to} by {by} ?",
        (ROUTE, read(r"Time: (\d+)"), answer()),
        sample=NEIGHBOURS,
        pools={"by": MODES},
        answer="SELECT route_minutes(:id, :other, :by)",
    ),
    TaskTemplate(
        "map.saved_count",
        "How many places has {me}, that is I, saved?",
        "number of {me} saved places ?",
        (click("Saved"), read(r"(\d+) place"), answer()),
        answer="SELECT count(*) FROM saved_places WHERE user = :me",
    ),
    TaskTemplate(
        "map.show_place",
        "Show {name} on the map.",
        "open {name}",
        (FIND,),
        sample=PLACE,
        url="/place/{id}",
    ),
    TaskTemplate(
        "map.show_route",
        "Show me the way from {name} to {to} by {by}.",
        "open {name} to {to} by {by}",
        (ROUTE,),
        sample=PAIR + " AND (a.id * 7 + b.id * 3) % 11 = 1",
        pools={"by": MODES},
        url="/route?from={name}&to={to}&by={by}",
    ),
    TaskTemplate(
        "map.show_kind",
        "List all places of the kind {kind} in {city}.",
        "open {kind} in {city}",
        (choose("kind", "{kind}"), choose("city", "{city}"), click("Apply")),
        sample=CITY_KIND,
        url="/?kind={kind}&city={city}",
    ),
    TaskTemplate(
        "map.show_near",
        "List the places of the kind {kind} near {name}.",
        "open {kind} near {name}",
        (FIND, click("Near"), filter_by("kind", "{kind}")),
        sample=KINDS,
        url="/place/{id}/near?kind={kind}",
    ),
    TaskTemplate(
        "map.show_ratings",
        "Open the ratings of {name}, {order} first.",
        "open ratings of {name} by {order}",
        (FIND, click("Ratings"), sort_by("{order}")),
        sample=PLACE,
        pools={"order": ("best", "worst")},
        url="/place/{id}/ratings?sort={order}",
        held_out=True,
    ),
    TaskTemplate(
        "map.save",
        "Save {name} in my list {list}.",
        "save {name} in {list}",
        (FIND, choose("list", "{list}"), click("Save")),
        sample=UNSAVED,
        pools={"list": ("liked", "later", "work")},
        effect=("INSERT INTO saved_places VALUES (:me, :id, :list)",),
    ),
    TaskTemplate(
        "map.save_nearest",
        "Save the {kind} nearest to {name} in my list {list}.",
        "save {kind} near {name} in {list}",
        (FIND, click("Near"), filter_by("kind", "{kind}"), FIRST, choose("list", "{list}"), click("Save")),
        sample=KINDS
        + f" WHERE ({NEAREST_ID_OF_ROW}) NOT IN (SELECT place FROM saved_places WHERE user = :me)",
        pools={"list": ("liked", "later", "work")},
        effect=(f"INSERT INTO saved_places SELECT :me, ({NEAREST_ID}), :list",),
    ),
    TaskTemplate(
        "map.forget",
        "Remove {name} from my saved places.",
        "take {name} out of saved",
        (click("Saved"), open_link("{name}"), click("Forget")),
        sample=SAVED,
        effect=("DELETE FROM saved_places WHERE user = :me AND place = :id",),
    ),
    TaskTemplate(
        "map.rate",
        'Rate {name} with {stars} stars and the text "{text}".',
        "rate {name} stars {stars} text {text}",
        (FIND, click("Ratings"), choose("stars", "{stars}"), fill(text="{text}"), click("Rate")),
        sample=PLACE,
        pools={"stars": (1, 2, 3, 4, 5), "text": "phrases"},
        effect=("INSERT INTO ratings (place, user, stars, text) VALUES (:id, :me, :stars, :text)",),
    ),
    TaskTemplate(
        "map.report",
        'Report about {name}: "{text}".',
        "report {text} of {name}",
        (FIND, click("Report"), fill(text="{text}"), click("Send")),
        sample=PLACE,
        pools={"text": "phrases"},
        effect=("INSERT INTO reports (place, user, text) VALUES (:id, :me, :text)",),
    ),
    TaskTemplate(
        "map.report_saved",
        'Report about the saved place {name}: "{text}".',
        "report {text} of saved {name}",
        (click("Saved"), open_link("{name}"), click("Report"), fill(text="{text}"), click("Send")),
        sample=SAVED,
        pools={"text": "phrases"},
        effect=("INSERT INTO reports (place, user, text) VALUES (:id, :me, :text)",),
        held_out=True,
    ),
    TaskTemplate(
        "map.set_mode",
        "Set my usual way to travel to {by}.",
        "put {by} in settings",
        (click("Settings"), choose("by", "{by}"), click("Save")),
        pools={"by": ("bike", "car")},
        effect=("UPDATE travel SET mode = :by WHERE user = :me",),
    ),
    TaskTemplate(
        "map.set_unit",
        "Show me distances in {unit} and let me travel by {by}.",
        "put {unit} and {by} in settings",
        (click("Settings"), choose("by", "{by}"), choose("unit", "{unit}"), click("Save")),
        pools={"unit": ("feet", "meters"), "by": ("bike", "car")},
        effect=("UPDATE travel SET unit = :unit, mode = :by WHERE user = :me",),
    ),
    TaskTemplate(
        "map.log_in_and_save",
        "Log in as {me} with the password {password} and save {name} in my list {list}.",
        "name {me} password {password} then save {name} in {list}",
        (
            click("Log in"),
            fill(name="{me}", password="{password}"),
            click("Log in", after="Search"),
            FIND,
            choose("list", "{list}"),
            click("Save"),
        ),
        sample="SELECT id, p.name, password FROM places p, people q WHERE q.name = :me"
        " AND id NOT IN (SELECT place FROM saved_places WHERE user = :me)",
        pools={"list": ("liked", "later", "work")},
        effect=("INSERT INTO saved_places VALUES (:me, :id, :list)",),
        is_logged_in=False,
    ),
    TaskTemplate(
        "map.missing_place",
        "What is the phone number of {name}? Answer N/A if there is no such place.",
        "phone of {name} ?",
        (search("{name}"), give_up("(?m)^0 places")),
        sample="SELECT DISTINCT 'zoo ' || kind AS name FROM places",
    ),
    TaskTemplate(
        "map.missing_kind",
        "Save a {kind} in {city} in my list liked. Answer N/A if there is none.",
        "save {kind} in {city}",
        (filter_by("city", "{city}"), give_up("places")),
        sample=CITY,
        pools={"kind": ("zoo", "ship", "bridge", "tower")},
    ),
    TaskTemplate(
        "map.no_way",
        "How long is the way from {name} to {to}? Answer N/A if one of them does not exist.",
        "distance {name} to {to} ?",
        (FIND, click("Route"), fill(to="{to}"), click("Find route"), give_up("nothing here")),
        sample=PLACE,
        pools={"to": ("moon", "mars", "zoo")},
        held_out=True,
    ),
)
