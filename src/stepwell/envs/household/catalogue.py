"""The building blocks of households: kinds of places, things and rooms.

A *place* is a receptacle that the agent can stand at; some can be opened and closed. A *thing* lies in a
place or is held. Each kind of thing has homes, the kinds of places where it may lie. At the start it is found
in one of them, and it can be put only into them; this is common sense that an agent can learn. Lamps are
things that are used in their place and cannot be taken.

There are two catalogues. `FULL` has rooms as large as ALFWorld's, with names in its style. `TINY` has few
places, short names, few words and only the useful commands, for models of a million parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["place", "light", "clean", "heat", "cool", "two"]
FAMILIES: tuple[Family, ...] = ("place", "light", "clean", "heat", "cool", "two")
TREATMENTS: tuple[Family, ...] = ("clean", "heat", "cool")


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """The places where a kind of thing may lie, and its possible treatments (`TREATMENTS`)."""

    homes: tuple[str, ...]
    treatments: frozenset[str] = frozenset()
    is_lamp: bool = False


@dataclass(frozen=True, slots=True)
class RoomKind:
    """The number of places of each kind in a room (minimum, maximum), and whether it occurs in training."""

    places: Mapping[str, tuple[int, int]]
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One size of households. `appliances` maps treatments to kinds of places."""

    rooms: Mapping[str, RoomKind]
    openable: frozenset[str]
    things: Mapping[str, ObjectKind]
    appliances: Mapping[str, str]  # treatment -> kind of place
    num_places: tuple[int, int]  # per room, minimum and maximum
    num_things: tuple[int, int]  # kinds of things besides the goal's, minimum and maximum
    num_wordings: int  # ways to phrase a goal
    is_terse: bool  # whether goals, views and commands are a few words instead of sentences
    numbers_all: bool  # whether a name has a number even if it is the only one of its kind
    has_idle_verbs: bool  # close, examine, look, inventory: useless for every goal
    max_turns: int
    spare_turns: int

    def accepts(self, place_kind: str, thing_kind: str) -> bool:
        """Whether a thing of this kind may lie in a place of this kind."""
        return place_kind in self.things[thing_kind].homes


def _read_things(rows: str) -> dict[str, ObjectKind]:
    """Lines `kind [treatments]: home home ...`; the treatment `lamp` marks a lamp."""
    found = {}
    for row in rows.strip().splitlines():
        head, _, homes = row.partition(":")
        kind, *can = head.split()
        found[kind] = ObjectKind(tuple(homes.split()), frozenset(can) - {"lamp"}, "lamp" in can)
    return found


def _read_places(row: str) -> dict[str, tuple[int, int]]:
    """`kind least-most` or `kind count`, with commas between."""
    found = {}
    for part in row.split(","):
        kind, count = part.split()
        least, _, most = count.partition("-")
        found[kind] = int(least), int(most or least)
    return found


FULL = Catalogue(
    rooms={
        "kitchen": RoomKind(
            _read_places(
                "cabinet 3-6, drawer 2-4, countertop 1-3, fridge 1, microwave 1, sinkbasin 1, "
                "stoveburner 1-4, coffeemachine 1, toaster 0-1, garbagecan 1, diningtable 0-1, shelf 0-3"
            )
        ),
        "bedroom": RoomKind(
            _read_places(
                "bed 1, desk 1-2, drawer 2-5, sidetable 0-2, dresser 0-1, shelf 0-5, armchair 0-1, "
                "garbagecan 1, safe 0-1, laundryhamper 0-1"
            )
        ),
        "bathroom": RoomKind(
            _read_places(
                "cabinet 2-4, countertop 1-2, sinkbasin 1-2, toilet 1, toiletpaperhanger 1, towelholder 1-2, "
                "handtowelholder 1-2, garbagecan 1, bathtubbasin 0-1, shelf 0-1, drawer 0-2"
            )
        ),
        "livingroom": RoomKind(
            _read_places(
                "sofa 1-2, armchair 1-2, coffeetable 1-2, sidetable 1-3, tvstand 0-1, shelf 0-4, drawer 0-4, "
                "dresser 0-1, diningtable 0-1, garbagecan 1, safe 0-1"
            )
        ),
        "studio": RoomKind(
            _read_places(
                "bed 1, sofa 0-1, desk 1, sidetable 1-2, countertop 1-2, cabinet 2-3, drawer 1-2, fridge 1, "
                "microwave 1, sinkbasin 1, garbagecan 1"
            ),
            is_trained=False,
        ),
        "office": RoomKind(
            _read_places(
                "desk 2-3, shelf 2-6, drawer 2-6, armchair 1-2, safe 1, coffeemachine 1, garbagecan 1-2"
            ),
            is_trained=False,
        ),
        "laundryroom": RoomKind(
            _read_places(
                "laundryhamper 1-2, sinkbasin 1, cabinet 2-4, countertop 1-2, shelf 1-4, towelholder 1, "
                "cart 0-1"
            ),
            is_trained=False,
        ),
        "diningroom": RoomKind(
            _read_places(
                "diningtable 1-2, sidetable 1-2, cabinet 2-4, drawer 1-3, fridge 1, microwave 1, cart 1, "
                "sinkbasin 1, shelf 0-2, garbagecan 1"
            ),
            is_trained=False,
        ),
    },
    openable=frozenset({"cabinet", "drawer", "fridge", "microwave", "safe", "laundryhamper"}),
    things=_read_things(
        """
apple clean heat cool: countertop diningtable fridge garbagecan microwave sinkbasin sidetable
bread heat cool: countertop diningtable fridge garbagecan microwave
butterknife clean: countertop diningtable drawer sinkbasin sidetable
cup clean heat cool: cabinet countertop diningtable fridge microwave shelf sinkbasin sidetable desk
dishsponge clean: cabinet countertop drawer sinkbasin shelf bathtubbasin toilet cart
egg clean heat cool: countertop diningtable fridge garbagecan microwave sinkbasin
fork clean: countertop diningtable drawer sinkbasin sidetable
glassbottle: cabinet countertop diningtable fridge garbagecan shelf sinkbasin
kettle clean: cabinet countertop diningtable shelf sinkbasin stoveburner
knife clean: countertop diningtable drawer sinkbasin sidetable
ladle clean: countertop diningtable drawer sinkbasin
lettuce clean cool: countertop diningtable fridge garbagecan sinkbasin
mug clean heat cool: cabinet coffeemachine countertop desk diningtable fridge microwave sidetable sinkbasin
pan clean cool: cabinet countertop diningtable fridge sinkbasin stoveburner
papertowelroll: cabinet countertop diningtable drawer garbagecan shelf
peppershaker: cabinet countertop diningtable drawer shelf sidetable
plate clean heat cool: cabinet countertop diningtable fridge microwave shelf sinkbasin sidetable
pot clean cool: cabinet countertop diningtable fridge sinkbasin stoveburner
potato clean heat cool: countertop diningtable fridge garbagecan microwave sinkbasin
saltshaker: cabinet countertop diningtable drawer shelf sidetable
soapbottle: bathtubbasin cabinet cart countertop drawer garbagecan shelf sinkbasin toilet
spatula clean: countertop diningtable drawer sinkbasin
spoon clean: countertop diningtable drawer sinkbasin sidetable
tomato clean heat cool: countertop diningtable fridge garbagecan microwave sinkbasin
winebottle cool: cabinet countertop diningtable fridge garbagecan shelf
bowl clean heat cool: cabinet countertop diningtable fridge microwave shelf sinkbasin desk dresser coffeetable
alarmclock: bed desk dresser shelf sidetable drawer
baseballbat: bed desk sofa armchair
basketball: bed armchair desk sofa
book: bed coffeetable desk diningtable drawer dresser shelf sidetable sofa armchair
box: bed armchair coffeetable cabinet desk diningtable dresser sidetable sofa
cd: desk drawer dresser garbagecan safe shelf sidetable
cellphone: bed coffeetable countertop desk drawer dresser safe shelf sidetable sofa armchair
creditcard: armchair coffeetable countertop desk diningtable drawer dresser shelf sidetable sofa
keychain: armchair coffeetable countertop desk diningtable drawer dresser safe shelf sidetable sofa
laptop: armchair bed coffeetable desk diningtable dresser sidetable sofa
newspaper: armchair bed coffeetable diningtable drawer garbagecan sidetable sofa tvstand
pen: bed countertop desk drawer dresser garbagecan shelf sidetable
pencil: bed countertop desk drawer dresser garbagecan shelf sidetable
pillow: armchair bed sofa laundryhamper
remotecontrol: armchair coffeetable drawer dresser sidetable sofa tvstand
statue: cart coffeetable desk diningtable dresser safe shelf sidetable tvstand
teddybear: armchair bed desk dresser sofa
tissuebox: cart coffeetable countertop desk diningtable drawer dresser sidetable toilet
vase: cart coffeetable countertop desk diningtable dresser safe shelf sidetable
watch: coffeetable desk drawer dresser safe shelf sidetable sofa tvstand
candle: bathtubbasin cabinet cart countertop drawer shelf toilet sidetable
cloth clean: bathtubbasin cabinet cart countertop drawer laundryhamper shelf sinkbasin toilet
handtowel: bathtubbasin cabinet countertop garbagecan handtowelholder laundryhamper sinkbasin
soapbar clean: bathtubbasin cabinet cart countertop drawer garbagecan shelf sinkbasin toilet
spraybottle: cabinet cart countertop drawer garbagecan shelf toilet
toiletpaper: bathtubbasin cabinet countertop drawer garbagecan shelf toilet toiletpaperhanger
towel: bathtubbasin laundryhamper towelholder
desklamp lamp: desk dresser sidetable
floorlamp lamp: armchair sofa
"""
    ),
    appliances={"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"},
    num_places=(8, 26),
    num_things=(7, 13),
    num_wordings=2,
    is_terse=False,
    numbers_all=True,
    has_idle_verbs=True,
    max_turns=20,
    spare_turns=6,
)

TINY = Catalogue(  # all names except the oven's are one token in the tiny models' vocabulary
    rooms={
        "hut": RoomKind(_read_places("bed 0-1, desk 1, box 1, drawer 0-1, sink 0-1, oven 0-1, shelf 0-1")),
        "den": RoomKind(_read_places("bed 1, desk 0-1, box 0-1, sink 0-1, oven 0-1, fridge 0-1, shelf 1")),
        "inn": RoomKind(
            _read_places("bed 0-1, desk 1, drawer 0-1, sink 0-1, fridge 0-1, oven 0-1, shelf 0-1")
        ),
        "loft": RoomKind(
            _read_places("bed 1-2, desk 0-1, box 0-1, drawer 1, sink 0-1, oven 0-1, fridge 0-1"),
            is_trained=False,
        ),
    },
    openable=frozenset({"box", "drawer"}),
    things=_read_things(
        """
cup clean heat cool: desk shelf sink fridge
egg heat cool: fridge box desk shelf
bread heat clean: drawer box shelf desk
plate clean: bed drawer sink shelf
book: desk box drawer bed
key: bed box drawer shelf
knife clean: bed shelf box desk
lamp lamp: desk bed
"""
    ),
    appliances={"clean": "sink", "heat": "oven", "cool": "fridge"},
    num_places=(4, 5),
    num_things=(1, 2),
    num_wordings=1,
    is_terse=True,
    numbers_all=False,
    has_idle_verbs=False,
    max_turns=10,
    spare_turns=2,
)

CATALOGUES: dict[str, Catalogue] = {"full": FULL, "tiny": TINY}
