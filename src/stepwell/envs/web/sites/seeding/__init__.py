"""What the sites start from: tables and the rows that a seed puts into them, one module per site."""

from stepwell.envs.web.sites.seeding import code, forum, map, shop

SCHEMAS = (shop.SCHEMA, forum.SCHEMA, code.SCHEMA, map.SCHEMA)
SEEDERS = {"shop": shop.seed_shop, "forum": forum.seed_forum, "code": code.seed_code, "map": map.seed_map}

__all__ = ["SCHEMAS", "SEEDERS"]
