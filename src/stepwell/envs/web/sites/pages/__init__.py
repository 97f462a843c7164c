"""The pages of the five sites, one module per site."""

from stepwell.envs.web.sites.pages.admin import ADMIN
from stepwell.envs.web.sites.pages.forum import FORUM
from stepwell.envs.web.sites.pages.issues import CODE
from stepwell.envs.web.sites.pages.map import MAP
from stepwell.envs.web.sites.pages.shop import SHOP

SITES = (SHOP, ADMIN, FORUM, CODE, MAP)

__all__ = ["SITES"]
