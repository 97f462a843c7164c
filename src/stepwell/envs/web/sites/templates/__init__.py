"""Task templates of the five sites, one module per site."""

from stepwell.envs.web.sites.templates.admin import ADMIN_TEMPLATES
from stepwell.envs.web.sites.templates.code import CODE_TEMPLATES
from stepwell.envs.web.sites.templates.forum import FORUM_TEMPLATES
from stepwell.envs.web.sites.templates.map import MAP_TEMPLATES
from stepwell.envs.web.sites.templates.shop import SHOP_TEMPLATES
from stepwell.envs.web.sites.templates.template import TaskTemplate

_ALL = (*SHOP_TEMPLATES, *ADMIN_TEMPLATES, *FORUM_TEMPLATES, *CODE_TEMPLATES, *MAP_TEMPLATES)
TEMPLATES: dict[str, TaskTemplate] = {template.name: template for template in _ALL}
assert len(TEMPLATES) == len(_ALL), "two templates have one name"

__all__ = ["TEMPLATES"]
