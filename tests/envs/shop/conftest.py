"""A small shop whose products are written by hand, and the tiny one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.envs.shop.goal import ShopGoal
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.products import Option, Product
from stepwell.envs.shop.products.store import Store, write_store
from stepwell.envs.shop.shop import Shop, open_shop

SIZES = Option("size", ("S", "M"))
PACKS = Option("pack", ("1 pack", "2 pack"), (0, 500))
BOOTS = ("Shoes", "Outdoor", "hiking boots")
SHELF = [
    Product("A1", "Fast hiking boots", "hiking boots", BOOTS, 4000, ("waterproof", "vegan"), (SIZES,),
            ("It is waterproof.", "It is vegan."), "A boot."),
    Product("A2", "Slow hiking boots", "hiking boots", BOOTS, 9000, ("waterproof",), (SIZES, PACKS),
            ("Truly fleece lined.",), "A boot."),
    Product("A3", "Leather boots", "dress boots", ("Shoes", "Dress", "dress boots"), 3000, ("vegan",)),
    Product("A4", "Tea", "tea", ("Grocery", "Drinks", "tea"), 500, ("vegan",), (PACKS,)),
    Product("A5", "<script>alert('x')</script> & \"co\"", "trap", ("<b>", "'"), 100, ("<i>",),
            (Option("<u>", ("<s>", "a&b\"c")),), ("<img src=x onerror=y>",), "</p><script>z</script>"),
    *(Product(f"F{number}", f"filler boots {number}", "filler", ("Filler",), 100) for number in range(7)),
]  # fmt: skip
WANTED = ShopGoal(
    "Find me hiking boots: vegan, waterproof, size: M. It must cost no more than $50.",
    "hiking boots",
    ("hiking", "boots"),
    BOOTS,
    ("vegan", "waterproof"),
    (("size", "M"),),
    5000,
)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    path: Path = tmp_path_factory.mktemp("shop") / "shop.db"
    write_store(path, SHELF)
    return Shop(Store(path), page_size=3)


@pytest.fixture(scope="session")
def tiny() -> Shop:
    return open_shop(ShopOptions(size="tiny"))
